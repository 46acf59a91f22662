//! What does the page show?
//!
//! One JSON document, made anew from the state whenever somebody looks. Lists are bounded, so its size
//! does not follow the size of the cluster. `docs/sli.md` describes it for whoever reads it.

use jiff::Timestamp;
use pointsman_model::Moment;
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::Requirement;
use pointsman_sli::fold::{Change, Fold, Lag, Stage, State};
use pointsman_sli::judgement::{Judgement, Level};
use pointsman_sli::measure::Sli;
use pointsman_sli::pool::Estimate;
use pointsman_sli::skew::Offset;
use pointsman_sli::slo::{Day, judge};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::owner::Owner;

const CHANGES: usize = 60;
const LAGGING: usize = 50;
const PROGRAMMERS: usize = 200;
const SERVICES: usize = 300;
const DAYS: usize = 30;
const NAMED: usize = 10;
/// The whole document.
pub(crate) fn state(owner: &Owner, now: Moment) -> Value {
    let judgement = owner.judge(now);
    let behind = judgement.behind.iter().take(LAGGING);
    json!({
        "time": time(now),
        "summary": summary(owner, &judgement, now),
        "sli": sli(owner, &judgement, now),
        "programmers": programmers(owner, &judgement, now),
        "watermarks": watermarks(&owner.world.fold),
        "lagging": behind.map(|lag| lagging(owner, lag, now)).collect::<Vec<_>>(),
        "changes": changes(&owner.world.fold, now),
        "services": services(owner, &judgement),
        "profile": profile(owner),
        "gates": gates_view(owner),
    })
}

/// One sentence: what is not everywhere yet, and why.
fn summary(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let fold = &owner.world.fold;
    let text = match judgement.level {
        Level::Unknown if !owner.world.knows_enough() => "the API server has not been reached yet".to_owned(),
        Level::Unknown => "no programmer reports a watermark".to_owned(),
        Level::Behind => {
            let (worst, others) = judgement.behind.split_first().expect("somebody is behind");
            let others = match others.len() {
                0 => String::new(),
                1 => " and one more node".to_owned(),
                more => format!(" and {more} more nodes"),
            };
            format!("{}{others}: {}", worst.name, reason(worst, now))
        }
        Level::Busy => busy(judgement.open.len(), owner.gates.waiting().len()),
        Level::Ok => match fold.in_state(State::Unreachable, now) {
            0 => format!("everything is in the kernels of all {} nodes", fold.counted()),
            gone => format!(
                "everything is in the kernels of {} nodes; {gone} more cannot be reached",
                fold.counted()
            ),
        },
    };
    json!({ "level": judgement.level.as_str(), "text": text })
}

fn busy(open: usize, waiting: usize) -> String {
    let changes = match open {
        0 => None,
        1 => Some("one change is on its way".to_owned()),
        many => Some(format!("{many} changes are on their way")),
    };
    let pods = match waiting {
        0 => None,
        1 => Some("one pod waits to be stopped".to_owned()),
        many => Some(format!("{many} pods wait to be stopped")),
    };
    let both: Vec<String> = changes.into_iter().chain(pods).collect();
    both.join(", ")
}

fn reason(lag: &Lag<'_>, now: Moment) -> String {
    let silent = now.since(lag.last_seen).as_secs();
    let what = lag.missing.map_or_else(String::new, |change| {
        let waits = now.since(change.what.written).as_secs_f64();
        format!(
            "the change of {} ({}) from {waits:.1} s ago",
            change.what.service,
            change.what.kind.as_str()
        )
    });
    match lag.stage {
        Stage::Silent => format!("no report for {silent} s"),
        Stage::Watch => format!("its watch has not delivered {what}"),
        Stage::Plan => format!("it has not started to program {what}"),
        Stage::Kernel => format!("{what} is not in its kernel"),
    }
}

fn sli(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let day = owner.measure.day();
    let [pooled, exact] = owner.forms(judgement, now);
    json!({
        "objectiveSeconds": day.objective().as_secs_f64(),
        "verdict": judge(pooled.p99, pooled.coverage, day.objective()).as_str(),
        "pooled": sli_view(&pooled, day),
        "exact": sli_view(&exact, day),
        "day": day_view(day),
        "days": owner.days.iter().rev().take(DAYS).map(day_view).collect::<Vec<_>>(),
        "history": owner.history.iter().map(|(at, p99)| json!([time(*at), estimate(*p99)])).collect::<Vec<_>>(),
    })
}

fn sli_view(sli: &Sli, day: &Day) -> Value {
    json!({
        "verdict": judge(sli.p99, sli.coverage, day.objective()).as_str(),
        "samples": sli.samples,
        "unfinished": sli.unfinished,
        "p50": estimate(sli.p50),
        "p90": estimate(sli.p90),
        "p99": estimate(sli.p99),
        "coverage": rounded(sli.coverage),
    })
}

