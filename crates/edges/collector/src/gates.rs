//! Which gates are asked, and which of them open now?

use std::collections::VecDeque;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_protocol::gate::{Answer, Outcome, Subject};
use pointsman_protocol::watermark::Resource;
use pointsman_sli::endpoints::Requirement;
use pointsman_sli::gate::{OVERDUE_WAIT, Situation, decide};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::world::World;

/// Gates that may wait at once; more are turned away, and whoever asked goes on without.
pub(crate) const MOST: usize = 10_000;
/// Names of those behind that an answer carries.
const NAMED: usize = 20;
/// Answer gates that the page shows.
const RECENT: usize = 50;
/// A hook may ask before our watch has shown us the deletion.
const SETTLE: Duration = Duration::from_secs(1);
/// How often gates are looked at again whose pods may still turn out to have endpoints.
const AGAIN: Duration = Duration::from_millis(100);

/// The question whether a pod may be stopped.
#[derive(Debug)]
pub(crate) struct Question {
    pub gate: Subject,
    pub bound: Duration,
    pub reply: oneshot::Sender<Answer>,
}

/// A gate that has opened.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub gate: Subject,
    pub opened: Answer,
    pub at: Moment,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub gate: Subject,
    pub asked: Instant,
    pub bound: Duration,
    reply: oneshot::Sender<Answer>,
}

#[derive(Debug, Default)]
pub(crate) struct Gates {
    pub waiting: Vec<Waiting>,
    pub recent: VecDeque<Past>,
    may_appear: bool,
}

impl Gates {
    /// Takes a question in; false if there are too many.
    pub fn ask(&mut self, question: Question, now: Instant) -> bool {
        if self.waiting.len() >= MOST {
            return false;
        }
        self.waiting.push(Waiting {
            gate: question.gate,
            asked: now,
            bound: question.bound,
            reply: question.reply,
        });
        true
    }

    /// Opens what may open, answers, and returns what was opened.
    pub fn open(&mut self, world: &World, now: Instant, wall: Moment) -> Vec<Past> {
        let mut opened = Vec::new();
        let mut still = Vec::with_capacity(self.waiting.len());
        self.may_appear = false;
        for waiting in std::mem::take(&mut self.waiting) {
            if waiting.reply.is_closed() {
                continue;
            }
            match judge(&waiting, world, now, wall) {
                Ok(answer) => {
                    let past = Past {
                        gate: waiting.gate,
                        opened: answer.clone(),
                        at: wall,
                    };
                    // Whoever asked may be gone in the same moment.
                    let _ = waiting.reply.send(answer);
                    opened.push(past);
                }
                Err(may_appear) => {
                    self.may_appear |= may_appear;
                    still.push(waiting);
                }
            }
        }
        self.waiting = still;
        self.recent.extend(opened.iter().cloned());
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        opened
    }

    /// When to look again, whatever happens.
    pub fn wake(&self, now: Instant) -> Option<Instant> {
        let times = self.waiting.iter().flat_map(|waiting| {
            let turns = [OVERDUE_WAIT, waiting.bound].map(|wait| waiting.asked + wait);
            turns.into_iter().filter(move |turn| *turn > now)
        });
        times.chain(self.may_appear.then_some(now + AGAIN)).min()
    }
}

/// What a gate waits for.
pub(crate) fn requirement(
    gate: &Subject,
    world: &World,
    waited: Duration,
    wall: Moment,
) -> (Requirement, bool) {
    match gate {
        Subject::Pod { pod, uid } => world.of_pod(pod, uid, wall),
        Subject::Service { service, node } => (world.of_service(service, node.as_deref()), waited < SETTLE),
    }
}

