use std::collections::BTreeSet;
use std::io::BufRead;
use std::process::{Command, Stdio};
use std::time::Duration;

use pointsman_fabric::Netns;
use pointsman_runtime::process::ProcessRuntime;
use pointsman_runtime::{ContainerStatus, ExitCause, Runtime, RuntimeEvent, Signal};
use pointsman_testkit::require_netns;

use crate::harness::*;

#[tokio::test]
async fn a_new_agent_finds_what_runs_and_what_has_ended_meanwhile() {
    require_netns!();
    let mut node = Node::new().await;
    let stays = node
        .run("a", "echo one; sleep 0.4; echo two; exec sleep 79001")
        .await;
    let ends = node
        .start(shell("a", "ends", "sleep 0.3; exit 5"))
        .await
        .unwrap()
        .id;
    let before = node.runtime.list().await.unwrap();
    node.reopen().await;
    let mut events = node.runtime.subscribe();
    assert_eq!(node.runtime.list().await.unwrap(), before);
    // The new one gets the end reported, once.
    let reported = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(
        matches!(reported, Some(RuntimeEvent::Exited { container, exit }) if container == ends && exit.code == 5)
    );
    node.reopen().await;
    assert_eq!(node.exit(&ends).await.code, 5);
    eventually("it goes on", || processes_about("sleep 79001").len() == 1).await;
    assert_eq!(
        node.says(&stays, "echo through the new one").await,
        "through the new one"
    );
    let log = node.state(&stays).await.unwrap().log;
    eventually("its output is written", || {
        std::fs::read_to_string(&log).unwrap().contains("two")
    })
    .await;
    assert_eq!(
        node.runtime
            .stop(&stays, Signal::TERM, PATIENCE)
            .await
            .unwrap()
            .code,
        143
    );
    assert_eq!(node.log(&stays).await, ["stdout F one", "stdout F two"]);
    node.remove("a").await;
}

#[tokio::test]
async fn a_container_whose_shim_was_killed_is_lost_and_nothing_of_it_runs_on() {
    require_netns!();
    for reopened in [false, true] {
        let mut node = Node::new().await;
        let id = node.run("a", "(setsid sleep 79101 &); exec sleep 79102").await;
        eventually("both run", || processes_about("sleep 7910").len() == 2).await;
        let root = node.root.path().canonicalize().unwrap();
        let shims = processes_about(&format!("{}/pods/a", root.display()));
        assert_eq!(shims.len(), 1, "{shims:?}");
        let pid: i32 = shims[0].split(':').next().unwrap().parse().unwrap();
        if reopened {
            // Nobody watches when it happens.
            let runtime = ProcessRuntime::open(config(node.root.path(), &node.netns))
                .await
                .unwrap();
            drop(std::mem::replace(&mut node.runtime, runtime));
        }
        kill(pid);
        let exit = node.exit(&id).await;
        assert_eq!((exit.code, exit.cause), (137, ExitCause::Lost));
        eventually("nothing of it runs", || processes_about("sleep 7910").is_empty()).await;
        node.remove("a").await;
    }
}

