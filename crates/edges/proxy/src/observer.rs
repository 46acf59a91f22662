//! Who follows what kube-proxy writes for one family?
//!
//! ```text
//! owner ── steps ──► tracker ◄── what was touched ── commits of anybody
//!   ▲                   │ ▲
//!   └── how far it is ◄─┘ └── rules of the Services in question, read by name
//! ```
//!
//! One thread waits for steps and commits, reads and decides: each thread more that a commit passes through makes it known
//! later on a node that is busy. Nothing is written.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use pointsman_dataplane::{Change, ProgramError, Watermark};
use pointsman_kernel::Mode;
use pointsman_kernel::interfaces::has_family;
use pointsman_kernel::observed::{Commits, KubeProxyChains, KubeProxyTable, PolledChains, Seen};
use pointsman_model::Address;
use pointsman_observe::pace::Poll;
use pointsman_observe::{Behind, Key, Place, Statement, Step, Tracker, iptables, nftables};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::worker::Chain;

/// How long rules may differ before somebody has to know: kube-proxy waits a second between two syncs by default.
const PATIENCE: Duration = Duration::from_secs(5);
/// Services that are read before commits are looked at again.
const READ_AT_ONCE: usize = 256;
/// How long to wait after the kernel did not answer.
const RETRY: Duration = Duration::from_secs(1);

/// What was found out.
#[derive(Debug)]
pub(crate) struct Observed {
    /// Steps that the rules say now.
    pub steps: Vec<Step>,
    /// Whose rules have differed for too long.
    pub behind: Option<Behind>,
    /// How much later than they were written rules may be known, because nobody announces them.
    pub error: Duration,
    pub at: Instant,
}

/// The way to the thread; it ends with the process.
#[derive(Debug)]
pub(crate) struct Observer<A> {
    inputs: mpsc::Sender<Follow<A>>,
    bell: Bell,
    /// How far the rules are.
    pub said: Watermark,
    /// Whose rules have differed for too long.
    pub behind: Option<Behind>,
}

/// What rules must say from now on.
type Follow<A> = (Vec<Change<A>>, Step);

impl<A: Address> Observer<A> {
    /// Starts the thread; `report` gets what it finds out.
    pub fn start(mode: Mode, report: impl Fn(Observed) + Send + 'static) -> std::io::Result<Self> {
        let (inputs, received) = mpsc::channel();
        let bell = Bell::new()?;
        let thread = std::thread::Builder::new().name(format!("observe-{}", A::FAMILY));
        if has_family(A::FAMILY) {
            let mut reader = Reader {
                tracker: Tracker::new(match mode {
                    Mode::Iptables => iptables::language(),
                    Mode::Nftables => nftables::language(),
                }),
                mode,
                commits: Commits::follow().map_err(std::io::Error::other)?,
                rules: Rules::open(mode).map_err(std::io::Error::other)?,
                bell: bell.clone(),
                ground: true,
                retry: None,
                behind: None,
            };
            thread.spawn(move || reader.run(&received, report))?;
        } else {
            thread.spawn(move || nothing_to_say(&received, report))?;
        }
        Ok(Self {
            inputs,
            bell,
            said: Watermark::default(),
            behind: None,
        })
    }

    /// Rules have to say this from now on.
    pub fn follow(&self, changes: Vec<Change<A>>, step: Step) {
        if self.inputs.send((changes, step)).is_err() {
            tracing::error!(family = %A::FAMILY, "the thread that observes rules is gone");
        }
        self.bell.ring();
    }
}

/// Wakes a thread that waits for the kernel at the same time.
#[derive(Clone, Debug)]
struct Bell(Arc<OwnedFd>);

impl Bell {
    fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(Arc::new(fd)))
    }

    /// A bell that nobody has heard yet rings on.
    fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A family that the machine does not speak has no rules, and everything is said at once.
fn nothing_to_say<A: Address>(inputs: &mpsc::Receiver<Follow<A>>, report: impl Fn(Observed)) {
    while let Ok((_, step)) = inputs.recv() {
        report(Observed {
            steps: vec![step],
            behind: None,
            error: Duration::ZERO,
            at: Instant::now(),
        });
    }
}

/// kube-proxy's rules in the mode that it writes them.
enum Rules<A> {
    Table(KubeProxyTable),
    Chains {
        announced: Box<KubeProxyChains<A>>,
        polled: PolledChains<A>,
        /// Where they are written by the older interface: what reading them took last.
        poll: Option<Poll>,
    },
}

/// What all Services share.
struct Ground<A> {
    /// What of it is missing.
    missing: Option<String>,
    /// Destinations and chains whose rules changed, where commits do not name them.
    keys: BTreeSet<Key<A>>,
    chains: BTreeSet<String>,
    /// Rules are read by the other interface than before.
    switched: bool,
}

impl<A: Address> Rules<A> {
    fn open(mode: Mode) -> Result<Self, ProgramError> {
        Ok(match mode {
            Mode::Nftables => Self::Table(KubeProxyTable::open()?),
            Mode::Iptables => Self::Chains {
                announced: Box::new(KubeProxyChains::open()?),
                polled: PolledChains::open()?,
                poll: None,
            },
        })
    }

    fn read(&mut self, places: &BTreeSet<Place<A>>) -> Result<Statement<A>, ProgramError> {
        match self {
            Self::Table(table) => table.read(places),
            Self::Chains {
                polled,
                poll: Some(_),
                ..
            } => Ok(polled.read(places)),
            Self::Chains { announced, .. } => announced.read(places),
        }
    }

