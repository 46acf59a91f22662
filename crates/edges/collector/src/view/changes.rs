//! Which changes are shown, and what of each?

use std::collections::HashSet;

use pointsman_model::Moment;
use pointsman_protocol::watermark::Resource;
use pointsman_sli::fold::{Change, Fold};
use pointsman_sli::history;
use serde_json::{Value, json};

use super::{NAMED, time};
use crate::filter::Filter;
use crate::owner::Owner;

const CHANGES: usize = 60;

/// The newest changes of both collections, newest first.
pub(super) fn newest(fold: &Fold, now: Moment) -> Vec<Value> {
    let newest = |resource| fold.changes(resource).rev().take(CHANGES);
    let mut all: Vec<&Change> = newest(Resource::Services)
        .chain(newest(Resource::Slices))
        .collect();
    all.sort_by_key(|change| std::cmp::Reverse(change.written()));
    all.truncate(CHANGES);
    all.into_iter().map(|change| show(fold, change, now)).collect()
}

/// The changes that somebody looks for: those that are kept, and the slowest of the last two hours.
pub(crate) fn matching(owner: &Owner, filter: &Filter, now: Moment) -> Value {
    let fold = &owner.world.fold;
    let kept = Resource::ALL
        .into_iter()
        .flat_map(|resource| fold.changes(resource));
    let mut seen = HashSet::new();
    let mut found: Vec<&Change> = kept
        .chain(owner.history.slowest())
        .filter(|change| fits(owner, filter, change, now))
        .filter(|change| seen.insert((change.what.resource.as_str(), change.what.revision)))
        .collect();
    let matched = found.len();
    // Of a time that somebody points at, the slowest are of interest; else the newest.
    if filter.from.is_some() {
        let took = |change: &Change| history::latency(change).unwrap_or_else(|| now.since(change.began()));
        found.sort_by_key(|change| std::cmp::Reverse(took(change)));
    } else {
        found.sort_by_key(|change| std::cmp::Reverse(change.written()));
    }
    found.truncate(CHANGES);
    let shown: Vec<Value> = found.into_iter().map(|change| show(fold, change, now)).collect();
    json!({ "time": time(now), "matched": matched, "changes": shown })
}

fn fits(owner: &Owner, filter: &Filter, change: &Change, now: Moment) -> bool {
    let what = &change.what;
    let end = change.all.unwrap_or(now);
    let service = |asked: &String| match owner.world.services.contains_key(asked) {
        true => what.service == *asked,
        false => what.service.contains(asked.as_str()),
    };
    filter.service.as_ref().is_none_or(service)
        && filter.kind.is_none_or(|kind| what.kind == kind)
        && filter.from.is_none_or(|from| end >= from)
        && filter.to.is_none_or(|to| change.began() <= to)
        && (!filter.slow || end.since(change.began()) > owner.measure.day().objective())
        && filter
            .node
            .as_ref()
            .is_none_or(|node| held_up(&owner.world.fold, change, node))
}

/// Whether a node lacks a change, or was the last to have it.
fn held_up(fold: &Fold, change: &Change, node: &str) -> bool {
    let Some(id) = fold.id(node) else { return false };
    let lacks = |programmer: &pointsman_sli::fold::Programmer| {
        programmer.counted && programmer.mark(change.what.resource) < change.what.revision
    };
    match change.all {
        Some(_) => change.last == Some(id),
        None => fold.programmer(id).is_some_and(lacks),
    }
}

fn show(fold: &Fold, change: &Change, now: Moment) -> Value {
    let what = &change.what;
    let behind = match change.all {
        None => fold.behind(what.resource, what.revision, NAMED),
        Some(_) => Vec::new(),
    };
    let began = change.began();
    let took = |at: Option<Moment>| at.map(|at| at.since(began).as_secs_f64());
    let name = |id| fold.programmer(id).map(|programmer| &programmer.name);
    let nodes = change.commits.iter().filter_map(|(id, at)| {
        Some(json!({ "name": name(*id)?, "at": time(*at), "afterSeconds": at.since(began).as_secs_f64() }))
    });
    json!({
        "id": format!("{}/{}", what.resource.as_str(), what.revision),
        "service": what.service,
        "kind": what.kind.as_str(),
        "pod": what.pod,
        "revision": what.revision,
        "began": time(began),
        "triggered": what.triggered.map(time),
        "dated": what.dated.as_str(),
        "api": change.api().map(time),
        "written": time(change.written()),
        "writtenAfterSeconds": change.written().since(began).as_secs_f64(),
        "apiAfterSeconds": took(change.api()),
        "halfAfterSeconds": took(change.half),
        "mostAfterSeconds": took(change.most),
        "allAfterSeconds": took(change.all),
        "openSeconds": change.all.is_none().then(|| now.since(began).as_secs_f64()),
        "reached": change.reached,
        "of": change.of,
        "behind": behind,
        "last": change.last.and_then(name),
        "nodes": nodes.collect::<Vec<_>>(),
    })
}
