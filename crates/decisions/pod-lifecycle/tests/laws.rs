//! Laws of a pod's life, over random histories: answers late, refused or lost, containers that crash,
//! probes, deletion at any moment, agents that restart in between.

use jiff::Timestamp;
use pointsman_objects::names::{CHANGE_TIME_ANNOTATION, GATE_ANNOTATION};
use pointsman_objects::pod::Phase;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_objects::pod_status::PodStatus;
use pointsman_pod_lifecycle::{
    Action, Cause, ContainerFact, DiskUse, Exit, Fact, Found, FoundContainer, Machine, Now, Settings,
};
use pointsman_probe::Kind;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const GATE: Duration = Duration::from_secs(5);
const GRACE: u64 = 30;

/// A node that does what it is asked to, at its own pace.
struct World {
    object: Value,
    machine: Machine,
    now: Duration,
    /// Actions that were not answered.
    pending: Vec<Action>,
    /// Which run of each container is alive.
    alive: BTreeMap<String, (u32, Timestamp)>,
    /// The last run of each container that ended.
    dead: BTreeMap<String, (u32, Timestamp, Exit)>,
    sandbox: bool,
    deleted: bool,
    last: Option<PodStatus>,
    starts: usize,
}

impl World {
    fn new(policy: &str) -> Self {
        let probe = json!({"tcpSocket": {"port": 1}});
        let hook = json!({"exec": {"command": ["true"]}});
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "generation": 1},
            "spec": {
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": GRACE,
                "initContainers": [
                    {"name": "init", "image": "host"},
                    {"name": "side", "image": "host", "restartPolicy": "Always", "startupProbe": probe},
                ],
                "containers": [
                    {"name": "a", "image": "host", "readinessProbe": probe, "livenessProbe": probe,
                     "lifecycle": {"preStop": hook}},
                    {"name": "b", "image": "host", "lifecycle": {"postStart": hook},
                     "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                ],
            },
            "status": {"phase": "Pending"},
        });
        let now = Duration::from_secs(1);
        let machine = Machine::new(&pod(&object), settings(), &Found::default(), at(now));
        Self {
            object,
            machine,
            now,
            pending: Vec::new(),
            alive: BTreeMap::new(),
            dead: BTreeMap::new(),
            sandbox: false,
            deleted: false,
            last: None,
            starts: 0,
        }
    }

    fn step(&mut self) {
        for action in self.machine.step(at(self.now)) {
            self.check(&action);
            match &action {
                Action::Signal { .. } | Action::Record(_) => {}
                // A kill works at once.
                Action::Kill { container, run } => {
                    assert_eq!(self.alive.get(container).map(|(run, _)| *run), Some(*run));
                    let container = container.clone();
                    self.exit(&container, 137);
                }
                _ => self.pending.push(action),
            }
        }
        self.report();
    }

    fn check(&mut self, action: &Action) {
        let repeated = self.pending.contains(action);
        assert!(!repeated, "{action:?} was asked for twice");
        let Action::Start { container, run } = action else {
            return;
        };
        self.starts += 1;
        assert!(self.sandbox, "{container} was started without a sandbox");
        assert!(
            !self.deleted,
            "{container} was started although the pod is deleted"
        );
        let over = |status: &PodStatus| status.phase.is_final() || status.reason == "Evicted";
        let over = self.last.as_ref().is_some_and(over);
        assert!(!over, "{container} was started although the pod has ended");
        assert!(!self.alive.contains_key(container), "{container} runs already");
        let starting =
            |action: &Action| matches!(action, Action::Start { container: other, .. } if other == container);
        assert!(
            !self.pending.iter().any(starting),
            "{container} is being started already"
        );
        if let Some((before, ..)) = self.dead.get(container) {
            assert_eq!(*run, before + 1, "runs of {container} are counted");
        }
        if container == "a" || container == "b" {
            let done = self.dead.get("init").is_some_and(|(_, _, exit)| exit.code == 0);
            assert!(done, "{container} was started before init was done");
        }
    }

    /// Reports, and checks the report against the one before.
    fn report(&mut self) {
        let status = self.machine.status(self.now);
        if let Some(last) = &self.last {
            if last.phase.is_final() {
                assert_eq!(status.phase, last.phase, "a final phase is final");
            }
            for (now, before) in status.containers.iter().zip(&last.containers) {
                assert!(now.restarts >= before.restarts, "restarts only grow");
            }
            assert_eq!(status.start_time, last.start_time);
        }
        if status.phase.is_final() {
            assert!(self.alive.is_empty(), "ended while {:?} run", self.alive);
            assert!(!status.is_ready());
        }
        if status.is_ready() {
            assert!(self.alive.contains_key("a") && self.alive.contains_key("b"));
            assert_eq!(status.phase, Phase::Running);
        }
        if self.last.as_ref() != Some(&status) {
            self.check_api(&status);
        }
        self.last = Some(status);
    }

    /// The API server accepts every report.
    fn check_api(&mut self, status: &PodStatus) {
        let host = ["192.0.2.1".parse().unwrap()];
        let patch = self
            .machine
            .patch(status, &host, CHANGE_TIME_ANNOTATION)
            .to_json();
        let mut new = self.object.clone();
        new["status"] = plain(patch["status"].clone());
        let errors = pointsman_rules_check(&new, &self.object);
        assert!(errors.is_empty(), "{errors:?}\n{new:#}\n{:#}", self.object);
        self.object = new;
    }

    fn exit(&mut self, container: &str, code: i32) {
        let Some((run, started)) = self.alive.remove(container) else {
            return;
        };
        let exit = Exit {
            code,
            signal: None,
            cause: Cause::Ended,
            at: at(self.now).wall,
            message: String::new(),
        };
        self.dead.insert(container.into(), (run, started, exit.clone()));
        self.fact(ContainerFact::Exited(exit).about(container, run));
    }

    fn fact(&mut self, fact: Fact) {
        self.machine.fact(fact, at(self.now));
    }

    /// Answers a pending action, well or badly.
    fn answer(&mut self, index: usize, well: bool) {
        if self.pending.is_empty() {
            return;
        }
        let action = self.pending.remove(index % self.pending.len());
        match action {
            Action::MakeSandbox if well => {
                self.sandbox = true;
                self.fact(Fact::SandboxUp {
                    ips: vec!["10.0.0.5".parse().unwrap()],
                });
            }
            Action::MakeSandbox => self.fact(Fact::SandboxFailed { message: "no".into() }),
            Action::Start { container, run } if well => {
                let at = at(self.now).wall;
                self.alive.insert(container.clone(), (run, at));
                self.fact(ContainerFact::Started { at }.about(container, run));
            }
            Action::Start { container, run } if index.is_multiple_of(2) => {
                let refused = ContainerFact::Refused {
                    reason: "CreateContainerConfigError".into(),
                    message: "no".into(),
                };
                self.fact(refused.about(container, run));
            }
            Action::Start { container, run } => {
                let exit = Exit {
                    code: 127,
                    signal: None,
                    cause: Cause::Ended,
                    at: at(self.now).wall,
                    message: String::new(),
                };
                self.dead
                    .insert(container.clone(), (run, at(self.now).wall, exit));
                let failed = ContainerFact::StartFailed {
                    code: 127,
                    message: "no".into(),
                };
                self.fact(failed.about(container, run));
            }
            Action::PostStart { container, run } => {
                let outcome = if well { Ok(()) } else { Err("no".into()) };
                self.fact(ContainerFact::PostStart(outcome).about(container, run));
            }
            Action::PreStop { container, run, .. } => {
                let outcome = if well { Ok(()) } else { Err("no".into()) };
                self.fact(ContainerFact::PreStop(outcome).about(container, run));
            }
            Action::AskGate => self.fact(Fact::GateOpened),
            Action::TearDown if well => {
                assert!(self.alive.is_empty());
                self.sandbox = false;
                self.fact(Fact::TornDown);
            }
            Action::TearDown => self.fact(Fact::TearDownFailed { message: "no".into() }),
            Action::Signal { .. } | Action::Kill { .. } | Action::Record(_) => {}
        }
    }

    fn delete(&mut self, grace: u64) {
        self.object["metadata"]["deletionTimestamp"] = json!("2026-11-15T20:00:00Z");
        self.object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        self.deleted = true;
        self.machine.update(&pod(&self.object), at(self.now));
    }

    /// The agent is killed and started again: what it asked for may or may not have happened.
    fn restart_agent(&mut self, happened: bool) {
        while !self.pending.is_empty() {
            let lost = self.pending.len();
            if happened {
                self.answer(0, true);
            } else {
                self.pending.remove(0);
            }
            assert!(self.pending.len() < lost);
        }
        let found = |name: &String, run: u32, started_at: Timestamp, exit: Option<Exit>| FoundContainer {
            name: name.clone(),
            run,
            started_at,
            exit,
        };
        let alive = self
            .alive
            .iter()
            .map(|(name, (run, at))| found(name, *run, *at, None));
        let dead = self
            .dead
            .iter()
            .filter(|(name, _)| !self.alive.contains_key(*name));
        let dead = dead.map(|(name, (run, at, exit))| found(name, *run, *at, Some(exit.clone())));
        let found = Found {
            ips: self.sandbox.then(|| vec!["10.0.0.5".parse().unwrap()]),
            containers: alive.chain(dead).collect(),
        };
        let before = self.last.as_ref().is_some_and(PodStatus::is_ready);
        self.machine = Machine::new(&pod(&self.object), settings(), &found, at(self.now));
        // What was ready stays ready as long as it runs.
        if before && self.alive.len() == 3 {
            assert!(self.machine.status(self.now).is_ready(), "readiness flapped");
        }
    }

    fn act(&mut self, choice: Choice) {
        match choice {
            Choice::Answer(index, well) => self.answer(index, well),
            Choice::Exit(which, code) => {
                let name = self.alive.keys().nth(which).cloned();
                if let Some(name) = name {
                    self.exit(&name, code);
                }
            }
            Choice::Probe(which, kind, healthy) => {
                let found = self
                    .alive
                    .iter()
                    .nth(which)
                    .map(|(name, (run, _))| (name.clone(), *run));
                if let Some((container, run)) = found {
                    let at = at(self.now).wall;
                    self.fact(ContainerFact::Probed { kind, healthy, at }.about(container, run));
                }
            }
            Choice::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Choice::Delete(grace) => self.delete(grace),
            Choice::FillDisk => {
                let containers = [("b".into(), 2 << 20)].into();
                self.fact(Fact::DiskUsed(DiskUse {
                    containers,
                    ..DiskUse::default()
                }));
            }
            Choice::RestartAgent(happened) => self.restart_agent(happened),
        }
        self.step();
    }
}

