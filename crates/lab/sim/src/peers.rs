//! Do nodes that ask each other find the dead ones within a second, and leave the living alone?
//!
//! Observers and the fold of their opinions are the real code. Simulated are links, pauses, the API server
//! that carries Leases, and what goes wrong. A run is a function of its seed.

mod plan;
mod report;
mod world;

pub use plan::{Kind, Plan};
pub use report::Report;

/// What came of one run. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub plan: Plan,
    /// From the cut of a node to its withdrawal.
    pub found: Vec<u64>,
    /// Nodes that stayed in use although they were gone, and few enough of them were.
    pub missed: u32,
    /// From its return to the end of its withdrawal.
    pub restored: Vec<u64>,
    /// Withdrawals of nodes that were there.
    pub wrong: u32,
    /// How long these took, those that the run ended too early for as well.
    pub lasted: Vec<u64>,
    /// Decisions after which more nodes were withdrawn than may be.
    pub over_limit: u32,
    /// Lease writes beyond the heartbeat, and changes of opinion.
    pub writes: u64,
    pub opinions: u64,
    /// Asks per node and second.
    pub asks: f64,
    pub trace: Vec<String>,
}

/// Runs one seed. With `told`, the outcome says step by step what happened.
pub fn run(seed: u64, told: bool) -> Outcome {
    run_plan(Plan::draw(seed), seed, told)
}

/// The same with another plan than the seed's own.
pub fn run_plan(plan: Plan, seed: u64, told: bool) -> Outcome {
    world::World::new(plan, seed, told).run()
}
