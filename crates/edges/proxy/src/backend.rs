//! Who writes the rules of one family?
//!
//! One seam over both modes, and the thread that runs it: writing blocks, and changes must go on being
//! folded meanwhile. The thread does one job after the other; what it says goes to the owner's inbox.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pointsman_dataplane::{Batch, ProgramError, Scope, ServiceState, Settings};
use pointsman_iptables::Table;
use pointsman_iptables::plan::Holder;
use pointsman_kernel::interfaces;
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::{
    DigestCheck, IptablesBackend, KernelCheck, Look, allow_localhost_node_ports,
};
use pointsman_kernel::nftables_backend::{Commits, NftablesBackend};
use pointsman_model::{Address, IpFamily};

use crate::config::Mode;

/// What a sync wrote, in whichever mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Runs of a program, or transactions.
    pub transactions: usize,
    /// What iptables mode has to say.
    pub iptables: Option<IptablesSize>,
    /// Elements written in nftables mode.
    pub elements: usize,
    /// Rules that existed were not as they should be, and now are.
    pub repaired: bool,
}

/// The size of restore input and of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IptablesSize {
    /// Bytes of input.
    pub bytes: usize,
    /// Lines of input.
    pub lines: usize,
    /// Chains written or removed.
    pub chains: usize,
    /// Rules written in the filter and nat tables.
    pub written: [usize; 2],
    /// Rules in the filter and nat tables.
    pub total: [u64; 2],
}

/// The rules of one family, in the mode that was chosen.
#[derive(Debug)]
pub enum Backend<A> {
    /// iptables.
    Iptables(Box<IptablesBackend<A>>),
    /// nf_tables.
    Nftables(Box<NftablesBackend<A>>),
    /// The kernel does not speak this family: there is nothing to write.
    Absent,
}

impl<A: Address> Backend<A> {
    /// Prepares a backend; nothing is written yet.
    pub fn open(mode: Mode, settings: Settings<A>, commits: Commits) -> Result<Self, ProgramError> {
        if !interfaces::has_family(A::FAMILY) {
            tracing::info!(family = %A::FAMILY, "this machine does not speak the family, no rules are written");
            return Ok(Self::Absent);
        }
        Ok(match mode {
            Mode::Iptables => {
                if A::FAMILY == IpFamily::V4
                    && settings.localhost_node_ports
                    && let Err(error) = allow_localhost_node_ports()
                {
                    tracing::warn!(%error, "node ports will not answer on 127.0.0.1: route_localnet cannot be set");
                }
                let variant = Variant::detect()?;
                let backend = IptablesBackend::new(settings, variant).watching(variant, commits);
                Self::Iptables(Box::new(backend))
            }
            Mode::Nftables => Self::Nftables(Box::new(NftablesBackend::open(settings, commits)?)),
        })
    }

    /// Brings a batch into the kernel.
    pub fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        match self {
            Self::Iptables(backend) => {
                let written = backend.sync(batch)?;
                Ok(Written {
                    transactions: written.restores,
                    iptables: Some(IptablesSize {
                        bytes: written.bytes,
                        lines: written.lines,
                        chains: written.chains,
                        written: [written.filter_rules, written.nat_rules],
                        total: [backend.rules(Table::Filter), backend.rules(Table::Nat)],
                    }),
                    ..Written::default()
                })
            }
            Self::Nftables(backend) => {
                let written = backend.sync(batch)?;
                Ok(Written {
                    transactions: written.transactions,
                    elements: written.elements,
                    repaired: written.repaired,
                    ..Written::default()
                })
            }
            Self::Absent => Ok(Written::default()),
        }
    }

    /// Reads what the kernel has, ahead of the first batch.
    fn read_ahead(&mut self) -> Result<(), ProgramError> {
        match self {
            Self::Nftables(backend) => backend.read_ahead(),
            Self::Iptables(_) | Self::Absent => Ok(()),
        }
    }

    /// Takes over new settings; true if the next batch has to be full.
    pub fn change_settings(&mut self, settings: Settings<A>) -> bool {
        match self {
            Self::Iptables(backend) => backend.change_settings(settings),
            Self::Nftables(backend) => backend.change_settings(settings),
            Self::Absent => false,
        }
    }

    /// Whether the rules are as we left them. A quick look is cheap; a thorough one may run a program.
    pub fn look(&mut self, thorough: bool) -> Result<Look, ProgramError> {
        match self {
            Self::Iptables(backend) => backend.look(thorough),
            // There, comparing is part of a full sync.
            Self::Nftables(backend) => Ok(match backend.is_undisturbed()? {
                true => Look::Undisturbed,
                false => Look::Flushed,
            }),
            Self::Absent => Ok(Look::Undisturbed),
        }
    }

    /// Removes what a predecessor left that this mode does not use.
    fn remove_others(&mut self) -> Result<(), ProgramError> {
        match self {
            Self::Iptables(_) => nftables::<A>()?.clean_up(),
            Self::Nftables(backend) => {
                backend.remove_predecessor()?;
                clean_up_iptables::<A>()
            }
            Self::Absent => Ok(()),
        }
    }
}

