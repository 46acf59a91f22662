//! What is this machine, and how much of it is left?

use std::fs;
use std::path::Path;

/// Facts about the machine. What cannot be read is zero or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub cpus: usize,
    /// Bytes of memory.
    pub memory_total: u64,
    /// Bytes of memory that programs could get.
    pub memory_available: u64,
    /// Bytes of the disk that holds the root directory.
    pub disk_total: u64,
    /// Bytes left on it.
    pub disk_free: u64,
    /// Files that the disk can hold.
    pub inodes_total: u64,
    /// Files that it could hold besides those there are.
    pub inodes_free: u64,
    /// Process numbers there are.
    pub pids_max: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// What the firmware calls the machine.
    pub system_uuid: String,
    /// Changes with every boot.
    pub boot_id: String,
    pub kernel: String,
    /// Name of the operating system.
    pub os_image: String,
}

impl Host {
    /// Reads them; `root` is the directory that pods' files live in.
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let memory = text("/proc/meminfo");
        let kib = |field: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(field));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or(0) * 1024
        };
        let disk = rustix::fs::statvfs(root).ok();
        let of_disk = |read: fn(&rustix::fs::StatVfs) -> u64| disk.as_ref().map_or(0, read);
        let machine_id = text("/etc/machine-id");
        let system_uuid = text("/sys/class/dmi/id/product_uuid");
        let boot_id = text("/proc/sys/kernel/random/boot_id");
        let threads = text("/proc/loadavg");
        let threads = threads
            .split_whitespace()
            .nth(3)
            .and_then(|pair| pair.split_once('/'));
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_total: kib("MemTotal:"),
            memory_available: kib("MemAvailable:"),
            disk_total: of_disk(|disk| disk.f_blocks * disk.f_frsize),
            disk_free: of_disk(|disk| disk.f_bavail * disk.f_frsize),
            inodes_total: of_disk(|disk| disk.f_files),
            inodes_free: of_disk(|disk| disk.f_favail),
            pids_max: text("/proc/sys/kernel/pid_max").parse().unwrap_or(0),
            pids: threads.and_then(|(_, all)| all.parse().ok()).unwrap_or(0),
            system_uuid: if system_uuid.is_empty() {
                machine_id.clone()
            } else {
                system_uuid
            },
            machine_id,
            boot_id,
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_image(&text("/etc/os-release")),
        }
    }
}

fn os_image(release: &str) -> String {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_memory_and_a_disk() {
        let host = Host::read(Path::new("/"));
        assert!(host.cpus > 0 && host.disk_total > 0);
        assert!(host.memory_available <= host.memory_total && host.memory_total > 0);
        assert!(host.pids > 0, "{host:?}");
    }

    #[test]
    fn the_system_is_called_by_its_pretty_name() {
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Some Linux 12\"\n"),
            "Some Linux 12"
        );
        assert_eq!(os_image(""), "Linux");
    }
}
