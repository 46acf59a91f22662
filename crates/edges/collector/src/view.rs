//! What does the page show?
//!
//! One JSON document, made anew from the state whenever somebody looks. Lists are bounded, so its size
//! does not follow the size of the cluster. `docs/sli.md` describes it for whoever reads it.

pub(crate) mod changes;
pub(crate) mod history;
pub(crate) mod nodes;
pub(crate) mod services;

use std::time::Duration;

use jiff::Timestamp;
use pointsman_model::Moment;
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::Requirement;
use pointsman_sli::fold::{Fold, Lag, Stage, State};
use pointsman_sli::history::Part;
use pointsman_sli::judgement::{Impact, Judgement, Level};
use pointsman_sli::measure::Sli;
use pointsman_sli::pool::Estimate;
use pointsman_sli::slo::{Day, judge};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::filter::Filter;
use crate::owner::Owner;

const LAGGING: usize = 50;
const DAYS: usize = 30;
const NAMED: usize = 10;
/// Services and nodes in the document, those that somebody should look at first.
const SHOWN: usize = 50;
/// Services and nodes in an answer to somebody who looks for them.
const FOUND: usize = 200;

/// What can be looked at besides the whole document.
#[derive(Debug)]
pub(crate) enum Detail {
    Changes(Filter),
    History,
    /// Those whose names contain a text.
    Services(String),
    Service(String),
    Nodes(String),
    Node(String),
}

/// One of the details; `None` if there is no such Service or node.
pub(crate) fn detail(owner: &Owner, detail: &Detail, now: Moment) -> Option<Value> {
    match detail {
        Detail::Changes(filter) => Some(changes::matching(owner, filter, now)),
        Detail::History => Some(history::show(owner, now)),
        Detail::Services(text) => Some(services::matching(owner, text, now)),
        Detail::Service(name) => services::one(owner, name, now),
        Detail::Nodes(text) => Some(nodes::matching(owner, text, now)),
        Detail::Node(name) => nodes::one(owner, name, now),
    }
}

/// The whole document.
pub(crate) fn state(owner: &Owner, now: Moment) -> Value {
    let judgement = owner.judge(now);
    let behind = judgement.behind.iter().take(LAGGING);
    json!({
        "time": time(now),
        "summary": summary(owner, &judgement, now),
        "sli": sli(owner, &judgement, now),
        "programmers": nodes::first(owner, &judgement, now),
        "watermarks": watermarks(&owner.world.fold),
        "lagging": behind.map(|lag| lagging(owner, lag, now)).collect::<Vec<_>>(),
        "stages": stages(owner, now),
        "changes": changes::newest(&owner.world.fold, now),
        "services": services::first(owner, &judgement, now),
        "profile": profile(owner),
        "gates": gates_view(owner),
    })
}

/// One sentence: what is not everywhere yet, where, and whom it concerns.
fn summary(owner: &Owner, judgement: &Judgement<'_>, now: Moment) -> Value {
    let fold = &owner.world.fold;
    let text = match (judgement.level, &judgement.impact) {
        (Level::Unknown, _) if !owner.world.knows_enough() => {
            "the API server has not been reached yet".to_owned()
        }
        (Level::Unknown, _) => "no programmer reports a watermark".to_owned(),
        (Level::Behind, Some(impact)) => behind(impact, now),
        (Level::Behind, None) => "a node is behind".to_owned(),
        (Level::Busy, _) => busy(judgement.open.len(), owner.gates.waiting().len()),
        (Level::Ok, _) => match fold.in_state(State::Unreachable, now) {
            0 => format!("everything is in the kernels of all {} nodes", fold.counted()),
            gone => format!(
                "everything is in the kernels of {} nodes; {gone} more cannot be reached",
                fold.counted()
            ),
        },
    };
    json!({ "level": judgement.level.as_str(), "text": text })
}

/// Who is behind, what is missing there, and who waits for it.
fn behind(impact: &Impact<'_>, now: Moment) -> String {
    let Lag {
        name,
        stage,
        missing,
        last_seen,
    } = &impact.worst;
    let silent = span(now.since(*last_seen));
    let waits = missing.map_or(Duration::ZERO, |change| now.since(change.began()));
    let waits = span(waits);
    let who = match stage {
        Stage::Silent => format!("{name} silent {silent}"),
        Stage::Watch => format!("{name} {waits} behind, its watch delivers nothing"),
        Stage::Plan => format!("{name} {waits} behind, has not begun to write"),
        Stage::Kernel => format!("{name} {waits} behind, is writing"),
    };
    let mut services = impact.services.iter();
    let of = match (services.next(), services.len()) {
        (Some(one), 0) => (*one).to_owned(),
        _ => format!("{} Services", impact.services.len()),
    };
    let what = match impact.changes {
        0 => "no change is missing there".to_owned(),
        1 => format!("one change of {of} missing there"),
        many => format!("{many} changes of {of} missing there"),
    };
    let others = match impact.nodes - 1 {
        0 => None,
        1 => Some("one more node is behind".to_owned()),
        more => Some(format!("{more} more nodes are behind")),
    };
    let pods = match impact.waiting {
        0 => None,
        1 => Some("one pod waits".to_owned()),
        many => Some(format!("{many} pods wait")),
    };
    let all: Vec<String> = [Some(format!("{who}: {what}")), others, pods]
        .into_iter()
        .flatten()
        .collect();
    all.join("; ")
}

/// Tenths of a second below ten, then seconds, from two minutes on minutes.
fn span(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
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
        "historyTime": owner.history.points().last().map(|point| time(point.at)),
    })
}

/// Where the time of the last minutes went: by part of the way, and by node.
fn stages(owner: &Owner, now: Moment) -> Value {
    let part = |part: Part| {
        let mut value = nodes::quantiles(owner.history.spread(part, now));
        if value.is_object() {
            value["stage"] = json!(part.as_str());
        }
        value
    };
    let parts = Part::ALL.into_iter().map(part).filter(Value::is_object);
    json!({ "list": parts.collect::<Vec<_>>(), "slowestNodes": nodes::slowest(owner, now) })
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
    fn the_headline_says_who_is_behind_what_is_missing_there_and_who_waits() {
        let impact = |stage, nodes, changes, services: &[&'static str], waiting| {
            let worst = Lag {
                name: "n2",
                stage,
                missing: None,
                last_seen: Moment(0),
            };
            let services = services.iter().copied().collect();
            let impact = Impact {
                worst,
                nodes,
                changes,
                services,
                waiting,
            };
            behind(&impact, Moment(12_000_000))
        };
        assert_eq!(
            impact(Stage::Silent, 1, 24, &["default/web", "default/db"], 9),
            "n2 silent 12 s: 24 changes of 2 Services missing there; 9 pods wait"
        );
        assert_eq!(
            impact(Stage::Silent, 1, 0, &[], 0),
            "n2 silent 12 s: no change is missing there"
        );
        assert_eq!(
            impact(Stage::Plan, 3, 1, &["default/web"], 1),
            "n2 0.0 s behind, has not begun to write: one change of default/web missing there; \
             2 more nodes are behind; one pod waits"
        );
    }

    #[test]
    fn times_and_dates_are_those_of_utc() {
        assert_eq!(time(Moment(1_500_000)), "1970-01-01T00:00:01.500000Z");
        assert_eq!(date(20_772), "2026-11-15");
        assert_eq!(estimate(None), Value::Null);
    }
}