/// Removes the rules of both modes, ours and kube-proxy's, of one family.
pub fn clean_up<A: Address>() -> Result<(), ProgramError> {
    let iptables = clean_up_iptables::<A>();
    nftables::<A>()?.clean_up()?;
    iptables
}

/// Removes what only we make, once kube-proxy has taken over in whichever mode. False, and nothing is removed, if
/// it has not yet.
pub fn clean_up_own() -> Result<bool, ProgramError> {
    let [four, six] = [Holders::read::<Ipv4Addr>()?, Holders::read::<Ipv6Addr>()?];
    if (four.ours || six.ours) && !(four.others || six.others) {
        return Ok(false);
    }
    clean_up_own_of::<Ipv4Addr>()?;
    clean_up_own_of::<Ipv6Addr>()?;
    Ok(true)
}

/// Whether rules of ours and rules of kube-proxy's are there.
struct Holders {
    ours: bool,
    others: bool,
}

impl Holders {
    fn read<A: Address>() -> Result<Self, ProgramError> {
        let (mut ours, mut others) = nftables::<A>()?.holders()?;
        for variant in Variant::in_use(A::FAMILY) {
            match IptablesBackend::<A>::new(Settings::default(), variant).holder() {
                Ok(holder) => {
                    ours |= holder == Holder::Ourselves;
                    others |= holder == Holder::Another;
                }
                Err(ProgramError::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { ours, others })
    }
}

fn clean_up_own_of<A: Address>() -> Result<(), ProgramError> {
    for variant in Variant::in_use(A::FAMILY) {
        match IptablesBackend::<A>::new(Settings::default(), variant).clean_up_own() {
            Ok(()) | Err(ProgramError::Missing { .. }) => {}
            failed => return failed,
        }
    }
    nftables::<A>()?.clean_up_own()
}

fn nftables<A: Address>() -> Result<NftablesBackend<A>, ProgramError> {
    NftablesBackend::open(Settings::default(), Commits::default())
}

/// Cleans both kernel interfaces, as nobody knows which one a predecessor used. Where the programs are
/// missing, there is nothing of theirs to remove.
fn clean_up_iptables<A: Address>() -> Result<(), ProgramError> {
    let mut outcome = Ok(());
    for variant in Variant::in_use(A::FAMILY) {
        match IptablesBackend::<A>::new(Settings::default(), variant).clean_up() {
            Ok(()) | Err(ProgramError::Missing { .. }) => {}
            failed => outcome = failed,
        }
    }
    outcome
}

/// What the thread is to do.
#[derive(Debug)]
pub enum Job<A> {
    /// Write a batch.
    Sync(Box<Batch<A>>),
    /// Look whether the rules are as we left them, thoroughly or not.
    Check(bool),
    /// Compare the kernel with a full render of these states, which must be all that was written.
    Compare(Vec<Arc<ServiceState<A>>>),
    /// Compare what was written with a full render of these states, which must be all that was written.
    Digest(Vec<Arc<ServiceState<A>>>),
    /// Take over settings; a full batch follows.
    Settings(Box<Settings<A>>),
}

/// What the thread says.
#[derive(Debug)]
pub enum Report<A> {
    /// A batch was written, or not.
    Synced {
        /// The batch.
        batch: Box<Batch<A>>,
        /// How it went.
        result: Result<Written, ProgramError>,
        /// When it was done.
        at: Instant,
    },
    /// Whether the rules are as we left them.
    Checked(Look),
    /// The kernel holds what it should, but for this many chains; `None` if nobody knows.
    Compared {
        /// Chains that differ.
        differing: Option<usize>,
        /// How long the comparison took.
        took: Duration,
    },
    /// What was written is what a full render gives, but for this many chains.
    Digested {
        /// Chains that differ.
        diverged: usize,
        /// How long the comparison took.
        took: Duration,
    },
}

/// The way to the thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Worker<A>(mpsc::Sender<Job<A>>);

impl<A: Address> Worker<A> {
    /// Starts the thread. A backend that cannot be opened is tried again with each batch.
    pub fn start(
        mode: Mode,
        settings: Settings<A>,
        commits: Commits,
        report: impl Fn(Report<A>) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let report: Reporter<A> = Arc::new(report);
        let state = State {
            mode,
            settings,
            commits,
            backend: None,
            others_removed: false,
        };
        std::thread::Builder::new()
            .name(format!("rules-{}", A::FAMILY))
            .spawn(move || state.run(&jobs, report))?;
        Ok(Self(sender))
    }

    /// Hands over a job. The thread ends only with the process.
    pub fn send(&self, job: Job<A>) {
        if self.0.send(job).is_err() {
            tracing::error!(family = %A::FAMILY, "the thread that writes rules is gone");
        }
    }
}

/// How the threads tell the owner.
type Reporter<A> = Arc<dyn Fn(Report<A>) + Send + Sync>;

struct State<A> {
    mode: Mode,
    settings: Settings<A>,
    commits: Commits,
    backend: Option<Backend<A>>,
    others_removed: bool,
}

impl<A: Address> State<A> {
    fn run(mut self, jobs: &mpsc::Receiver<Job<A>>, report: Reporter<A>) {
        self.read_ahead();
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Sync(batch) => {
                    let result = self.sync(&batch);
                    let first = result.is_ok() && !self.others_removed && batch.scope == Scope::Full;
                    report(Report::Synced {
                        batch,
                        result,
                        at: Instant::now(),
                    });
                    if first {
                        self.remove_others();
                    }
                }
                Job::Check(thorough) => report(Report::Checked(self.check(thorough))),
                Job::Compare(states) => self.compare(states, &report),
                Job::Digest(states) => self.digest(states, &report),
                Job::Settings(settings) => {
                    self.settings = *settings.clone();
                    if let Some(backend) = &mut self.backend {
                        backend.change_settings(*settings);
                    }
                }
            }
        }
    }

