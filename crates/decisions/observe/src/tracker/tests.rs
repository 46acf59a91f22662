use std::net::Ipv4Addr;

use pointsman_dataplane::Index;
use pointsman_dataplane::state::ExternalIps;
use pointsman_model::{IpFamily, Moment, NodeName, Revision};
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::history::{event, fold};
use proptest::prelude::*;

use super::*;
use crate::nftables;
use crate::place::{Chain, Content};

/// The rules of kube-proxy, which writes what it was given, whole, whenever it comes to it.
type Rules = BTreeMap<ServiceName, State<Ipv4Addr>>;

/// All that is said.
fn whole(rules: &Rules) -> Statement<Ipv4Addr> {
    rules
        .values()
        .flat_map(|state| (nftables::language().statement)(state.as_deref()))
        .collect()
}

/// What is found at some places of the rules.
fn look(rules: &Rules, places: &BTreeSet<Place<Ipv4Addr>>) -> Statement<Ipv4Addr> {
    let said = whole(rules).into_iter();
    said.filter(|(place, _)| places.contains(place)).collect()
}

struct World {
    index: Index<Ipv4Addr>,
    tracker: Tracker<Ipv4Addr>,
    /// The changes of each step.
    history: Vec<Vec<Change<Ipv4Addr>>>,
    /// How many steps kube-proxy has written.
    written: usize,
    rules: Rules,
    /// How many steps were said.
    said: usize,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self {
            index: Index::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0)),
            tracker: Tracker::new(nftables::language()),
            history: Vec::new(),
            written: 0,
            rules: Rules::new(),
            said: 0,
            now: Instant::now(),
        }
    }

    fn of(text: &str) -> Self {
        let mut world = Self::new();
        world.apply(text);
        world.write();
        world.look();
        assert_eq!(world.said, 1, "{:?}", world.tracker.behind());
        world
    }

    /// The cluster becomes another one.
    fn apply(&mut self, text: &str) {
        let index = Cluster::parse(text).index::<Ipv4Addr>();
        let desired = index
            .desired()
            .map(|state| (state.service.name.clone(), Some(state)));
        let mut after: Rules = self
            .tracker
            .services
            .keys()
            .map(|name| (name.clone(), None))
            .collect();
        after.extend(desired);
        let change = |(name, after)| Change {
            name,
            before: None,
            after,
        };
        self.step(after.into_iter().map(change).collect());
    }

    fn step(&mut self, changes: Vec<Change<Ipv4Addr>>) {
        self.history.push(changes.clone());
        let step = Step {
            watermark: Watermark {
                services: None,
                slices: Some(Revision(self.history.len() as u64)),
            },
            triggers: Vec::new(),
        };
        self.tracker.fold(self.now, changes, step);
    }

    /// kube-proxy writes everything that there is.
    fn write(&mut self) {
        self.write_some(usize::MAX);
    }

    fn write_some(&mut self, steps: usize) {
        let until = self.written.saturating_add(steps).min(self.history.len());
        for change in self.history[self.written..until].iter().flatten() {
            self.rules.insert(change.name.clone(), change.after.clone());
        }
        self.written = until;
        self.tracker.doubt_unsaid();
    }

    /// Reads what is asked for.
    fn look(&mut self) {
        while let Some((name, places)) = self.tracker.question() {
            let found = look(&self.rules, &places);
            self.tracker.observe(self.now, &name, &found);
        }
        for step in self.tracker.said(self.now) {
            let slices = step.watermark.slices.map_or(0, |revision| revision.0);
            assert!(slices as usize > self.said, "watermarks grow");
            self.said = slices as usize;
        }
    }

    /// The first step after what was written that leads to other rules.
    fn first_unwritten(&self) -> usize {
        let mut rules = self.rules.clone();
        for (number, changes) in self.history.iter().enumerate().skip(self.written) {
            let before = whole(&rules);
            rules.extend(
                changes
                    .iter()
                    .map(|change| (change.name.clone(), change.after.clone())),
            );
            if whole(&rules) != before {
                return number;
            }
        }
        self.history.len()
    }

    fn behind(&self) -> String {
        let behind = self.tracker.behind().expect("somebody is behind");
        let service = behind.service.map_or("all".to_owned(), |name| name.to_string());
        format!("{service}: {}", behind.differs.replace("service-", ""))
    }
}

