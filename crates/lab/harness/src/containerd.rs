//! How does a test get a containerd of its own, with an image in it?
//!
//! It needs Debian's packages containerd, runc, containernetworking-plugins and busybox-static.

use pointsman_fabric::Netns;
use pointsman_runtime::cri::archive::{self, Entry};
use pointsman_runtime::cri::private::Private;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An image with the usual programs, which sleeps unless it is told otherwise.
pub const BUSYBOX: &str = "docker.io/library/busybox:test";
const PROGRAMS: [&str; 14] = [
    "httpd", "sh", "sleep", "echo", "cat", "id", "ls", "touch", "mkdir", "kill", "pwd", "hostname", "wget",
    "tar",
];

/// The archive of that image.
///
/// # Panics
/// If there is no busybox to make it of.
pub fn busybox() -> Vec<u8> {
    let busybox = fs::read("/bin/busybox").expect("busybox-static is installed");
    let paths: Vec<String> = PROGRAMS.iter().map(|name| format!("bin/{name}")).collect();
    let mut entries = vec![("bin/busybox", Entry::Program(&busybox))];
    entries.extend(paths.iter().map(|path| (path.as_str(), Entry::Link("busybox"))));
    archive::image(BUSYBOX, &entries, &["/bin/sleep", "76001"])
}

/// A containerd in the network of a node; gone when dropped, which ends no container.
pub struct Containerd {
    /// What it is told, and how it is asked.
    pub files: Private,
    node: Netns,
    /// A directory of programs that it finds first.
    programs: Option<PathBuf>,
    process: Child,
}

impl Containerd {
    /// Starts it with its files in this directory.
    ///
    /// # Panics
    /// If something of it is not installed, or it does not start.
    pub fn start(directory: &Path, node: &Netns) -> Self {
        Self::start_finding(directory, node, None)
    }

    /// The same, with programs in the place of those that are installed, such as another runc.
    ///
    /// # Panics
    /// As above.
    pub fn start_finding(directory: &Path, node: &Netns, programs: Option<PathBuf>) -> Self {
        let files = Private::prepare(directory).unwrap();
        let process = spawn(&files, directory, node, programs.as_deref());
        let this = Self {
            files,
            node: node.clone(),
            programs,
            process,
        };
        this.await_ready();
        let tar = directory.join("busybox.tar");
        fs::write(&tar, busybox()).unwrap();
        this.files.load(&tar).unwrap();
        this
    }

    fn await_ready(&self) {
        let begun = Instant::now();
        while let Err(error) = self.files.load_pause() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "containerd does not start: {error}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as a crash would, and starts it again; containers go on.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self, directory: &Path) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = spawn(&self.files, directory, &self.node, self.programs.as_deref());
        self.await_ready();
    }
}

fn spawn(files: &Private, directory: &Path, node: &Netns, programs: Option<&Path>) -> Child {
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .unwrap();
    let mut command = node.command("containerd");
    command
        .args(files.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    if let Some(programs) = programs {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
    }
    command.spawn().expect("containerd is installed")
}

impl Containerd {
    /// A test that failed leaves containers; they must not stay on the machine.
    fn clear(&self) {
        let ctr = |arguments: &[&str]| {
            let output = self.files.ctr().args(arguments).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        for task in ctr(&["tasks", "list", "-q"]).unwrap_or_default().lines() {
            let _ = ctr(&["tasks", "delete", "--force", task]);
        }
        let directory = self.files.directory().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for place in places.filter(|place| place.starts_with(&directory)) {
            let _ = Command::new("umount").args(["--lazy", place]).status();
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.clear();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
