//! Which Services are shown, and what of each?

use std::collections::BTreeSet;

use pointsman_model::Moment;
use pointsman_sli::endpoints::EndpointFacts;
use pointsman_sli::judgement::{Judgement, PATIENCE};
use serde_json::{Value, json};

use super::{FOUND, SHOWN};
use crate::facts::ServiceInfo;
use crate::owner::Owner;

/// Endpoints of one Service that are listed.
const ENDPOINTS: usize = 200;

/// Endpoints by what becomes of new connections.
#[derive(Clone, Copy, Default)]
struct Counts {
    ready: usize,
    unready: usize,
    serving: usize,
    terminating: usize,
}

/// A Service and how it is doing.
struct Row<'a> {
    name: &'a str,
    info: &'a ServiceInfo,
    counts: Counts,
    everywhere: bool,
    /// Why somebody should look at it, worst first; none if nobody has to.
    trouble: Option<&'static str>,
}

/// How many Services there are, and the first of them: those that somebody should look at.
pub(super) fn first(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let rows = rows(owner, judgement, now, "");
    let troubled = rows.iter().filter(|row| row.trouble.is_some()).count();
    let shown = rows.iter().take(SHOWN).map(Row::show);
    json!({ "total": rows.len(), "troubled": troubled, "list": shown.collect::<Vec<_>>() })
}

/// The Services whose name contains a text.
pub(crate) fn matching(owner: &Owner, text: &str, now: Moment) -> Value {
    let judgement = owner.judge(now);
    let rows = rows(owner, &judgement, now, text);
    let shown = rows.iter().take(FOUND).map(Row::show);
    json!({ "total": rows.len(), "list": shown.collect::<Vec<_>>() })
}

/// One Service with its endpoints and the gates of its pods.
pub(crate) fn one(owner: &Owner, name: &str, now: Moment) -> Option<Value> {
    let info = owner.world.services.get(name)?;
    let judgement = owner.judge(now);
    let (open, late) = open(&judgement, now);
    let mut value = row(owner, &open, &late, name, info).show();
    let mut endpoints: Vec<&EndpointFacts> = owner.world.endpoints.endpoints_of(name).collect();
    endpoints.sort_by(|left, right| (&left.pod, &left.uid).cmp(&(&right.pod, &right.uid)));
    let withdrawn = &owner.world.withdrawn;
    let shown = endpoints.iter().take(ENDPOINTS).map(|it| {
        json!({ "pod": it.pod, "node": it.node, "ready": it.ready, "serving": it.serving,
            "terminating": it.terminating, "withdrawn": withdrawn.votes(&it.node, now) })
    });
    value["endpoints"] = shown.collect();
    value["selector"] = json!(info.selector);
    Some(value)
}

fn rows<'a>(owner: &'a Owner, judgement: &Judgement<'_>, now: Moment, text: &str) -> Vec<Row<'a>> {
    let (open, late) = open(judgement, now);
    let services = owner.world.services.iter();
    let mut rows: Vec<Row<'a>> = services
        .filter(|(name, _)| name.contains(text))
        .map(|(name, info)| row(owner, &open, &late, name, info))
        .collect();
    // The sort is stable, so names stay in order among equals.
    rows.sort_by_key(|row| (row.trouble.is_none(), row.everywhere, row.counts.unready == 0));
    rows
}

/// Services of which a change is not everywhere, and those where that takes too long.
fn open<'a>(judgement: &'a Judgement<'_>, now: Moment) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
    let late = judgement
        .open
        .iter()
        .filter(|it| now.since(it.began()) > PATIENCE);
    (
        judgement.services(),
        late.map(|it| it.what.service.as_str()).collect(),
    )
}

fn row<'a>(
    owner: &'a Owner,
    open: &BTreeSet<&str>,
    late: &BTreeSet<&str>,
    name: &'a str,
    info: &'a ServiceInfo,
) -> Row<'a> {
    let mut counts = Counts::default();
    for endpoint in owner.world.endpoints.endpoints_of(name) {
        let count = match (endpoint.ready, endpoint.terminating, endpoint.serving) {
            (_, true, true) => &mut counts.serving,
            (_, true, false) => &mut counts.terminating,
            (true, false, _) => &mut counts.ready,
            (false, false, _) => &mut counts.unready,
        };
        *count += 1;
    }
    let trouble = match counts {
        _ if late.contains(name) => Some("a change is not everywhere"),
        Counts {
            ready: 0,
            unready: 1..,
            ..
        } => Some("no endpoint is ready"),
        _ => None,
    };
    Row {
        name,
        info,
        counts,
        everywhere: !open.contains(name),
        trouble,
    }
}

impl Row<'_> {
    fn show(&self) -> Value {
        json!({
            "name": self.name,
            "type": &*self.info.kind,
            "clusterIP": self.info.cluster_ip,
            "ready": self.counts.ready,
            "notReady": self.counts.unready,
            "servingTerminating": self.counts.serving,
            "terminating": self.counts.terminating,
            "everywhere": self.everywhere,
            "trouble": self.trouble,
        })
    }
}
