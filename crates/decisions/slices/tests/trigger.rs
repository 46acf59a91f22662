//! Trigger times: the reference's cases through the whole controller, and the tracker's laws.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use pointsman_model::{Moment, Text};
use pointsman_objects::endpoint_slice::EndpointConditions as Conditions;
use pointsman_objects::{EndpointSlice, Pod, Service};
use pointsman_slices::change::endpoint_change;
use pointsman_slices::controller::{Controller, Event, Job, Now, Written};
use pointsman_slices::pack::{ChangeKind, EndpointChange};
use pointsman_slices::queue::Pace;
use pointsman_slices::trigger::TriggerTracker;
use pointsman_slices::{ServiceKey, Settings};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

fn at(second: i64) -> Moment {
    Moment::from_seconds(second)
}

fn now(second: i64) -> Now {
    Now {
        moment: at(second),
        tick: Duration::from_secs(second as u64),
    }
}

fn pod_at(index: usize, ready: bool, second: i64) -> Pod {
    pod_with(index, |p| {
        set_ready(p, ready);
        p["metadata"]["resourceVersion"] = second.to_string().into();
        p["status"]["conditions"][0]["lastTransitionTime"] = at(second).to_string().into();
    })
}

fn service_at(second: i64) -> Service {
    service_with(|s| s["metadata"]["creationTimestamp"] = at(second).to_string().into())
}

/// A controller with an API server that answers at once.
struct Sim {
    controller: Controller,
    slices: BTreeMap<Text, EndpointSlice>,
    next: usize,
}

impl Sim {
    fn new(floor: Option<Moment>) -> Self {
        let mut controller = Controller::new(Settings::default(), Pace::default(), floor);
        controller.observe(Event::Node(Arc::new(node("n1", "", "4"))), now(0));
        Self {
            controller,
            slices: BTreeMap::new(),
            next: 0,
        }
    }

    /// Handles everything due; returns the trigger times of the writes, in seconds.
    fn run(&mut self, second: i64) -> Vec<Option<i64>> {
        let mut times = Vec::new();
        while let (Some(job), _) = self.controller.next(now(second)) {
            times.extend(self.write(&job, job.plan.writes(), second));
        }
        times
    }

    fn write(&mut self, job: &Job, limit: usize, second: i64) -> Vec<Option<i64>> {
        let mut written = Vec::new();
        let mut times = Vec::new();
        for (create, time) in job.plan.create.iter().zip(&job.create_times) {
            if written.len() < limit {
                let mut object: Value = serde_json::from_slice(&create.body(*time)).expect("JSON");
                object["metadata"]["name"] = format!("s{}", self.next).into();
                object["metadata"]["uid"] = format!("u{}", self.next).into();
                object["metadata"]["generation"] = 1.into();
                self.next += 1;
                let slice: EndpointSlice = serde_json::from_value(object).expect("a slice");
                written.push(Written::Slice {
                    uid: slice.metadata.uid.clone(),
                    generation: 1,
                });
                times.push(time.map(|time| time.as_micros() / 1_000_000));
                self.slices.insert(slice.metadata.name.clone(), slice);
            }
        }
        for (update, time) in job.plan.update.iter().zip(&job.update_times) {
            if written.len() < limit {
                let slice = self.slices.get_mut(&update.name).expect("a known slice");
                update.apply(slice, *time);
                written.push(Written::Slice {
                    uid: slice.metadata.uid.clone(),
                    generation: slice.metadata.generation,
                });
                times.push(time.map(|time| time.as_micros() / 1_000_000));
            }
        }
        for delete in &job.plan.delete {
            if written.len() < limit {
                self.slices.remove(&delete.name);
                self.controller
                    .observe(Event::SliceGone("ns".into(), delete.name.clone()), now(second));
                written.push(Written::Deleted {
                    uid: delete.uid.clone(),
                });
            }
        }
        // Echoes of our own writes come before the answers, the harder order.
        for slice in self.slices.values() {
            self.controller
                .observe(Event::Slice(Box::new(slice.clone())), now(second));
        }
        self.controller.finish(job, &written, now(second));
        times
    }

    fn see(&mut self, event: Event, second: i64) {
        self.controller.observe(event, now(second));
    }

    fn see_pod(&mut self, pod: Pod, second: i64) {
        self.see(Event::Pod(Arc::new(pod)), second);
    }
}

fn started(service_created: i64, pods: &[Pod], second: i64) -> Sim {
    let mut sim = Sim::new(None);
    for pod in pods {
        sim.see_pod(pod.clone(), second);
    }
    sim.see(Event::Listed, second);
    sim.see(Event::Service(Arc::new(service_at(service_created))), second);
    sim
}

