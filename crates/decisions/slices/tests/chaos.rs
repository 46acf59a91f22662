//! Late watches, conflicts, failed writes and meddling hands: the end state is right all the same.

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use pointsman_model::{Moment, Text};
use pointsman_objects::{EndpointSlice, Pod};
use pointsman_slices::Settings;
use pointsman_slices::controller::{Controller, Event, Job, Now, Written};
use pointsman_slices::queue::Pace;
use pointsman_slices::write::SliceUpdate;
use pointsman_slices::{ServiceKey, plan};
use proptest::prelude::*;
use serde_json::Value;

#[derive(Clone, Debug)]
enum Op {
    Pod(usize, bool),
    PodGone(usize),
    /// Whether others reach node n2, where a few pods are.
    Withdrawn(bool),
    Port(u16),
    /// Delivers this many slice events that are under way.
    Deliver(usize),
    /// Takes a job, if one is due.
    Take,
    /// Carries out the oldest job until this write fails; the answer may get lost after the write.
    Write {
        fails_at: Option<usize>,
        answer_lost: bool,
    },
    EditSlice(usize),
    DeleteSlice(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0usize..8, any::<bool>()).prop_map(|(index, ready)| Op::Pod(index, ready)),
        2 => (0usize..8).prop_map(Op::PodGone),
        1 => any::<bool>().prop_map(Op::Withdrawn),
        1 => (1u16..4).prop_map(Op::Port),
        4 => (0usize..4).prop_map(Op::Deliver),
        4 => Just(Op::Take),
        4 => (prop::option::weighted(0.3, 0usize..3), prop::bool::weighted(0.2))
            .prop_map(|(fails_at, answer_lost)| Op::Write { fails_at, answer_lost }),
        1 => (0usize..4).prop_map(Op::EditSlice),
        1 => (0usize..4).prop_map(Op::DeleteSlice),
    ]
}

struct Chaos {
    controller: Controller,
    settings: Settings,
    dual: bool,
    server: BTreeMap<Text, EndpointSlice>,
    under_way: VecDeque<Event>,
    jobs: VecDeque<Job>,
    pods: BTreeMap<usize, Pod>,
    clock: u64,
    names: usize,
}

impl Chaos {
    fn new(max: usize) -> Self {
        let settings = Settings {
            max_endpoints_per_slice: max,
            ..Settings::default()
        };
        let mut chaos = Self {
            controller: Controller::new(settings, Pace::default(), None),
            settings,
            dual: false,
            server: BTreeMap::new(),
            under_way: VecDeque::new(),
            jobs: VecDeque::new(),
            pods: BTreeMap::new(),
            clock: 1,
            names: 0,
        };
        for name in ["n1", "n2"] {
            chaos.see(Event::Node(Arc::new(node(name, "", "4"))));
        }
        chaos.see(Event::Service(Arc::new(service())));
        chaos.see(Event::Listed);
        chaos
    }

    /// From now on the Service has both families, and so have pods.
    fn make_dual(&mut self) {
        self.dual = true;
        self.step(&Op::Port(8080));
    }

    fn now(&self) -> Now {
        Now {
            moment: Moment::from_seconds(2_000_000_000 + self.clock as i64),
            tick: Duration::from_secs(self.clock),
        }
    }

    fn see(&mut self, event: Event) {
        let now = self.now();
        self.controller.observe(event, now);
    }

    fn step(&mut self, op: &Op) {
        self.clock += 1;
        let revision = self.clock.to_string();
        match op {
            Op::Pod(index, ready) => {
                let pod = pod_with(*index, |p| {
                    set_ready(p, *ready);
                    p["metadata"]["resourceVersion"] = revision.into();
                    // Now and then a pod of the same name and address runs elsewhere.
                    p["spec"]["nodeName"] = ["n1", "n2"][usize::from(self.clock.is_multiple_of(5))].into();
                    if self.dual {
                        let second = serde_json::json!({ "ip": format!("fd00::{index:x}") });
                        p["status"]["podIPs"]
                            .as_array_mut()
                            .expect("addresses")
                            .push(second);
                    }
                });
                self.pods.insert(*index, pod.clone());
                self.see(Event::Pod(Arc::new(pod)));
            }
            Op::PodGone(index) => {
                self.pods.remove(index);
                self.see(Event::PodGone("ns".into(), format!("pod{index:04}").into()));
            }
            Op::Withdrawn(withdrawn) => self.see(Event::Withdrawn(vec![("n2".into(), *withdrawn)])),
            Op::Port(port) => {
                let service = service_with(|s| {
                    s["spec"]["ports"][0]["targetPort"] = (*port).into();
                    if self.dual {
                        s["spec"]["ipFamilies"] = serde_json::json!(["IPv4", "IPv6"]);
                    }
                });
                self.see(Event::Service(Arc::new(service)));
            }
            Op::Deliver(count) => (0..*count).for_each(|_| self.deliver()),
            Op::Take => self.take(),
            Op::Write {
                fails_at,
                answer_lost,
            } => self.write(*fails_at, *answer_lost),
            Op::EditSlice(index) => {
                if let Some(name) = self.server.keys().nth(*index).cloned() {
                    let slice = self.server.get_mut(&name).expect("just found");
                    slice.endpoints.truncate(1);
                    self.stored(&name);
                }
            }
            Op::DeleteSlice(index) => {
                if let Some(name) = self.server.keys().nth(*index).cloned() {
                    self.server.remove(&name);
                    self.under_way.push_back(Event::SliceGone("ns".into(), name));
                }
            }
        }
    }

