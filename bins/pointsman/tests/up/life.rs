//! Starting, stopping, dying and starting again.

use crate::cluster::{Cluster, eventually, host_rules};
use pointsman_testkit::require_netns;
use std::process::Command;

#[test]
fn three_nodes_get_ready_and_nothing_is_left_after_a_stop() {
    require_netns!();
    let rules = host_rules();
    let mut cluster = Cluster::start(&[]);
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "name"]);
    assert_eq!(
        nodes.lines().collect::<Vec<_>>(),
        ["node/n1", "node/n2", "node/n3"]
    );
    let status = cluster.pointsman("status", &[]);
    assert_eq!(
        status.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&status.stdout)
    );
    assert!(!cluster.traces().is_empty());
    assert_eq!(host_rules(), rules, "the host's firewall is not touched");

    cluster.terminate();
    assert_eq!(cluster.traces(), Vec::<String>::new());
    assert_eq!(host_rules(), rules);
    let status = cluster.pointsman("status", &[]);
    assert_eq!(status.status.code(), Some(3), "a stopped cluster is not well");
}

#[test]
fn a_start_after_a_crash_cleans_up_and_finds_its_data() {
    require_netns!();
    let mut cluster = Cluster::start(&["--nodes=2"]);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
    let address = cluster.kubectl(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]);
    cluster.kill();
    assert!(!cluster.traces().is_empty(), "a crash leaves namespaces behind");

    let said = cluster.start_again(&["--nodes=2"]);
    let note = said[0]["note"].as_str().unwrap_or_default();
    assert!(note.contains("cleaned up after an earlier run"), "{said:#?}");
    let kept = cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]);
    assert_eq!(kept, "b");
    let again = cluster.kubectl(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]);
    assert_eq!(address, again, "Services keep their addresses");

    cluster.kill();
    let down = cluster.pointsman("down", &[]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert_eq!(cluster.traces(), Vec::<String>::new());
}

#[test]
fn a_damaged_store_stops_the_start_and_nothing_is_left() {
    require_netns!();
    let mut cluster = Cluster::start(&["--nodes=1"]);
    cluster.terminate();
    let file = cluster.data_dir().join("store/store.redb");
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::File::options()
        .write(true)
        .open(&file)
        .and_then(|file| file.set_len(length / 3))
        .unwrap();
    let data_dir = format!("--data-dir={}", cluster.data_dir().display());
    let up = cluster.pointsman("up", &["--nodes=1", &data_dir]);
    let message = String::from_utf8_lossy(&up.stderr).into_owned();
    assert_eq!(up.status.code(), Some(1), "{message}");
    assert!(
        message.contains("store.redb") && message.contains("restore"),
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    assert_eq!(cluster.traces(), Vec::<String>::new());
}

#[test]
fn two_clusters_run_side_by_side() {
    require_netns!();
    let one = Cluster::start(&["--nodes=1"]);
    let mut two = Cluster::start(&["--nodes=1", "--proxy-mode=iptables", "--listen=127.0.0.1:0"]);
    assert_ne!(one.facts["nodes"][0]["address"], two.facts["nodes"][0]["address"]);
    for cluster in [&one, &two] {
        assert_eq!(cluster.kubectl(&["get", "nodes", "-o", "name"]), "node/n1\n");
    }
    let taken = one.pointsman("up", &["--nodes=1"]);
    assert_eq!(taken.status.code(), Some(1));
    let message = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(message.contains("runs already"), "{message}");

    two.terminate();
    assert_eq!(one.pointsman("status", &[]).status.code(), Some(0));
}

#[test]
fn a_proxy_that_dies_is_started_again() {
    require_netns!();
    let cluster = Cluster::start(&["--nodes=1"]);
    let proxy = || {
        let listed = cluster.pointsman("exec", &["n1", "--", "sh", "-c", "ss -Hltnp 'sport = :10256'"]);
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let pid = text.split("pid=").nth(1)?.split(',').next()?.to_owned();
        Some(pid)
    };
    let first = eventually("the proxy listens", proxy);
    assert!(
        Command::new("kill")
            .args(["-9", &first])
            .status()
            .unwrap()
            .success()
    );
    eventually("another proxy listens", || proxy().filter(|pid| *pid != first));
    eventually("all is well again", || {
        (cluster.pointsman("status", &[]).status.code() == Some(0)).then_some(())
    });
}

#[test]
fn no_nodes_need_no_namespace() {
    let mut cluster = Cluster::start(&["--nodes=0", "--listen=127.0.0.1:0"]);
    assert_eq!(cluster.kubectl(&["get", "nodes", "-o", "name"]), "");
    assert!(
        cluster
            .traces()
            .iter()
            .all(|trace| !trace.starts_with("namespace"))
    );
    let missing = cluster.pointsman("exec", &["n1", "--", "true"]);
    assert_eq!(missing.status.code(), Some(1));
    cluster.terminate();
    assert_eq!(cluster.traces(), Vec::<String>::new());
}

#[test]
fn names_that_cannot_be_are_refused_as_wrong_usage() {
    for arguments in [["up", "--name=a/b"], ["up", "--nodes=101"], ["down", "--name=A"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_pointsman"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_cluster_that_could_not_start_is_forgotten() {
    let cluster = Cluster::not_started();
    std::fs::create_dir(cluster.data_dir()).unwrap();
    // A store that cannot be opened.
    std::fs::create_dir_all(cluster.data_dir().join("pki")).unwrap();
    std::fs::write(cluster.data_dir().join("pki/ca.crt"), "no certificate").unwrap();
    std::fs::write(cluster.data_dir().join("pki/ca.key"), "no key").unwrap();
    let data_dir = cluster.data_dir().display().to_string();
    let failed = cluster.pointsman(
        "up",
        &["--nodes=0", "--listen=127.0.0.1:0", "--data-dir", &data_dir],
    );
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{message}");
    assert_eq!(cluster.traces(), Vec::<String>::new());
    let listed = Command::new(crate::cluster::program())
        .arg("status")
        .output()
        .unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(!listed.contains(&cluster.name), "{listed}");
}

#[test]
fn status_notices_a_store_that_refuses_writes() {
    require_netns!();
    let mut cluster = Cluster::not_started();
    std::fs::create_dir(cluster.data_dir()).unwrap();
    let disk = SmallDisk::mount(cluster.data_dir());
    cluster.start_again(&["--nodes=0", "--listen=127.0.0.1:0"]);
    assert_eq!(cluster.pointsman("status", &[]).status.code(), Some(0));
    disk.fill();
    // The store may have room left for a few writes.
    let text = eventually("status says that writes are refused", || {
        let status = cluster.pointsman("status", &[]);
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        (status.status.code() == Some(3)).then_some(text)
    });
    assert!(text.contains("it refuses writes"), "{text}");
    disk.free();
    eventually("all is well again", || {
        (cluster.pointsman("status", &[]).status.code() == Some(0)).then_some(())
    });
    cluster.terminate();
}

/// A file system with little room, until the value goes.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: std::path::PathBuf) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"])
            .arg(&at)
            .status();
        assert!(mounted.unwrap().success());
        Self(at)
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        use std::io::Write;
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        for size in [1 << 20, 4 << 10, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
