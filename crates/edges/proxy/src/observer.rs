//! Who follows what kube-proxy writes for one family?
//!
//! ```text
//! owner ── steps ──► tracker ◄── what was touched ── commits of anybody
//!   ▲                   │ ▲
//!   └── how far it is ◄─┘ └── rules of the Services in question, read by name
//! ```
//!
//! One thread waits for commits, another decides and reads. Nothing is written.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pointsman_dataplane::{Change, ProgramError, Watermark};
use pointsman_kernel::Mode;
use pointsman_kernel::interfaces::has_family;
use pointsman_kernel::observed::{Commits, KubeProxyChains, KubeProxyTable, Seen, has_older_tables};
use pointsman_model::{Address, ServiceName};
use pointsman_observe::{Behind, Key, Place, Statement, Step, Tracker, iptables, nftables};

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
    pub at: Instant,
}

/// The way to the threads; they end with the process.
#[derive(Debug)]
pub(crate) struct Observer<A> {
    inputs: mpsc::Sender<Input<A>>,
    /// How far the rules are.
    pub said: Watermark,
    /// Whose rules have differed for too long.
    pub behind: Option<Behind>,
}

#[derive(Debug)]
enum Input<A> {
    /// What rules must say from now on.
    Follow(Vec<Change<A>>, Step),
    /// Somebody committed; what was touched lies in [`Touched`].
    Commit,
}

/// What commits touched since it was last looked at. It grows with the number of Services at most.
#[derive(Debug)]
struct Touched<A> {
    services: BTreeSet<ServiceName>,
    chains: BTreeSet<String>,
    keys: BTreeSet<Key<A>>,
    ground: bool,
    anything: bool,
}

impl<A> Default for Touched<A> {
    fn default() -> Self {
        Self {
            services: BTreeSet::new(),
            chains: BTreeSet::new(),
            keys: BTreeSet::new(),
            ground: false,
            anything: false,
        }
    }
}

impl<A: Address> Touched<A> {
    fn add(&mut self, seen: Seen<A>) {
        match seen {
            Seen::Service(name) => drop(self.services.insert(name)),
            Seen::Chain(name) => drop(self.chains.insert(name)),
            Seen::Key(key) => drop(self.keys.insert(key)),
            Seen::Ground => self.ground = true,
            Seen::Anything => self.anything = true,
        }
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty()
            && self.chains.is_empty()
            && self.keys.is_empty()
            && !self.ground
            && !self.anything
    }
}

impl<A: Address> Observer<A> {
    /// Starts the threads; `report` gets what they find out.
    pub fn start(mode: Mode, report: impl Fn(Observed) + Send + 'static) -> std::io::Result<Self> {
        let (inputs, received) = mpsc::channel();
        if has_family(A::FAMILY) {
            let touched = Arc::default();
            let commits = Commits::follow().map_err(std::io::Error::other)?;
            let rules = Rules::open(mode).map_err(std::io::Error::other)?;
            let mut reader = Reader {
                tracker: Tracker::new(match mode {
                    Mode::Iptables => iptables::statement,
                    Mode::Nftables => nftables::statement,
                }),
                rules,
                touched: Arc::clone(&touched),
                ground: true,
                retry: None,
                behind: None,
            };
            let sender = inputs.clone();
            spawn(format!("commits-{}", A::FAMILY), move || {
                follow(mode, commits, &touched, &sender)
            })?;
            spawn(format!("observe-{}", A::FAMILY), move || {
                reader.run(&received, report)
            })?;
        } else {
            spawn(format!("observe-{}", A::FAMILY), move || {
                nothing_to_say(&received, report)
            })?;
        }
        Ok(Self {
            inputs,
            said: Watermark::default(),
            behind: None,
        })
    }

    /// Rules have to say this from now on.
    pub fn follow(&self, changes: Vec<Change<A>>, step: Step) {
        if self.inputs.send(Input::Follow(changes, step)).is_err() {
            tracing::error!(family = %A::FAMILY, "the thread that observes rules is gone");
        }
    }
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name).spawn(run).map(drop)
}

/// Notes what commits touch, until nobody wants to know.
fn follow<A: Address>(
    mode: Mode,
    mut commits: Commits,
    touched: &Mutex<Touched<A>>,
    inputs: &mpsc::Sender<Input<A>>,
) {
    loop {
        let mut seen = Touched::default();
        commits.next(mode, |part| seen.add(part));
        if seen.is_empty() {
            continue;
        }
        let mut touched = touched.lock().unwrap_or_else(PoisonError::into_inner);
        let waited_for = touched.is_empty();
        touched.services.append(&mut seen.services);
        touched.chains.append(&mut seen.chains);
        touched.keys.append(&mut seen.keys);
        touched.ground |= seen.ground;
        touched.anything |= seen.anything;
        drop(touched);
        if waited_for && inputs.send(Input::Commit).is_err() {
            return;
        }
    }
}

