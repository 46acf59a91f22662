//! From which nodes is traffic withheld because their peers do not reach them, and who voted for that?
//!
//! The controllers' Lease says it, and repeats it for as long as it is so: what is not repeated is no longer known.

use std::collections::BTreeMap;

use pointsman_api_client::Event;
use pointsman_model::Moment;
use pointsman_objects::Lease;
use pointsman_objects::lease::MicroTime;
use pointsman_protocol::peers::{
    FRESH, LIST_ANNOTATION, LIST_LEASE, VOTES_ANNOTATION, decode_list, decode_votes,
};

/// Of nodes that are listed without votes, because many are.
const UNNAMED: &str = "most of its observers do not reach it";

/// Withdrawn nodes with their votes.
#[derive(Debug, Default)]
pub(crate) struct Withdrawn {
    nodes: BTreeMap<Box<str>, Box<str>>,
    /// When the Lease was written last, by its writer's clock; a list that is read again is no newer.
    renewed: Option<MicroTime>,
    until: Moment,
}

impl Withdrawn {
    pub fn observe(&mut self, event: Event<Lease>, now: Moment) {
        match event {
            Event::Applied { key, object, .. } if key.name() == LIST_LEASE => {
                let renewed = object.spec.renew_time;
                if self.renewed == renewed {
                    return;
                }
                // One that is seen for the first time may be of a controller that is long gone.
                let known = self.renewed.is_some();
                let from = renewed.map_or(Moment(0), |at| Moment(at.0.as_microsecond()));
                self.renewed = renewed;
                self.until = (if known { now } else { from }).after(FRESH);
                let text = |name: &str| {
                    object
                        .metadata
                        .annotations
                        .get(name)
                        .unwrap_or_default()
                        .to_owned()
                };
                let (names, votes) = (text(LIST_ANNOTATION), text(VOTES_ANNOTATION));
                self.nodes = decode_list(&names)
                    .map(|name| (name.into(), UNNAMED.into()))
                    .collect();
                for (name, said) in decode_votes(&votes) {
                    self.nodes
                        .entry(name.into())
                        .and_modify(|known| *known = said.into());
                }
            }
            Event::Deleted { .. } => self.nodes.clear(),
            _ => {}
        }
    }

    /// Who voted for withdrawing a node, in words; `None` if it is in use.
    pub fn votes(&self, node: &str, now: Moment) -> Option<&str> {
        let votes = self.nodes.get(node).filter(|_| now <= self.until);
        votes.map(|votes| &**votes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_api_client::ObjectKey;
    use serde_json::json;

    const VOTES: &str = "2 of 2 observers do not reach it (n1, n2)";

    fn lease(names: &str, votes: &str, renewed: i64) -> Event<Lease> {
        let object = json!({ "metadata": { "name": LIST_LEASE, "namespace": "kube-system",
                "annotations": { LIST_ANNOTATION: names, VOTES_ANNOTATION: votes } },
            "spec": { "renewTime": format!("1970-01-01T00:{:02}:{:02}.000000Z", renewed / 60, renewed % 60) } });
        Event::Applied {
            key: ObjectKey::new("kube-system", LIST_LEASE),
            object: serde_json::from_value(object).unwrap(),
            resource_version: "1".into(),
        }
    }

    fn at(second: i64) -> Moment {
        Moment(second * 1_000_000)
    }

    #[test]
    fn a_node_is_withdrawn_with_its_votes_while_the_controllers_repeat_it() {
        let mut withdrawn = Withdrawn::default();
        let said = format!("n3: {VOTES}\n");
        withdrawn.observe(lease("n3,n4", &said, 100), at(101));
        assert_eq!(withdrawn.votes("n3", at(101)), Some(VOTES));
        assert_eq!(
            withdrawn.votes("n4", at(101)),
            Some(UNNAMED),
            "too many for all votes"
        );
        assert_eq!(withdrawn.votes("n1", at(101)), None);
        // The writer's clock may be off by any time.
        withdrawn.observe(lease("n3", &said, 10), at(111));
        assert_eq!(withdrawn.votes("n3", at(141)), Some(VOTES));
        assert_eq!(withdrawn.votes("n4", at(111)), None, "back in use");
        withdrawn.observe(lease("n3", &said, 10), at(142));
        assert_eq!(
            withdrawn.votes("n3", at(142)),
            None,
            "delivered again, not written again"
        );
        withdrawn.observe(lease("", "", 150), at(150));
        assert_eq!(withdrawn.votes("n3", at(150)), None);
    }

    #[test]
    fn a_list_from_long_ago_says_nothing_to_a_collector_that_starts() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.observe(lease("n3", "", 100), at(500));
        assert_eq!(withdrawn.votes("n3", at(500)), None);
        withdrawn.observe(lease("n3", "", 110), at(510));
        assert_eq!(withdrawn.votes("n3", at(510)), Some(UNNAMED));
    }
}
