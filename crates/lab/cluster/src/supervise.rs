//! How do child processes stay alive, and how do they end with us?
//!
//! A child that ends is started again after a wait that doubles while it keeps ending, and a log line says
//! so. Children get SIGTERM when this process stops, or dies. Signals from the terminal are for this process alone.

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// One that ran so long is believed to be well, and waits from the beginning again.
const WELL: Duration = Duration::from_secs(30);
/// How long a child gets between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// A program to keep running.
pub struct Spec {
    /// What to call it.
    pub label: String,
    /// Makes its command anew for each start.
    pub command: Box<dyn Fn() -> Command + Send + Sync>,
    /// Where its output goes.
    pub log: PathBuf,
}

/// Keeps programs running until it is stopped.
pub struct Supervisor {
    spawner: Spawner,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Supervisor {
    /// Keeps nothing yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            spawner: Spawner::start()?,
            stop: watch::Sender::new(false),
            tasks: Vec::new(),
        })
    }

    /// Starts a program and keeps it running.
    pub fn keep(&mut self, spec: Spec) {
        let (spawner, stopping) = (self.spawner.clone(), self.stop.subscribe());
        self.tasks.push(tokio::spawn(keep(spec, spawner, stopping)));
    }

    /// Ends all programs and waits for it.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            // A task ends only after its child; one that panicked has nothing left to wait for.
            let _ = task.await;
        }
    }
}

async fn keep(spec: Spec, spawner: Spawner, mut stopping: watch::Receiver<bool>) {
    let mut wait = FIRST_WAIT;
    loop {
        let started = Instant::now();
        match start(&spec, &spawner).await {
            Ok(mut child) => {
                let ended = tokio::select! {
                    biased;
                    () = stopped(&mut stopping) => None,
                    status = child.wait() => Some(status),
                };
                let Some(status) = ended else {
                    return end(child).await;
                };
                // Somebody may be ending all of us; then there is nothing to be said about one.
                if tokio::time::timeout(FIRST_WAIT, stopped(&mut stopping))
                    .await
                    .is_ok()
                {
                    return;
                }
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                let log = spec.log.display();
                tracing::warn!(child = spec.label, status, %log, "a child ended; starting it again");
            }
            Err(error) => tracing::error!(child = spec.label, %error, "a child cannot be started"),
        }
        if started.elapsed() > WELL {
            wait = FIRST_WAIT;
        }
        tokio::select! {
            () = stopped(&mut stopping) => return,
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(LONGEST_WAIT),
        }
    }
}

/// Waits for the request to stop; a supervisor that is gone counts as one.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn start(spec: &Spec, spawner: &Spawner) -> std::io::Result<Child> {
    let log = File::options().create(true).append(true).open(&spec.log)?;
    let mut command = (spec.command)();
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.process_group(0);
    die_with_parent(&mut command);
    spawner.spawn(command).await
}

async fn end(mut child: Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // It was not waited for, so that the number is still its own.
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Asks the kernel to end the child when the thread that starts it dies.
#[expect(unsafe_code, reason = "a closure between fork and exec must be safe there")]
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have died before the line above.
            if rustix::process::getppid() != Some(parent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

type Order = (Command, oneshot::Sender<std::io::Result<Child>>);

/// One thread starts all children: their death signal is tied to the thread that started them, and the
/// threads of the runtime may come and go.
#[derive(Clone)]
struct Spawner(Arc<mpsc::Sender<Order>>);

impl Spawner {
    fn start() -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel::<Order>();
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                let _context = runtime.enter();
                for (command, reply) in inbox {
                    // Somebody who stopped waiting wants no child.
                    let _ = reply.send(tokio::process::Command::from(command).kill_on_drop(true).spawn());
                }
                // Children die with this thread, so it lives as long as the process.
                std::thread::park();
            })?;
        Ok(Self(Arc::new(orders)))
    }

    async fn spawn(&self, command: Command) -> std::io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let gone = |_| std::io::Error::other("the thread that starts children is gone");
        self.0.send((command, reply)).map_err(|_| gone(()))?;
        child.await.map_err(|_| gone(()))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dir: &std::path::Path, script: &'static str) -> Spec {
        let own = dir.to_owned();
        Spec {
            label: "test".into(),
            command: Box::new(move || {
                let mut command = Command::new("sh");
                command.args(["-c", script]).current_dir(&own);
                command
            }),
            log: dir.join("log"),
        }
    }

    async fn eventually(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "it did not come true");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_child_that_ends_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut supervisor = Supervisor::new().unwrap();
        supervisor.keep(spec(dir.path(), "echo once >> starts; echo said; exit 3"));
        let starts = dir.path().join("starts");
        eventually(|| {
            std::fs::read_to_string(&starts)
                .unwrap_or_default()
                .lines()
                .count()
                >= 3
        })
        .await;
        supervisor.stop().await;
        assert!(
            std::fs::read_to_string(dir.path().join("log"))
                .unwrap()
                .starts_with("said\nsaid\n")
        );
    }

    #[tokio::test]
    async fn stopping_asks_children_to_end_and_waits() {
        let dir = tempfile::tempdir().unwrap();
        let mut supervisor = Supervisor::new().unwrap();
        let script = "trap 'echo asked > asked; exit 0' TERM; touch ready; while :; do sleep 0.05; done";
        supervisor.keep(spec(dir.path(), script));
        eventually(|| dir.path().join("ready").exists()).await;
        supervisor.stop().await;
        assert!(dir.path().join("asked").exists());
    }
}
