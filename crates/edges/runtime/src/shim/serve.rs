//! What does a shim do while its container runs?
//!
//! One thread waits for whatever comes first: output, an ended child, a request, a deadline. When the main
//! process has ended, everything else in the container is killed, the rest of the output is written, and
//! the end is recorded.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use super::exec::{Asked, Exec, Slots};
use super::failure::Failure;
use super::log::{Lines, LogFile, timestamp};
use super::protocol::{Launch, Reply, Request, Running, decode, encode, file};
use super::streams::{self, Streams};
use super::taps::Taps;
use crate::cgroup::Cgroup;
use crate::{Attachable, Exit, ExitCause, StartFailure};

/// How long the end may wait for processes that do not die at once, as those that wait for a disk.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// Kubernetes keeps this much of a termination message.
const MESSAGE_MAX: u64 = 4096;
/// More connections than any agent makes.
const CONNECTIONS_MAX: usize = 512;

/// What a shim has once its program runs.
#[derive(Debug)]
pub struct Parts {
    /// What was started.
    pub launch: Launch,
    pub running: Running,
    /// The container's directory.
    pub records: File,
    /// The space kept for the exit record.
    pub reserve: Option<File>,
    /// Held while the shim lives.
    pub lock: OwnedFd,
    /// Where requests come in.
    pub listener: UnixListener,
    /// Tells of ended children.
    pub signals: OwnedFd,
    /// The container's processes.
    pub cgroup: Option<Cgroup>,
    /// What limits them besides.
    pub limits: Vec<Cgroup>,
    /// Where output goes.
    pub log: LogFile,
    /// The program's input, for those who attach.
    pub input: Option<OwnedFd>,
    /// Standard output and standard error, or the terminal.
    pub outputs: Vec<Output>,
    /// Who else reads them.
    pub taps: Taps,
}

/// One of the program's outputs.
#[derive(Debug)]
pub struct Output {
    lines: Lines,
    pipe: Option<File>,
}

impl Output {
    /// An output that is read from `pipe`.
    pub fn new(lines: Lines, pipe: OwnedFd) -> Self {
        Self {
            lines,
            pipe: Some(pipe.into()),
        }
    }
}

/// A shim whose program runs.
#[derive(Debug)]
pub struct Shim {
    pub running: Running,
    parts: Parts,
    connections: Vec<Connection>,
    next_connection: u64,
    execs: Vec<Exec>,
    slots: Slots,
    ended: Option<(WaitStatus, SystemTime)>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    stream: UnixStream,
    input: Vec<u8>,
    is_closed: bool,
}

/// What became ready.
#[derive(Clone, Copy, Debug)]
enum Source {
    Children,
    Listener,
    Output(usize),
    Connection(usize),
    Exec(usize),
}

impl Shim {
    /// A shim that has just started its program.
    pub fn new(parts: Parts) -> Self {
        Self {
            running: parts.running,
            parts,
            connections: Vec::new(),
            next_connection: 0,
            execs: Vec::new(),
            slots: Slots::default(),
            ended: None,
        }
    }

