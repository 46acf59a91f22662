//! The end of a pod that has more on disk than it may.

use jiff::Timestamp;
use pointsman_objects::pod::Phase;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_pod_lifecycle::{
    Action, Cause, ContainerFact, DiskUse, Exit, Fact, Found, Machine, Now, Settings,
};
use serde_json::{Value, json};
use std::time::Duration;

const MESSAGE: &str = "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ";

fn at(seconds: u64) -> Now {
    Now {
        wall: Timestamp::from_second(seconds.try_into().unwrap()).unwrap(),
        mono: Duration::from_secs(seconds),
    }
}

fn object() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "a", "image": "host", "resources": {"limits": {"ephemeral-storage": "5Mi"}}}],
        },
    })
}

fn pod(object: &Value) -> PodManifest {
    serde_json::from_value(object.clone()).unwrap()
}

fn uses(bytes: u64) -> Fact {
    Fact::DiskUsed(DiskUse {
        containers: [("a".to_owned(), bytes)].into(),
        ..DiskUse::default()
    })
}

/// The pod with its container running, behind a gate.
fn running() -> Machine {
    let gate = Some(Duration::from_secs(5));
    let mut machine = Machine::new(&pod(&object()), Settings { gate }, &Found::default(), at(0));
    assert!(!machine.has_disk_limits(), "there is nothing to look at yet");
    assert_eq!(machine.step(at(0)), [Action::MakeSandbox]);
    machine.fact(Fact::SandboxUp { ips: Vec::new() }, at(0));
    machine.step(at(0));
    let started = ContainerFact::Started { at: at(0).wall };
    machine.fact(started.about("a", 0), at(0));
    machine
}

#[test]
fn a_pod_with_too_much_on_disk_ends_at_once_and_takes_its_files_along() {
    let mut machine = running();
    assert!(machine.has_disk_limits());
    assert_eq!(machine.fact(uses(5 << 20), at(10)), None);
    assert_eq!(machine.step(at(10)), []);
    let event = machine.fact(uses(6 << 20), at(20)).unwrap();
    assert_eq!(
        (event.warning, event.reason, &*event.message),
        (true, "Evicted", MESSAGE)
    );
    assert!(!machine.has_disk_limits());
    let signal = |action: &Action| matches!(action, Action::Signal { .. });
    assert!(machine.step(at(20)).iter().any(signal), "nobody is asked before");
    let status = machine.status(at(20).mono);
    assert_eq!(
        (status.phase, status.reason, &*status.message),
        (Phase::Running, "Evicted", MESSAGE)
    );
    // It has the little that any program has, not its own grace.
    let kill = Action::Kill {
        container: "a".into(),
        run: 0,
    };
    assert_eq!(machine.step(at(22)), [kill]);
    assert_eq!(machine.fact(uses(7 << 20), at(22)), None, "it was said once");
    let exit = Exit {
        code: 0,
        signal: None,
        cause: Cause::Ended,
        at: at(22).wall,
        message: String::new(),
    };
    machine.fact(ContainerFact::Exited(exit).about("a", 0), at(22));
    assert_eq!(machine.step(at(22)), [Action::TearDown]);
    machine.fact(Fact::TornDown, at(23));
    assert_eq!(machine.step(at(23)), []);
    let status = machine.status(at(23).mono);
    assert_eq!(
        (status.phase, status.reason, &*status.message),
        (Phase::Failed, "Evicted", MESSAGE)
    );
    assert!(
        machine.is_over() && !machine.is_deleted(),
        "the object stays until somebody deletes it"
    );
}

#[test]
fn an_agent_that_restarts_goes_on_with_an_eviction() {
    for (phase, containers) in [("Running", true), ("Failed", false)] {
        let mut object = object();
        object["status"] = json!({"phase": phase, "reason": "Evicted", "message": MESSAGE});
        let found = Found {
            ips: containers.then(Vec::new),
            ..Found::default()
        };
        let mut machine = Machine::new(&pod(&object), Settings::default(), &found, at(0));
        let actions = machine.step(at(0));
        assert_eq!(actions, [Action::TearDown], "{phase}");
        let status = machine.status(at(0).mono);
        assert_eq!(
            (status.phase, status.reason, &*status.message),
            (Phase::Failed, "Evicted", MESSAGE)
        );
    }
}