fn day_view(day: &Day) -> Value {
    json!({
        "date": date(day.number),
        "verdict": day.verdict().as_str(),
        "objectiveSeconds": day.objective().as_secs_f64(),
        "figure": estimate(day.figure()),
        "pooledP99": estimate(day.samples.quantile(0.99)),
        "exactP99": estimate(day.exact.quantile(0.99)),
        "samples": day.samples.count(),
        "changes": day.exact.count(),
        "coverage": rounded(day.coverage()),
        "minutes": { "evaluated": day.values.count(), "quiet": day.quiet_minutes },
        "unplacedSamples": day.unplaced,
        "programmers": day.programmers,
    })
}

/// `lowSeconds` and `highSeconds` enclose the value; a high of null is above every bucket.
pub(crate) fn estimate(estimate: Option<Estimate>) -> Value {
    let Some(estimate) = estimate else {
        return Value::Null;
    };
    json!({
        "lowSeconds": estimate.low.as_secs_f64(),
        "highSeconds": estimate.high.map(|high| high.as_secs_f64()),
        "errorSeconds": estimate.error().map(|error| error.as_secs_f64()),
    })
}

fn programmers(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let fold = &owner.world.fold;
    let plain = owner.followed.iter().filter(|(_, followed)| followed.plain);
    let plain_names: Vec<&str> = plain.map(|(name, _)| &**name).collect();
    let mut list: Vec<Value> = fold
        .programmers()
        .map(|programmer| {
            let followed = owner.followed.get(&*programmer.name);
            let offset = followed.and_then(|followed| followed.clock.offset());
            let Offset { ahead, error } = offset.unwrap_or_default();
            let committed = &programmer.report.progress.committed;
            json!({
                "name": programmer.name,
                "state": programmer.state(now).as_str(),
                "behind": judgement.is_behind(programmer),
                "problem": followed.and_then(|followed| followed.lost.as_deref()),
                "watermark": { "services": committed.of(Resource::Services),
                    "endpointSlices": committed.of(Resource::Slices) },
                "lastSeenSeconds": rounded(now.since(programmer.last_seen).as_secs_f64()),
                "clockAheadSeconds": offset.map(|_| ahead as f64 / 1e6),
                "clockErrorSeconds": offset.map(|_| error.as_secs_f64()),
                "faults": programmer.faults,
                "lastFault": programmer.last_fault.map(|fault| fault.as_str()),
            })
        })
        .collect();
    list.sort_by(|left, right| {
        (left["state"].as_str(), left["name"].as_str())
            .cmp(&(right["state"].as_str(), right["name"].as_str()))
            .reverse()
    });
    list.truncate(PROGRAMMERS);
    list.reverse();
    json!({
        "live": fold.in_state(State::Live, now),
        "silent": fold.in_state(State::Silent, now),
        "stalled": fold.in_state(State::Stalled, now),
        "unreachable": fold.in_state(State::Unreachable, now),
        "behind": judgement.behind.len(),
        "plain": plain_names.len(),
        "plainNames": plain_names.iter().take(NAMED).collect::<Vec<_>>(),
        "list": list,
    })
}

fn watermarks(fold: &Fold) -> Value {
    let of = |resource| {
        json!({
            "lowest": fold.lowest(resource),
            "p1": fold.reached_by(resource, 0.99),
            "newestChange": fold.changes(resource).next_back().map(|change| change.what.revision),
        })
    };
    json!({ "services": of(Resource::Services), "endpointSlices": of(Resource::Slices) })
}

fn lagging(owner: &Owner, lag: &Lag<'_>, now: Moment) -> Value {
    let problem = owner
        .followed
        .get(lag.name)
        .and_then(|followed| followed.lost.as_deref());
    json!({
        "name": lag.name,
        "stage": lag.stage.as_str(),
        "reason": reason(lag, now),
        "problem": problem,
        "sinceSeconds": lag.missing.map(|change| rounded(now.since(change.what.written).as_secs_f64())),
        "change": lag.missing.map(|change| json!({
            "service": change.what.service,
            "kind": change.what.kind.as_str(),
            "revision": change.what.revision,
        })),
    })
}

/// The newest changes of both collections, newest first.
fn changes(fold: &Fold, now: Moment) -> Vec<Value> {
    let newest = |resource| fold.changes(resource).rev().take(CHANGES);
    let mut all: Vec<&Change> = newest(Resource::Services)
        .chain(newest(Resource::Slices))
        .collect();
    all.sort_by_key(|change| std::cmp::Reverse(change.written()));
    all.truncate(CHANGES);
    all.into_iter()
        .map(|change| change_view(fold, change, now))
        .collect()
}

