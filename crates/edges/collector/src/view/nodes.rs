//! Which nodes are shown, and what of each?

use pointsman_model::Moment;
use pointsman_protocol::watermark::Resource;
use pointsman_sli::fold::{Programmer, State};
use pointsman_sli::judgement::Judgement;
use pointsman_sli::skew::Offset;
use pointsman_sli::spread::Quantiles;
use serde_json::{Value, json};

use super::{FOUND, NAMED, SHOWN, reason, rounded};
use crate::owner::Owner;

/// Nodes that are listed as the slowest.
const SLOWEST: usize = 5;

/// How many programmers are in which state, and the first of them: those that somebody should look at.
pub(super) fn first(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let fold = &owner.world.fold;
    let plain = owner.followed.iter().filter(|(_, followed)| followed.plain);
    let plain_names: Vec<&str> = plain.map(|(name, _)| &**name).collect();
    let sorted = sorted(owner, judgement, now, "");
    let withdrawn = |it: &Programmer| owner.world.withdrawn.votes(&it.name, now).is_some();
    let troubled =
        |it: &&&Programmer| judgement.is_behind(it) || it.state(now) != State::Live || withdrawn(it);
    let shown = sorted
        .iter()
        .take(SHOWN)
        .map(|it| show(owner, judgement, it, now));
    json!({
        "live": fold.in_state(State::Live, now),
        "silent": fold.in_state(State::Silent, now),
        "stalled": fold.in_state(State::Stalled, now),
        "unreachable": fold.in_state(State::Unreachable, now),
        "behind": judgement.behind.len(),
        "troubled": sorted.iter().filter(troubled).count(),
        "plain": plain_names.len(),
        "plainNames": plain_names.iter().take(NAMED).collect::<Vec<_>>(),
        "list": shown.collect::<Vec<_>>(),
    })
}

/// The nodes whose name contains a text.
pub(crate) fn matching(owner: &Owner, text: &str, now: Moment) -> Value {
    let judgement = owner.judge(now);
    let sorted = sorted(owner, &judgement, now, text);
    let shown = sorted
        .iter()
        .take(FOUND)
        .map(|it| show(owner, &judgement, it, now));
    json!({ "total": sorted.len(), "list": shown.collect::<Vec<_>>() })
}

/// One node, and what it lacks.
pub(crate) fn one(owner: &Owner, name: &str, now: Moment) -> Option<Value> {
    let fold = &owner.world.fold;
    let programmer = fold.programmer(fold.id(name)?)?;
    let judgement = owner.judge(now);
    let mut value = show(owner, &judgement, programmer, now);
    let lag = judgement.behind.iter().find(|lag| lag.name == name);
    let lacks = judgement
        .open
        .iter()
        .filter(|it| programmer.mark(it.what.resource) < it.what.revision);
    value["reason"] = json!(lag.map(|lag| reason(lag, now)));
    value["missing"] = json!(lacks.count());
    value["url"] = json!(owner.followed.get(name).map(|followed| &followed.url));
    Some(value)
}

/// The nodes that took the longest to write what they got, slowest first.
pub(super) fn slowest(owner: &Owner, now: Moment) -> Value {
    let took = |it: &'_ Programmer| Some((it.took.quantiles(now)?, it.name.clone()));
    let mut all: Vec<(Quantiles, Box<str>)> = owner.world.fold.programmers().filter_map(took).collect();
    all.sort_by_key(|(took, _)| std::cmp::Reverse((took.p99, took.p50)));
    all.truncate(SLOWEST);
    let shown = all.iter().map(|(took, name)| {
        let mut value = quantiles(Some(*took));
        value["name"] = json!(name);
        value
    });
    shown.collect()
}

pub(super) fn quantiles(took: Option<Quantiles>) -> Value {
    took.map_or(Value::Null, |took| {
        json!({ "count": took.count, "p50Seconds": took.p50.as_secs_f64(), "p99Seconds": took.p99.as_secs_f64() })
    })
}

/// Those behind first, in the order of how long they are, then those that are not live, then withdrawn ones, then all others
/// by name.
fn sorted<'a>(owner: &'a Owner, judgement: &Judgement<'_>, now: Moment, text: &str) -> Vec<&'a Programmer> {
    let named = owner.world.fold.programmers().filter(|it| it.name.contains(text));
    let mut all: Vec<_> = named
        .map(|it| {
            let in_use = owner.world.withdrawn.votes(&it.name, now).is_none();
            ((!judgement.is_behind(it), it.state(now), in_use), it)
        })
        .collect();
    all.sort_by(|left, right| (left.0, &left.1.name).cmp(&(right.0, &right.1.name)));
    all.into_iter().map(|(_, it)| it).collect()
}

fn show(owner: &Owner, judgement: &Judgement<'_>, programmer: &Programmer, now: Moment) -> Value {
    let followed = owner.followed.get(&*programmer.name);
    let offset = followed.and_then(|followed| followed.clock.offset());
    let Offset { ahead, error } = offset.unwrap_or_default();
    let committed = &programmer.report.progress.committed;
    json!({
        "name": programmer.name,
        "state": programmer.state(now).as_str(),
        "behind": judgement.is_behind(programmer),
        "withdrawn": owner.world.withdrawn.votes(&programmer.name, now),
        "problem": followed.and_then(|followed| followed.lost.as_deref()),
        "watermark": { "services": committed.of(Resource::Services),
            "endpointSlices": committed.of(Resource::Slices) },
        "lastSeenSeconds": rounded(now.since(programmer.last_seen).as_secs_f64()),
        "clockAheadSeconds": offset.map(|_| ahead as f64 / 1e6),
        "clockErrorSeconds": offset.map(|_| error.as_secs_f64()),
        "faults": programmer.faults,
        "lastFault": programmer.last_fault.map(|fault| fault.as_str()),
        "took": quantiles(programmer.took.quantiles(now)),
    })
}
