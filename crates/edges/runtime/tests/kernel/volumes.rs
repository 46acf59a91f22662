use std::path::Path;

use pointsman_runtime::shim::protocol::Root;
use pointsman_runtime::{
    FileContent, FileSet, Medium, Runtime, RuntimeError, StartFailure, VolumeName, VolumeSource,
};
use pointsman_testkit::require_netns;

use crate::harness::*;

fn files(entries: &[(&str, &str)]) -> FileSet {
    let content = |text: &str| FileContent {
        bytes: text.as_bytes().to_vec(),
        mode: 0o644,
        owner: None,
    };
    FileSet {
        files: entries
            .iter()
            .map(|(path, text)| ((*path).to_owned(), content(text)))
            .collect(),
        in_memory: false,
    }
}

fn scratch(medium: Medium) -> VolumeSource {
    VolumeSource::Scratch {
        medium,
        size_limit: Some(1 << 20),
    }
}

#[tokio::test]
async fn containers_of_a_pod_share_a_scratch_volume_at_paths_the_host_does_not_have() {
    require_netns!();
    let node = Node::new().await;
    let mut spec = sandbox("a");
    spec.volumes = vec![
        volume("data", scratch(Medium::Disk)),
        volume("ram", scratch(Medium::Memory)),
    ];
    spec.volume_group = Some(4500);
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut writer = shell("a", "writer", "echo hello > /made-up/data/file; exec sleep 78001");
    writer.mounts = vec![mount("data", "/made-up/data"), mount("ram", "/var/run/made-up")];
    writer.user.uid = Some(4001);
    writer.user.groups = vec![4500];
    let mut reader = shell("a", "reader", "exec sleep 78002");
    reader.mounts = vec![mount("data", "/elsewhere")];
    reader.mounts[0].read_only = true;
    let writer = node.start(writer).await.unwrap().id;
    let reader = node.start(reader).await.unwrap().id;
    let wait = "while ! [ -s /elsewhere/file ]; do sleep 0.01; done; cat /elsewhere/file; stat -c %g /elsewhere/file";
    assert_eq!(node.says(&reader, wait).await, "hello\n4500");
    assert!(
        node.says(&reader, "touch /elsewhere/x 2>&1")
            .await
            .contains("Read-only file system")
    );
    assert_eq!(
        node.says(&writer, "stat -f -c %T /var/run/made-up").await,
        "tmpfs"
    );
    // Its own files are its own, and the runtime's directory is not to be seen.
    let root = node.root.path().canonicalize().unwrap();
    assert_eq!(node.says(&reader, &format!("ls -A {}", root.display())).await, "");
    assert_eq!(
        node.says(&reader, "echo mine > /etc/only-mine; cat /etc/only-mine")
            .await,
        "mine"
    );
    assert_eq!(
        node.says(&writer, "cat /etc/only-mine 2>&1 | tail -c 26").await,
        "No such file or directory"
    );
    for path in [
        "/made-up",
        "/elsewhere",
        "/etc/only-mine",
        "/run/made-up",
        "/.pointsman-host",
    ] {
        assert!(!Path::new(path).exists(), "{path} is on the host");
    }
    node.remove("a").await;
    assert_eq!(node.traces(), ["lo"]);
}

#[tokio::test]
async fn given_files_are_read_only_and_change_all_at_once() {
    require_netns!();
    let node = Node::new().await;
    let mut spec = sandbox("a");
    let first = files(&[("one", "1"), ("two", "1"), ("sub/three", "1")]);
    spec.volumes = vec![volume("config", VolumeSource::Files(first))];
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut spec = shell("a", "main", "exec sleep 78101");
    let mut single = mount("config", "/etc/single.conf");
    single.sub_path = Some("one".into());
    spec.mounts = vec![mount("config", "/etc/config"), single];
    let id = node.start(spec).await.unwrap().id;
    let all = "cat /etc/config/one /etc/config/two /etc/config/sub/three";
    assert_eq!(node.says(&id, all).await, "111");
    assert!(
        node.says(&id, "echo x > /etc/config/one 2>&1; touch /etc/config/y 2>&1")
            .await
            .contains("Read-only")
    );
    let name = VolumeName::try_new("config").unwrap();
    let second = files(&[("one", "2"), ("two", "2"), ("sub/three", "2")]);
    node.runtime.update_files(&pod("a"), &name, second).await.unwrap();
    assert_eq!(node.says(&id, all).await, "222");
    // A single file was mounted as it was, as Kubernetes has it.
    assert_eq!(node.says(&id, "cat /etc/single.conf").await, "1");
    let unknown = VolumeName::try_new("other").unwrap();
    let refused = node.runtime.update_files(&pod("a"), &unknown, files(&[])).await;
    assert!(matches!(refused, Err(RuntimeError::Refused { .. })));
    node.remove("a").await;
}

