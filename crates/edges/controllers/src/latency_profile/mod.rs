//! How is a latency profile rolled out?
//!
//! Three owners, each a loop of its own that knows nothing of the other two: one for nodes' report
//! periods, one for the grace period, one for default tolerations. They meet in objects only: the request
//! (`nodes.config.openshift.io/cluster`), the ledger, and the components' own configuration. What to do is
//! decided by [`pointsman_latency_profile::rollout`]; here are the reads and writes around it.
//!
//! Watches only wake the loops. Every round reads the objects themselves, because what it decides may not
//! rest on an old copy.

pub mod cluster;
pub mod directory;
pub mod driver;
pub mod operator;

mod manifest;
mod objects;
mod observe;
mod plan_json;
mod wake;
mod wire;

pub use cluster::Cluster;
pub use directory::{Directories, DirectoryError};
pub use driver::{Desk, Driver, DriverError, Part, Posted, Reading, Version};
pub use operator::{Next, Operator};
pub use plan_json::plan_json;

use crate::manager::Context;
use crate::shared::Shared;
use crate::writer::sleep_until;
use pointsman_api_client::backoff::Backoff;
use pointsman_latency_profile::state::Owner;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Even if nothing seems to happen, a loop looks around this often.
const RESYNC: Duration = Duration::from_secs(60);
/// Acts in a row after which something must be wrong, so that a pause helps more than haste.
const HASTE: usize = 40;

/// Runs the three owners until they are asked to stop; ends them when dropped.
pub(crate) fn run(context: Context, shared: &mut Shared) -> impl Future<Output = ()> + Send + use<> {
    let limit = context.config.latency_profile.step_timeout;
    let (wake, woken) = watch::channel(0u64);
    let (step_timeout, limits) = watch::channel(limit);
    let signals = wake::Signals { wake, step_timeout };
    let watches = wake::watch(&context.client, shared, signals, limit);
    run_owners(context, watches, woken, limits)
}

async fn run_owners(
    context: Context,
    _watches: JoinSet<()>,
    woken: watch::Receiver<u64>,
    limit: watch::Receiver<Duration>,
) {
    let cluster = Arc::new(Cluster::new(context.client.clone(), context.recorder.clone()));
    // A new name for every term of leadership: requests of an earlier one may still be under way.
    let identity = format!("{:016x}", fastrand::u64(..));
    let mut owners = JoinSet::new();
    for owner in Owner::ALL {
        let operator = Operator::new(
            owner,
            &identity,
            cluster.drivers(),
            cluster.clone(),
            context.config.latency_profile.clone(),
        );
        owners.spawn(work(operator, woken.clone(), limit.clone(), context.stop.clone()));
    }
    while owners.join_next().await.is_some() {}
}

/// One owner's loop.
async fn work(
    mut operator: Operator,
    mut woken: watch::Receiver<u64>,
    limit: watch::Receiver<Duration>,
    mut stop: watch::Receiver<bool>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut haste = 0;
    loop {
        woken.mark_unchanged();
        operator.set_step_timeout(*limit.borrow());
        let wait = match operator.round().await {
            Ok(Next::Again) if haste < HASTE => {
                haste += 1;
                continue;
            }
            Ok(Next::Again) => Duration::from_secs(1),
            Ok(Next::Wait(wait)) => {
                backoff.reset();
                wait.map_or(RESYNC, |wait| wait.min(RESYNC))
            }
            Err(error) => {
                let owner = operator.owner().name();
                tracing::debug!(owner, %error, "a round of the latency profile could not be finished");
                backoff.next(fastrand::f64())
            }
        };
        haste = 0;
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            changed = woken.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(Some(Instant::now() + wait)) => {}
        }
    }
}
