//! What does a pod report on a node where everything works, at once?
//!
//! Nothing is kept of a pod but what it reported: what its status says is running is what runs. So a hundred thousand pods cost a
//! few bytes each, and another process goes on where the last one stopped.

use jiff::Timestamp;
use pointsman_objects::pod_manifest::{Container, PodManifest};
use pointsman_pod_lifecycle::{
    Action, Cause, ContainerFact, Exit, Fact, Found, FoundContainer, Machine, Now, Role, Settings,
};
use pointsman_probe::Kind;
use std::net::IpAddr;
use std::time::Duration;

/// The machine's other clock: nothing here waits, so that it stands still.
const MONO: Duration = Duration::from_secs(1);

/// The pod as far as it can come now, at this address: running and ready, or, once its end was asked for, gone.
pub(super) fn lived(pod: &PodManifest, address: IpAddr, now: Timestamp) -> Machine {
    let now = Now {
        wall: now,
        mono: MONO,
    };
    let mut machine = Machine::new(pod, Settings::default(), &found(pod, address), now);
    loop {
        let actions = machine.step(now);
        if actions.is_empty() {
            return machine;
        }
        for action in actions {
            for fact in answers(pod, action, address, now.wall) {
                machine.fact(fact, now);
            }
        }
    }
}

/// The body of the patch that reports it.
pub(super) fn report(machine: &mut Machine, host: IpAddr, annotation: &str) -> Vec<u8> {
    let status = machine.status(MONO);
    machine
        .patch(&status, &[host], annotation)
        .to_json()
        .to_string()
        .into_bytes()
}

/// What runs, by what was reported.
fn found(pod: &PodManifest, address: IpAddr) -> Found {
    let reported = &pod.status;
    let all = reported
        .init_container_statuses
        .iter()
        .chain(&reported.container_statuses);
    let containers: Vec<FoundContainer> = all
        .filter_map(|container| {
            Some(FoundContainer {
                name: container.name.clone(),
                run: container.run()?,
                started_at: container.state.running?.started_at?,
                exit: None,
            })
        })
        .collect();
    Found {
        ips: (!containers.is_empty()).then(|| vec![address]),
        containers,
    }
}

/// What becomes known after an action that worked.
fn answers(pod: &PodManifest, action: Action, address: IpAddr, at: Timestamp) -> Vec<Fact> {
    let exit = |container: String, run| {
        let exit = Exit {
            code: 0,
            signal: None,
            cause: Cause::Ended,
            at,
            message: String::new(),
        };
        ContainerFact::Exited(exit).about(container, run)
    };
    match action {
        Action::MakeSandbox => vec![Fact::SandboxUp { ips: vec![address] }],
        Action::Start { container, run } => {
            let mut facts = vec![ContainerFact::Started { at }.about(&*container, run)];
            let healthy = |kind| ContainerFact::Probed {
                kind,
                healthy: true,
                at,
            };
            let spec = spec(pod, &container);
            let probed = [Kind::Startup, Kind::Readiness].into_iter();
            let probed = probed.filter(|kind| spec.is_some_and(|spec| kind.of(spec).is_some()));
            facts.extend(probed.map(|kind| healthy(kind).about(&*container, run)));
            if is_init(pod, &container) {
                facts.push(exit(container, run));
            }
            facts
        }
        Action::PostStart { container, run } => {
            vec![ContainerFact::PostStart(Ok(())).about(container, run)]
        }
        Action::PreStop { container, run, .. } => {
            vec![ContainerFact::PreStop(Ok(())).about(container, run)]
        }
        Action::Signal { container, run } | Action::Kill { container, run } => vec![exit(container, run)],
        Action::AskGate => vec![Fact::GateOpened],
        Action::TearDown => vec![Fact::TornDown],
        Action::Record(_) => Vec::new(),
    }
}

fn spec<'a>(pod: &'a PodManifest, name: &str) -> Option<&'a Container> {
    let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    all.find(|container| container.name == name)
}

/// Whether the container has to end before others start.
fn is_init(pod: &PodManifest, name: &str) -> bool {
    let mut inits = pod.spec.init_containers.iter();
    inits.any(|init| init.name == name && Role::of_init(init) == Role::Init)
}
