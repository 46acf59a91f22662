//! Who writes the rules of one family?
//!
//! A thread for each: writing blocks, and changes must go on being folded meanwhile. It does one job after the
//! other; what comes of them goes to the owner's inbox.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use pointsman_dataplane::{
    Batch, Compared, Comparison, Differences, Effort, Look, ProgramError, Programmer, Scope, Settings,
    States, Watermark, Written,
};
use pointsman_model::Address;

use crate::observer::Observed;

/// What the thread is to do.
#[derive(Debug)]
pub(crate) enum Job<A> {
    /// Write a batch.
    Sync(Box<Batch<A>>),
    /// Look whether the rules are as we left them.
    Look(Effort),
    /// Compare with a full render of these states, which must be all that was written.
    Compare(Compared, States<A>),
    /// Take over settings; a full batch follows.
    Settings(Box<Settings<A>>),
}

/// What came of a job.
#[derive(Debug)]
pub(crate) enum Report<A> {
    /// A batch was written, or not.
    Synced {
        batch: Box<Batch<A>>,
        result: Result<Written, ProgramError>,
        /// When it was done.
        at: Instant,
    },
    /// Whether the rules are as we left them.
    Looked(Look),
    /// Rules of a predecessor or another mode are gone, or could not be removed.
    Cleaned { leftovers: bool },
    /// Another program's rules were looked at.
    Observed(Observed),
    /// A comparison ended.
    Compared {
        of: Compared,
        /// `None` if nobody knows.
        found: Option<Differences>,
        took: Duration,
    },
}

impl<A> Report<A> {
    /// Everything up to here is said by another program's rules now.
    pub fn said(&self) -> Option<Watermark> {
        match self {
            Self::Observed(observed) => Some(observed.steps.last()?.watermark),
            _ => None,
        }
    }
}

/// How a programmer is made, on the thread that will use it.
pub(crate) type Open<A> = Box<dyn Fn(Settings<A>) -> Result<Box<dyn Programmer<A>>, ProgramError> + Send>;

/// The way to the thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker<A>(mpsc::Sender<Job<A>>);