#[test]
fn case_45_a_new_service_counts_from_its_creation_even_with_older_pods() {
    let mut sim = started(100, &[pod_at(0, true, 50)], 101);
    assert_eq!(sim.run(101), [Some(100)]);
    assert_eq!(sim.run(102), [], "and our own echo causes nothing");
}

#[test]
fn case_46_the_oldest_change_of_a_batch_is_reported() {
    let mut sim = started(100, &[], 101);
    sim.run(101);
    sim.see_pod(pod_at(0, true, 112), 112);
    sim.see_pod(pod_at(1, true, 111), 112);
    assert_eq!(sim.run(113), [Some(111)]);
    sim.see_pod(pod_at(0, false, 125), 125);
    sim.see_pod(pod_at(1, false, 124), 125);
    assert_eq!(sim.run(126), [Some(124)]);
    sim.see_pod(pod_at(1, false, 124), 130);
    assert_eq!(sim.run(130), []);
}

#[test]
fn case_47_removals_and_spec_changes_are_covered_too() {
    let mut sim = started(100, &[pod_at(0, true, 50), pod_at(1, true, 50)], 101);
    sim.run(101);
    sim.see(Event::PodGone("ns".into(), "pod0001".into()), 140);
    assert_eq!(sim.run(141), [Some(140)], "a removal has the time we heard of it");
    let ports = service_with(|s| {
        s["metadata"]["creationTimestamp"] = at(100).to_string().into();
        s["spec"]["ports"][0]["targetPort"] = 9090.into();
    });
    sim.see(Event::Service(Arc::new(ports)), 150);
    assert_eq!(sim.run(151), [Some(150)], "so has a change of the spec");
    sim.see(Event::ServiceGone(ServiceKey::of(&service())), 160);
    assert_eq!(sim.run(160), []);
    sim.slices.clear();
    sim.see(Event::SliceGone("ns".into(), "s0".into()), 161);
    sim.see(Event::Service(Arc::new(service_at(170))), 171);
    assert_eq!(sim.run(171), [Some(170)]);
}

#[test]
fn the_first_of_several_transitions_of_a_pod_is_remembered() {
    let mut sim = started(100, &[pod_at(0, true, 50), pod_at(1, true, 50)], 101);
    sim.run(101);
    sim.see_pod(pod_at(0, false, 110), 110);
    sim.see_pod(pod_at(0, true, 111), 111);
    sim.see_pod(pod_at(0, false, 112), 112);
    assert_eq!(sim.run(113), [Some(110)]);
}

#[test]
fn a_flap_that_ends_where_it_began_leaves_no_trace() {
    let mut sim = started(100, &[pod_at(0, true, 50)], 101);
    sim.run(101);
    sim.see_pod(pod_at(0, false, 110), 110);
    sim.see_pod(pod_at(0, true, 111), 111);
    assert_eq!(sim.run(112), []);
    sim.see_pod(pod_at(0, false, 120), 120);
    assert_eq!(sim.run(121), [Some(120)], "not the forgotten 110");
}

#[test]
fn a_failed_write_loses_nothing_and_its_retry_reports_nothing_twice() {
    let mut sim = started(100, &[pod_at(0, true, 50), pod_at(1, true, 50)], 101);
    sim.run(101);
    sim.see_pod(pod_at(0, false, 110), 110);
    let (job, _) = sim.controller.next(now(110));
    sim.write(&job.expect("a job"), 0, 111);
    sim.see_pod(pod_at(1, false, 112), 112);
    assert_eq!(sim.run(120), [Some(110)]);
    sim.see_pod(pod_at(1, true, 130), 130);
    assert_eq!(sim.run(131), [Some(130)]);
}

#[test]
fn a_restart_reports_what_changed_meanwhile_and_nothing_older_than_the_former_leader() {
    let mut first = started(
        100,
        &[pod_at(0, true, 50), pod_at(1, true, 50), pod_at(2, true, 50)],
        101,
    );
    first.run(101);
    let mut second = Sim::new(Some(at(200)));
    second.slices.clone_from(&first.slices);
    for slice in first.slices.values() {
        second.see(Event::Slice(Box::new(slice.clone())), 230);
    }
    second.see(Event::Service(Arc::new(service_at(100))), 230);
    second.see_pod(pod_at(0, false, 210), 230);
    second.see_pod(pod_at(1, true, 50), 230);
    second.see_pod(pod_at(2, true, 50), 230);
    second.see(Event::Listed, 230);
    assert_eq!(second.run(231), [Some(210)]);

    let mut third = Sim::new(Some(at(300)));
    third.slices.clone_from(&second.slices);
    for slice in second.slices.values() {
        third.see(Event::Slice(Box::new(slice.clone())), 330);
    }
    third.see(Event::Service(Arc::new(service_at(100))), 330);
    third.see_pod(pod_at(0, true, 250), 330);
    third.see_pod(pod_at(1, true, 50), 330);
    third.see_pod(pod_at(2, true, 50), 330);
    third.see(Event::Listed, 330);
    assert_eq!(
        third.run(331),
        [Some(300)],
        "250 was the former leader's to report"
    );
}

