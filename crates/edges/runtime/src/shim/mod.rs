//! Who looks after a container when the agent is gone?
//!
//! Every container has a shim: a small process, the program's parent, that enters the pod's namespaces,
//! starts the program, writes its output to the log, runs commands inside on request, and writes down how
//! it ended. It is this same executable started with the hidden subcommand `shim`, before any thread or
//! runtime is started, so that it stays small and may fork.
//!
//! Invariants: as long as the shim lives it holds a lock on a file in the container's directory; when it
//! ends, no process of the container is left and the end is on disk. Signals to the program go through
//! the shim, which is its parent, so that they never reach a stranger with a recycled process id.

pub mod binds;
pub mod child;
pub mod exec;
pub mod failure;
pub mod log;
pub mod mounts;
pub mod protocol;
pub mod root;
pub mod seccomp;
pub mod serve;
pub mod streams;
pub mod taps;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use serde::Serialize;

use crate::cgroup::Cgroup;
use crate::{Attachable, StartFailure};
use failure::Failure;
use log::{Lines, LogFile, Stream};
use protocol::{Launch, Report, Running, file};
use serve::{Output, Shim};
use streams::Streams;
use taps::Taps;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "shim";

/// Runs the shim if the program was started as `PROGRAM shim DIRECTORY`; otherwise returns `None`.
///
/// Call this first in `main`: a shim must be the only thread of its process.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    let directory = arguments.next()?;
    Some(run(Path::new(&directory)))
}

fn run(directory: &Path) -> ExitCode {
    let Ok(inherited) = Inherited::take() else {
        return ExitCode::FAILURE;
    };
    let started = start(directory, inherited.lock);
    let report = match &started {
        Ok(shim) => Report::Started(shim.running),
        Err(failure) => Report::Failed {
            reason: failure.reason,
            message: failure.message.clone(),
        },
    };
    if let Ok(line) = serde_json::to_vec(&report) {
        // The agent may have died meanwhile; the next one finds out from the files.
        let _ = File::from(inherited.report).write_all(&line);
    }
    match started {
        Ok(shim) => {
            shim.serve();
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// What the agent hands over as standard input and output.
struct Inherited {
    lock: OwnedFd,
    report: OwnedFd,
}

impl Inherited {
    /// Moves both out of the way of the programs to be started, which must not inherit them.
    fn take() -> io::Result<Self> {
        // A shim is no child of the agent's session: neither a terminal nor a signal to the group may end it.
        let _ = rustix::process::setsid();
        let _ = rustix::thread::set_name(c"pointsman-shim");
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let lock = fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
        let report = fcntl_dupfd_cloexec(io::stdout().as_fd(), 3)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(Self { lock, report })
    }
}

/// Everything up to the running program. What needs the host's file tree is opened before it is left.
fn start(directory: &Path, lock: OwnedFd) -> Result<Shim, Failure> {
    let setup = |doing: &'static str| move |error: io::Error| Failure::new(StartFailure::Setup, doing, error);
    let launch = std::fs::read(directory.join(file::LAUNCH)).map_err(setup("reading what to start"))?;
    let launch: Launch =
        serde_json::from_slice(&launch).map_err(|error| setup("reading what to start")(error.into()))?;
    let records = File::open(directory).map_err(setup("opening the container's directory"))?;
    let reserve = reserve_exit(&records);
    let log = LogFile::open(&launch.log, launch.log_limit).map_err(setup("opening the log"))?;
    let listener = listen(directory).map_err(setup("listening for the agent"))?;
    let signals = watch_children().map_err(setup("watching child processes"))?;
    let cgroup = join_cgroups(&launch).map_err(setup("joining the cgroup"))?;
    let limits = open_limits(&launch).map_err(setup("opening the groups that limit it"))?;
    enter_namespaces(&launch)?;
    root::enter(&launch, directory)?;
    let Attachable { stdin, tty, .. } = launch.attachable;
    let (streams, held) = match tty {
        true => Streams::terminal(&launch).map(|(streams, master)| (streams, vec![master]))?,
        false => Streams::piped(&launch, stdin)?,
    };
    let members = cgroup
        .iter()
        .chain(&limits)
        .map(Cgroup::members)
        .collect::<io::Result<_>>();
    let program = child::Program {
        command: &launch.command,
        env: &launch.env,
        working_dir: &launch.working_dir,
        user: &launch.user,
        security: &launch.security,
        members: members.map_err(setup("joining the cgroup"))?,
        stdin: streams.stdin,
        has_terminal: streams.is_terminal,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let pid = child::start(program)?;
    let running = Running {
        pid,
        started_at: SystemTime::now(),
    };
    let (input, outputs) = own_ends(held, &launch).map_err(setup("making a pipe"))?;
    write_record(&records, file::RUNNING, &running).map_err(setup("writing down what was started"))?;
    Ok(Shim::new(serve::Parts {
        launch,
        running,
        records,
        reserve,
        lock,
        listener,
        signals,
        cgroup,
        limits,
        log,
        input,
        outputs,
        taps: Taps::default(),
    }))
}

/// The input of the program, which is kept for those who attach, and its outputs.
fn own_ends(held: Vec<OwnedFd>, launch: &Launch) -> io::Result<(Option<OwnedFd>, Vec<Output>)> {
    let mut held = held.into_iter().peekable();
    let input = match (held.peek(), launch.attachable) {
        (Some(master), Attachable { tty: true, .. }) => Some(master.try_clone()?),
        (_, Attachable { stdin: true, .. }) => held.next(),
        _ => None,
    };
    let streams = [Stream::Stdout, Stream::Stderr].into_iter().map(Lines::new);
    let outputs = streams.zip(held).map(|(lines, pipe)| Output::new(lines, pipe));
    Ok((input, outputs.collect()))
}

/// Makes room for the exit record, so that it can be written when the disk has filled up.
fn reserve_exit(records: &File) -> Option<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(records, EXIT_RESERVE, flags, Mode::from_raw_mode(0o600)).ok()?;
    // Not every file system can; then the record is written like any other.
    rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 16 << 10).ok()?;
    Some(fd.into())
}

const EXIT_RESERVE: &str = "exit.json.new";

/// Writes the exit record into the space that was kept for it.
fn write_exit(records: &File, reserve: Option<File>, exit: &crate::Exit) -> io::Result<()> {
    let Some(mut reserve) = reserve else {
        return write_record(records, file::EXIT, exit);
    };
    reserve.write_all(&serde_json::to_vec(exit)?)?;
    Ok(rustix::fs::renameat(records, EXIT_RESERVE, records, file::EXIT)?)
}

/// Writes a record that readers see whole or not at all.
pub(crate) fn write_record(directory: &File, name: &str, record: &impl Serialize) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, &temporary, flags, Mode::from_raw_mode(0o600))?;
    File::from(fd).write_all(&serde_json::to_vec(record)?)?;
    Ok(rustix::fs::renameat(directory, &temporary, directory, name)?)
}