    fn deliver(&mut self) {
        if let Some(event) = self.under_way.pop_front() {
            self.see(event);
        }
    }

    fn take(&mut self) {
        let now = self.now();
        if let (Some(job), _) = self.controller.next(now) {
            assert!(self.jobs.is_empty(), "one job per service");
            let whole = self.controller.index().inputs(&ServiceKey::new("ns", "svc"));
            let whole = plan(&whole.expect("a service"), &self.settings);
            assert_eq!(job.plan, whole, "a plan for a part is the same as for the whole");
            self.jobs.push_back(job);
        }
    }

    /// Bumps a stored slice and tells the watch.
    fn stored(&mut self, name: &Text) -> Written {
        self.clock += 1;
        let slice = self.server.get_mut(name).expect("a stored slice");
        slice.metadata.generation += 1;
        slice.metadata.resource_version = self.clock.to_string().into();
        self.under_way.push_back(Event::Slice(Box::new(slice.clone())));
        Written::Slice {
            uid: slice.metadata.uid.clone(),
            generation: slice.metadata.generation,
        }
    }

    fn write(&mut self, fails_at: Option<usize>, answer_lost: bool) {
        let Some(job) = self.jobs.pop_front() else { return };
        let mut written = Vec::new();
        for index in 0..job.plan.writes() {
            let fails = fails_at == Some(index);
            if fails && !answer_lost {
                break;
            }
            let Some(answer) = self.write_one(&job, index) else {
                break;
            };
            if fails {
                break;
            }
            written.push(answer);
        }
        let now = self.now();
        self.controller.finish(&job, &written, now);
    }

    fn write_one(&mut self, job: &Job, index: usize) -> Option<Written> {
        let (creates, updates) = (job.plan.create.len(), job.plan.update.len());
        if index < creates {
            let mut object: Value = serde_json::from_slice(&job.plan.create[index].body(None)).expect("JSON");
            self.names += 1;
            let name: Text = format!("s{:03}", self.names).into();
            object["metadata"]["name"] = (&*name).into();
            object["metadata"]["uid"] = format!("u{}", self.names).into();
            self.server
                .insert(name.clone(), serde_json::from_value(object).expect("a slice"));
            return Some(self.stored(&name));
        }
        if index < creates + updates {
            let update = &job.plan.update[index - creates];
            let slice = self.server.get_mut(&update.name)?;
            if slice.metadata.resource_version != update.resource_version {
                return None;
            }
            update.apply(slice, None);
            slice.metadata.generation -= 1;
            return Some(self.stored(&update.name));
        }
        let delete = &job.plan.delete[index - creates - updates];
        if self.server.remove(&delete.name).is_some() {
            self.under_way
                .push_back(Event::SliceGone("ns".into(), delete.name.clone()));
        }
        Some(Written::Deleted {
            uid: delete.uid.clone(),
        })
    }

