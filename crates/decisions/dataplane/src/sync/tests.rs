//! The loop as an edge would drive it.

use std::net::Ipv4Addr;

use pointsman_model::{
    Conditions, External, Moment, NodePort, Port, Protocol, Revision, Service, ServicePort, Slice,
    SliceEndpoint, SliceName, SlicePort, TrafficPolicy,
};

use super::*;
use crate::state::ExternalIps;

fn name() -> ServiceName {
    ServiceName::new("ns", "a").unwrap()
}

fn service() -> Service<Ipv4Addr> {
    let port = |number| Port::new(number).unwrap();
    let external = External {
        health_check: Some(NodePort(port(31_000))),
        ..External::default()
    };
    Service {
        name: name(),
        created: None,
        cluster_ip: Ipv4Addr::new(172, 30, 0, 1),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        affinity: None,
        ports: [ServicePort {
            name: "".into(),
            protocol: Protocol::Udp,
            port: port(53),
            node_port: None,
        }]
        .into(),
        external: Some(Box::new(external)),
    }
}

fn slice(ends: &[u8]) -> Slice<Ipv4Addr> {
    let endpoint = |end: &u8| SliceEndpoint {
        address: Ipv4Addr::new(10, 0, 0, *end),
        conditions: Conditions::READY,
        node: Some("n1".into()),
        hints: None,
    };
    Slice {
        name: SliceName::new("ns", "a-1").unwrap(),
        service: name(),
        ports: [SlicePort {
            name: "".into(),
            protocol: Protocol::Udp,
            port: Port::new(53).unwrap(),
        }]
        .into(),
        endpoints: ends.iter().map(endpoint).collect(),
    }
}

fn synchroniser(now: Instant) -> Synchroniser<Ipv4Addr> {
    let index = Index::new("n1".into(), ExternalIps::Honoured, Moment(0));
    let mut sync = Synchroniser::new(index, Intervals::default());
    sync.fold(now, |index| {
        index.fold_service(&name(), Some(service()), Some(Revision(1)))
    });
    sync
}

fn done(outcome: Outcome<Ipv4Addr>) -> Done<Ipv4Addr> {
    match outcome {
        Outcome::Done(done) => *done,
        Outcome::Failed { .. } => panic!("it failed"),
    }
}

#[test]
fn nothing_is_written_before_both_lists_are_complete() {
    let now = Instant::now();
    let mut sync = synchroniser(now);
    assert!(sync.begin(now).is_none());
    sync.listed(now, Resource::Services);
    assert!(sync.begin(now).is_none());
    sync.listed(now, Resource::Slices);
    let batch = sync.begin(now).expect("both are there");
    assert_eq!(sync.next(now), Next::Running);
    assert!(sync.begin(now).is_none(), "one at a time");
    let done = done(sync.finish(batch, Ok(()), now));
    assert_eq!(done.scope, Scope::Full);
}

#[test]
fn with_complete_restores_every_sync_is_full() {
    let now = Instant::now();
    for (restores, scopes) in [
        (Restores::Minimal, [Scope::Full, Scope::Partial, Scope::Partial]),
        (Restores::Complete, [Scope::Full; 3]),
    ] {
        let mut sync = synchroniser(now).with_restores(restores);
        sync.listed(now, Resource::Services);
        sync.listed(now, Resource::Slices);
        for (round, scope) in scopes.into_iter().enumerate() {
            sync.fold(now, |index| {
                index.fold_slice(slice(&[round as u8]), Some(Revision(10 + round as u64)), None);
            });
            let batch = sync.begin(now).expect("a change is waiting");
            assert_eq!(
                done(sync.finish(batch, Ok(()), now)).scope,
                scope,
                "{restores:?} {round}"
            );
        }
    }
}

#[test]
fn a_failure_at_any_sync_keeps_changes_times_and_health_and_the_next_one_heals() {
    for failing in 0..4 {
        for recovery in [Recovery::Retry, Recovery::FullResync] {
            check_failure(failing, recovery);
        }
    }
}