const WEB: &str = "node n1
    service default/web:http 172.30.0.1:80/tcp
    endpoint default/web:http 10.0.1.5:8080 node=n1 ready\n";
const SECOND: &str = "endpoint default/web:http 10.0.1.6:8080 node=n1 ready\n";

#[test]
fn a_change_is_said_when_the_rules_say_it_and_not_before() {
    let mut world = World::of(WEB);
    world.apply(&[WEB, SECOND].concat());
    world.look();
    assert_eq!(world.said, 1);
    assert!(
        world.behind().contains("default/web: chain "),
        "{}",
        world.behind()
    );
    assert!(world.behind().ends_with("does not send to 10.0.1.6:8080"));
    world.write();
    world.look();
    assert_eq!((world.said, world.tracker.behind()), (2, None));
}

#[test]
fn rules_may_be_written_before_we_know_what_they_must_say() {
    let mut world = World::of(WEB);
    let early = Cluster::parse(&[WEB, SECOND].concat()).index::<Ipv4Addr>();
    let name = ServiceName::new("default", "web").unwrap();
    world.rules.insert(name.clone(), early.desired_service(&name));
    world.tracker.doubt(&name);
    world.look();
    assert!(
        world.behind().ends_with("still sends to 10.0.1.6:8080"),
        "{}",
        world.behind()
    );
    world.apply(&[WEB, SECOND].concat());
    world.look();
    assert_eq!((world.said, world.tracker.behind()), (2, None));
}

#[test]
fn skipped_states_are_said_with_the_one_that_was_written() {
    let mut world = World::of(WEB);
    world.apply(&[WEB, SECOND].concat());
    world.apply("node n1\nservice default/web:http 172.30.0.1:80/tcp");
    world.write_some(1);
    world.look();
    assert_eq!(world.said, 2);
    world.apply(&[WEB, SECOND].concat().replace("10.0.1.5", "10.0.1.7"));
    world.write();
    world.look();
    assert_eq!(world.said, 4);
}

#[test]
fn a_state_that_returns_counts_only_after_it_has_stood() {
    let mut world = World::of(WEB);
    world.apply(&[WEB, SECOND].concat());
    world.apply(WEB);
    world.look();
    assert_eq!(world.said, 1, "kube-proxy may have seen neither");
    world.now += SETTLED - Duration::from_millis(1);
    world.look();
    assert_eq!(world.said, 1);
    assert_eq!(world.tracker.wake(), Some(world.now + Duration::from_millis(1)));
    world.now += Duration::from_millis(1);
    world.look();
    assert_eq!((world.said, world.tracker.behind()), (3, None));
}

#[test]
fn a_returned_state_waits_for_older_changes_of_others() {
    let other = "service default/other:http 172.30.0.2:80/tcp\n";
    let mut world = World::of(WEB);
    world.apply(&[WEB, other].concat());
    world.apply(&[WEB, other, SECOND].concat());
    world.apply(&[WEB, other].concat());
    world.look();
    world.now += SETTLED * 10;
    world.look();
    assert_eq!(world.said, 1, "kube-proxy hangs");
    world.write_some(1);
    world.look();
    assert_eq!(world.said, 4);
}

#[test]
fn changes_without_a_trace_are_said_at_once() {
    let mut world = World::of(WEB);
    world.apply(&[WEB, "endpoint default/web:http 10.0.1.9:8080 node=n1 unready\n"].concat());
    world.look();
    assert_eq!(world.said, 2);
}

#[test]
fn rules_that_somebody_edits_stop_the_watermark_and_name_the_service() {
    let other = "service default/other:http 172.30.0.2:80/tcp\n";
    let all = [WEB, other].concat();
    let mut world = World::of(&all);
    let name = ServiceName::new("default", "web").unwrap();
    let right = world.rules.insert(name.clone(), None).unwrap();
    world.tracker.doubt(&name);
    world.apply(&[&all, "endpoint default/other:http 10.0.1.6:8080 node=n1 ready\n"].concat());
    let written = world.rules.get(&name).cloned().unwrap();
    world.write();
    world.rules.insert(name.clone(), written);
    world.look();
    assert_eq!(world.said, 1);
    assert!(world.behind().starts_with("default/web: "), "{}", world.behind());
    world.rules.insert(name.clone(), right);
    world.tracker.doubt(&name);
    world.look();
    assert_eq!((world.said, world.tracker.behind()), (2, None));
}

