//! Can a program lead the mounts of the next container to the host's files?

use pointsman_runtime::{ContainerSpec, Medium, Runtime, RuntimeError, StartFailure, VolumeSource};
use pointsman_testkit::require_netns;

use crate::harness::*;

/// A container with the volume `data` at `/data` and `other` somewhere below it.
fn nested(name: &str, path: &str) -> ContainerSpec {
    let mut spec = shell("a", name, "exec sleep 78501");
    spec.mounts = vec![mount("data", "/data"), mount("other", path)];
    spec
}

#[tokio::test]
async fn a_planted_link_leads_no_mount_out_of_its_volume() {
    require_netns!();
    let node = Node::new().await;
    let host = tempfile::tempdir().unwrap();
    let place = host.path().canonicalize().unwrap();
    let mut spec = sandbox("a");
    let scratch = || VolumeSource::Scratch {
        medium: Medium::Disk,
        size_limit: None,
    };
    spec.volumes = vec![volume("data", scratch()), volume("other", scratch())];
    node.runtime.open_sandbox(spec).await.unwrap();
    // All the ways by which the tree of the host could be reached while a container is made.
    let ways = [
        "/.pointsman-host",
        "/proc/1/root",
        "/proc/self/root",
        "../../../..",
    ];
    let links: String = ways
        .iter()
        .enumerate()
        .map(|(number, way)| format!("ln -s {way}{} /data/link{number}; ", place.display()))
        .collect();
    let mut planter = shell("a", "planter", &format!("{links} mkdir -p /data/plain"));
    planter.mounts = vec![mount("data", "/data")];
    let planter = node.start(planter).await.unwrap().id;
    assert_eq!(node.exit(&planter).await.code, 0);

    for number in 0..ways.len() {
        for within in ["", "/made", "/made/deep"] {
            let target = format!("/data/link{number}{within}");
            let refused = node.start(nested("bad", &target)).await;
            assert!(
                matches!(
                    &refused,
                    Err(RuntimeError::CannotStart {
                        reason: StartFailure::Mount,
                        message,
                    }) if message.contains("symbolic link")
                ),
                "{target}: {refused:?}"
            );
        }
    }
    let made: Vec<_> = std::fs::read_dir(&place).unwrap().flatten().collect();
    assert!(made.is_empty(), "made on the host: {made:?}");

    // What is no link is a place for a mount as before, and made where it is missing.
    let good = node.start(nested("good", "/data/plain/new/er")).await.unwrap().id;
    node.says(&good, "touch /data/plain/new/er/mine").await;
    assert_eq!(node.says(&good, "ls /data/plain/new/er").await, "mine");
    node.remove("a").await;
    assert_eq!(node.traces(), ["lo"]);
}
