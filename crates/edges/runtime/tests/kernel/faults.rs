use std::path::PathBuf;

use pointsman_runtime::Runtime;
use pointsman_testkit::require_netns;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::harness::*;

/// A directory that holds very little.
struct Tiny(PathBuf);

impl Tiny {
    fn mount(path: PathBuf, options: &std::ffi::CStr) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(options)).unwrap();
        Self(path)
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_log_disk_loses_lines_and_not_the_container() {
    require_netns!();
    let node = Node::new().await;
    let root = node.root.path().canonicalize().unwrap();
    let _tiny = Tiny::mount(root.join("logs"), c"size=64k");
    node.open("a").await;
    let mut spec = sandbox("a");
    spec.volumes = vec![volume(
        "go",
        pointsman_runtime::VolumeSource::Scratch {
            medium: pointsman_runtime::Medium::Disk,
            size_limit: None,
        },
    )];
    node.runtime.open_sandbox(spec).await.unwrap();
    let script = "head -c 200000 /dev/zero | tr '\\0' x | fold -w 100; echo; touch /go/full; \
                  while ! [ -e /go/on ]; do sleep 0.02; done; echo after; exit 6";
    let mut spec = shell("a", "main", script);
    spec.mounts = vec![mount_at("go", "/go")];
    let id = node.start(spec).await.unwrap().id;
    let go = root.join("pods/a/volumes/go");
    eventually("all was printed", || go.join("full").exists()).await;
    // The shim may still be reading; an answer from it means that it has seen what came before.
    let log = node.state(&id).await.unwrap().log;
    eventually("the disk is full", || {
        std::fs::metadata(&log).unwrap().len() >= 60_000
    })
    .await;
    node.exec(&id, "true").await;
    std::fs::File::options()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(0)
        .unwrap();
    std::fs::write(go.join("on"), "").unwrap();
    assert_eq!(node.exit(&id).await.code, 6);
    let lines = node.log(&id).await;
    assert!(
        lines
            .iter()
            .any(|line| line.contains("lines of output could not be written")),
        "{lines:?}"
    );
    assert_eq!(lines.last().unwrap(), "stdout F after");
    node.remove("a").await;
}

fn mount_at(volume: &str, path: &str) -> pointsman_runtime::MountSpec {
    crate::harness::mount(volume, path)
}

#[tokio::test]
async fn a_full_disk_does_not_hide_how_a_container_ended() {
    require_netns!();
    let root = tempfile::tempdir().unwrap();
    let _tiny = Tiny::mount(root.path().to_owned(), c"size=512k");
    let node = Node::with(|config| config.root_dir = root.path().to_owned()).await;
    let id = node.run("a", "sleep 0.3; exit 9").await;
    // Nothing fits any more.
    let mut filler = std::fs::File::create(root.path().join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    assert_eq!(node.exit(&id).await.code, 9);
    drop(filler);
    std::fs::remove_file(root.path().join("filler")).unwrap();
    node.remove("a").await;
}

#[tokio::test]
async fn a_flood_of_output_is_kept_within_two_files() {
    require_netns!();
    let node = Node::with(|config| config.log_limit = 100_000).await;
    let id = node
        .run(
            "a",
            "head -c 1000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo last",
        )
        .await;
    assert_eq!(node.exit(&id).await.code, 0);
    let log = node.state(&id).await.unwrap().log;
    let older = PathBuf::from(format!("{}.1", log.display()));
    for path in [&log, &older] {
        let length = std::fs::metadata(path).unwrap().len();
        assert!(length <= 100_000, "{} has {length} bytes", path.display());
    }
    assert_eq!(node.log(&id).await.last().unwrap(), "stdout F last");
    assert_eq!(std::fs::read_dir(log.parent().unwrap()).unwrap().count(), 2);
    node.remove("a").await;
}
