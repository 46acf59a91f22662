//! How is a command run inside a running container?
//!
//! Every command gets a cgroup below the container's, so that a timeout kills all it started, even what
//! has left its session. The groups are used again as soon as they are empty; what a command leaves
//! running in the background stays in its group until the container ends.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};

use super::child::{self, Program};
use super::failure::Failure;
use super::protocol::{Launch, Reply, encode};
use super::streams::{self, Streams};
use crate::cgroup::Cgroup;
use crate::{ExecEnd, StartFailure};

/// More output than this is never kept.
const OUTPUT_MAX: usize = 64 << 10;

/// A command that runs in the container.
#[derive(Debug)]
pub struct Exec {
    pub pid: u32,
    /// Who waits for it.
    pub connection: u64,
    /// Its output, to be read.
    pub pipe: Option<File>,
    /// When it is killed.
    pub deadline: Option<Instant>,
    /// Whether it goes with its connection.
    pub is_held: bool,
    slot: Option<usize>,
    cap: usize,
    output: Vec<u8>,
    truncated: bool,
    timed_out: bool,
}

/// What to run for whom.
#[derive(Debug)]
pub struct Asked {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Milliseconds until it is killed.
    pub timeout_ms: Option<u64>,
    /// Bytes of output to keep.
    pub output_cap: usize,
    pub connection: u64,
}

/// The cgroups commands run in.
#[derive(Debug, Default)]
pub struct Slots {
    groups: Vec<(Cgroup, bool)>,
}

impl Slots {
    /// A group without processes; its number and the file to join it by.
    fn take(&mut self, container: &Cgroup) -> std::io::Result<(usize, File)> {
        let is_free = |(group, is_taken): &(Cgroup, bool)| !is_taken && !group.is_populated().unwrap_or(true);
        let number = match self.groups.iter().position(is_free) {
            Some(number) => number,
            None => {
                let number = self.groups.len();
                self.groups
                    .push((container.child(&format!("exec{number}"))?, false));
                number
            }
        };
        self.groups[number].1 = true;
        Ok((number, self.groups[number].0.members()?))
    }

    fn give_back(&mut self, number: usize) {
        self.groups[number].1 = false;
    }
}

impl Exec {
    /// Starts a command as the container's user, in its directory, with its environment.
    pub fn start(
        asked: &Asked,
        launch: &Launch,
        groups: (Option<&Cgroup>, &[Cgroup]),
        slots: &mut Slots,
        now: Instant,
    ) -> Result<Self, Failure> {
        let (stdout, stderr, pipe) = streams::joined(launch)?;
        let streams = Streams::of_output(stdout, stderr);
        let mut exec = Self::start_with(&asked.command, asked.connection, launch, groups, slots, streams)?;
        exec.pipe = Some(pipe.into());
        exec.deadline = asked
            .timeout_ms
            .map(|timeout| now + Duration::from_millis(timeout));
        exec.cap = asked.output_cap.min(OUTPUT_MAX);
        Ok(exec)
    }

    /// Starts a command whose streams somebody else holds.
    pub fn open(
        command: &[String],
        connection: u64,
        launch: &Launch,
        groups: (Option<&Cgroup>, &[Cgroup]),
        slots: &mut Slots,
        streams: Streams,
    ) -> Result<Self, Failure> {
        let mut exec = Self::start_with(command, connection, launch, groups, slots, streams)?;
        exec.is_held = true;
        Ok(exec)
    }

    fn start_with(
        command: &[String],
        connection: u64,
        launch: &Launch,
        groups: (Option<&Cgroup>, &[Cgroup]),
        slots: &mut Slots,
        streams: Streams,
    ) -> Result<Self, Failure> {
        let (container, limits) = groups;
        let setup = |error: std::io::Error| Failure::new(StartFailure::Setup, "preparing the command", error);
        let slot = container
            .map(|container| slots.take(container))
            .transpose()
            .map_err(setup)?;
        let (slot, members) = slot.unzip();
        let limited = limits.iter().map(Cgroup::members);
        let members = members
            .into_iter()
            .map(Ok)
            .chain(limited)
            .collect::<std::io::Result<_>>();
        let members = members.map_err(setup)?;
        let program = Program {
            command,
            env: &launch.env,
            working_dir: &launch.working_dir,
            user: &launch.user,
            security: &launch.security,
            members,
            stdin: streams.stdin,
            has_terminal: streams.is_terminal,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let started = child::start(program);
        if let (Err(_), Some(number)) = (&started, slot) {
            slots.give_back(number);
        }
        Ok(Self {
            pid: started?,
            connection,
            pipe: None,
            deadline: None,
            is_held: false,
            slot,
            cap: 0,
            output: Vec::new(),
            truncated: false,
            timed_out: false,
        })
    }

    /// Reads what there is and keeps it up to the cap. The rest is read too, so that the command can go on.
    pub fn read(&mut self) {
        let mut buffer = [0; 8 << 10];
        // Not without end: other work waits too.
        for _ in 0..16 {
            let Some(pipe) = &mut self.pipe else {
                return;
            };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    let kept = length.min(self.cap - self.output.len());
                    self.output.extend_from_slice(&buffer[..kept]);
                    self.truncated |= kept < length;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    /// Kills the command and all it started, if its time is over.
    pub fn expire(&mut self, slots: &Slots, now: Instant) {
        if self.timed_out || self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.timed_out = true;
        self.deadline = None;
        self.kill(slots);
    }

    /// Kills the command and all it started.
    pub fn kill(&self, slots: &Slots) {
        let killed = self.slot.map(|number| slots.groups[number].0.kill());
        if !matches!(killed, Some(Ok(()))) {
            // Without a cgroup, what left the session goes when the container does.
            if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }

    /// The answer, once the command has ended.
    pub fn finish(mut self, status: WaitStatus, slots: &mut Slots) -> Vec<u8> {
        self.read();
        if let Some(number) = self.slot {
            slots.give_back(number);
        }
        let end = if self.timed_out {
            ExecEnd::TimedOut
        } else if let Some(signal) = status.terminating_signal() {
            ExecEnd::Signaled(signal)
        } else {
            ExecEnd::Exited(status.exit_status().unwrap_or(255))
        };
        let reply = Reply::Exec {
            end,
            truncated: self.truncated,
            output_len: self.output.len(),
        };
        let mut answer = encode(&reply).unwrap_or_default();
        answer.extend_from_slice(&self.output);
        answer
    }
}
