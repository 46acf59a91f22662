//! What happens in a run?

use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One node loses its network, and gets it back.
    Cut,
    /// Several at once, fewer than may be withdrawn.
    Several,
    /// Half of the nodes or more at once: nothing may be withdrawn for long.
    Most,
    /// Some pairs of nodes do not reach each other in one direction, from the beginning or all at once, and one node
    /// is cut.
    Asymmetric,
    /// A minority is cut off from the others, but everybody reaches the API server.
    Partition,
    /// A node is cut while the API server takes up to two seconds for a write.
    SlowServer,
    /// Nodes reboot one after the other.
    Reboots,
    /// Nobody is cut.
    Calm,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Cut,
        Self::Several,
        Self::Most,
        Self::Asymmetric,
        Self::Partition,
        Self::SlowServer,
        Self::Reboots,
        Self::Calm,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cut => "one node cut",
            Self::Several => "several nodes cut",
            Self::Most => "half or more cut",
            Self::Asymmetric => "one-way links, one node cut",
            Self::Partition => "minority cut off, API server reached",
            Self::SlowServer => "slow API server, one node cut",
            Self::Reboots => "rolling reboots",
            Self::Calm => "nobody cut",
        }
    }
}

/// One run's conditions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub kind: Kind,
    pub nodes: usize,
    pub zones: usize,
    /// Percentage of packets that are lost, each way.
    pub loss: u32,
    /// The longest pause of a node.
    pub pause: Duration,
    /// Round trips between nodes, about.
    pub trip: Duration,
    /// A controller takes over from another at some point.
    pub takeover: bool,
    pub length: Duration,
}

pub const LOSSES: [u32; 6] = [0, 1, 2, 5, 10, 20];
pub const PAUSES: [u64; 4] = [0, 500, 1000, 2000];

impl Plan {
    pub fn draw(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let nodes = match random.u32(0..4000) {
            0 => random.usize(501..=5000),
            1..40 => random.usize(101..=500),
            40..400 => random.usize(13..=100),
            _ => random.usize(3..=12),
        };
        let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
        let far = random.u32(0..20) == 0;
        Self {
            kind,
            nodes,
            zones: random.usize(1..=3),
            loss: LOSSES[random.usize(0..LOSSES.len())],
            pause: Duration::from_millis(PAUSES[random.usize(0..PAUSES.len())]),
            trip: Duration::from_micros(if far {
                random.u64(20_000..150_000)
            } else {
                random.u64(100..3_000)
            }),
            takeover: random.u32(0..4) == 0,
            length: Duration::from_secs(if nodes > 500 { 12 } else { 20 }),
        }
    }
}
