//! How does the rest of the agent speak to the prober?

use crate::engine::Engine;
use crate::exec::{self, ExecRunner};
use crate::finding::Finding;
use crate::metrics::Metrics;
use crate::report::Report;
use crate::target::PodTarget;
use pointsman_probe::{Limits, Policy};
use pointsman_telemetry::Registry;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Settings of the whole prober.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// When sub-second periods apply.
    pub policy: Policy,
    /// What all probes may cost together.
    pub limits: Limits,
    /// How many exec checks run at a time.
    pub exec_concurrency: usize,
    /// How many connections may be open at a time; further checks wait for one to end.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            limits: Limits::default(),
            exec_concurrency: 8,
            max_connections: 4096,
        }
    }
}

/// Why the prober could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel refused a descriptor or a thread.
    #[error("cannot start the prober")]
    Kernel(#[from] std::io::Error),
}

/// The prober of a node. All handles are to the same prober, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Prober(Arc<Handle>);

#[derive(Debug)]
struct Handle(Inbox);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.send(Command::End);
    }
}

/// A container began to run, or was found running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// How long ago it began.
    pub age: Duration,
    /// For a container that the agent found running when it started: what was last reported.
    pub previous: Option<Reported>,
}

/// What was last reported about a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Whether it was ready.
    pub ready: bool,
    /// Whether its startup probe had passed.
    pub started: bool,
}

impl Prober {
    /// Starts the probing thread in the caller's network namespace. Must be called within a tokio
    /// runtime, on which exec checks and name look-ups run. What the prober reports has to be read:
    /// it waits in memory until then.
    pub fn start(
        config: Config,
        runner: Arc<dyn ExecRunner>,
        registry: &Registry,
    ) -> Result<(Self, UnboundedReceiver<Report>), StartError> {
        let wake = Arc::new(Wake {
            descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(std::io::Error::from)?,
            pending: AtomicBool::new(false),
        });
        let (sender, commands) = mpsc::channel();
        let inbox = Inbox {
            sender,
            wake: wake.clone(),
        };
        let (reports, received) = unbounded_channel();
        let (exec, requests) = unbounded_channel();
        let answers = inbox.clone();
        let runtime = tokio::runtime::Handle::current();
        runtime.spawn(exec::serve(
            runner,
            requests,
            config.exec_concurrency,
            move |ticket, finding| {
                answers.send(Command::Answer(ticket, finding));
            },
        ));
        let engine = Engine::new(crate::engine::Parts {
            config,
            metrics: Metrics::new(registry),
            tls: crate::tls::config(),
            wake,
            commands,
            inbox: inbox.clone(),
            reports,
            exec,
            runtime,
        })?;
        std::thread::Builder::new()
            .name("prober".to_owned())
            .spawn(move || engine.run())?;
        Ok((Self(Arc::new(Handle(inbox))), received))
    }

    /// Makes these the probes of a pod. Containers whose probes are the same as before are left
    /// alone; all others start anew.
    pub fn set_pod(&self, pod: PodTarget) {
        self.send(Command::SetPod(pod));
    }

    /// Forgets a pod with all its probes. Nothing more is reported about it.
    pub fn remove_pod(&self, uid: &str) {
        self.send(Command::RemovePod(uid.into()));
    }

    /// A container began to run: its probes begin.
    pub fn container_started(&self, uid: &str, container: &str, started: Started) {
        self.send(Command::Started(uid.into(), container.into(), started));
    }

    /// A container no longer runs: its probes pause, and it is not ready.
    pub fn container_stopped(&self, uid: &str, container: &str) {
        self.send(Command::Stopped(uid.into(), container.into()));
    }

    /// The pod is to go: liveness and startup probes end, except those of sidecars.
    pub fn pod_terminating(&self, uid: &str) {
        self.send(Command::Terminating(uid.into()));
    }

    /// Asks the readiness probe of a container that is not ready to check now.
    pub fn poke(&self, uid: &str, container: &str) {
        self.send(Command::Poke(uid.into(), container.into()));
    }

    /// Changes when sub-second periods apply, from each probe's next check on.
    pub fn set_policy(&self, policy: Policy) {
        self.send(Command::Policy(policy));
    }

    fn send(&self, command: Command) {
        self.0.0.send(command);
    }
}

/// What the engine can be asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    SetPod(PodTarget),
    RemovePod(Arc<str>),
    Started(Arc<str>, Arc<str>, Started),
    Stopped(Arc<str>, Arc<str>),
    Terminating(Arc<str>),
    Poke(Arc<str>, Arc<str>),
    Policy(Policy),
    /// An exec check ended.
    Answer(Ticket, Finding),
    /// A name was looked up.
    Address(Ticket, Result<std::net::SocketAddr, String>),
    End,
}

/// Which check of which worker something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub worker: usize,
    pub generation: u32,
    pub check: u32,
}

/// Where commands go.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    sender: mpsc::Sender<Command>,
    wake: Arc<Wake>,
}

impl Inbox {
    pub fn send(&self, command: Command) {
        // The engine is gone only when nobody is left to care.
        let _ = self.sender.send(command);
        self.wake.wake();
    }
}

/// Wakes the engine from its wait.
#[derive(Debug)]
pub(crate) struct Wake {
    pub descriptor: OwnedFd,
    pending: AtomicBool,
}

impl Wake {
    fn wake(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Takes note of a wake-up; to be called before commands are read.
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.descriptor, &mut count);
        self.pending.swap(false, Ordering::AcqRel);
    }
}