fn change_view(fold: &Fold, change: &Change, now: Moment) -> Value {
    let what = &change.what;
    let behind = match change.all {
        None => fold.behind(what.resource, what.revision, NAMED),
        Some(_) => Vec::new(),
    };
    let began = change.began();
    let took = |at: Option<Moment>| at.map(|at| at.since(began).as_secs_f64());
    let nodes = change.commits.iter().filter_map(|(id, at)| {
        let name = &fold.programmer(*id)?.name;
        Some(json!({ "name": name, "at": time(*at), "afterSeconds": at.since(began).as_secs_f64() }))
    });
    json!({
        "id": format!("{}/{}", what.resource.as_str(), what.revision),
        "service": what.service,
        "kind": what.kind.as_str(),
        "pod": what.pod,
        "revision": what.revision,
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
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

fn services(owner: &Owner, judgement: &Judgement<'_>) -> Value {
    let world = &owner.world;
    let open = judgement.services();
    // Those that are not everywhere come first, whatever their number.
    let first = world
        .services
        .iter()
        .filter(|(name, _)| open.contains(name.as_str()));
    let rest = world
        .services
        .iter()
        .filter(|(name, _)| !open.contains(name.as_str()));
    let shown = first.chain(rest).take(SERVICES).map(|(name, info)| {
        let (mut ready, mut serving, mut terminating, mut unready) = (0, 0, 0, 0);
        for endpoint in world.endpoints.endpoints_of(name) {
            match (endpoint.ready, endpoint.terminating, endpoint.serving) {
                (_, true, true) => serving += 1,
                (_, true, false) => terminating += 1,
                (true, false, _) => ready += 1,
                (false, false, _) => unready += 1,
            }
        }
        json!({
            "name": name,
            "type": &*info.kind,
            "clusterIP": info.cluster_ip,
            "ready": ready,
            "notReady": unready,
            "servingTerminating": serving,
            "terminating": terminating,
            "everywhere": !open.contains(name.as_str()),
        })
    });
    json!({ "total": world.services.len(), "list": shown.collect::<Vec<_>>() })
}

fn profile(owner: &Owner) -> Value {
    let Some(profile) = &owner.world.profile else {
        return Value::Null;
    };
    let conditions = profile.conditions.iter().map(
        |it| json!({ "type": it.r#type, "status": it.status, "reason": it.reason, "message": it.message }),
    );
    json!({ "name": profile.profile, "conditions": conditions.collect::<Vec<_>>() })
}

fn gates_view(owner: &Owner) -> Value {
    let world = &owner.world;
    let waiting = owner.gates.waiting().take(LAGGING).map(|waiting| {
        let waited = Instant::now().saturating_duration_since(waiting.asked);
        let behind = match waiting.requirement {
            Requirement::Revision(revision) => world.fold.behind(Resource::Slices, revision, NAMED),
            _ => Vec::new(),
        };
        let reason = match waiting.requirement {
            Requirement::Nothing => "looking for endpoints",
            Requirement::Unmarked => "no slice takes it out of use yet",
            Requirement::Revision(_) => "not in every kernel yet",
        };
        json!({
            "form": waiting.gate.form(),
            "about": waiting.gate.about(),
            "waitedSeconds": rounded(waited.as_secs_f64()),
            "boundSeconds": waiting.bound.as_secs_f64(),
            "reason": reason,
            "behind": behind,
        })
    });
    let recent = owner.gates.recent.iter().rev().map(|past| {
        json!({
            "form": past.gate.form(),
            "about": past.gate.about(),
            "outcome": past.opened.outcome.as_str(),
            "waitedSeconds": past.opened.waited.as_secs_f64(),
            "behind": past.opened.behind,
            "at": time(past.at),
        })
    });
    json!({
        "boundSeconds": owner.gate_bound().as_secs_f64(),
        "waitingTotal": owner.gates.waiting().len(),
        "waiting": waiting.collect::<Vec<_>>(),
        "recent": recent.collect::<Vec<_>>(),
    })
}

/// RFC 3339 with microseconds.
pub(crate) fn time(at: Moment) -> String {
    Timestamp::from_microsecond(at.0).map_or_else(|_| String::new(), |time| format!("{time:.6}"))
}

/// The date of a day counted from 1970.
pub(crate) fn date(number: i64) -> String {
    let start = Timestamp::from_second(number.saturating_mul(86_400));
    start.map_or_else(|_| number.to_string(), |start| start.to_string()[..10].to_owned())
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_dates_are_those_of_utc() {
        assert_eq!(time(Moment(1_500_000)), "1970-01-01T00:00:01.500000Z");
        assert_eq!(date(20_772), "2026-11-15");
        assert_eq!(estimate(None), Value::Null);
    }
}
