//! How are a container's processes kept together and killed together?
//!
//! A [`Cgroup`] is held by its open directory, so that it stays usable after the root of the file tree has
//! changed. Only version 2 can kill a whole group at once (Linux 5.14); before that its processes are
//! killed one by one until none is left.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// A cgroup of version 2; one of version 1 can be joined and limited, not killed.
#[derive(Debug)]
pub struct Cgroup {
    directory: File,
}

impl Cgroup {
    /// Opens one that exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        let directory = File::open(path)?;
        Ok(Self { directory })
    }

    /// Makes and opens a group within this one; one that exists is fine.
    pub fn child(&self, name: &str) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, name, flags, Mode::empty())?.into();
        Ok(Self { directory })
    }

    /// Puts the calling process into the group.
    pub fn join(&self) -> io::Result<()> {
        self.members()?.write_all(b"0")
    }

    /// The file that a process writes `0` to in order to join.
    pub fn members(&self) -> io::Result<File> {
        self.file("cgroup.procs", OFlags::WRONLY)
    }

    /// Kills every process in the group and below it.
    pub fn kill(&self) -> io::Result<()> {
        match self.write("cgroup.kill", "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.kill_one_by_one(),
            other => other,
        }
    }

    /// Whether a process is in the group or below it.
    pub fn is_populated(&self) -> io::Result<bool> {
        let events = self.read("cgroup.events")?;
        Ok(events.lines().any(|line| line == "populated 1"))
    }

    /// How many processes the kernel killed here for want of memory; 0 if memory is not limited.
    pub fn memory_kills(&self) -> u64 {
        // Version 1 has the same line in another file.
        let events = self
            .read("memory.events")
            .or_else(|_| self.read("memory.oom_control"));
        let events = events.unwrap_or_default();
        let mut kills = events.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        kills.next().and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Writes a setting.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        self.file(name, OFlags::WRONLY)?.write_all(value.as_bytes())
    }

    /// Reads a setting.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        self.file(name, OFlags::RDONLY)?.read_to_string(&mut text)?;
        Ok(text)
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory.as_fd(), name, flags, Mode::empty())?.into())
    }

    fn kill_one_by_one(&self) -> io::Result<()> {
        // A process may fork while it is being killed, so the list is read until it stays empty.
        for _ in 0..1_000 {
            let members = self.read("cgroup.procs")?;
            let pids: Vec<Pid> = members
                .lines()
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                .collect();
            if pids.is_empty() {
                return Ok(());
            }
            for pid in pids {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "processes are made faster than they are killed",
        ))
    }
}