fn listen(directory: &Path) -> io::Result<UnixListener> {
    // Relative, because a socket's path may have 107 bytes only.
    std::env::set_current_dir(directory)?;
    let _ = std::fs::remove_file(file::SOCKET);
    let listener = UnixListener::bind(file::SOCKET)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn join_cgroups(launch: &Launch) -> io::Result<Option<Cgroup>> {
    let Some(paths) = &launch.cgroup else {
        return Ok(None);
    };
    Cgroup::open(&paths.shim)?.join()?;
    Cgroup::open(&paths.container).map(Some)
}

fn open_limits(launch: &Launch) -> io::Result<Vec<Cgroup>> {
    let paths = launch.cgroup.iter().flat_map(|paths| &paths.limits);
    paths.map(|path| Cgroup::open(path)).collect()
}

fn enter_namespaces(launch: &Launch) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(StartFailure::Setup, "entering the pod's namespaces", error);
    if let Some(path) = &launch.netns {
        let netns = File::open(path).map_err(failed)?;
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| failed(error.into()))?;
    }
    unshare_mounts().map_err(failed)?;
    if let Some(hostname) = &launch.hostname {
        unshare(UnshareFlags::NEWUTS).map_err(failed)?;
        rustix::system::sethostname(hostname.as_bytes()).map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

pub(crate) fn unshare_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)
}

#[expect(
    unsafe_code,
    reason = "unshare(2) may pull shared state from under a running program"
)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the flags used here move only the calling thread to other namespaces; no memory and no
    // descriptor table is taken from anyone.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

/// A pipe that the container's user may open again as `/dev/stdout`.
fn pipe(launch: &Launch) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    give_to_user(launch, &write)?;
    Ok((read, write))
}

/// A pipe that the container's user may open again as `/dev/stdin`.
fn input(launch: &Launch) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    give_to_user(launch, &read)?;
    Ok((read, write))
}

fn give_to_user(launch: &Launch, stream: &OwnedFd) -> io::Result<()> {
    let (uid, gid) = (launch.user.uid, launch.user.gid);
    let owner = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    Ok(rustix::fs::fchown(stream, Some(owner.0), Some(owner.1))?)
}

/// Blocks all signals, so that none ends the shim, and returns a descriptor that reports ended children.
/// Orphans in the container become children of the shim.
#[expect(unsafe_code, reason = "signal masks have no safe interface")]
fn watch_children() -> io::Result<OwnedFd> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // SAFETY: the mask is initialised by libc before it is read, and the process has one thread. The new
    // descriptor belongs to nobody else.
    unsafe {
        let mut mask = std::mem::zeroed::<libc::sigset_t>();
        checked(libc::sigfillset(&raw mut mask))?;
        checked(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null_mut(),
        ))?;
        checked(libc::sigemptyset(&raw mut mask))?;
        checked(libc::sigaddset(&raw mut mask, libc::SIGCHLD))?;
        let fd = checked(libc::signalfd(
            -1,
            &raw const mask,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Undoes the blocking in a child, which must not inherit it. Safe between fork and exec.
#[expect(unsafe_code, reason = "signal masks have no safe interface")]
fn unblock_signals() -> io::Result<()> {
    // SAFETY: the mask is initialised by libc before it is read, and the process has one thread.
    unsafe {
        let mut mask = std::mem::zeroed::<libc::sigset_t>();
        checked(libc::sigemptyset(&raw mut mask))?;
        checked(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null_mut(),
        ))?;
    }
    Ok(())
}

fn checked(code: i32) -> io::Result<i32> {
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(code)
}
