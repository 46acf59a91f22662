//! Whoever holds the runtime dies; what runs goes on, and what ended is known.

use crate::for_both;
use crate::place::{PATIENCE, Place, pod};
use pointsman_runtime::{ContainerStatus, ExitCause, Network, RuntimeError, RuntimeEvent, Signal};
use std::time::Duration;

for_both! {
    pods_go_on_without_an_agent_and_are_found_again,
    a_program_that_is_killed_by_somebody_is_told_of,
    a_pod_on_the_node_s_network_has_no_address_of_its_own,
}

async fn pods_go_on_without_an_agent_and_are_found_again(mut place: Place) {
    let stays = place.run("stays", "echo begun; exec sleep 76021").await;
    let ends = place.run("ends", "sleep 1; exit 5").await;
    let before = place.state(&stays).await.unwrap();
    let pods = place.runtime.list().await.unwrap();
    let addresses = |pods: &[pointsman_runtime::PodState]| {
        let sandboxes = pods.iter().map(|pod| pod.sandbox.clone().unwrap().addresses);
        sandboxes.collect::<Vec<_>>()
    };
    let had = addresses(&pods);
    place.reopen().await;
    let pods = place.runtime.list().await.unwrap();
    assert_eq!(addresses(&pods), had);
    assert_eq!(
        (pods[1].namespace.as_str(), pods[1].name.as_str()),
        ("default", "pod-stays")
    );
    assert_eq!(place.state(&stays).await.unwrap(), before);
    assert_eq!(place.exit(&ends).await.code, 5);
    place.reopen().await;
    let ContainerStatus::Exited(exit) = place.state(&ends).await.unwrap().status else {
        panic!("it has ended")
    };
    assert_eq!((exit.code, exit.cause), (5, ExitCause::Ended));
    assert_eq!(place.says(&stays, "echo here").await, "here");
    place
        .runtime
        .stop(&stays, Signal::KILL, Duration::ZERO)
        .await
        .unwrap();
    place.remove("stays").await;
    place.remove("ends").await;
}

async fn a_program_that_is_killed_by_somebody_is_told_of(place: Place) {
    let id = place.run("a", "exec sleep 76022").await;
    let mut events = place.runtime.subscribe();
    let ContainerStatus::Running { pid, .. } = place.state(&id).await.unwrap().status else {
        panic!("it runs")
    };
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).expect("the process is known");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let told = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(matches!(told, Some(RuntimeEvent::Exited { exit, .. }) if exit.code == 137));
    place.remove("a").await;
}

async fn a_pod_on_the_node_s_network_has_no_address_of_its_own(place: Place) {
    let mut spec = place.sandbox("a");
    spec.network = Network::Host;
    let sandbox = place.runtime.open_sandbox(spec).await.unwrap();
    assert!(sandbox.addresses.is_empty() && sandbox.netns.is_none());
    let id = place
        .runtime
        .start(place.shell("a", 0, "exec sleep 76023"))
        .await
        .unwrap()
        .id;
    assert_eq!(place.says(&id, "ls /sys/class/net").await, "lo");
    place.remove("a").await;
}

#[tokio::test]
async fn containers_go_on_while_containerd_is_down_and_a_lost_sandbox_is_made_again() {
    pointsman_testkit::require_netns!();
    let mut place = Place::of_containers().await;
    let id = place.run("a", "exec sleep 76024").await;
    let mut trouble = place.runtime.trouble();
    let directory = place.root.path().join("c");
    place.containerd.as_mut().unwrap().restart(&directory);
    let well = async {
        while place.runtime.list().await.is_err() || trouble.borrow_and_update().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, well).await.unwrap();
    assert_eq!(place.says(&id, "echo here").await, "here");
    // The process that holds the sandbox's namespaces ends, as with a machine that starts again.
    let ctr = |arguments: &[&str]| {
        let output = place
            .containerd
            .as_ref()
            .unwrap()
            .files
            .ctr()
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let tasks = ctr(&["tasks", "list"]);
    let ContainerStatus::Running { pid, .. } = place.state(&id).await.unwrap().status else {
        panic!("it runs")
    };
    let lines = tasks
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let sandbox = lines
        .filter(|words| words[1] != pid.to_string())
        .map(|words| words[0].to_owned())
        .next();
    let mut events = place.runtime.subscribe();
    ctr(&["tasks", "kill", "--signal", "KILL", &sandbox.unwrap()]);
    let told = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert_eq!(told, Some(RuntimeEvent::SandboxLost { pod: pod("a") }));
    assert!(place.runtime.list().await.unwrap()[0].sandbox.is_none());
    assert_eq!(place.says(&id, "echo here").await, "here");
    let late = place.runtime.start(place.shell("a", 1, "exec sleep 76025")).await;
    assert!(matches!(late, Err(RuntimeError::NoSuchPod(_))), "{late:?}");
    assert_eq!(
        events.recv().await,
        Some(RuntimeEvent::SandboxLost { pod: pod("a") })
    );
    place.runtime.remove_pod(&pod("a")).await.unwrap();
    place.run("a", "exec sleep 76025").await;
    place.remove("a").await;
    // What is removed on request is not lost.
    while let Ok(event) = events.try_recv() {
        assert!(!matches!(event, RuntimeEvent::SandboxLost { .. }), "{event:?}");
    }
}
