//! How is a network namespace made, found again and entered?

use crate::error::{FabricError, if_there};
use crate::network::Network;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Where named namespaces are mounted; iproute2 looks here too.
pub const RUN_DIR: &str = "/run/netns";

/// A network namespace.
///
/// The value keeps the namespace alive. One made by [`Netns::create`] also has a name that keeps it alive
/// until [`Netns::delete`], whatever happens to the process.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    label: String,
}

impl Netns {
    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, FabricError> {
        let mut own = Self::open(Path::new("/proc/thread-self/ns/net"))?;
        own.label = "this namespace".to_owned();
        Ok(own)
    }

    /// The namespace behind a path, such as `/run/netns/x` or `/proc/1/ns/net`.
    pub fn open(path: &Path) -> Result<Self, FabricError> {
        let doing = || format!("opening the network namespace {}", path.display());
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| FabricError::new(doing(), error.into()))?;
        Ok(Self {
            fd: Arc::new(fd),
            label: path.display().to_string(),
        })
    }

    /// The namespace of this name under [`RUN_DIR`]. A name that a crash left without a namespace behind
    /// it is missing.
    pub fn named(name: &str) -> Result<Self, FabricError> {
        let path = path_of(name)?;
        let mut found = Self::open(&path)?;
        name.clone_into(&mut found.label);
        // Without the mount the path is an empty ordinary file, which nobody could enter.
        let status = rustix::fs::fstatfs(&*found.fd)
            .map_err(|error| FabricError::new(format!("looking at {}", path.display()), error.into()))?;
        if status.f_type != NSFS_MAGIC {
            return Err(FabricError::Missing {
                doing: format!("opening the network namespace {name}"),
            });
        }
        Ok(found)
    }

    /// Makes a namespace, with its loopback interface up, that lives until its name is deleted.
    pub fn create(name: &str) -> Result<Self, FabricError> {
        let doing = || format!("creating the network namespace {name}");
        let failed = |error: io::Error| FabricError::new(doing(), error);
        let path = path_of(name)?;
        prepare_run_dir()?;
        match fs::File::create_new(&path) {
            // A name without a namespace, which could not be removed or which a crash left.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && Self::named(name).is_err() => {}
            created => drop(created.map_err(failed)?),
        }
        let mounted = in_fresh_namespace(|| mount_bind("/proc/thread-self/ns/net", &path));
        if let Err(error) = mounted {
            // The name must not stay behind without a namespace; the first error is the one to report.
            let _ = fs::remove_file(&path);
            return Err(failed(error));
        }
        let made = Self::named(name)?;
        made.network()?.set_up("lo")?;
        Ok(made)
    }

    /// Makes a namespace without a name, with its loopback interface up. It goes with the last value,
    /// process or socket in it.
    pub fn anonymous() -> Result<Self, FabricError> {
        let opened = in_fresh_namespace(|| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())
        });
        let fd = opened.map_err(|error| FabricError::new("creating a network namespace", error))?;
        let made = Self {
            fd: Arc::new(fd),
            label: "anonymous".to_owned(),
        };
        made.network()?.set_up("lo")?;
        Ok(made)
    }

    /// Removes a name; the namespace goes with the last process in it. Says whether there was one.
    ///
    /// [`FabricError::Shadowed`] means that the name stays, without a namespace that anybody could enter.
    pub fn delete(name: &str) -> Result<bool, FabricError> {
        let doing = || format!("deleting the network namespace {name}");
        let path = path_of(name)?;
        // Mounts may be stacked if two programs raced. An unmounted or missing file ends the loop.
        while unmount(&path, UnmountFlags::DETACH).is_ok() {}
        if_there(fs::remove_file(&path).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => FabricError::Shadowed { doing: doing() },
            _ => FabricError::new(doing(), error),
        }))
    }

    /// The names under [`RUN_DIR`], in order, also those without a namespace behind them.
    pub fn names() -> Result<Vec<String>, FabricError> {
        let failed = |error| FabricError::new(format!("listing {RUN_DIR}"), error);
        let entries = match fs::read_dir(RUN_DIR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The path under which a named namespace is found.
    pub fn path_of(name: &str) -> PathBuf {
        Path::new(RUN_DIR).join(name)
    }

    /// What to call this namespace in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Runs a closure on a thread in the namespace. A panic there is a panic here.
    ///
    /// Sockets made inside stay in the namespace wherever they are used later.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, FabricError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(self.fd.as_fd())?;
                Ok(job())
            });
            match thread.join() {
                Ok(outcome) => outcome.map_err(|error: io::Error| {
                    FabricError::new(format!("entering the network namespace {}", self.label), error)
                }),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A command whose process enters the namespace before it becomes the program.
    #[expect(unsafe_code, reason = "a closure between fork and exec must be safe there")]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let fd = Arc::clone(&self.fd);
        // SAFETY: the closure makes one system call and allocates nothing. The captured descriptor is
        // open in the child, which execs only after it.
        unsafe {
            command.pre_exec(move || enter(fd.as_fd()));
        }
        command
    }

    /// Connects to the kernel's links, addresses and routes in this namespace.
    pub fn network(&self) -> Result<Network, FabricError> {
        self.run(|| Network::open(&self.label))?
    }

    /// Sets a value below `/proc/sys/net`, such as `ipv4/ip_forward`.
    pub fn set_sysctl(&self, path: &str, value: &str) -> Result<(), FabricError> {
        self.run(|| fs::write(format!("/proc/sys/net/{path}"), value))?
            .map_err(|error| FabricError::new(format!("setting {path} to {value} in {}", self.label), error))
    }

    /// Reads a value below `/proc/sys/net`.
    pub fn sysctl(&self, path: &str) -> Result<String, FabricError> {
        let text = self
            .run(|| fs::read_to_string(format!("/proc/sys/net/{path}")))?
            .map_err(|error| FabricError::new(format!("reading {path} in {}", self.label), error))?;
        Ok(text.trim_end().to_owned())
    }

    /// Whether both are the same namespace.
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (self.identity(), other.identity());
        one.is_some() && one == two
    }

    /// The processes whose main thread is in one of the namespaces, in order.
    pub fn processes(namespaces: &[Self]) -> Result<Vec<u32>, FabricError> {
        let wanted: Vec<_> = namespaces.iter().filter_map(Self::identity).collect();
        let failed = |error| FabricError::new("listing processes", error);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // One that has ended, or is not ours to look at, is in none of them.
            if let Ok(status) = rustix::fs::stat(format!("/proc/{pid}/ns/net"))
                && wanted.contains(&(status.st_dev, status.st_ino))
            {
                found.push(pid);
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let status = rustix::fs::fstat(&*self.fd).ok()?;
        Some((status.st_dev, status.st_ino))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The file system of namespaces, from linux/magic.h.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Makes [`RUN_DIR`] a mount of its own, shared by all, as iproute2 wants it. If it is not one when somebody calls
/// `ip netns add`, iproute2 mounts the directory over itself: names that are there already are hidden below, can be
/// reached through copies only, and can never be removed.
fn prepare_run_dir() -> Result<(), FabricError> {
    let failed = |error: io::Error| FabricError::new(format!("preparing {RUN_DIR}"), error);
    fs::create_dir_all(RUN_DIR).map_err(failed)?;
    // The lock that iproute2 takes too, so that nobody does it twice.
    let directory = fs::File::open(RUN_DIR).map_err(failed)?;
    directory.lock().map_err(failed)?;
    let share = || {
        mount_change(
            RUN_DIR,
            MountPropagationFlags::SHARED | MountPropagationFlags::REC,
        )
    };
    match share() {
        // It is no mount yet.
        Err(rustix::io::Errno::INVAL) => {
            mount_bind_recursive(RUN_DIR, RUN_DIR).map_err(|error| failed(error.into()))?;
            share().map_err(|error| failed(error.into()))
        }
        shared => shared.map_err(|error| failed(error.into())),
    }
}

/// A name is one component of a path.
fn path_of(name: &str) -> Result<PathBuf, FabricError> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(FabricError::Failed {
            doing: format!("using {name:?} as the name of a network namespace"),
            source: io::ErrorKind::InvalidInput.into(),
        });
    }
    Ok(Netns::path_of(name))
}

fn enter(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(fd, Some(LinkNameSpaceType::Network))?)
}

/// Runs a closure on a thread that is the only one in a new namespace.
fn in_fresh_namespace<T: Send>(job: impl FnOnce() -> rustix::io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare_network()?;
            Ok(job()?)
        });
        match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[expect(
    unsafe_code,
    reason = "unshare(2) may pull shared state from under a running program"
)]
fn unshare_network() -> io::Result<()> {
    // SAFETY: NEWNET moves only the calling thread and takes away no memory or file descriptor; the
    // thread was started for this and holds no sockets.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}