    /// Uses the time until the lists are complete. What fails here is tried again with the first batch.
    fn read_ahead(&mut self) {
        if self.mode == Mode::Nftables
            && let Err(error) = self.open().and_then(Backend::read_ahead)
        {
            tracing::debug!(family = %A::FAMILY, error = %Chain(&error), "the rules could not be read ahead");
        }
    }

    fn open(&mut self) -> Result<&mut Backend<A>, ProgramError> {
        match &mut self.backend {
            Some(backend) => Ok(backend),
            // A first batch is full, and stays so until it succeeds.
            unopened => Ok(unopened.insert(Backend::open(
                self.mode,
                self.settings.clone(),
                self.commits.clone(),
            )?)),
        }
    }

    fn sync(&mut self, batch: &Batch<A>) -> Result<Written, ProgramError> {
        self.open()?.sync(batch)
    }

    fn check(&mut self, thorough: bool) -> Look {
        let Some(backend) = &mut self.backend else {
            return Look::Undisturbed;
        };
        match backend.look(thorough) {
            Ok(look) => look,
            Err(error) => {
                tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "the rules cannot be checked");
                Look::Flushed
            }
        }
    }

    /// Compares on a thread of its own, because reading everything takes longer than a change may wait.
    fn compare(&mut self, states: Vec<Arc<ServiceState<A>>>, report: &Reporter<A>) {
        let check = match &mut self.backend {
            Some(Backend::Iptables(backend)) => backend.kernel_check(states).map(Some),
            _ => Ok(None),
        };
        beside(format!("compare-{}", A::FAMILY), report, move |started| {
            let differences = check.and_then(|check| check.map(KernelCheck::differences).transpose());
            match &differences {
                Ok(Some(chains)) if !chains.is_empty() => {
                    let first: Vec<String> = chains
                        .iter()
                        .take(5)
                        .map(|(_, chain)| chain.to_string())
                        .collect();
                    tracing::warn!(family = %A::FAMILY, chains = chains.len(), ?first, "rules in the kernel are not ours");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(family = %A::FAMILY, error = %Chain(error), "the rules cannot be compared");
                }
            }
            Report::Compared {
                differing: differences.ok().map(|chains| chains.unwrap_or_default().len()),
                took: started.elapsed(),
            }
        });
    }

    /// Compares on a thread of its own, because rendering everything takes longer than a change may wait.
    fn digest(&self, states: Vec<Arc<ServiceState<A>>>, report: &Reporter<A>) {
        let check = match &self.backend {
            Some(Backend::Iptables(backend)) => Some(backend.digest_check(states)),
            _ => None,
        };
        beside(format!("digest-{}", A::FAMILY), report, move |started| {
            let diverged = check.map(DigestCheck::divergences).unwrap_or_default();
            if !diverged.is_empty() {
                tracing::error!(family = %A::FAMILY, chains = ?diverged, "partial syncs went astray, writing everything again");
            }
            Report::Digested {
                diverged: diverged.len(),
                took: started.elapsed(),
            }
        });
    }

    /// Only once, after our own rules are in place: a node that changes its mode has no gap.
    fn remove_others(&mut self) {
        self.others_removed = true;
        let started = Instant::now();
        let Some(backend) = &mut self.backend else { return };
        if let Err(error) = backend.remove_others() {
            tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "rules of another mode may be left over");
        }
        let took: Duration = started.elapsed();
        tracing::debug!(family = %A::FAMILY, took_seconds = took.as_secs_f64(), "looked for rules of another mode");
    }
}

/// Does something on a thread of its own and reports; without a thread, at once.
fn beside<A: Address>(
    name: String,
    report: &Reporter<A>,
    work: impl FnOnce(Instant) -> Report<A> + Send + 'static,
) {
    let (reporter, slot) = (Arc::clone(report), Arc::new(Mutex::new(Some(work))));
    let task = Arc::clone(&slot);
    let run = move || {
        let work = task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            let told = work(Instant::now());
            pointsman_kernel::memory::return_unused();
            reporter(told);
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name).spawn(run) {
        tracing::warn!(%error, "no thread for comparing rules");
        if let Some(work) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() {
            report(work(Instant::now()));
        }
    }
}

/// An error and its causes in one line.
pub(crate) struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