/// The answer, or whether it may change by itself.
fn judge(waiting: &Waiting, world: &World, now: Instant, wall: Moment) -> Result<Answer, bool> {
    let waited = now.saturating_duration_since(waiting.asked);
    let (requirement, may_appear) = requirement(&waiting.gate, world, waited, wall);
    let situation = Situation {
        requirement,
        may_appear,
        reported: world.fold.is_reported_to(),
        lowest: world.fold.lowest(Resource::Slices),
        lowest_punctual: world.fold.lowest_punctual(Resource::Slices),
        waited,
        bound: waiting.bound,
    };
    let outcome = decide(&situation).ok_or(may_appear)?;
    let behind = match requirement {
        Requirement::Revision(revision) if outcome == Outcome::Bound => {
            world.fold.behind(Resource::Slices, revision, NAMED)
        }
        _ => Vec::new(),
    };
    Ok(Answer {
        outcome,
        waited,
        behind: behind.into_iter().map(str::to_owned).collect(),
        unmarked: outcome == Outcome::Bound && requirement == Requirement::Unmarked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_api_client::{Event, ObjectKey};
    use pointsman_model::Revision;
    use pointsman_protocol::watermark::Report;

    fn world() -> World {
        let mut world = World::new();
        let text = r#"{"metadata":{"namespace":"default","labels":{"kubernetes.io/service-name":"web"}},
            "endpoints":[{"conditions":{"ready":false,"terminating":true},"nodeName":"n1",
            "targetRef":{"kind":"Pod","namespace":"default","name":"a","uid":"u"}}]}"#;
        let slice = Event::Applied {
            key: ObjectKey::new("default", "web-1"),
            object: serde_json::from_str(text).unwrap(),
            resource_version: "10".into(),
        };
        world.slice(slice, Moment(0));
        world.slice(Event::Synced("10".into()), Moment(0));
        world.node(Event::Synced("10".into()));
        world
    }

    fn ask(gates: &mut Gates, now: Instant) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let gate = Subject::Pod {
            pod: "default/a".into(),
            uid: "u".into(),
        };
        let bound = Duration::from_secs(5);
        assert!(gates.ask(Question { gate, bound, reply }, now));
        answer
    }

    fn programmer(world: &mut World, name: &str, slices: u64) {
        let id = world.fold.join(name, Moment(0));
        let mut report = Report {
            generation: 1,
            ..Report::default()
        };
        report.progress.committed.slices = Some(Revision(slices));
        world.fold.report(id, report, Moment(0)).unwrap();
    }

    #[tokio::test]
    async fn the_last_programmer_opens_the_gate() {
        let (mut world, mut gates, now) = (world(), Gates::default(), Instant::now());
        programmer(&mut world, "n1", 10);
        programmer(&mut world, "n2", 9);
        let mut answer = ask(&mut gates, now);
        assert!(gates.open(&world, now, Moment(0)).is_empty());
        assert!(answer.try_recv().is_err());
        programmer(&mut world, "n2", 12);
        let later = now + Duration::from_millis(30);
        assert_eq!(gates.open(&world, later, Moment(0)).len(), 1);
        let opened = answer.await.unwrap();
        assert_eq!(
            (opened.outcome, opened.waited),
            (Outcome::Everywhere, Duration::from_millis(30))
        );
        assert_eq!(gates.wake(later), None);
    }

    #[tokio::test]
    async fn a_node_that_hangs_is_named_when_the_wait_is_over() {
        let (mut world, mut gates, now) = (world(), Gates::default(), Instant::now());
        programmer(&mut world, "n1", 10);
        programmer(&mut world, "n2", 9);
        let answer = ask(&mut gates, now);
        assert!(gates.open(&world, now, Moment(0)).is_empty());
        let end = now + Duration::from_secs(5);
        assert_eq!(gates.wake(now + OVERDUE_WAIT), Some(end));
        gates.open(&world, end, Moment(0));
        let opened = answer.await.unwrap();
        assert_eq!(
            (opened.outcome, opened.behind),
            (Outcome::Bound, vec!["n2".to_owned()])
        );
        assert_eq!(gates.recent.len(), 1);
    }

    #[tokio::test]
    async fn whoever_hangs_up_is_forgotten() {
        let (mut world, mut gates, now) = (world(), Gates::default(), Instant::now());
        programmer(&mut world, "n1", 9);
        drop(ask(&mut gates, now));
        assert!(gates.open(&world, now, Moment(0)).is_empty());
        assert!(gates.waiting.is_empty());
    }
}
