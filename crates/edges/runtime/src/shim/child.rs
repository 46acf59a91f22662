//! How does a process become the container's program?

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{self, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::failure::Failure;
use super::seccomp::Filter;
use crate::shim::protocol::Ids;
use crate::{CapabilitySet, Security, StartFailure, SystemCalls};

/// Where programs are looked for if the environment does not say.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program to start in the namespaces of the calling process.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// The whole environment.
    pub env: &'a [(String, String)],
    /// The directory it starts in.
    pub working_dir: &'a Path,
    /// Who it runs as.
    pub user: &'a Ids,
    /// What it is kept from.
    pub security: &'a Security,
    /// The `cgroup.procs` of the groups it joins.
    pub members: Vec<File>,
    /// Where its input comes from; nowhere if `None`.
    pub stdin: Option<OwnedFd>,
    /// Whether that is the terminal of its session.
    pub has_terminal: bool,
    /// Where its output goes.
    pub stdout: OwnedFd,
    /// Where its errors go.
    pub stderr: OwnedFd,
}

/// Starts the program as the leader of a session of its own and returns its process id. It is killed if
/// the caller dies.
pub fn start(program: Program<'_>) -> Result<u32, Failure> {
    let Some(name) = program.command.first() else {
        return Err(Failure {
            reason: StartFailure::NotFound,
            message: "no command is given".to_owned(),
        });
    };
    let path = find(name, program.env, program.working_dir)?;
    if !program.working_dir.is_dir() {
        let doing = format!("chdir to {:?}", program.working_dir);
        return Err(Failure::new(StartFailure::WorkingDirectory, doing, Errno::NOENT));
    }
    let mut command = Command::new(&path);
    command
        .arg0(name)
        .args(&program.command[1..])
        .env_clear()
        .envs(program.has_terminal.then_some(("TERM", "xterm")))
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(program.stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(program.stdout)
        .stderr(program.stderr);
    let credentials = Credentials::new(program.user, program.security);
    become_program(
        &mut command,
        program.members,
        credentials,
        program.working_dir.to_owned(),
        program.has_terminal,
    );
    let child = command.spawn().map_err(|error| start_failure(name, &error))?;
    Ok(child.id())
}

/// What the child does between fork and exec, in an order that matters: a process may join a cgroup and
/// change its groups only while it is still root, and a change of user forgets the death signal.
#[expect(unsafe_code, reason = "a closure between fork and exec must be safe there")]
fn become_program(
    command: &mut Command,
    members: Vec<File>,
    credentials: Credentials,
    directory: PathBuf,
    has_terminal: bool,
) {
    // A C string now, because nothing may be allocated then.
    let directory = std::ffi::CString::new(directory.into_os_string().into_encoded_bytes());
    let directory = directory.unwrap_or_else(|_| c"/".to_owned());
    let prepare = move || -> io::Result<()> {
        super::unblock_signals()?;
        rustix::process::setsid()?;
        if has_terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        for mut group in &members {
            group.write_all(b"0")?;
        }
        credentials.assume()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        rustix::process::chdir(&*directory)?;
        Ok(())
    };
    // SAFETY: the closure makes system calls on values made before the fork and allocates nothing.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Who the program is, and what it is kept from.
struct Credentials {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    no_new_privileges: bool,
    /// Capabilities that nobody in the container ever gets again, one by one.
    given_up: Vec<thread::CapabilitySet>,
    /// Those that the program has.
    held: thread::CapabilitySet,
    /// Those of them that it has without being root, one by one.
    ambient: Vec<thread::CapabilitySet>,
    filter: Option<Filter>,
}

impl Credentials {
    fn new(user: &Ids, security: &Security) -> Self {
        let wanted = security.capabilities;
        let bound = wanted.bound.within(capabilities_here());
        // Root has all of them when it becomes the program; others would lose even those that were asked for.
        let (held, ambient) = match user.uid {
            0 => (bound, CapabilitySet::NONE),
            _ => (wanted.asked.within(bound), wanted.asked.within(bound)),
        };
        let kernel = |set: CapabilitySet| thread::CapabilitySet::from_bits_retain(set.bits());
        let single = |set: CapabilitySet| {
            let bits = (0..u64::BITS).map(|number| 1 << number);
            let bits = bits.filter(|bit| set.bits() & bit != 0);
            bits.map(thread::CapabilitySet::from_bits_retain).collect()
        };
        Self {
            uid: Uid::from_raw(user.uid),
            gid: Gid::from_raw(user.gid),
            groups: user.groups.iter().copied().map(Gid::from_raw).collect(),
            no_new_privileges: security.no_new_privileges,
            given_up: single(bounding_set().without(wanted.bound)),
            held: kernel(held),
            ambient: single(ambient),
            filter: match security.system_calls {
                SystemCalls::All => None,
                SystemCalls::Ordinary => Some(Filter::ordinary(bound)),
            },
        }
    }

    fn is_ourselves(&self) -> bool {
        (self.uid, self.gid) == (rustix::process::geteuid(), rustix::process::getegid())
    }

    /// Every step needs what the next one gives away.
    fn assume(&self) -> io::Result<()> {
        match set_thread_groups(&self.groups) {
            // A user namespace with a single user fixes the groups; whoever stays who he is keeps them.
            Err(Errno::PERM) if self.is_ourselves() => {}
            changed => changed?,
        }
        if self.no_new_privileges {
            thread::set_no_new_privs(true)?;
        }
        if let Some(filter) = &self.filter {
            filter.install()?;
        }
        for capability in &self.given_up {
            thread::remove_capability_from_bounding_set(*capability)?;
        }
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        thread::set_keep_capabilities(true)?;
        set_thread_res_uid(self.uid, self.uid, self.uid)?;
        let ambient = self.ambient.iter().copied().collect();
        let sets = thread::CapabilitySets {
            effective: self.held,
            permitted: self.held,
            inheritable: ambient,
        };
        thread::set_capabilities(None, sets)?;
        for capability in &self.ambient {
            thread::configure_capability_in_ambient_set(*capability, true)?;
        }
        Ok(())
    }
}

/// The capabilities that this process can give to others.
pub fn capabilities_here() -> CapabilitySet {
    let permitted = thread::capabilities(None).map_or(0, |sets| sets.permitted.bits());
    bounding_set().within(CapabilitySet::from_bits(permitted))
}

fn bounding_set() -> CapabilitySet {
    let bits = (0..u64::BITS).map(|number| 1_u64 << number);
    let known = bits.filter(|bit| {
        let one = thread::CapabilitySet::from_bits_retain(*bit);
        // The kernel says no to numbers that it does not know.
        thread::capability_is_in_bounding_set(one).unwrap_or(false)
    });
    CapabilitySet::from_bits(known.fold(0, |all, bit| all | bit))
}

/// Finds a program as `execvp` would, by the container's own `PATH`.
fn find(name: &str, env: &[(String, String)], working_dir: &Path) -> Result<PathBuf, Failure> {
    let not_found = |what: &str| Failure {
        reason: StartFailure::NotFound,
        message: format!("exec: {name:?}: {what}"),
    };
    if name.contains('/') {
        let path = working_dir.join(name);
        return match path.metadata() {
            Ok(found) if found.is_dir() => Err(Failure {
                reason: StartFailure::NotExecutable,
                message: format!("exec: {name:?}: is a directory"),
            }),
            Ok(_) => Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(start_failure(name, &error)),
            Err(_) => Err(not_found("no such file or directory")),
        };
    }
    let path = env.iter().rev().find(|(name, _)| name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, path)| path);
    let candidates = path
        .split(':')
        .filter(|part| !part.is_empty())
        .map(|part| Path::new(part).join(name));
    let mut programs = candidates.filter(|path| path.is_file() && is_executable(path));
    programs
        .next()
        .ok_or_else(|| not_found("executable file not found in $PATH"))
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

fn start_failure(name: &str, error: &io::Error) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => StartFailure::NotFound,
        io::ErrorKind::PermissionDenied => StartFailure::NotExecutable,
        // ENOEXEC has no kind of its own.
        _ if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => StartFailure::NotExecutable,
        _ => StartFailure::Setup,
    };
    let code = error.raw_os_error().unwrap_or_default();
    Failure::new(
        reason,
        format!("exec: {name:?}"),
        io::Error::from_raw_os_error(code),
    )
}
