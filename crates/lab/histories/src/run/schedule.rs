//! What goes wrong, and when? A pure function of the seed.

use fastrand::Rng;
use std::time::Duration;

/// What keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One API server with its own store, on a disk that can fail.
    Embedded,
    /// Two API servers that share an etcd.
    Etcd,
}

impl Engine {
    pub fn servers(self) -> usize {
        match self {
            Self::Embedded => 1,
            Self::Etcd => 2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and a new start.
    Kill(usize),
    /// SIGKILL, and once more while the server starts.
    KillTwice(usize, Duration),
    /// SIGKILL, and what was not synced is lost in part.
    LosePower(usize),
    /// A sync fails; the server may go on for so long, then power is lost.
    FailSync(usize, Duration),
    /// SIGSTOP for so long.
    Freeze(usize, Duration),
    KillEtcd,
    FreezeEtcd(Duration),
}

impl Fault {
    /// How many processes it kills.
    pub fn kills(self) -> usize {
        match self {
            Self::Kill(_) | Self::LosePower(_) | Self::FailSync(..) | Self::KillEtcd => 1,
            Self::KillTwice(..) => 2,
            Self::Freeze(..) | Self::FreezeEtcd(_) => 0,
        }
    }
}

/// A fault, after so much undisturbed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub after: Duration,
    pub fault: Fault,
}

/// The faults of one history.
pub fn schedule(engine: Engine, seed: u64, faults: usize) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let mut step = || {
        let after = Duration::from_millis(random.u64(30..300));
        let server = random.usize(0..engine.servers());
        let long = Duration::from_millis(random.u64(100..2500));
        let short = Duration::from_millis(random.u64(0..200));
        let fault = match (engine, random.u32(0..10)) {
            (Engine::Embedded, 0 | 1) => Fault::Kill(server),
            (_, 2 | 3) => Fault::KillTwice(server, short),
            (Engine::Embedded, 4..=6) => Fault::LosePower(server),
            (Engine::Embedded, 7 | 8) => Fault::FailSync(server, short),
            (Engine::Etcd, 0 | 1 | 4 | 5) => Fault::Kill(server),
            (Engine::Etcd, 6 | 7) => Fault::KillEtcd,
            (Engine::Etcd, 8) => Fault::FreezeEtcd(long),
            _ => Fault::Freeze(server, long),
        };
        Step { after, fault }
    };
    (0..faults).map(|_| step()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_everything_and_every_fault_comes() {
        for engine in [Engine::Embedded, Engine::Etcd] {
            let steps = schedule(engine, 1, 200);
            assert_eq!(steps, schedule(engine, 1, 200));
            let has = |wanted: fn(&Fault) -> bool| steps.iter().any(|step| wanted(&step.fault));
            assert!(
                has(|fault| matches!(fault, Fault::Kill(_)))
                    && has(|fault| matches!(fault, Fault::Freeze(..)))
            );
            let syncs = has(|fault| matches!(fault, Fault::FailSync(..)));
            let etcd = has(|fault| matches!(fault, Fault::KillEtcd));
            assert_eq!(
                (syncs, etcd),
                (engine == Engine::Embedded, engine == Engine::Etcd)
            );
        }
    }
}