#[test]
fn a_service_that_takes_over_an_address_does_not_hold_back_the_end_of_the_other() {
    let mut world = World::of("node n1\nservice default/web:http 172.30.0.1:80/tcp");
    world.apply("node n1\nservice default/heir:http 172.30.0.1:80/tcp");
    world.write();
    world.look();
    world.now += SETTLED;
    world.look();
    assert_eq!((world.said, world.tracker.behind()), (2, None));
}

#[test]
fn nothing_is_said_while_what_all_share_is_missing() {
    let mut world = World::of(WEB);
    world.tracker.observe_ground(
        world.now,
        Some("chain services has no rule with service-ips".into()),
    );
    world.apply(&[WEB, SECOND].concat());
    world.write();
    world.look();
    assert_eq!(world.said, 1);
    assert!(world.behind().starts_with("all: chain services"));
    world.tracker.observe_ground(world.now, None);
    world.look();
    assert_eq!(world.said, 2);
}

#[test]
fn a_kube_proxy_that_hangs_costs_bounded_memory_and_is_caught_up_with() {
    let mut world = World::of(WEB);
    for round in 0..2 * STEPS {
        let endpoint = format!("10.0.{}.{}", 2 + round / 250, 1 + round % 250);
        world.apply(&WEB.replace("10.0.1.5", &endpoint));
    }
    let name = ServiceName::new("default", "web").unwrap();
    assert!(world.tracker.services[&name].pending.len() <= STATES && world.tracker.steps.len() <= STEPS);
    world.look();
    assert_eq!(world.said, 1);
    world.write();
    world.look();
    assert_eq!(world.said, 1 + 2 * STEPS);
}

/// Two Services without endpoints, the first of them at a node port or not.
fn refused(first_port: &str, second_port: &str) -> String {
    format!(
        "node n1\n service default/web:http 172.30.0.1:80/tcp {first_port}\n service default/old:http 172.30.0.2:80/tcp {second_port}\n"
    )
}

#[test]
fn what_another_service_still_says_at_a_destination_is_not_taken_for_ones_own() {
    let (theirs, ours) = (refused("", "nodeport=30001"), refused("nodeport=30001", ""));
    let mut world = World::of(&theirs);
    // There are endpoints for a time, which kube-proxy does not come to see; then the port changes hands.
    world.apply(
        &[
            theirs.as_str(),
            "endpoint default/web:http 10.0.1.5:8080 node=n1 ready\n",
        ]
        .concat(),
    );
    world.apply(&ours);
    world.tracker.doubt_all();
    world.look();
    assert_eq!(world.said, 1, "the port is refused, but not for this Service");
    world.write();
    world.look();
    world.now += SETTLED;
    world.look();
    assert_eq!(world.said, 3);
}

#[test]
fn a_chain_that_leads_elsewhere_is_not_what_was_asked_for() {
    let mut world = World::of(WEB);
    let name = ServiceName::new("default", "web").unwrap();
    world.tracker.doubt(&name);
    let (_, places) = world.tracker.question().unwrap();
    let mut found = look(&world.rules, &places);
    for content in found.values_mut() {
        if let Content::Chain(Chain { chains, .. }) = content {
            chains.insert("elsewhere".to_owned());
        }
    }
    world.tracker.observe(world.now, &name, &found);
    assert!(world.behind().ends_with("leads elsewhere"), "{}", world.behind());
}

proptest! {
    /// Whatever changes, and however kube-proxy lags and merges: never early, and everything in the end.
    #[test]
    fn nothing_is_said_before_it_is_written_and_everything_after(
        events in prop::collection::vec((any::<u64>(), 0..8u8), 1..60),
    ) {
        let mut world = World::new();
        for (number, what) in events {
            match what {
                0 => world.write(),
                1 => world.write_some(1),
                2 => world.tracker.doubt_all(),
                3..5 => world.look(),
                _ => {
                    let revision = world.history.len() as u64 + 1;
                    fold(&mut world.index, &event(number, IpFamily::V4), revision);
                    let batch = world.index.checkout();
                    world.step(batch.changes.clone());
                    world.index.commit(batch);
                }
            }
            prop_assert!(world.said <= world.first_unwritten(), "{} of {}", world.said, world.first_unwritten());
        }
        world.write();
        world.look();
        world.now += SETTLED;
        world.look();
        prop_assert_eq!(world.said, world.history.len());
        prop_assert_eq!(world.tracker.behind(), None);
    }
}