    /// Serves until the program has ended and its end is on disk.
    pub fn serve(mut self) {
        while self.ended.is_none() {
            let deadline = self.execs.iter().filter_map(|exec| exec.deadline).min();
            self.step(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())));
        }
        self.finish();
    }

    /// Waits for something to happen, at most so long, and deals with all of it.
    fn step(&mut self, timeout: Option<Duration>) {
        for source in self.wait_ready(timeout) {
            match source {
                Source::Children => drop(self.reap()),
                Source::Listener => self.accept(),
                Source::Output(number) => self.copy_output(number),
                Source::Connection(number) => self.read_request(number),
                Source::Exec(number) => self.execs[number].read(),
            }
        }
        let now = Instant::now();
        for exec in &mut self.execs {
            exec.expire(&self.slots, now);
        }
        // Nobody reads what a held command says when its connection has ended.
        for connection in self.connections.iter().filter(|connection| connection.is_closed) {
            let its = |exec: &&Exec| exec.is_held && exec.connection == connection.number;
            self.execs
                .iter()
                .filter(its)
                .for_each(|exec| exec.kill(&self.slots));
            self.parts.taps.close(connection.number);
        }
        self.connections.retain(|connection| !connection.is_closed);
    }

    fn wait_ready(&self, timeout: Option<Duration>) -> Vec<Source> {
        let mut sources = vec![Source::Children, Source::Listener];
        let mut polled = vec![readable(&self.parts.signals), readable(&self.parts.listener)];
        let outputs = self.parts.outputs.iter().map(|output| output.pipe.as_ref());
        let execs = self.execs.iter().map(|exec| exec.pipe.as_ref());
        for (number, pipe) in outputs.enumerate() {
            sources.extend(pipe.map(|_| Source::Output(number)));
            polled.extend(pipe.map(readable));
        }
        // Later ones of the list may vanish while earlier ones are dealt with, never the other way round:
        // reaping comes last, because it removes execs.
        for (number, connection) in self.connections.iter().enumerate() {
            sources.push(Source::Connection(number));
            polled.push(readable(&connection.stream));
        }
        for (number, pipe) in execs.enumerate() {
            sources.extend(pipe.map(|_| Source::Exec(number)));
            polled.extend(pipe.map(readable));
        }
        // A little later rather than a little earlier, or a deadline would be looked at twice.
        let timeout = timeout.map(|timeout| timeout + Duration::from_micros(100));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Vec::new(),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        let pairs = sources.into_iter().zip(&polled);
        let ready = pairs.filter(|(_, polled)| !polled.revents().is_empty());
        let mut ready: Vec<Source> = ready.map(|(source, _)| source).collect();
        ready.reverse();
        ready
    }

    /// Learns which children have ended. Says whether none is left.
    fn reap(&mut self) -> bool {
        let mut buffer = [0; 1024];
        // The descriptor only wakes us; who ended is asked below.
        while matches!(rustix::io::read(&self.parts.signals, &mut buffer), Ok(1..)) {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.child_ended(pid.as_raw_nonzero().get().unsigned_abs(), status);
                }
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn child_ended(&mut self, pid: u32, status: WaitStatus) {
        if pid == self.running.pid {
            self.ended = Some((status, SystemTime::now()));
        } else if let Some(position) = self.execs.iter().position(|exec| exec.pid == pid) {
            let exec = self.execs.swap_remove(position);
            let connection = exec.connection;
            let answer = exec.finish(status, &mut self.slots);
            self.answer(connection, &answer);
        }
    }

    fn copy_output(&mut self, number: usize) {
        let mut buffer = [0; 16 << 10];
        let output = &mut self.parts.outputs[number];
        let Some(pipe) = &mut output.pipe else {
            return;
        };
        let time = timestamp(SystemTime::now());
        let mut lines = Vec::new();
        match pipe.read(&mut buffer) {
            Ok(0) => {
                output.pipe = None;
                output.lines.finish(&time, &mut lines);
            }
            Ok(length) => {
                output.lines.feed(&buffer[..length], &time, &mut lines);
                self.parts.taps.copy(number, &buffer[..length]);
            }
            Err(error) if is_passing(&error) => {}
            // As a terminal ends.
            Err(_) => {
                output.pipe = None;
                output.lines.finish(&time, &mut lines);
            }
        }
        self.parts.log.append(&lines, &time);
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.parts.listener.accept() {
            if self.connections.len() >= CONNECTIONS_MAX || stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.connections.push(Connection {
                number: self.next_connection,
                stream,
                input: Vec::new(),
                is_closed: false,
            });
            self.next_connection += 1;
            // The request is mostly there already.
            self.read_request(self.connections.len() - 1);
        }
    }

    fn read_request(&mut self, position: usize) {
        let connection = &mut self.connections[position];
        let mut buffer = [0; 4 << 10];
        loop {
            match connection.stream.read(&mut buffer) {
                Ok(0) => connection.is_closed = true,
                Ok(length) => {
                    connection.input.extend_from_slice(&buffer[..length]);
                    continue;
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => connection.is_closed = true,
            }
            break;
        }
        match decode::<Request>(&connection.input) {
            Ok(Some((request, length))) => {
                connection.input.drain(..length);
                let number = connection.number;
                self.carry_out(request, number);
            }
            Ok(None) => {}
            Err(_) => connection.is_closed = true,
        }
    }

    fn carry_out(&mut self, request: Request, connection: u64) {
        let reply = match request {
            Request::Watch => Reply::Watching(self.running),
            Request::Signal(signal) => self.signal(signal),
            Request::Kill => {
                self.kill_all();
                Reply::Done
            }
            Request::Exec {
                command,
                timeout_ms,
                output_cap,
            } => {
                let asked = Asked {
                    command,
                    timeout_ms,
                    output_cap,
                    connection,
                };
                let launch = &self.parts.launch;
                let groups = (self.parts.cgroup.as_ref(), self.parts.limits.as_slice());
                match Exec::start(&asked, launch, groups, &mut self.slots, Instant::now()) {
                    Ok(exec) => return self.execs.push(exec),
                    Err(failure) => cannot_start(failure),
                }
            }
            Request::Open { command, stdin, tty } => match self.open(&command, stdin, tty, connection) {
                Ok(held) => return self.hand_over(connection, &held),
                Err(failure) => cannot_start(failure),
            },
            Request::Attach { stdin } => match self.attach(stdin, connection) {
                Ok(held) => return self.hand_over(connection, &held),
                Err(error) => cannot_start(Failure::new(StartFailure::Setup, "attaching", error)),
            },
        };
        if let Ok(answer) = encode(&reply) {
            self.answer(connection, &answer);
        }
    }

    /// What somebody gets who attaches.
    fn attach(&mut self, stdin: bool, connection: u64) -> io::Result<Vec<OwnedFd>> {
        let Attachable { stdin_once, tty, .. } = self.parts.launch.attachable;
        let mut held = Vec::new();
        if tty || stdin {
            // With its last copy the input ends.
            let input = match stdin_once && !tty {
                true => self.parts.input.take(),
                false => self.parts.input.as_ref().map(OwnedFd::try_clone).transpose()?,
            };
            held.push(input.ok_or(io::ErrorKind::BrokenPipe)?);
        }
        for number in 0..self.parts.outputs.len() {
            held.push(self.parts.taps.open(connection, number)?);
        }
        Ok(held)
    }

    /// Starts a command and returns the other ends of its streams.
    fn open(
        &mut self,
        command: &[String],
        stdin: bool,
        tty: bool,
        connection: u64,
    ) -> Result<Vec<OwnedFd>, Failure> {
        let launch = &self.parts.launch;
        let groups = (self.parts.cgroup.as_ref(), self.parts.limits.as_slice());
        let (streams, held) = match tty {
            true => Streams::terminal(launch).map(|(streams, master)| (streams, vec![master]))?,
            false => Streams::piped(launch, stdin)?,
        };
        let exec = Exec::open(command, connection, launch, groups, &mut self.slots, streams)?;
        self.execs.push(exec);
        Ok(held)
    }

    fn hand_over(&mut self, connection: u64, held: &[OwnedFd]) {
        let mut connections = self.connections.iter_mut();
        if let Some(connection) = connections.find(|candidate| candidate.number == connection) {
            let sent =
                encode(&Reply::Opened).and_then(|reply| streams::hand_over(&connection.stream, &reply, held));
            connection.is_closed |= sent.is_err();
        }
    }

    /// Sends an answer, which fits into the socket's buffer. Whoever asked may be gone.
    fn answer(&mut self, connection: u64, bytes: &[u8]) {
        let mut connections = self.connections.iter_mut();
        if let Some(connection) = connections.find(|candidate| candidate.number == connection) {
            connection.is_closed |= connection.stream.write_all(bytes).is_err();
        }
    }

    fn signal(&self, signal: i32) -> Reply {
        let pid = i32::try_from(self.running.pid).ok().and_then(Pid::from_raw);
        let sent = match (pid, Signal::from_named_raw(signal)) {
            (Some(pid), Some(signal)) if self.ended.is_none() => kill_process(pid, signal),
            _ => Err(Errno::SRCH),
        };
        sent.map_or(Reply::NotRunning, |()| Reply::Done)
    }

    fn kill_all(&self) {
        let killed = self.parts.cgroup.as_ref().map(Cgroup::kill);
        if !matches!(killed, Some(Ok(()))) {
            kill_descendants();
        }
    }

    /// Ends everything, writes the rest of the output, records the end.
    fn finish(mut self) {
        let Some((status, finished_at)) = self.ended else {
            return;
        };
        let give_up = Instant::now() + LAST_WAIT;
        loop {
            self.kill_all();
            if self.reap() || Instant::now() > give_up {
                break;
            }
            self.step(Some(Duration::from_millis(5)));
        }
        for number in 0..self.parts.outputs.len() {
            // Nobody can write any more, so that this ends; the bound is for a process that did not die.
            for _ in 0..1_000 {
                if self.parts.outputs[number].pipe.is_none() {
                    break;
                }
                self.copy_output(number);
            }
        }
        let exit = self.exit(status, finished_at);
        // Without the record the agent calls the container lost, which is then the truth.
        let _ = super::write_exit(&self.parts.records, self.parts.reserve.take(), &exit);
    }

    fn exit(&self, status: WaitStatus, finished_at: SystemTime) -> Exit {
        let signal = status.terminating_signal();
        let code = signal.map_or(status.exit_status().unwrap_or(255), |signal| 128 + signal);
        let groups = self.parts.cgroup.iter().chain(&self.parts.limits);
        let kills: u64 = groups.map(Cgroup::memory_kills).sum();
        Exit {
            code,
            signal,
            cause: if kills > 0 && code != 0 {
                ExitCause::OutOfMemory
            } else {
                ExitCause::Ended
            },
            started_at: self.running.started_at,
            finished_at,
            message: self.termination_message(),
        }
    }

    fn termination_message(&self) -> Option<String> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::openat(
            &self.parts.records,
            file::TERMINATION,
            flags,
            rustix::fs::Mode::empty(),
        );
        let mut bytes = Vec::new();
        File::from(opened.ok()?)
            .take(MESSAGE_MAX)
            .read_to_end(&mut bytes)
            .ok()?;
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn cannot_start(failure: Failure) -> Reply {
    Reply::CannotStart {
        reason: failure.reason,
        message: failure.message,
    }
}

fn readable(source: &impl AsFd) -> PollFd<'_> {
    PollFd::new(source, PollFlags::IN)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Kills all processes below the calling one. Orphans come to it too, so that none is missed for long.
fn kill_descendants() {
    let mut pending = vec![std::process::id()];
    while let Some(parent) = pending.pop() {
        for child in children(parent) {
            pending.push(child);
            if let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The children of all threads of a process; none if it has ended meanwhile.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let mut found = Vec::new();
    for list in lists {
        found.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}
