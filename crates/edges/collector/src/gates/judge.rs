//! Does one gate open, and if not, what has to happen first?

use std::time::Duration;

use pointsman_api_client::Scope;
use pointsman_model::Moment;
use pointsman_protocol::gate::{Answer, Outcome, Subject};
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::Requirement;
use pointsman_sli::gate::{Deletion, OVERDUE_WAIT, Situation, decide};
use tokio::time::Instant;

use super::deletions::{self, PodState};
use super::index::Place;
use super::{Waiting, Word};
use crate::world::World;

/// Names of those behind that an answer carries.
const NAMED: usize = 20;
/// How long a Service may take to turn up in our watches. A cluster whose API server cannot be asked gets the same
/// time to show a deletion.
const SETTLE: Duration = Duration::from_secs(1);
/// How long our watch may take to show the deletion of a pod before the API server is asked whether there is one.
const DOUBT: Duration = Duration::from_millis(100);
/// How often gates are looked at again that no event finds.
const AGAIN: Duration = Duration::from_millis(100);

/// What comes of a look at a gate.
pub(super) enum Verdict {
    Open(Answer),
    /// It stays closed; the API server is to be asked for these pods, if any.
    Wait(Place, Option<Scope>),
}

/// What is known of the pods of a gate.
struct Facts {
    deletion: Deletion,
    requirement: Requirement,
    /// For how long endpoints may still turn up.
    fresh: Duration,
    pods: Vec<Box<str>>,
    /// What to ask the API server.
    ask: Option<Scope>,
}

pub(super) fn judge(waiting: &mut Waiting, world: &World, now: Instant, wall: Moment) -> Verdict {
    let waited = now.saturating_duration_since(waiting.asked);
    let facts = match &waiting.gate {
        Subject::Pod { pod, uid } => of_pod(pod, uid, &waiting.word, waited, world, wall),
        Subject::Service { service, node } => {
            of_service(service, node.as_deref(), &waiting.word, waited, world, wall)
        }
    };
    waiting.requirement = facts.requirement;
    let fold = &world.fold;
    let situation = Situation {
        deletion: facts.deletion,
        requirement: facts.requirement,
        may_appear: !facts.fresh.is_zero() || !world.knows_enough(),
        reported: fold.is_reported_to(),
        lowest: fold.lowest(Resource::Slices),
        lowest_punctual: fold.lowest_punctual(Resource::Slices),
        waited,
        bound: waiting.bound,
    };
    if let Some(outcome) = decide(&situation) {
        return Verdict::Open(answer(outcome, &facts, waited, world));
    }
    let polled = matches!(
        (&waiting.gate, &waiting.word),
        (Subject::Service { .. }, Word::Unanswered)
    );
    let turns = [
        waiting.asked + DOUBT,
        waiting.asked + OVERDUE_WAIT,
        now + facts.fresh,
        if polled { now + AGAIN } else { now },
    ];
    let turns = turns.into_iter().filter(|turn| *turn > now);
    let turn = turns.fold(waiting.asked + waiting.bound, Instant::min);
    let ask = facts.ask.filter(|_| matches!(waiting.word, Word::Unasked));
    if ask.is_some() {
        waiting.word = Word::Asked;
    }
    let revision = match facts.requirement {
        Requirement::Revision(revision) => Some(revision),
        Requirement::Nothing | Requirement::Unmarked => None,
    };
    let pods = facts.pods;
    Verdict::Wait(Place { pods, revision, turn }, ask)
}

fn answer(outcome: Outcome, facts: &Facts, waited: Duration, world: &World) -> Answer {
    let behind = match facts.requirement {
        Requirement::Revision(revision) if outcome == Outcome::Bound => {
            world.fold.behind(Resource::Slices, revision, NAMED)
        }
        _ => Vec::new(),
    };
    let unmarked = facts.requirement == Requirement::Unmarked || facts.deletion == Deletion::Unsettled;
    Answer {
        outcome,
        waited,
        behind: behind.into_iter().map(str::to_owned).collect(),
        unmarked: outcome == Outcome::Bound && unmarked,
    }
}

/// A pod that is in use although our watch shows no deletion: either our watch is behind, or there is none.
fn of_pod(pod: &str, uid: &str, word: &Word, waited: Duration, world: &World, wall: Moment) -> Facts {
    let (requirement, fresh) = world.of_pod(pod, uid, wall);
    let doubtful =
        requirement == Requirement::Unmarked && world.knows_enough() && !world.is_deleting(pod, uid);
    let is_left_alone =
        |state: &PodState| &*state.pod == pod && (uid.is_empty() || *state.uid == *uid) && !state.deleting;
    let deletion = match word {
        Word::Said(said) if doubtful && said.iter().any(is_left_alone) => Deletion::None,
        _ => Deletion::Settled,
    };
    Facts {
        deletion,
        requirement,
        fresh,
        pods: vec![pod.into()],
        ask: (doubtful && waited >= DOUBT).then(|| deletions::of_pod(pod)),
    }
}

/// A hook cannot name its pod. So all pods of the Service have to be out of use that the API server itself says are
/// being deleted: our watch may not have shown the one that asks, while others are long out of use.
fn of_service(
    service: &str,
    node: Option<&str>,
    word: &Word,
    waited: Duration,
    world: &World,
    wall: Moment,
) -> Facts {
    let mut facts = Facts {
        deletion: Deletion::Unsettled,
        requirement: Requirement::Unmarked,
        fresh: Duration::ZERO,
        pods: Vec::new(),
        ask: None,
    };
    if !world.knows_enough() {
        return facts;
    }
    if !world.endpoints.has_endpoints(service) {
        let fresh = SETTLE.saturating_sub(waited);
        let (deletion, requirement) = (Deletion::Settled, Requirement::Nothing);
        return Facts {
            deletion,
            requirement,
            fresh,
            ..facts
        };
    }
    let seen: Vec<(Box<str>, Box<str>)> = match word {
        Word::Unasked | Word::Asked => {
            facts.ask = Some(deletions::of_service(service, world));
            return facts;
        }
        Word::Said(said) => {
            let here = |state: &&PodState| node.is_none_or(|node| state.node.as_deref() == Some(node));
            let deleting = said.iter().filter(|state| state.deleting).filter(here);
            deleting
                .map(|state| (state.pod.clone(), state.uid.clone()))
                .collect()
        }
        Word::Unanswered => world.deleting_of_service(service, node),
    };
    facts.deletion = match word {
        Word::Said(_) if seen.is_empty() => Deletion::None,
        Word::Said(_) => Deletion::Settled,
        _ if seen.is_empty() || waited < SETTLE => Deletion::Unsettled,
        _ => Deletion::Settled,
    };
    facts.requirement = Requirement::Nothing;
    for (pod, uid) in seen {
        let (requirement, fresh) = world.of_pod(&pod, &uid, wall);
        facts.requirement = facts.requirement.max(requirement);
        facts.fresh = facts.fresh.max(fresh);
        facts.pods.push(pod);
    }
    facts
}
