//! How many requests may run at once, and whose turn is it?
//!
//! Every request belongs to a [`Class`] with its own share of the server's limits, so a flood in
//! one class cannot take the seats of another: heartbeats and leader elections always find room.
//! Within a class, users share: nobody may hold all seats, and freed seats go to the waiting
//! user who holds the fewest. Waiting is bounded in number and time; beyond that the answer is 429.
//!
//! A request with a large body takes several seats ([`Width`]), so that the memory of all requests together is bounded,
//! and keeps them until its answer has been sent.
//!
//! Watches take a seat until they have started, logs take none. Both are counted for as long as they last, and limited.

mod class;
mod pool;

pub use class::{Class, Duty, classify, duty};
pub use pool::{Permit, Width};

use pointsman_rules::ApiError;
use pointsman_telemetry::{Encoder, Kind, Registry};
use pool::{Pool, Refusal};
use std::sync::Arc;
use std::time::Duration;

/// What the server can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Reads in flight over all classes (`--max-requests-inflight`); 0 is no limit.
    pub reads: usize,
    /// Writes in flight over all classes (`--max-mutating-requests-inflight`); 0 is no limit.
    pub writes: usize,
    /// How many requests of a class may wait, per seat of the class.
    pub queue_per_seat: usize,
    /// How long a request may wait for its seats.
    pub queue_wait: Duration,
    /// Watches of one user; 0 is no limit.
    pub watches_per_user: usize,
    /// Logs being read or followed, over all users: each is a connection to a node's agent.
    pub logs: usize,
}

impl Default for Limits {
    /// The numbers of reads and writes are kube-apiserver's defaults.
    fn default() -> Self {
        Self {
            reads: 400,
            writes: 200,
            queue_per_seat: 8,
            queue_wait: Duration::from_secs(10),
            watches_per_user: 10_000,
            logs: 1_000,
        }
    }
}

/// Hands out seats.
#[derive(Clone, Debug)]
pub struct FlowControl {
    classes: Arc<[ClassPools]>,
    exempt: Arc<Pool>,
    watches: Arc<Pool>,
    logs: Arc<Pool>,
    queue_wait: Duration,
}

#[derive(Debug)]
struct ClassPools {
    class: Class,
    reads: Arc<Pool>,
    writes: Arc<Pool>,
}

impl FlowControl {
    /// Divides `limits` among the classes.
    pub fn new(limits: Limits) -> Self {
        let pool = |class: Class, total: usize| {
            let seats = if total == 0 {
                usize::MAX
            } else {
                (total * class.share_percent() / 100).max(1)
            };
            Pool::shared(seats, seats.saturating_mul(limits.queue_per_seat))
        };
        let classes = Class::SHARING.map(|class| ClassPools {
            class,
            reads: pool(class, limits.reads),
            writes: pool(class, limits.writes),
        });
        let per_user = if limits.watches_per_user == 0 {
            usize::MAX
        } else {
            limits.watches_per_user
        };
        Self {
            classes: classes.into(),
            exempt: Pool::shared(usize::MAX, 0),
            watches: Pool::per_user(per_user),
            logs: Pool::shared(limits.logs, 0),
            queue_wait: limits.queue_wait,
        }
    }

    /// Waits for seats; dropping the permit frees them. Fails with 429 when the class is too far
    /// behind.
    pub async fn acquire(
        &self,
        class: Class,
        duty: Duty,
        user: &str,
        width: Width,
    ) -> Result<Permit, ApiError> {
        let pool = match (class, duty) {
            (_, Duty::Watch) => &self.watches,
            (_, Duty::Log) => &self.logs,
            (Class::Exempt, _) => &self.exempt,
            (class, duty) => {
                let pools = self.classes.iter().find(|pools| pools.class == class);
                let pools = pools.expect("every class but the exempt one has pools");
                if duty == Duty::Write {
                    &pools.writes
                } else {
                    &pools.reads
                }
            }
        };
        pool.acquire(user, width, self.queue_wait)
            .await
            .map_err(|refusal| too_many(class, duty, refusal))
    }

    /// Adds the current numbers to `registry`, under upstream's names where they mean the same.
    pub fn register(&self, registry: &Registry) {
        let flow = self.clone();
        registry.collector(move |encoder: &mut Encoder| flow.collect(encoder));
    }

    fn collect(&self, encoder: &mut Encoder) {
        let total = |pick: fn(&ClassPools) -> &Arc<Pool>| -> usize {
            self.classes
                .iter()
                .map(|pools| pick(pools).read(|state| state.running))
                .sum()
        };
        let help = "Requests being served, without exempt and long-running ones.";
        let mut inflight = encoder.family("apiserver_current_inflight_requests", help, Kind::Gauge);
        inflight.sample(
            &[("request_kind", "mutating")],
            total(|pools| &pools.writes) as f64,
        );
        inflight.sample(
            &[("request_kind", "readOnly")],
            total(|pools| &pools.reads) as f64,
        );
        let longrunning: usize = [&self.watches, &self.logs]
            .map(|pool| pool.read(|state| state.running))
            .iter()
            .sum();
        encoder
            .family(
                "apiserver_longrunning_in_flight",
                "Watches and logs, which take no seat of a class while they last.",
                Kind::Gauge,
            )
            .sample(&[], longrunning as f64);
        for (name, help, kind, pick) in FAMILIES {
            let mut family = encoder.family(name, help, *kind);
            for pools in self.classes.iter() {
                for (request_kind, pool) in [("mutating", &pools.writes), ("readOnly", &pools.reads)] {
                    let labels = [
                        ("priority_level", pools.class.name()),
                        ("request_kind", request_kind),
                    ];
                    family.sample(&labels, pool.read(pick));
                }
            }
        }
    }
}

type Pick = fn(&pool::State) -> f64;

const FAMILIES: &[(&str, &str, Kind, Pick)] = &[
    (
        "apiserver_flowcontrol_current_executing_requests",
        "Requests being served, by class and kind.",
        Kind::Gauge,
        |state| state.running as f64,
    ),
    (
        "apiserver_flowcontrol_current_executing_seats",
        "Seats that requests being served hold: one each, and one more for every 64 KiB of their bodies.",
        Kind::Gauge,
        |state| state.seats as f64,
    ),
    (
        "apiserver_flowcontrol_current_inqueue_requests",
        "Requests waiting for seats of their class. More than a few for long: the class is too small, or a client floods it.",
        Kind::Gauge,
        |state| state.waiting as f64,
    ),
    (
        "apiserver_flowcontrol_dispatched_requests_total",
        "Requests that got their seats, at once or after waiting.",
        Kind::Counter,
        |state| state.dispatched as f64,
    ),
    (
        "apiserver_flowcontrol_rejected_requests_total",
        "Requests refused with 429, because the queue of the class was full or no seats came free in time.",
        Kind::Counter,
        |state| state.rejected as f64,
    ),
];

fn too_many(class: Class, duty: Duty, refusal: Refusal) -> ApiError {
    let why = match (duty, refusal) {
        (Duty::Watch, _) => "this user has too many watches open".to_owned(),
        (Duty::Log, _) => "too many logs are being read".to_owned(),
        (_, Refusal::QueueFull) => format!("the queue of class {} is full", class.name()),
        (_, Refusal::WaitedTooLong) => format!("no seat of class {} came free in time", class.name()),
    };
    ApiError::TooManyRequests {
        message: format!("too many requests, please try again later: {why}"),
        retry_after_seconds: 1,
        cause: None,
    }
}

#[cfg(test)]
mod tests;