#[test]
fn a_restart_with_nothing_to_do_writes_nothing() {
    let mut first = started(100, &[pod_at(0, true, 50)], 101);
    first.run(101);
    let mut second = Sim::new(None);
    for slice in first.slices.values() {
        second.see(Event::Slice(Box::new(slice.clone())), 230);
    }
    second.see(Event::Service(Arc::new(service_at(100))), 230);
    second.see_pod(pod_at(0, true, 50), 230);
    second.see(Event::Listed, 230);
    assert_eq!(second.run(231), []);
}

#[test]
fn a_pod_that_joins_by_its_labels_counts_from_then_not_from_its_readiness() {
    let mut sim = started(100, &[], 101);
    sim.run(101);
    let outside = |p: &mut Value| p["metadata"]["labels"] = json!({ "app": "other" });
    sim.see_pod(pod_with(0, outside), 110);
    assert_eq!(sim.run(110), []);
    sim.see_pod(pod_at(0, true, 50), 200);
    assert_eq!(sim.run(201), [Some(200)]);
}

#[test]
fn slices_deleted_or_edited_by_hand_are_repaired() {
    let mut sim = started(100, &[pod_at(0, true, 50)], 101);
    sim.run(101);
    let (name, _) = sim.slices.pop_first().expect("a slice");
    sim.see(Event::SliceGone("ns".into(), name.clone()), 110);
    assert_eq!(sim.run(111), [Some(110)]);
    let (name2, _) = sim.slices.first_key_value().expect("a slice");
    let mut slice = sim.slices[name2].clone();
    slice.endpoints.clear();
    slice.metadata.generation += 5;
    sim.slices.insert(slice.metadata.name.clone(), slice.clone());
    sim.see(Event::Slice(Box::new(slice)), 120);
    assert_eq!(sim.run(121), [Some(120)]);
}