impl<A: Address> Worker<A> {
    /// Starts the thread. A programmer that cannot be opened is tried again with each batch.
    pub fn start(
        open: Open<A>,
        settings: Settings<A>,
        report: impl Fn(Report<A>) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let report: Reporter<A> = Arc::new(report);
        let state = State {
            open,
            settings,
            programmer: None,
            predecessors: Predecessors::Untouched,
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

type Reporter<A> = Arc<dyn Fn(Report<A>) + Send + Sync>;

struct State<A> {
    open: Open<A>,
    settings: Settings<A>,
    programmer: Option<Box<dyn Programmer<A>>>,
    predecessors: Predecessors,
}

/// Rules that a predecessor or another mode left.
#[derive(PartialEq, Eq)]
enum Predecessors {
    Untouched,
    Removed,
}

impl<A: Address> State<A> {
    fn run(mut self, jobs: &mpsc::Receiver<Job<A>>, report: Reporter<A>) {
        self.prepare();
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Sync(batch) => {
                    let result = self.opened().and_then(|programmer| programmer.sync(&batch));
                    let complete = result.is_ok() && batch.scope == Scope::Full;
                    report(Report::Synced {
                        batch,
                        result,
                        at: Instant::now(),
                    });
                    if complete && self.predecessors == Predecessors::Untouched {
                        self.remove_predecessors(&report);
                    }
                }
                Job::Look(effort) => report(Report::Looked(self.look(effort))),
                Job::Compare(of, states) => self.compare(of, states, &report),
                Job::Settings(settings) => {
                    self.settings = *settings.clone();
                    if let Some(programmer) = &mut self.programmer {
                        programmer.change_settings(*settings);
                    }
                }
            }
        }
    }

    /// Uses the time until the lists are complete. What fails here is tried again with the first batch.
    fn prepare(&mut self) {
        if let Err(error) = self.opened().and_then(|programmer| programmer.prepare()) {
            tracing::debug!(family = %A::FAMILY, error = %Chain(&error), "the rules could not be read in advance");
        }
    }

    fn opened(&mut self) -> Result<&mut Box<dyn Programmer<A>>, ProgramError> {
        match &mut self.programmer {
            Some(programmer) => Ok(programmer),
            // A first batch is full, and stays so until it succeeds.
            unopened => Ok(unopened.insert((self.open)(self.settings.clone())?)),
        }
    }

    fn look(&mut self, effort: Effort) -> Look {
        let Some(programmer) = &mut self.programmer else {
            return Look::Undisturbed;
        };
        programmer.look(effort).unwrap_or_else(|error| {
            tracing::warn!(family = %A::FAMILY, error = %Chain(&error), "the rules cannot be checked");
            Look::Suspect
        })
    }

    /// Compares on a thread of its own, because reading or rendering everything takes longer than a change may wait.
    fn compare(&mut self, of: Compared, states: States<A>, report: &Reporter<A>) {
        let comparison = match &mut self.programmer {
            Some(programmer) => programmer.comparison(of, states),
            None => Ok(None),
        };
        beside(format!("compare-{}", A::FAMILY), report, move |started| {
            let found = comparison.and_then(|it| it.map(Comparison::differences).transpose());
            if let Err(error) = &found {
                tracing::warn!(family = %A::FAMILY, error = %Chain(error), "the rules cannot be compared");
            }
            Report::Compared {
                of,
                found: found.map(Option::unwrap_or_default).ok(),
                took: started.elapsed(),
            }
        });
    }

    /// Only once, after our own rules are in place: a node that changes its mode has no gap.
    fn remove_predecessors(&mut self, report: &Reporter<A>) {
        self.predecessors = Predecessors::Removed;
        let started = Instant::now();
        let Some(programmer) = &mut self.programmer else {
            return;
        };
        let removed = programmer.remove_predecessors();
        if let Err(error) = &removed {
            tracing::warn!(family = %A::FAMILY, error = %Chain(error), "rules of another mode may be left over");
        }
        report(Report::Cleaned {
            leftovers: removed.is_err(),
        });
        let took_seconds = started.elapsed().as_secs_f64();
        tracing::debug!(family = %A::FAMILY, took_seconds, "looked for rules of another mode");
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
            let outcome = work(Instant::now());
            pointsman_kernel::memory::return_unused();
            reporter(outcome);
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pointsman_dataplane::state::ExternalIps;
    use pointsman_dataplane::{Index, MemoryRules};
    use pointsman_model::{Moment, NodeName};

    use super::*;

    fn batch() -> Box<Batch<Ipv4Addr>> {
        let mut index = Index::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0));
        index.force_full();
        Box::new(index.checkout())
    }

    #[test]
    fn a_programmer_that_cannot_be_opened_is_tried_again_with_each_batch() {
        let attempts = Mutex::new(0);
        let open: Open<Ipv4Addr> = Box::new(move |_| {
            let mut attempts = attempts.lock().unwrap();
            *attempts += 1;
            match *attempts {
                3 => Ok(Box::new(MemoryRules::default())),
                _ => Err(ProgramError::Missing {
                    program: "iptables".into(),
                    source: std::io::ErrorKind::NotFound.into(),
                }),
            }
        });
        let (sender, reports) = mpsc::channel();
        let worker = Worker::start(open, Settings::default(), move |report| {
            sender.send(report).unwrap()
        })
        .unwrap();
        let next = |job| {
            worker.send(job);
            loop {
                match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
                    // Comes on its own, after the first sync.
                    Report::Cleaned { .. } => {}
                    report => return report,
                }
            }
        };
        // The first attempt was made ahead of any batch.
        let look = next(Job::Look(Effort::Quick));
        assert!(matches!(look, Report::Looked(Look::Undisturbed)), "{look:?}");
        let failed = next(Job::Sync(batch()));
        assert!(
            matches!(failed, Report::Synced { result: Err(_), .. }),
            "{failed:?}"
        );
        let written = next(Job::Sync(batch()));
        assert!(
            matches!(written, Report::Synced { result: Ok(_), .. }),
            "{written:?}"
        );
        let compared = next(Job::Compare(Compared::Kernel, Vec::new()));
        assert!(
            matches!(
                compared,
                Report::Compared {
                    found: Some(Differences { in_motion: 0, .. }),
                    ..
                }
            ),
            "{compared:?}"
        );
    }
}
