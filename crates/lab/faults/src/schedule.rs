//! Which faults and changes does a seed mean, and when?
//!
//! The same seed always means the same schedule, so that a run that failed can be played again.

use fastrand::Rng;
use pointsman_cluster::containers::RuntimeKind;
use std::fmt;
use std::time::Duration;

/// Nodes of the cluster that is tried.
pub const NODES: u8 = 3;
/// The first fault does not come before this, so that every run also sees what is normal.
pub const CALM: Duration = Duration::from_millis(700);
/// How long after the calm faults may begin.
const SPREAD: Duration = Duration::from_millis(2500);

/// Everything that a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How proxies write rules.
    pub proxy_mode: &'static str,
    /// What is broken, in order of time.
    pub faults: Vec<Planned>,
    /// What the user changes meanwhile, in order of time.
    pub changes: Vec<(Duration, Change)>,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When it begins, after the traffic.
    pub at: Duration,
    /// How long it lasts; zero for those that happen at once.
    pub lasts: Duration,
    /// What it is.
    pub fault: Fault,
}

/// Something that breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends without a word.
    Kill(Process),
    /// The process stands still for a while.
    Freeze(Process),
    /// Agent and proxy of a node stand still, and with them its clock.
    StopClock(u8),
    /// The node's cable is pulled.
    CutLink(u8),
    /// The node's cable loses packets, so many in a hundred, both ways.
    LossyLink(u8, u8),
    /// The disk with the data of all parts is full.
    FillDisk,
    /// All rules of the node are gone.
    FlushRules(u8),
    /// The node's rules lead nowhere: one chain is empty.
    FlushChain(u8),
    /// Everything ends without a word and is started again.
    Crash,
}

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// The API server.
    ApiServer,
    Controllers,
    /// The SLI collector with the shutdown gate.
    Collector,
    /// The agent of a node.
    Agent(u8),
    /// The proxy of a node.
    Proxy(u8),
    /// The container runtime of a node.
    Containerd(u8),
}

/// Something that a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// All pods are replaced.
    Roll,
    /// There shall be so many pods.
    Scale(u64),
    /// A pod, chosen by this number, says that it is not ready for a while.
    Flip(u8),
    /// One more Service.
    AddService,
    /// The oldest of these Services goes.
    RemoveService,
}

impl Schedule {
    /// Nodes whose rules somebody else takes away, so that what a partial sync relies on may be gone.
    pub fn flushed(&self) -> Vec<String> {
        let nodes = self.faults.iter().filter_map(|planned| match planned.fault {
            Fault::FlushRules(node) | Fault::FlushChain(node) => Some(format!("n{node}")),
            _ => None,
        });
        nodes.collect()
    }

    /// What the seed means. Container runtimes fail besides what is the same without them.
    pub fn new(seed: u64, runtime: RuntimeKind) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Neighbouring seeds differ in all that follows.
        rng.u64(..);
        let proxy_mode = if rng.u8(..4) == 0 { "iptables" } else { "nftables" };
        let mut faults = if rng.u8(..10) == 0 {
            vec![planned(Fault::Crash, &mut rng)]
        } else {
            (0..rng.u8(1..=3))
                .map(|_| planned(choose(&mut rng), &mut rng))
                .collect()
        };
        let crash = faults.iter().any(|planned| planned.fault == Fault::Crash);
        let end = faults.iter().map(|planned| planned.at + planned.lasts).max();
        let changes = changes(&mut rng, end.unwrap_or(CALM).max(CALM + SPREAD));
        if runtime == RuntimeKind::Containerd && !crash && rng.bool() {
            let process = Process::Containerd(rng.u8(1..=NODES));
            let fault = if rng.bool() {
                Fault::Kill(process)
            } else {
                Fault::Freeze(process)
            };
            faults.push(planned(fault, &mut rng));
        }
        faults.sort_by_key(|planned| planned.at);
        Self {
            proxy_mode,
            faults,
            changes,
        }
    }
}

impl Planned {
    /// How long after its end requests may still be lost through it, at most.
    pub fn aftermath(&self, proxy_mode: &str) -> Duration {
        match self.fault {
            // Rules of iptables mode are looked at every ten seconds.
            Fault::FlushRules(_) | Fault::FlushChain(_) if proxy_mode == "iptables" => {
                Duration::from_secs(15)
            }
            // Pods are started anew.
            Fault::Crash => Duration::from_secs(10),
            // A connection over a broken link waits twice as long before each next attempt.
            Fault::CutLink(_) | Fault::LossyLink(..) => Duration::from_secs(5) + self.lasts,
            _ => Duration::from_secs(5),
        }
    }
}

fn choose(rng: &mut Rng) -> Fault {
    let node = rng.u8(1..=NODES);
    match rng.u8(..20) {
        0..=5 => Fault::Kill(process(rng)),
        6..=9 => Fault::Freeze(process(rng)),
        10 => Fault::StopClock(node),
        11..=12 => Fault::CutLink(node),
        13..=14 => Fault::LossyLink(node, 10 * rng.u8(1..=5)),
        15..=16 => Fault::FillDisk,
        17..=18 => Fault::FlushRules(node),
        _ => Fault::FlushChain(node),
    }
}

fn process(rng: &mut Rng) -> Process {
    let node = rng.u8(1..=NODES);
    match rng.u8(..10) {
        0..=1 => Process::ApiServer,
        2..=3 => Process::Controllers,
        4..=5 => Process::Collector,
        6..=7 => Process::Agent(node),
        _ => Process::Proxy(node),
    }
}

