//! How does a test get a kernel network of its own?
//!
//! Each [`Namespace`] is a dedicated thread that has unshared its network namespace. Closures sent to it
//! run there, and so do the threads and processes they start. Nothing is named or mounted: when the value
//! is dropped, or the test process dies, the kernel removes the namespace with its links and rules.
//!
//! This needs root. Without it a test is [skipped](crate::skip).

use std::io;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

type Job = Box<dyn FnOnce() + Send>;

/// A fresh network namespace.
#[derive(Debug)]
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

impl Namespace {
    /// Makes a namespace with its loopback interface up.
    pub fn new() -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (report, ready) = mpsc::channel();
        let thread = std::thread::Builder::new().name("netns".into()).spawn(move || {
            let entered = enter_fresh_namespace().map(|()| gettid().as_raw_nonzero().get());
            let failed = entered.is_err();
            if report.send(entered).is_err() || failed {
                return;
            }
            for job in queue {
                job();
            }
        })?;
        let thread_id = ready.recv().map_err(io::Error::other)??;
        let namespace = Self {
            jobs: Some(jobs),
            thread: Some(thread),
            thread_id,
        };
        namespace.ip("link set lo up");
        // Interfaces are usable at once: while the kernel looks for a duplicate of a link-local address, a router
        // asks no neighbour for forwarded packets, and gives them up if that takes long enough.
        for interfaces in ["all", "default"] {
            namespace.sysctl(&format!("ipv6/conf/{interfaces}/accept_dad"), "0");
        }
        Ok(namespace)
    }

    /// Runs a closure in the namespace and waits for its result. A panic there is a panic here.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (report, result) = mpsc::channel();
        let job = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            // The caller waits for the result, so it cannot have gone away.
            let _ = report.send(outcome);
        };
        let jobs = self.jobs.as_ref().expect("only drop takes the queue");
        jobs.send(Box::new(job))
            .expect("the thread runs until its queue is closed");
        match result.recv().expect("the job always reports") {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// The kernel's number of the thread that lives in the namespace; `ip link … netns NUMBER` finds it by that.
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Runs a program in the namespace.
    pub fn command(&self, program: &str, arguments: &[&str]) -> io::Result<Output> {
        let program = program.to_owned();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        self.run(move || Command::new(program).args(arguments).output())
    }

    /// Runs a shell script in the namespace and returns what it printed; panics if it fails.
    pub fn sh(&self, script: &str) -> String {
        let output = self.command("sh", &["-ec", script]).expect("a shell");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script:?} failed: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `ip` in the namespace; panics if it fails.
    pub fn ip(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.command("ip", &words).expect("iproute2 is installed");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments} failed: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sets a sysctl below `/proc/sys/net`, such as `ipv4/ip_forward`.
    pub fn sysctl(&self, path: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/{path}"), value.to_owned());
        self.run(move || std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}")));
    }

    /// Joins two namespaces with a pair of connected interfaces, both up.
    pub fn connect(&self, name: &str, peer: &Self, peer_name: &str) {
        self.ip(&format!(
            "link add {name} type veth peer name {peer_name} netns {}",
            peer.thread_id
        ));
        self.ip(&format!("link set {name} up"));
        peer.ip(&format!("link set {peer_name} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The thread only runs jobs, whose panics were caught.
            let _ = thread.join();
        }
    }
}

/// Why tests with namespaces cannot run here, or `None` if they can.
pub fn unavailable() -> Option<String> {
    let error = match std::thread::spawn(enter_fresh_namespace).join() {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the thread panicked".to_owned(),
    };
    Some(format!("network namespaces cannot be made: {error}"))
}

/// Returns from the calling test, saying why, if namespaces cannot be made.
#[macro_export]
macro_rules! require_netns {
    () => {
        if let Some(reason) = $crate::netns::unavailable() {
            return $crate::skip::skip(&reason);
        }
    };
}

#[expect(
    unsafe_code,
    reason = "unshare(2) may pull shared state from under a running program"
)]
fn enter_fresh_namespace() -> io::Result<()> {
    // SAFETY: NEWNET moves only the calling thread and takes away no memory or file descriptor; the
    // thread was started for this and holds no sockets.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_connected_namespaces_can_ping_each_other() {
        require_netns!();
        let (left, right) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        left.connect("eth0", &right, "eth0");
        left.ip("addr add 10.9.0.1/24 dev eth0");
        right.ip("addr add 10.9.0.2/24 dev eth0");
        let listener = right.run(|| std::net::TcpListener::bind("10.9.0.2:80").unwrap());
        let accepted = std::thread::spawn(move || listener.accept().map(|(_, peer)| peer.ip()));
        left.run(|| std::net::TcpStream::connect("10.9.0.2:80").map(drop))
            .unwrap();
        assert_eq!(accepted.join().unwrap().unwrap().to_string(), "10.9.0.1");
    }

    #[test]
    fn a_panic_inside_reaches_the_caller_and_leaves_the_namespace_usable() {
        require_netns!();
        let namespace = Namespace::new().unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            namespace.run(|| panic!("inside"));
        }));
        assert!(caught.is_err());
        assert!(namespace.ip("link show").contains("lo"));
    }
}