#[test]
fn microseconds_come_from_the_node_agents_annotation_when_it_tells_the_same_second() {
    let stamped = |stamp: &str| {
        let stamp = stamp.to_owned();
        pod_with(0, |p| {
            p["metadata"]["annotations"] = json!({ "pointsman.io/last-change-time": stamp });
            p["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:05Z".into();
        })
        .ready_changed()
        .expect("a time")
        .to_string()
    };
    assert_eq!(
        stamped("2026-01-01T00:00:05.123456Z"),
        "2026-01-01T00:00:05.123456Z"
    );
    assert_eq!(
        stamped("2026-01-01T00:00:04.9Z"),
        "2026-01-01T00:00:05Z",
        "a stale stamp"
    );
    assert_eq!(
        stamped("2026-01-01T00:00:07Z"),
        "2026-01-01T00:00:05Z",
        "a stamp of another change"
    );
    assert_eq!(stamped("nonsense"), "2026-01-01T00:00:05Z");
}

#[test]
fn changes_are_dated_by_their_own_source_and_never_in_the_future() {
    let ready = pod_at(0, true, 100);
    assert_eq!(
        endpoint_change(Some(&ready), Some(&pod_at(0, false, 110)), at(111)),
        Some(at(110).end_of_second())
    );
    assert_eq!(
        endpoint_change(Some(&ready), Some(&pod_at(0, false, 500)), at(111)),
        Some(at(111)),
        "clock jump"
    );
    assert_eq!(
        endpoint_change(Some(&ready), Some(&pod_at(0, false, 90)), at(111)),
        Some(at(100)),
        "going back"
    );
    assert_eq!(endpoint_change(Some(&ready), None, at(111)), Some(at(111)));
    assert_eq!(
        endpoint_change(Some(&ready), Some(&pod_at(0, true, 100)), at(111)),
        None
    );
    let mut leaving = ready.clone();
    leaving.metadata.deletion = Some(at(110));
    assert_eq!(
        endpoint_change(Some(&ready), Some(&leaving), at(200)),
        Some(at(110).end_of_second())
    );
    let heard = Moment::from_micros(110_250_000);
    assert_eq!(endpoint_change(Some(&ready), Some(&leaving), heard), Some(heard));
    let mut finished = leaving.clone();
    finished.phase = pointsman_objects::pod::Phase::Failed;
    assert_eq!(
        endpoint_change(Some(&leaving), Some(&finished), at(120)),
        Some(at(120))
    );
    assert_eq!(
        endpoint_change(Some(&finished), None, at(130)),
        None,
        "it had no endpoint any more"
    );
    let pending = pod_with(1, |p| p["status"]["podIPs"] = Value::Null);
    assert_eq!(endpoint_change(None, Some(&pending), at(5)), None);
}

proptest! {
    /// A kubelet writes whole seconds, our agent microseconds; the watch delivers it a little later. What counts is
    /// never before the change, never after its delivery, and off by no more than the time in between or a second.
    #[test]
    fn a_readiness_change_counts_from_the_latest_moment_that_its_source_allows(
        truth in 200_000_000_i64..210_000_000, delay in 0_i64..3_000_000, agent: bool,
    ) {
        let (truth, seen) = (Moment(truth), Moment(truth + delay));
        let after = pod_with(0, |p| {
            set_ready(p, false);
            p["metadata"]["resourceVersion"] = "9".into();
            p["status"]["conditions"][0]["lastTransitionTime"] = truth.start_of_second().to_string().into();
            if agent {
                p["metadata"]["annotations"] = json!({ "pointsman.io/last-change-time": truth.to_string() });
            }
        });
        let began = endpoint_change(Some(&pod_at(0, true, 100)), Some(&after), seen).expect("a change");
        prop_assert!(truth <= began && began <= seen, "{truth} {began} {seen}");
        prop_assert!(began.since(truth) < Duration::from_secs(1));
        if agent && truth != truth.start_of_second() {
            prop_assert_eq!(began, truth);
        }
    }
}

/// What the world does to the tracker.
#[derive(Clone, Debug)]
enum Op {
    Pod(usize),
    Service,
    Sync { fails_at: Option<usize> },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..5).prop_map(Op::Pod),
        1 => Just(Op::Service),
        3 => prop::option::of(0usize..4).prop_map(|fails_at| Op::Sync { fails_at }),
    ]
}

fn change(pod: usize) -> EndpointChange {
    EndpointChange {
        pod: format!("p{pod}").into(),
        kind: ChangeKind::Updated,
        conditions: Conditions::default(),
        pod_time: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Model: per pod the time of its first unreported change. Each write holds two pods.
    #[test]
    fn every_change_is_reported_once_with_the_oldest_time_of_its_write(ops in prop::collection::vec(op(), 1..60)) {
        let service = service_at(0);
        let mut tracker = TriggerTracker::new(None);
        tracker.begin(&service, true);
        tracker.finish(&ServiceKey::of(&service));
        let mut unreported: BTreeMap<usize, Moment> = BTreeMap::new();
        let mut unreported_service: Option<Moment> = None;
        for (index, op) in ops.iter().enumerate() {
            let moment = at(10 + index as i64);
            match op {
                Op::Pod(pod) => {
                    tracker.pod_changed(&ServiceKey::of(&service), &format!("p{pod}").into(), moment);
                    unreported.entry(*pod).or_insert(moment);
                }
                Op::Service => {
                    tracker.service_changed(&ServiceKey::of(&service), moment);
                    unreported_service.get_or_insert(moment);
                }
                Op::Sync { fails_at } => {
                    tracker.begin(&service, true);
                    let dirty: Vec<usize> = unreported.keys().copied().collect();
                    let writes: Vec<Vec<EndpointChange>> =
                        dirty.chunks(2).map(|pods| pods.iter().map(|pod| change(*pod)).collect()).collect();
                    for (pods, write) in dirty.chunks(2).zip(&writes) {
                        let expected = pods.iter().map(|pod| unreported[pod]).chain(unreported_service).min();
                        prop_assert_eq!(tracker.time_of(&service, write, moment), expected);
                    }
                    let good = fails_at.filter(|at| *at < writes.len()).unwrap_or(writes.len());
                    dirty.iter().take(good * 2).for_each(|pod| { unreported.remove(pod); });
                    if good == writes.len() {
                        tracker.finish(&ServiceKey::of(&service));
                        unreported_service = None;
                    } else {
                        tracker.fail(&service, writes[good..].iter().map(|write| &**write), moment);
                    }
                }
            }
        }
    }
}
