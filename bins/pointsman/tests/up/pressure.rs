//! Does `up` say why pods will not start?

use crate::cluster::Cluster;
use pointsman_testkit::require_netns;
use std::path::PathBuf;
use std::process::Command;

/// A small disk that is nearly full, until it is dropped.
struct FullDisk(PathBuf);

impl FullDisk {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256m,mode=700", "tmpfs"]);
        assert!(mount.arg(&at).status().unwrap().success());
        std::fs::write(at.join("ballast"), vec![1; 236 << 20]).unwrap();
        Self(at)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_named_with_its_remedy_before_anybody_wonders_about_pending_pods() {
    require_netns!();
    if !rustix::process::geteuid().is_root() {
        return pointsman_testkit::skip::skip("a disk of its own needs root");
    }
    let mut cluster = Cluster::not_started();
    let disk = FullDisk::mount(cluster.data_dir());
    let said = cluster.start_again(&["--nodes=1"]);
    let notes: Vec<&str> = said.iter().filter_map(|line| line["note"].as_str()).collect();
    let place = disk.0.display().to_string();
    let names_it = |note: &&str| {
        let words = ["1 of 1 nodes", "DiskPressure", "Pending", "--data-dir", &place];
        words.iter().all(|word| note.contains(word))
    };
    assert!(notes.iter().any(names_it), "{said:#?}");
    cluster.terminate();
    drop(disk);
}