fn planned(fault: Fault, rng: &mut Rng) -> Planned {
    let at = CALM + millis(rng, 0, SPREAD.as_millis() as u64);
    let lasts = match fault {
        Fault::Kill(_) | Fault::FlushRules(_) | Fault::FlushChain(_) | Fault::Crash => Duration::ZERO,
        Fault::FillDisk => millis(rng, 300, 2500),
        Fault::Freeze(_) | Fault::LossyLink(..) => millis(rng, 300, 4000),
        // One in three is longer than the patience of five seconds with a silent node.
        Fault::StopClock(_) | Fault::CutLink(_) if rng.u8(..3) == 0 => millis(rng, 6500, 8500),
        Fault::StopClock(_) | Fault::CutLink(_) => millis(rng, 300, 4000),
    };
    Planned { at, lasts, fault }
}

/// A change every half second or so until the faults are over.
fn changes(rng: &mut Rng, end: Duration) -> Vec<(Duration, Change)> {
    let mut changes = Vec::new();
    let (mut at, mut services) = (millis(rng, 100, 600), 0u32);
    while at < end {
        let change = match rng.u8(..10) {
            0..=2 => Change::Roll,
            3..=4 => Change::Scale(rng.u64(3..=5)),
            5..=6 => Change::Flip(rng.u8(..)),
            7..=8 => Change::AddService,
            _ if services > 0 => Change::RemoveService,
            _ => Change::AddService,
        };
        match change {
            Change::AddService => services += 1,
            Change::RemoveService => services -= 1,
            _ => {}
        }
        changes.push((at, change));
        at += millis(rng, 300, 900);
    }
    changes
}

fn millis(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.u64(least..=most))
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer => f.write_str("apiserver"),
            Self::Controllers => f.write_str("controllers"),
            Self::Collector => f.write_str("collector"),
            Self::Agent(node) => write!(f, "agent n{node}"),
            Self::Proxy(node) => write!(f, "proxy n{node}"),
            Self::Containerd(node) => write!(f, "containerd n{node}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(process) => write!(f, "kill {process}"),
            Self::Freeze(process) => write!(f, "freeze {process}"),
            Self::StopClock(node) => write!(f, "stop clock n{node}"),
            Self::CutLink(node) => write!(f, "cut link n{node}"),
            Self::LossyLink(node, percent) => write!(f, "lose {percent}% n{node}"),
            Self::FillDisk => f.write_str("fill disk"),
            Self::FlushRules(node) => write!(f, "flush rules n{node}"),
            Self::FlushChain(node) => write!(f, "flush chain n{node}"),
            Self::Crash => f.write_str("crash"),
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)?;
        match self.lasts {
            Duration::ZERO => Ok(()),
            lasts => write!(f, " {:.1}s", lasts.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(seed: u64) -> Schedule {
        Schedule::new(seed, RuntimeKind::Processes)
    }

    #[test]
    fn a_seed_always_means_the_same() {
        for seed in 0..100 {
            assert_eq!(of(seed), of(seed));
        }
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn container_runtimes_fail_besides_what_is_the_same_without_them() {
        let mut kinds = BTreeSet::new();
        for seed in 1..=50 {
            let (without, mut with) = (of(seed), Schedule::new(seed, RuntimeKind::Containerd));
            with.faults.retain(|planned| match planned.fault {
                Fault::Kill(Process::Containerd(_)) => {
                    kinds.insert("kill");
                    false
                }
                Fault::Freeze(Process::Containerd(_)) => {
                    kinds.insert("freeze");
                    false
                }
                _ => true,
            });
            assert_eq!(with, without);
        }
        assert_eq!(kinds, ["freeze", "kill"].into());
    }

    #[test]
    fn every_kind_of_fault_and_process_is_met_within_fifty_seeds() {
        let mut kinds = BTreeSet::new();
        for schedule in (1..=50).map(of) {
            assert!((1..=3).contains(&schedule.faults.len()));
            for planned in schedule.faults {
                let text = planned.fault.to_string();
                kinds.insert(text.trim_end_matches(char::is_numeric).to_owned());
            }
        }
        for kind in ["kill", "freeze"] {
            for process in ["apiserver", "controllers", "collector", "agent n", "proxy n"] {
                let wanted = format!("{kind} {process}");
                assert!(kinds.contains(&wanted), "{wanted} is not in {kinds:?}");
            }
        }
        for wanted in [
            "stop clock n",
            "cut link n",
            "fill disk",
            "flush rules n",
            "flush chain n",
            "crash",
        ] {
            assert!(kinds.contains(wanted), "{wanted} is not in {kinds:?}");
        }
        assert!(kinds.iter().any(|kind| kind.starts_with("lose")), "{kinds:?}");
    }

    #[test]
    fn a_crash_comes_alone_and_every_run_begins_calm_and_ends() {
        for schedule in (0..500).map(of) {
            let crashes = schedule
                .faults
                .iter()
                .any(|planned| planned.fault == Fault::Crash);
            assert!(!crashes || schedule.faults.len() == 1);
            assert!(schedule.faults.iter().all(|planned| planned.at >= CALM));
            let ends = schedule.faults.iter().map(|planned| planned.at + planned.lasts);
            let end = ends.chain(schedule.changes.iter().map(|(at, _)| *at)).max();
            assert!(end <= Some(Duration::from_secs(13)), "{schedule:?}");
            assert!(!schedule.changes.is_empty());
        }
    }

    #[test]
    fn never_more_services_are_removed_than_there_are() {
        for schedule in (0..500).map(of) {
            let mut services = 0i32;
            for (_, change) in schedule.changes {
                match change {
                    Change::AddService => services += 1,
                    Change::RemoveService => services -= 1,
                    _ => {}
                }
                assert!(services >= 0);
            }
        }
    }
}