/// A family that the machine does not speak has no rules, and everything is said at once.
fn nothing_to_say<A: Address>(inputs: &mpsc::Receiver<Input<A>>, report: impl Fn(Observed)) {
    while let Ok(input) = inputs.recv() {
        if let Input::Follow(_, step) = input {
            report(Observed {
                steps: vec![step],
                behind: None,
                at: Instant::now(),
            });
        }
    }
}

/// kube-proxy's rules in the mode that it writes them.
enum Rules<A> {
    Table(KubeProxyTable),
    Chains(KubeProxyChains<A>),
}

impl<A: Address> Rules<A> {
    fn open(mode: Mode) -> Result<Self, ProgramError> {
        Ok(match mode {
            Mode::Nftables => Self::Table(KubeProxyTable::open()?),
            Mode::Iptables => {
                if has_older_tables(A::FAMILY) {
                    tracing::warn!(family = %A::FAMILY, "rules of the older iptables interface are here, too, and cannot be followed");
                }
                Self::Chains(KubeProxyChains::open()?)
            }
        })
    }

    fn read(&mut self, places: &BTreeSet<Place<A>>) -> Result<Statement<A>, ProgramError> {
        match self {
            Self::Table(table) => table.read(places),
            Self::Chains(chains) => chains.read(places),
        }
    }

    fn missing(&mut self) -> Result<Option<String>, ProgramError> {
        match self {
            Self::Table(table) => table.missing::<A>(),
            Self::Chains(chains) => chains.missing(),
        }
    }

    /// Destinations whose rules changed, where commits do not name them.
    fn changed(&mut self) -> Result<BTreeSet<Key<A>>, ProgramError> {
        match self {
            Self::Table(_) => Ok(BTreeSet::new()),
            Self::Chains(chains) => chains.changed(),
        }
    }
}

/// Decides and reads.
struct Reader<A> {
    tracker: Tracker<A>,
    rules: Rules<A>,
    touched: Arc<Mutex<Touched<A>>>,
    /// What all Services share has to be read.
    ground: bool,
    /// The kernel did not answer; not before then again.
    retry: Option<Instant>,
    /// Who was reported last.
    behind: Option<Behind>,
}

impl<A: Address> Reader<A> {
    fn run(&mut self, inputs: &mpsc::Receiver<Input<A>>, report: impl Fn(Observed)) {
        loop {
            match self.receive(inputs) {
                Ok(input) => self.take(input),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(input) = inputs.try_recv() {
                self.take(input);
            }
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

    fn receive(&self, inputs: &mpsc::Receiver<Input<A>>) -> Result<Input<A>, mpsc::RecvTimeoutError> {
        let now = Instant::now();
        let wake = match self.retry {
            Some(at) => Some(at),
            None if self.ground || self.tracker.question().is_some() => Some(now),
            None => self.tracker.wake(),
        };
        // Somebody may be behind, which nothing would say.
        let watch = self.tracker.behind().map(|_| now + RETRY);
        match wake.into_iter().chain(watch).min() {
            Some(at) => inputs.recv_timeout(at.saturating_duration_since(now)),
            None => inputs.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, input: Input<A>) {
        match input {
            Input::Follow(changes, step) => self.tracker.fold(Instant::now(), changes, step),
            Input::Commit => {
                let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
                let touched = std::mem::take(&mut *touched);
                self.ground |= touched.ground || touched.anything;
                touched
                    .chains
                    .iter()
                    .for_each(|name| self.tracker.doubt_chain(name));
                touched.services.iter().for_each(|name| self.tracker.doubt(name));
                touched.keys.iter().for_each(|key| self.tracker.doubt_key(key));
                self.tracker.doubt_unsaid();
                if touched.anything {
                    self.tracker.doubt_all();
                }
            }
        }
    }

    fn read(&mut self) -> Result<(), ProgramError> {
        if self.ground {
            let missing = self.rules.missing()?;
            self.rules
                .changed()?
                .iter()
                .for_each(|key| self.tracker.doubt_key(key));
            self.tracker.observe_ground(Instant::now(), missing);
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
            at: now,
        });
    }
}