    fn ground(&mut self) -> Result<Ground<A>, ProgramError> {
        let (announced, polled, poll) = match self {
            Self::Table(table) => {
                return Ok(Ground {
                    missing: table.missing::<A>()?,
                    keys: BTreeSet::new(),
                    chains: BTreeSet::new(),
                    switched: false,
                });
            }
            Self::Chains {
                announced,
                polled,
                poll,
            } => (announced, polled, poll),
        };
        let before = poll.take();
        let missing = announced.missing()?;
        if missing.is_some() {
            let began = Instant::now();
            if let Some(found) = polled.poll()? {
                let ended = Instant::now();
                let took = ended - began;
                if before.is_none() {
                    tracing::info!(family = %A::FAMILY, took_seconds = took.as_secs_f64(), "rules of the older iptables interface are polled");
                }
                *poll = Some(Poll { ended, took });
                return Ok(Ground {
                    missing: found.missing,
                    keys: found.keys,
                    chains: found.chains,
                    switched: before.is_none(),
                });
            }
        }
        Ok(Ground {
            missing,
            keys: announced.changed()?,
            chains: BTreeSet::new(),
            switched: before.is_some(),
        })
    }

    /// What reading all took last, where nobody announces what is written.
    const fn poll(&self) -> Option<&Poll> {
        match self {
            Self::Chains { poll, .. } => poll.as_ref(),
            Self::Table(_) => None,
        }
    }
}

/// Decides and reads.
struct Reader<A> {
    tracker: Tracker<A>,
    mode: Mode,
    commits: Commits,
    rules: Rules<A>,
    bell: Bell,
    /// What all Services share has to be read.
    ground: bool,
    /// The kernel did not answer; not before then again.
    retry: Option<Instant>,
    /// Who was reported last.
    behind: Option<Behind>,
}

impl<A: Address> Reader<A> {
    fn run(&mut self, inputs: &mpsc::Receiver<Follow<A>>, report: impl Fn(Observed)) {
        loop {
            self.wait();
            // What comes after this rings again.
            self.bell.silence();
            loop {
                match inputs.try_recv() {
                    Ok((changes, step)) => self.tracker.fold(Instant::now(), changes, step),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.take_commits();
            if self.retry.is_none_or(|at| at <= Instant::now()) {
                let read = self.read();
                self.retry = read.is_err().then(|| Instant::now() + RETRY);
                if let Err(error) = read {
                    tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "rules cannot be read, trying again");
                }
            }
            self.say(&report);
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let now = Instant::now();
        let wake = match self.retry {
            Some(at) => Some(at),
            None if self.ground || self.tracker.question().is_some() => Some(now),
            None => self.tracker.wake().into_iter().chain(self.next_poll()).min(),
        };
        // Somebody may be behind, which nothing would say.
        let watch = self.tracker.behind().map(|_| now + RETRY);
        let wake = wake.into_iter().chain(watch).min();
        let timeout = wake.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        let mut sources = [
            PollFd::from_borrowed_fd(self.commits.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.0.as_fd(), PollFlags::IN),
        ];
        // A signal is as good a reason to look as any.
        let _ = poll(&mut sources, timeout.as_ref());
    }

    /// When to read rules that nobody announces.
    fn next_poll(&self) -> Option<Instant> {
        let waiting = self.tracker.behind().is_some();
        self.rules.poll().map(|poll| poll.next(waiting))
    }

    /// Notes what others have committed.
    fn take_commits(&mut self) {
        let (tracker, ground) = (&mut self.tracker, &mut self.ground);
        let mut touched = false;
        self.commits.read(self.mode, |seen| {
            touched = true;
            match seen {
                Seen::Service(name) => tracker.doubt(&name),
                Seen::Chain(name) => tracker.doubt_chain(&name),
                Seen::Key(key) => tracker.doubt_key(&key),
                Seen::Ground => *ground = true,
                Seen::Anything => {
                    *ground = true;
                    tracker.doubt_all();
                }
            }
        });
        if touched {
            tracker.doubt_unsaid();
        }
        let now = Instant::now();
        // Where kube-proxy has no rules yet, they may come by either interface.
        let looked_for = self.mode == Mode::Iptables && self.tracker.lacks_ground();
        if self.next_poll().map_or(looked_for, |at| at <= now) {
            self.ground = true;
        }
    }

    fn read(&mut self) -> Result<(), ProgramError> {
        if self.ground {
            let ground = self.rules.ground()?;
            ground.keys.iter().for_each(|key| self.tracker.doubt_key(key));
            ground
                .chains
                .iter()
                .for_each(|name| self.tracker.doubt_chain(name));
            if ground.switched {
                self.tracker.doubt_all();
            }
            if self.rules.poll().is_some() {
                self.tracker.doubt_unsaid();
            }
            self.tracker.observe_ground(Instant::now(), ground.missing);
            self.ground = false;
        }
        for _ in 0..READ_AT_ONCE {
            let Some((name, places)) = self.tracker.question() else {
                break;
            };
            let found = self.rules.read(&places)?;
            self.tracker.observe(Instant::now(), &name, &found);
        }
        Ok(())
    }

    fn say(&mut self, report: &impl Fn(Observed)) {
        let now = Instant::now();
        let steps = match self.ground {
            true => Vec::new(),
            false => self.tracker.said(now),
        };
        let behind = self.tracker.behind();
        let behind = behind.filter(|behind| now.saturating_duration_since(behind.since) >= PATIENCE);
        if steps.is_empty() && behind == self.behind {
            return;
        }
        self.behind.clone_from(&behind);
        report(Observed {
            steps,
            behind,
            error: self.rules.poll().map_or(Duration::ZERO, Poll::error),
            at: now,
        });
    }
}