/// Lives through four syncs of which one fails, and expects the same end.
fn check_failure(failing: u64, recovery: Recovery) {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut sync = synchroniser(at(0));
    sync.listed(at(0), Resource::Services);
    sync.listed(at(0), Resource::Slices);
    let mut times = Vec::new();
    let mut failed_scope = None;
    for round in 0..4u64 {
        let now = at(round * 100);
        sync.fold(now, |index| {
            let trigger = Moment(1_000 + round as i64);
            index.fold_slice(slice(&[round as u8]), Some(Revision(10 + round)), Some(trigger));
        });
        let batch = sync.begin(now).expect("a change is waiting");
        if round == failing {
            failed_scope = Some(batch.scope);
            let before = sync.index().watermark();
            assert!(matches!(
                sync.finish(batch, Err(recovery), now),
                Outcome::Failed { .. }
            ));
            assert_eq!(sync.index().watermark(), before, "nothing is promised");
            assert!(
                !sync.health().is_healthy(at(round * 100 + 60)),
                "a change has waited for two periods"
            );
            continue;
        }
        let done = done(sync.finish(batch, Ok(()), now));
        times.extend(done.committed.triggers.iter().map(|trigger| trigger.began.at.0));
        assert!(sync.health().is_healthy(at(round * 100 + 99)));
        assert!(
            !done.udp.is_empty(),
            "flows of a changed UDP Service are reviewed"
        );
    }
    if failing == 3 {
        let retry = at(301);
        let batch = sync.begin(retry).expect("the failure asked for it");
        let done = done(sync.finish(batch, Ok(()), retry));
        times.extend(done.committed.triggers.iter().map(|trigger| trigger.began.at.0));
    }
    assert_eq!(
        times,
        [1_000, 1_001, 1_002, 1_003],
        "no trigger time is lost or reported twice"
    );
    assert_eq!(sync.index().watermark().slices, Some(Revision(13)));
    assert_eq!(sync.health_checks()[&name()].local_endpoints, 1);
    let tally = sync.tally();
    let full_again = u64::from(failing > 0 && recovery == Recovery::FullResync);
    assert_eq!((tally.failures, tally.full), (1, 1 + full_again));
    assert_eq!(
        tally.partial_failures,
        u64::from(failed_scope == Some(Scope::Partial) && recovery == Recovery::FullResync),
        "a full sync follows each that is counted"
    );
    let programmed: Vec<_> = sync
        .index()
        .programmed()
        .map(|(_, state)| state.clone())
        .collect();
    assert_eq!(programmed, sync.index().desired().collect::<Vec<_>>());
}

#[test]
fn everything_is_written_again_once_an_hour_and_when_the_rules_are_lost() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut sync = synchroniser(start);
    sync.listed(start, Resource::Services);
    sync.listed(start, Resource::Slices);
    let mut run = |now, changes: fn(&mut Index<Ipv4Addr>)| {
        sync.fold(now, changes);
        let batch = sync.begin(now)?;
        Some(done(sync.finish(batch, Ok(()), now)).scope)
    };
    assert_eq!(run(at(0), |_| {}), Some(Scope::Full));
    assert_eq!(
        run(at(10), |index| index.fold_slice(slice(&[1]), None, None)),
        Some(Scope::Partial)
    );
    assert_eq!(run(at(20), Index::force_full), Some(Scope::Full));
    assert_eq!(run(at(3_619), |_| {}), None);
    assert_eq!(run(at(3_620), |_| {}), Some(Scope::Full));
}

#[test]
fn a_service_that_goes_takes_its_health_check_along() {
    let now = Instant::now();
    let mut sync = synchroniser(now);
    sync.listed(now, Resource::Services);
    sync.listed(now, Resource::Slices);
    let batch = sync.begin(now).unwrap();
    let _ = sync.finish(batch, Ok(()), now);
    assert_eq!(
        sync.health_checks()[&name()].local_endpoints,
        0,
        "no endpoint yet"
    );
    sync.fold(now, |index| index.fold_service(&name(), None, Some(Revision(2))));
    let batch = sync.begin(now).unwrap();
    let _ = sync.finish(batch, Ok(()), now);
    assert!(sync.health_checks().is_empty());
    assert!(sync.begin(now).is_none(), "nothing is left to do");
}
