//! Does a cluster end, whatever others do on the machine?

use crate::cluster::Cluster;
use pointsman_testkit::require_netns;
use std::process::{Child, Command, Stdio};

/// A place with the machine's files but a `/run` of its own, so that what a test does to `/run/netns` is seen nowhere
/// else.
struct Place(Child);

impl Place {
    fn new() -> Self {
        let script = "mount -t tmpfs tmpfs /run && echo ready && exec sleep 3600";
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        Self(child)
    }

    /// What leads into it.
    fn way_in(&self) -> Vec<String> {
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.0.id());
        // The program is found by its absolute path, also in there.
        ["nsenter".to_owned(), mounts, "--".to_owned()].into()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sh(cluster: &Cluster, script: &str) {
    let output = cluster.command("sh").args(["-c", script]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
}

#[test]
fn a_namespace_that_somebody_adds_is_in_nobodys_way() {
    require_netns!();
    let place = Place::new();
    let mut cluster = Cluster::start_through(place.way_in(), &["--nodes=1"]);
    sh(&cluster, "ip netns add somebody");
    cluster.terminate();
    assert_eq!(cluster.traces(), Vec::<String>::new());
    cluster.start_again(&["--nodes=1"]);
    cluster.kill();
    let down = cluster.pointsman("down", &[]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert_eq!(cluster.traces(), Vec::<String>::new());
    sh(&cluster, "ip netns exec somebody true && ip netns del somebody");
}

#[test]
fn names_that_others_have_hidden_keep_nothing_from_ending_or_starting() {
    require_netns!();
    let place = Place::new();
    let mut cluster = Cluster::start_through(place.way_in(), &["--nodes=1"]);
    // What iproute2 does to names that were there before it, in a directory that was not prepared.
    let script = "mount --make-rprivate /run/netns && mount --rbind /run/netns /run/netns && mount --make-rprivate /run/netns";
    sh(&cluster, script);
    cluster.kill();
    let down = cluster.pointsman("down", &[]);
    let said = String::from_utf8_lossy(&down.stdout).into_owned();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    assert!(said.contains("hidden"), "{said}");
    let left = cluster.traces();
    assert!(
        left.iter()
            .all(|trace| trace.starts_with("namespace") || trace.starts_with("mount nsfs")),
        "{left:?}"
    );
    cluster.start_again(&["--nodes=1"]);
    cluster.kubectl(&["get", "nodes"]);
    cluster.terminate();
}

#[test]
fn ctrl_c_ends_everything_without_a_word_about_children() {
    require_netns!();
    let mut cluster = Cluster::start(&["--nodes=2"]);
    cluster.interrupt();
    let said = cluster.said();
    assert!(!said.contains("a child") && !said.contains("WARN"), "{said}");
    assert_eq!(cluster.traces(), Vec::<String>::new());
}