fn kill(pid: i32) {
    let status = Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_half_removed_pod_is_removed_by_the_next_try_and_stray_things_go_by_themselves() {
    require_netns!();
    let mut node = Node::new().await;
    let id = node.run("a", "exec sleep 79201").await;
    node.runtime.stop(&id, Signal::KILL, PATIENCE).await.unwrap();
    let root = node.root.path().to_owned();
    // As if the agent had died after the network was removed.
    let netns = node.runtime.list().await.unwrap()[0]
        .sandbox
        .clone()
        .unwrap()
        .netns
        .unwrap();
    Netns::delete(netns.file_name().unwrap().to_str().unwrap()).unwrap();
    node.reopen().await;
    let found = node.runtime.list().await.unwrap();
    assert_eq!((found.len(), &found[0].sandbox), (1, &None));
    node.remove("a").await;
    assert_eq!(node.traces(), ["lo"]);
    // As if it had died after the directory was removed but before the rest was: that is never so, yet
    // someone may delete directories by hand.
    node.open("b").await;
    std::fs::remove_dir_all(root.join("pods/b")).unwrap();
    node.reopen().await;
    assert_eq!(node.traces(), ["lo"]);
}

/// Not a test of its own: the agent that the next test kills.
#[expect(
    clippy::print_stdout,
    reason = "what it prints is read by the test that kills it"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_killed() {
    let (Ok(root), Ok(netns)) = (
        std::env::var("KILLED_AGENT_ROOT"),
        std::env::var("KILLED_AGENT_NETNS"),
    ) else {
        return;
    };
    let netns = Netns::open(netns.as_ref()).unwrap();
    let runtime = ProcessRuntime::open(config(root.as_ref(), &netns)).await.unwrap();
    runtime.set_pod_ranges(&ranges());
    let tasks = (0..3).map(|worker| {
        let runtime = runtime.clone();
        tokio::spawn(async move {
            for number in 0.. {
                let uid = format!("w{worker}-{number}");
                runtime.open_sandbox(sandbox(&uid)).await.unwrap();
                for name in ["one", "two"] {
                    let id = runtime
                        .start(shell(&uid, name, "exec sleep 79301"))
                        .await
                        .unwrap()
                        .id;
                    println!("started {id}");
                }
                if number % 3 == 2 {
                    println!("removing {uid}");
                    runtime.remove_pod(&pod(&uid)).await.unwrap();
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_killed_at_work_loses_nothing_and_doubles_nothing() {
    require_netns!();
    use std::os::fd::{AsFd, AsRawFd};
    let mut node = Node::new().await;
    let netns = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        node.netns.as_fd().as_raw_fd()
    );
    for (round, millis) in [350, 500, 700].into_iter().enumerate() {
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "recovery::an_agent_that_is_killed", "--nocapture"])
            .env("KILLED_AGENT_ROOT", node.root.path())
            .env("KILLED_AGENT_NETNS", &netns)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(millis)).await;
        agent.kill().unwrap();
        let (mut started, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for line in std::io::BufReader::new(agent.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            started.extend(line.strip_prefix("started ").map(str::to_owned));
            removed.extend(line.strip_prefix("removing ").map(str::to_owned));
        }
        agent.wait().unwrap();
        node.reopen().await;
        let pods = node.runtime.list().await.unwrap();
        let mut running = BTreeSet::new();
        for container in pods.iter().flat_map(|pod| &pod.containers) {
            if let ContainerStatus::Running { pid, .. } = container.status {
                assert!(
                    std::path::Path::new(&format!("/proc/{pid}")).exists(),
                    "{} is dead",
                    container.id
                );
                running.insert(container.id.to_string());
            }
        }
        let in_removed = |id: &String| removed.iter().any(|uid| id.starts_with(&format!("{uid}/")));
        let lost: Vec<&String> = started
            .iter()
            .filter(|id| !running.contains(*id) && !in_removed(id))
            .collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        let processes = node_processes(&node, "sleep 79301");
        assert_eq!(processes, running.len(), "round {round}: {running:?}");
        let addresses: Vec<_> = pods
            .iter()
            .filter_map(|pod| pod.sandbox.as_ref())
            .flat_map(|sandbox| &sandbox.addresses)
            .collect();
        assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), addresses.len());
        assert!(!started.is_empty(), "the agent got to work");
        for pod in pods {
            node.runtime.remove_pod(&pod.pod).await.unwrap();
        }
        assert_eq!(node.traces(), ["lo"], "round {round}");
    }
}

/// How many processes of this node run a command, by their cgroup.
fn node_processes(node: &Node, command: &str) -> usize {
    let groups = node.cgroups();
    let group = groups.file_name().unwrap().to_str().unwrap();
    let of_node = processes_about(command).into_iter().filter(|line| {
        let pid = line.split(':').next().unwrap();
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(group))
    });
    of_node.count()
}