#[derive(Clone, Debug)]
enum Choice {
    Answer(usize, bool),
    Exit(usize, i32),
    Probe(usize, Kind, bool),
    Wait(u64),
    Delete(u64),
    RestartAgent(bool),
    FillDisk,
}

fn choices(with_end: bool) -> impl Strategy<Value = Choice> {
    let kinds = [Kind::Readiness, Kind::Liveness, Kind::Startup];
    let probe = (
        0..3usize,
        proptest::sample::select(kinds.to_vec()),
        proptest::bool::weighted(0.8),
    );
    prop_oneof![
        12 => (0..4usize, proptest::bool::weighted(0.8)).prop_map(|(index, well)| Choice::Answer(index, well)),
        3 => (0..3usize, prop_oneof![2 => Just(0), 1 => Just(1)]).prop_map(|(which, code)| Choice::Exit(which, code)),
        4 => probe.prop_map(|(which, kind, healthy)| Choice::Probe(which, kind, healthy)),
        3 => (0..40u64).prop_map(Choice::Wait),
        1 => any::<bool>().prop_map(Choice::RestartAgent),
        1 => Just(Choice::FillDisk),
        u32::from(with_end) => prop_oneof![(0..40u64), Just(i64::MAX as u64)].prop_map(Choice::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_started_twice_and_what_has_ended_stays_so(
        policy in proptest::sample::select(vec!["Always", "OnFailure", "Never"]),
        history in proptest::collection::vec(choices(true), 0..80),
    ) {
        let mut world = World::new(policy);
        world.step();
        for choice in history {
            world.act(choice);
        }
    }

    #[test]
    fn a_deleted_pod_is_gone_within_its_grace_and_the_gates_bound(
        policy in proptest::sample::select(vec!["Always", "OnFailure", "Never"]),
        history in proptest::collection::vec(choices(false), 0..60),
        obeys in any::<bool>(),
    ) {
        let mut world = World::new(policy);
        world.step();
        for choice in history {
            world.act(choice);
        }
        world.delete(GRACE);
        let asked = world.now;
        world.step();
        for _ in 0..200 {
            if world.machine.is_over() {
                break;
            }
            if !world.pending.is_empty() {
                world.answer(0, true);
            } else if obeys && !world.alive.is_empty() && world.machine.wake(world.now).is_some() {
                let names: Vec<String> = world.alive.keys().cloned().collect();
                names.iter().for_each(|name| world.exit(name, 0));
            } else if let Some(wake) = world.machine.wake(world.now) {
                world.now = wake;
            }
            world.step();
        }
        prop_assert!(world.machine.is_over(), "{:#?}", world.machine);
        // Two seconds more for each of the four containers: nobody is killed without a warning.
        let most = Duration::from_secs(GRACE + 4 * 2) + GATE + Duration::from_secs(2);
        prop_assert!(world.now - asked <= most, "took {:?}", world.now - asked);
    }
}

/// The shortest way to a ready pod.
fn ready() -> World {
    let mut world = World::new("Always");
    world.step();
    for _ in 0..20 {
        if !world.pending.is_empty() {
            world.answer(0, true);
        } else if world.alive.contains_key("init") {
            world.exit("init", 0);
        } else if world.alive.contains_key("side") && !world.alive.contains_key("a") {
            probe(&mut world, "side", Kind::Startup, true);
        }
        world.step();
    }
    probe(&mut world, "a", Kind::Readiness, true);
    world.step();
    assert!(world.last.as_ref().unwrap().is_ready());
    world
}

fn probe(world: &mut World, container: &str, kind: Kind, healthy: bool) {
    let (run, _) = world.alive[container];
    let at = at(world.now).wall;
    world.fact(ContainerFact::Probed { kind, healthy, at }.about(container, run));
}

#[test]
fn containers_start_in_order_and_readiness_has_the_time_of_its_cause() {
    let mut world = ready();
    assert_eq!(world.starts, 4);
    let before = world.last.clone().unwrap();
    world.now += Duration::from_micros(1_234_567);
    let cause = at(world.now).wall;
    probe(&mut world, "a", Kind::Readiness, false);
    world.now += Duration::from_secs(3);
    world.step();
    let after = world.last.clone().unwrap();
    assert!(!after.is_ready());
    assert_eq!(after.ready_changed, Some(cause));
    let ready = after
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")
        .unwrap();
    assert_eq!((ready.reason, ready.since), ("ContainersNotReady", cause));
    let scheduled = |status: &PodStatus| status.conditions.last().unwrap().since;
    assert_eq!(scheduled(&before), scheduled(&after), "other times stay");
    let patch = world.machine.patch(&after, &[], "x").to_json();
    assert_eq!(
        patch["metadata"]["annotations"]["x"],
        "1970-01-01T00:00:02.234567Z"
    );
}

#[test]
fn a_gate_holds_the_signal_back_but_not_for_ever() {
    let mut world = ready();
    world.delete(GRACE);
    world.step();
    assert!(world.pending.contains(&Action::AskGate));
    assert!(
        world.last.as_ref().unwrap().is_ready(),
        "it serves until its stop signal"
    );
    world.now += GATE + Duration::from_secs(3);
    world.step();
    let stopping = |action: &Action| matches!(action, Action::PreStop { container, .. } if container == "a");
    assert!(world.pending.iter().any(stopping), "{:?}", world.pending);
}

#[test]
fn a_pod_that_wants_no_gate_is_stopped_at_once() {
    let mut world = ready();
    world.object["metadata"]["annotations"] = json!({ GATE_ANNOTATION: "off" });
    world.delete(GRACE);
    world.step();
    assert!(!world.pending.contains(&Action::AskGate), "{:?}", world.pending);
    let stopping = |action: &Action| matches!(action, Action::PreStop { container, .. } if container == "a");
    assert!(world.pending.iter().any(stopping), "{:?}", world.pending);
}

#[test]
fn a_failed_liveness_probe_restarts_only_its_container() {
    let mut world = ready();
    probe(&mut world, "a", Kind::Liveness, false);
    world.step();
    world.answer(0, true);
    world.step();
    world.exit("a", 143);
    world.step();
    assert!(
        world.pending.contains(&Action::Start {
            container: "a".into(),
            run: 1
        }),
        "{:?}",
        world.pending
    );
    assert!(world.alive.contains_key("b"));
}

#[test]
fn a_pod_past_its_deadline_fails_and_says_why() {
    let mut world = ready();
    world.object["spec"]["activeDeadlineSeconds"] = 60.into();
    world.machine.update(&pod(&world.object.clone()), at(world.now));
    world.now += Duration::from_secs(61);
    world.step();
    for name in ["a", "b", "side"] {
        world.exit(name, 0);
        world.step();
    }
    let status = world.last.clone().unwrap();
    assert_eq!((status.phase, status.reason), (Phase::Failed, "DeadlineExceeded"));
    assert!(!world.machine.is_over(), "it stays until somebody deletes it");
    world.delete(0);
    world.step();
    assert!(world.pending.contains(&Action::TearDown));
}

#[test]
fn a_readiness_gate_of_somebody_else_counts() {
    let mut world = ready();
    world.object["spec"]["readinessGates"] = json!([{"conditionType": "example.com/lb"}]);
    let found = Found {
        ips: Some(vec!["10.0.0.5".parse().unwrap()]),
        containers: world
            .alive
            .iter()
            .map(|(name, (run, at))| FoundContainer {
                name: name.clone(),
                run: *run,
                started_at: *at,
                exit: None,
            })
            .collect(),
    };
    let conditions = world.object["status"]["conditions"].as_array().unwrap().clone();
    for (status, expected) in [(None, false), (Some("False"), false), (Some("True"), true)] {
        let mut all = conditions.clone();
        all.extend(status.map(|status| json!({"type": "example.com/lb", "status": status})));
        world.object["status"]["conditions"] = all.into();
        let mut machine = Machine::new(&pod(&world.object), settings(), &found, at(world.now));
        machine.step(at(world.now));
        assert_eq!(machine.status(world.now).is_ready(), expected, "{status:?}");
    }
}

fn settings() -> Settings {
    Settings { gate: Some(GATE) }
}

fn at(mono: Duration) -> Now {
    let wall = Timestamp::from_microsecond(i64::try_from(mono.as_micros()).unwrap()).unwrap();
    Now { wall, mono }
}

fn pod(object: &Value) -> PodManifest {
    serde_json::from_value(object.clone()).unwrap()
}

/// A merge patch's value without what is only for merging.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, plain(value)))
            .collect(),
        Value::Array(list) => {
            let kept = list.into_iter().filter(|item| item.get("$patch").is_none());
            kept.map(plain).collect()
        }
        other => other,
    }
}

/// What the API server would say about a status write.
fn pointsman_rules_check(new: &Value, old: &Value) -> Vec<String> {
    use pointsman_rules::strategy::{ClusterSettings, Context, Part};
    let gates = pointsman_model::FeatureGates::default();
    let cluster = ClusterSettings {
        service_ranges: Vec::new(),
        node_ports: (30000, 32767),
    };
    let context = Context {
        now: Timestamp::UNIX_EPOCH,
        gates: &gates,
        cluster: &cluster,
    };
    let errors = pointsman_rules::kinds::POD
        .strategy
        .validate_update(new, old, Part::Status, &context);
    errors.iter().map(ToString::to_string).collect()
}
