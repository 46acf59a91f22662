//! Do heartbeats get through while a tenant attacks?

use pointsman_harness::attack::{Attack, Stage};
use std::time::Duration;

/// No machine is so slow that a heartbeat may take longer: a node that misses four is called unreachable.
const MOST: Duration = Duration::from_secs(5);
/// What the server may hold under attack. Unbounded, each of the first attacks takes gigabytes.
const MAX_RESIDENT: u64 = 700 << 20;

/// A server of its own for some attacks, one after the other.
async fn withstand(attacks: &[Attack]) {
    let stage = Stage::set(200).await;
    let calm = stage.measure(Duration::from_secs(1)).await;
    let worst = |durations: &[Duration]| durations.iter().max().copied().unwrap_or_default();
    for attack in attacks {
        let attackers = stage.launch(*attack).await;
        let under_attack = stage.measure(Duration::from_secs(3)).await;
        let (renewal, livez) = (worst(&under_attack.renewals), worst(&under_attack.livez));
        let resident = stage.server.resident_bytes();
        eprintln!(
            "{}: the slowest of {} renewals took {renewal:?} (calm {:?}), /livez {livez:?}; {} MiB resident",
            attack.name(),
            under_attack.renewals.len(),
            worst(&calm.renewals),
            resident >> 20,
        );
        assert!(
            renewal < MOST && livez < MOST,
            "{}: {renewal:?} {livez:?}",
            attack.name()
        );
        assert!(
            resident < MAX_RESIDENT,
            "{}: {} MiB are resident",
            attack.name(),
            resident >> 20
        );
        drop(attackers);
    }
}

#[tokio::test]
async fn heartbeats_get_through_bodies_and_patches_that_cost_much() {
    withstand(&[
        Attack::TinyValues,
        Attack::CopyingPatches,
        Attack::ShiftingPatches,
        Attack::RepeatingPatches,
        Attack::LargePatches,
    ])
    .await;
}

#[tokio::test]
async fn heartbeats_get_through_reads_that_cost_much() {
    withstand(&[
        Attack::HugeSelectors,
        Attack::Tables,
        Attack::PrettyLists,
        Attack::AccessReviews,
        Attack::LogFollows,
    ])
    .await;
}

#[tokio::test]
async fn heartbeats_get_through_connections_that_are_held() {
    withstand(&[
        Attack::SlowBodies,
        Attack::SlowReaders,
        Attack::IdleConnections,
        Attack::OneByteConnections,
        Attack::IdleHttp2,
    ])
    .await;
}
