//! What does it cost to run a command in a container, and what does a shim weigh?
//!
//! `cargo bench -p pointsman-benches --bench exec_cost -- [COMMANDS]`, as root. Prints one line per
//! figure. The commands themselves (`true`) are not in the figures: each is a process of its own, whose cost
//! is what it is. For comparison, the same command is started straight from a process of the agent's size,
//! which enters the pod's namespaces between fork and exec.

#![expect(clippy::print_stdout, reason = "the figures are the point")]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use pointsman_fabric::Netns;
use pointsman_runtime::process::{Config, ProcessRuntime};
use pointsman_runtime::{
    ContainerId, ContainerName, ContainerSpec, ContainerStatus, ExecEnd, ExecRequest, Limits, Network,
    PodUid, Pull, Runtime, SandboxSpec, Security, User,
};

/// About what an agent with a hundred pods holds.
const BALLAST: usize = 64 << 20;

fn main() -> ExitCode {
    if let Some(code) = pointsman_runtime::shim::run_if_asked() {
        return code;
    }
    let count = pointsman_benches::arguments()
        .first()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("tokio starts");
    runtime.block_on(measure(count));
    ExitCode::SUCCESS
}

async fn measure(count: u32) {
    let root = tempfile::tempdir().expect("a directory");
    let mut config = Config::new(root.path());
    let netns = Netns::anonymous().expect("a namespace; this needs root");
    config.node_netns = Some(netns);
    let runtime = ProcessRuntime::open(config).await.expect("a runtime");
    runtime.set_pod_ranges(&["10.244.7.0/24".parse().expect("a range")]);
    let pod = PodUid::try_new("exec-cost").expect("a name");
    let before = Instant::now();
    let sandbox = runtime.open_sandbox(sandbox(&pod)).await.expect("a pod");
    println!("pod made in {:.1} ms", millis(before.elapsed()));
    let before = Instant::now();
    let started = runtime.start(container(&pod)).await.expect("a container");
    println!("container started in {:.1} ms", millis(before.elapsed()));
    let ContainerStatus::Running { pid, .. } = started.status else {
        panic!("it runs");
    };
    let ballast = vec![1_u8; BALLAST];
    let shim = parent(pid);
    for round in ["warm up", "through the shim"] {
        let (wall, own, of_shim) = (Instant::now(), own_cpu(), process_cpu(shim));
        for _ in 0..count {
            let request = ExecRequest::new(vec!["true".to_owned()], Some(Duration::from_secs(5)));
            let outcome = runtime.exec(&started.id, request).await.expect("an answer");
            assert_eq!(outcome.end, ExecEnd::Exited(0));
        }
        report(
            round,
            count,
            wall.elapsed(),
            own_cpu() - own,
            process_cpu(shim) - of_shim,
        );
    }
    let target = Netns::open(sandbox.netns.as_deref().expect("its own network")).expect("a namespace");
    let (wall, own) = (Instant::now(), own_cpu());
    for _ in 0..count {
        let mut command = target.command("/usr/bin/true");
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let output = command.output().expect("it runs");
        assert!(output.status.success());
    }
    report(
        "by fork from the agent",
        count,
        wall.elapsed(),
        own_cpu() - own,
        Duration::ZERO,
    );
    println!("shim: {}", memory(shim));
    println!(
        "ballast: {} MiB",
        ballast.iter().map(|byte| usize::from(*byte)).sum::<usize>() >> 20
    );
    runtime.remove_pod(&pod).await.expect("it goes");
}

fn report(what: &str, count: u32, wall: Duration, own: Duration, shim: Duration) {
    let each = |time: Duration| millis(time) / f64::from(count);
    println!(
        "{what}: each {:.3} ms; CPU of the agent {:.3} ms, of the shim {:.3} ms",
        each(wall),
        each(own),
        each(shim)
    );
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The CPU time of this process, all threads, in nanoseconds' resolution.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a positive time")
}

/// The CPU time of a process with one thread.
fn process_cpu(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("the process runs");
    let nanos = text.split_whitespace().next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

fn parent(pid: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|text| text.trim().parse().ok()).expect("a parent")
}

fn memory(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let wanted = ["VmRSS:", "RssAnon:", "Threads:"];
    let lines = text
        .lines()
        .filter(|line| wanted.iter().any(|word| line.starts_with(word)));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.collect::<Vec<_>>().join(", ")
}

fn sandbox(pod: &PodUid) -> SandboxSpec {
    SandboxSpec {
        pod: pod.clone(),
        namespace: "default".into(),
        name: "exec-cost".into(),
        hostname: "exec-cost".into(),
        domain: None,
        network: Network::Own,
        ports: Vec::new(),
        host_aliases: Vec::new(),
        resolv_conf: None,
        volumes: Vec::new(),
        volume_group: None,
        labels: BTreeMap::new(),
    }
}

fn container(pod: &PodUid) -> ContainerSpec {
    ContainerSpec {
        id: ContainerId {
            pod: pod.clone(),
            name: ContainerName::try_new("main").expect("a name"),
            attempt: 0,
        },
        image: "host".into(),
        pull: Pull::default(),
        args: Vec::new(),
        command: vec!["sleep".into(), "600".into()],
        env: Vec::new(),
        working_dir: None,
        user: User::default(),
        mounts: Vec::new(),
        limits: Limits::default(),
        security: Security::default(),
        termination_message: None,
        attachable: Default::default(),
        labels: BTreeMap::new(),
    }
}