    /// Lets everything settle without further trouble; returns how many writes that took.
    fn settle(&mut self) -> usize {
        let mut writes = 0;
        for _ in 0..200 {
            self.clock += 100;
            while !self.under_way.is_empty() {
                self.deliver();
            }
            self.take();
            match self.jobs.front() {
                Some(job) => writes += job.plan.writes(),
                None if self.under_way.is_empty() && self.controller.wake_at().is_none() => return writes,
                None => {}
            }
            self.write(None, false);
        }
        panic!("does not settle: {:?}", self.controller);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_end_state_is_right_whatever_happens_on_the_way(
        max in 1usize..5,
        dual in any::<bool>(),
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let mut chaos = Chaos::new(max);
        if dual {
            chaos.make_dual();
        }
        for op in &ops {
            chaos.step(op);
        }
        chaos.step(&Op::Withdrawn(false));
        chaos.settle();
        let mut shown: Vec<(String, Option<bool>)> = chaos.server.values().flat_map(|slice| &slice.endpoints)
            .map(|e| (e.target.as_ref().expect("a pod").name.to_string(), e.conditions.ready))
            .collect();
        shown.sort();
        let families = 1 + usize::from(dual);
        let wanted: Vec<_> = chaos.pods.values().flat_map(|pod| std::iter::repeat_n(pod, families)).map(|pod| (pod.metadata.name.to_string(), Some(pod.is_ready()))).collect();
        prop_assert_eq!(shown, wanted);
        let uids: BTreeSet<_> = chaos.server.values().map(|slice| &slice.metadata.uid).collect();
        prop_assert_eq!(uids.len(), chaos.server.len());
        prop_assert_eq!(chaos.settle(), 0, "and then it is quiet");
    }
}

#[test]
fn a_thousand_flips_while_one_write_is_out_cost_one_more_write() {
    let mut chaos = Chaos::new(100);
    for index in 0..50 {
        chaos.step(&Op::Pod(index, true));
    }
    chaos.settle();
    chaos.step(&Op::Pod(0, false));
    chaos.take();
    for flip in 0..1000 {
        chaos.step(&Op::Pod(flip % 50, flip % 2 == 0));
    }
    chaos.write(None, false);
    assert_eq!(chaos.settle(), 1);
    assert!(chaos.server.values().flat_map(|slice| &slice.endpoints).count() == 50);
}

#[test]
fn the_work_of_a_flip_does_not_grow_with_the_number_of_endpoints() {
    for dual in [false, true] {
        let looked_at = [450, 3_000].map(|endpoints| {
            let mut chaos = Chaos::new(100);
            if dual {
                chaos.make_dual();
            }
            (0..endpoints).for_each(|index| chaos.step(&Op::Pod(index, true)));
            chaos.settle();
            let mut most = 0;
            for flip in 0..20 {
                chaos.step(&Op::Pod(flip * 7919 % endpoints, false));
                chaos.take();
                let job = chaos.jobs.front().expect("a job");
                most = most.max(job.looked_at);
                chaos.write(None, false);
                chaos.settle();
            }
            most
        });
        let families = 1 + usize::from(dual);
        assert_eq!(
            looked_at,
            [100 * families; 2],
            "all pods of one slice in each family"
        );
    }
}

#[test]
fn a_pod_that_moves_to_a_withdrawn_node_is_judged_by_all_pods_and_not_by_those_of_its_slice() {
    let mut chaos = Chaos::new(1);
    for index in 0..4 {
        chaos.clock = 101 + 10 * index as u64;
        chaos.step(&Op::Pod(index, true));
    }
    chaos.settle();
    chaos.step(&Op::Withdrawn(true));
    chaos.clock = 100_004;
    chaos.step(&Op::Pod(0, true));
    chaos.take();
    let job = chaos.jobs.front().expect("a job");
    let ready = |update: &SliceUpdate| Some(update.endpoints.as_ref()?.first()?.conditions.ready);
    assert_eq!(
        ready(&job.plan.update[0]),
        Some(Some(false)),
        "others are ready elsewhere"
    );
}

#[test]
fn one_flip_among_three_thousand_is_one_small_write() {
    let mut chaos = Chaos::new(100);
    for index in 0..3_000 {
        chaos.step(&Op::Pod(index, true));
    }
    chaos.settle();
    // The first flip after a restart sets the annotation; from the second on it is replaced.
    for (index, limit) in [(17, 60_000), (18, 60_000)] {
        chaos.step(&Op::Pod(index, false));
        chaos.take();
        let job = chaos.jobs.front().expect("a job");
        assert_eq!(
            (
                job.plan.create.len(),
                job.plan.update.len(),
                job.plan.delete.len()
            ),
            (0, 1, 0)
        );
        let update = &job.plan.update[0];
        assert!(update.patch(job.update_times[0]).to_merge_patch().len() < limit);
        let mut with_annotation = update.clone();
        with_annotation.has_trigger_time = true;
        let patch = with_annotation
            .patch(job.update_times[0])
            .to_json_patch()
            .expect("an update in place");
        assert!(patch.len() < 700, "{}", patch.len());
        chaos.write(None, false);
        chaos.settle();
    }
}

#[test]
fn what_a_namespace_that_goes_away_refuses_is_not_tried_again_until_something_happens() {
    let mut chaos = Chaos::new(100);
    chaos.step(&Op::Pod(0, true));
    chaos.take();
    let job = chaos.jobs.pop_front().expect("a slice to make");
    chaos.controller.give_up(&job, &[], chaos.now());
    assert_eq!(
        (chaos.controller.wake_at(), chaos.controller.backlog()),
        (None, 0)
    );
    chaos.step(&Op::Pod(1, true));
    assert_eq!(chaos.settle(), 1);
}