#[tokio::test]
async fn a_path_within_a_volume_never_leads_out_of_it() {
    require_netns!();
    let node = Node::new().await;
    let mut spec = sandbox("a");
    spec.volumes = vec![volume("data", scratch(Medium::Disk))];
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut maker = shell(
        "a",
        "maker",
        "mkdir -p /data/deep; echo ok > /data/deep/file; ln -s /etc /data/out; ln -s ../../.. /data/up",
    );
    maker.mounts = vec![mount("data", "/data")];
    let maker = node.start(maker).await.unwrap().id;
    assert_eq!(node.exit(&maker).await.code, 0);
    let with_sub_path = |name: &str, path: &str| {
        let mut spec = shell("a", name, "ls /inner; exec sleep 78201");
        spec.mounts = vec![mount("data", "/inner")];
        spec.mounts[0].sub_path = Some(path.into());
        spec
    };
    for path in ["out", "up"] {
        let refused = node.start(with_sub_path("bad", path)).await;
        assert!(
            matches!(
                &refused,
                Err(RuntimeError::CannotStart {
                    reason: StartFailure::Mount,
                    ..
                })
            ),
            "{path}: {refused:?}"
        );
    }
    for path in ["..", "/etc", "a/../../b"] {
        let refused = node.start(with_sub_path("bad", path)).await;
        assert!(matches!(refused, Err(RuntimeError::Refused { .. })), "{path}");
    }
    let good = node.start(with_sub_path("good", "deep")).await.unwrap().id;
    assert_eq!(node.says(&good, "cat /inner/file").await, "ok");
    let made = node.start(with_sub_path("made", "new/er")).await.unwrap().id;
    assert_eq!(node.says(&made, "touch /inner/x; ls /inner").await, "x");
    node.remove("a").await;
}

#[tokio::test]
async fn a_host_path_is_the_hosts_own() {
    require_netns!();
    let node = Node::new().await;
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("from-host"), "h").unwrap();
    let mut spec = sandbox("a");
    spec.volumes = vec![
        volume("host", VolumeSource::Host(host.path().into())),
        volume("gone", VolumeSource::Host("/no/such/host/path".into())),
    ];
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut spec = shell("a", "main", "exec sleep 78301");
    spec.mounts = vec![mount("host", "/host")];
    let id = node.start(spec).await.unwrap().id;
    assert_eq!(
        node.says(&id, "cat /host/from-host; echo c > /host/from-container")
            .await,
        "h"
    );
    assert_eq!(
        std::fs::read_to_string(host.path().join("from-container")).unwrap(),
        "c\n"
    );
    let mut missing = shell("a", "missing", "true");
    missing.mounts = vec![mount("gone", "/gone")];
    let refused = node.start(missing).await;
    assert!(matches!(
        refused,
        Err(RuntimeError::CannotStart {
            reason: StartFailure::Mount,
            ..
        })
    ));
    node.remove("a").await;
    assert!(host.path().join("from-host").exists());
}

#[tokio::test]
async fn without_an_overlay_volumes_go_on_paths_that_exist_and_nowhere_else() {
    require_netns!();
    let node = Node::with(|config| config.root = Some(Root::Host)).await;
    assert!(!node.runtime.abilities().has_layers);
    let mut spec = sandbox("a");
    spec.volumes = vec![volume("data", scratch(Medium::Disk))];
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut spec = shell("a", "main", "exec sleep 78401");
    spec.mounts = vec![mount("data", "/mnt")];
    let id = node.start(spec.clone()).await.unwrap().id;
    assert_eq!(
        node.says(&id, "echo here > /mnt/made-here; cat /mnt/made-here")
            .await,
        "here"
    );
    assert!(!Path::new("/mnt/made-here").exists());
    spec.id = crate::harness::id("a", "other", 0);
    spec.mounts = vec![mount("data", "/made-up-path")];
    let refused = node.start(spec).await;
    assert!(matches!(
        refused,
        Err(RuntimeError::CannotStart {
            reason: StartFailure::Mount,
            ..
        })
    ));
    assert!(!Path::new("/made-up-path").exists());
    node.remove("a").await;
}
