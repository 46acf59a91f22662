//! Folding, batches, and what survives a failure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use pointsman_model::{
    Conditions, Moment, Port, Protocol, ServicePort, SliceEndpoint, SlicePort, TrafficPolicy,
};
use proptest::prelude::*;

use super::*;
use crate::claims::Destination;

fn name(text: &str) -> ServiceName {
    ServiceName::new("ns", text).unwrap()
}

fn slice_name(text: &str) -> SliceName {
    SliceName::new("ns", text).unwrap()
}

fn service(text: &str, end: u8) -> Service<Ipv4Addr> {
    Service {
        name: name(text),
        created: None,
        cluster_ip: Ipv4Addr::new(172, 30, 0, end),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        affinity: None,
        ports: [ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(80).unwrap(),
            node_port: None,
        }]
        .into(),
        external: None,
    }
}

fn slice(text: &str, service: &str, ends: &[u8]) -> Slice<Ipv4Addr> {
    let endpoint = |end: &u8| SliceEndpoint {
        address: Ipv4Addr::new(10, 0, 0, *end),
        conditions: Conditions::READY,
        node: Some("n1".into()),
        hints: None,
    };
    Slice {
        name: slice_name(text),
        service: name(service),
        ports: [SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(8080).unwrap(),
        }]
        .into(),
        endpoints: ends.iter().map(endpoint).collect(),
    }
}

fn index() -> Index<Ipv4Addr> {
    let mut index = Index::new("n1".into(), ExternalIps::Honoured, Moment(1_000));
    let batch = index.checkout();
    assert_eq!(batch.scope, Scope::Full, "the first batch clears leftovers");
    let _ = index.commit(batch);
    index
}

fn names(batch: &Batch<Ipv4Addr>) -> Vec<&str> {
    batch.changes.iter().map(|change| change.name.name()).collect()
}

fn rv(number: u64) -> Option<Revision> {
    Some(Revision(number))
}

#[test]
fn a_batch_names_only_what_changed() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_service(&name("b"), Some(service("b", 2)), rv(2));
    index.fold_slice(slice("a-1", "a", &[1]), rv(3), None);
    let batch = index.checkout();
    assert_eq!((names(&batch), batch.scope), (vec!["a", "b"], Scope::Partial));
    let _ = index.commit(batch);
    index.fold_slice(slice("b-1", "b", &[2]), rv(4), None);
    let batch = index.checkout();
    assert_eq!(names(&batch), ["b"]);
    assert_eq!(batch.totals.endpoints, 2);
    let _ = index.commit(batch);
    assert!(!index.has_changes());
}

#[test]
fn a_change_that_is_taken_back_before_the_sync_is_none() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_service(&name("a"), None, rv(2));
    index.fold_slice(slice("a-1", "a", &[1]), rv(3), None);
    index.remove_slice(&slice_name("a-1"), rv(4));
    let batch = index.checkout();
    assert!(batch.is_empty());
    let _ = index.commit(batch);
    assert!(
        index.entries.is_empty() && index.slices.is_empty(),
        "nothing is left in the caches"
    );
}

#[test]
fn an_unchanged_object_is_no_change_and_an_unknown_slice_can_go() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_slice(slice("a-1", "a", &[1]), rv(2), None);
    let batch = index.checkout();
    let _ = index.commit(batch);
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_slice(slice("a-1", "a", &[1]), rv(2), Some(Moment(5_000)));
    index.remove_slice(&slice_name("nobody"), rv(2));
    assert!(!index.has_changes());
}

#[test]
fn a_removal_moves_the_watermark_to_its_own_version() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_slice(slice("a-1", "a", &[1]), rv(2), None);
    let batch = index.checkout();
    let _ = index.commit(batch);
    index.remove_slice(&slice_name("a-1"), rv(7));
    index.fold_service(&name("a"), None, rv(9));
    let batch = index.checkout();
    let Watermark { services, slices } = index.commit(batch).watermark;
    assert_eq!((services, slices), (rv(9), rv(7)));
}

#[test]
fn the_watermark_waits_for_the_end_of_a_list_whose_objects_come_in_any_order() {
    let mut index = index();
    index.list_begins(Resource::Slices);
    index.fold_service(&name("a"), Some(service("a", 1)), rv(3));
    index.fold_slice(slice("a-1", "a", &[1]), rv(8), None);
    let batch = index.checkout();
    let published = index.commit(batch).watermark;
    assert_eq!(
        (published.services, published.slices),
        (rv(3), None),
        "a-2 of version 5 may follow"
    );
    index.fold_slice(slice("a-2", "a", &[2]), rv(5), None);
    index.advance(Watermark {
        slices: rv(9),
        ..Watermark::default()
    });
    let batch = index.checkout();
    assert_eq!(index.commit(batch).watermark.slices, rv(9));
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_the_old_one() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), None);
    index.fold_service(&name("b"), Some(service("b", 2)), None);
    index.fold_slice(slice("s", "a", &[1]), rv(1), None);
    let batch = index.checkout();
    let _ = index.commit(batch);
    index.fold_slice(slice("s", "b", &[1]), rv(2), None);
    let batch = index.checkout();
    let counts: Vec<u32> = batch
        .changes
        .iter()
        .map(|change| change.after.as_ref().unwrap().endpoints)
        .collect();
    assert_eq!((names(&batch), counts), (vec!["a", "b"], vec![0, 1]));
    let _ = index.commit(batch);
    index.remove_slice(&slice_name("s"), rv(3));
    let batch = index.checkout();
    assert_eq!(names(&batch), ["b"]);
    let _ = index.commit(batch);
}

#[test]
fn only_a_new_zone_asks_for_a_full_batch() {
    let mut index = index();
    index.set_zone(None);
    index.set_zone(Some("".into()));
    assert!(!index.has_changes());
    index.set_zone(Some("a".into()));
    let batch = index.checkout();
    assert_eq!(batch.scope, Scope::Full);
    let _ = index.commit(batch);
    index.set_zone(Some("a".into()));
    assert!(!index.has_changes());
}

#[test]
fn nothing_is_lost_by_a_failure() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    index.fold_slice(slice("a-1", "a", &[1]), rv(2), Some(Moment(5_000)));
    let batch = index.checkout();
    // This arrives while the batch is on its way.
    index.fold_slice(slice("a-1", "a", &[2]), rv(3), Some(Moment(6_000)));
    index.abort(batch, Recovery::FullResync);
    assert_eq!(index.watermark().slices, None, "nothing has been promised");
    let batch = index.checkout();
    assert_eq!((batch.scope, names(&batch)), (Scope::Full, vec!["a"]));
    let committed = index.commit(batch);
    let times: Vec<i64> = committed
        .triggers
        .iter()
        .map(|trigger| trigger.began.at.0)
        .collect();
    assert_eq!(
        times,
        [5_000, 6_000],
        "the time spent on the failure is part of the latency"
    );
    assert_eq!(
        committed.watermark,
        Watermark {
            services: rv(1),
            slices: rv(3)
        }
    );
}

#[test]
fn a_retry_stays_partial_when_nothing_was_written() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), rv(1));
    let batch = index.checkout();
    index.abort(batch, Recovery::Retry);
    let batch = index.checkout();
    assert_eq!((batch.scope, names(&batch)), (Scope::Partial, vec!["a"]));
    let _ = index.commit(batch);
}

/// Commits what there is, and returns when the changes behind its samples began.
fn report(index: &mut Index<Ipv4Addr>) -> Vec<i64> {
    let batch = index.checkout();
    let triggers = index.commit(batch).triggers;
    triggers.iter().map(|trigger| trigger.began.at.0).collect()
}

#[test]
fn trigger_times_follow_their_slices() {
    let mut index = index();
    let at = |time| Some(Moment(time));
    index.fold_slice(slice("s", "a", &[1]), rv(1), at(2_000));
    index.fold_slice(slice("s", "a", &[2]), rv(2), at(3_000));
    index.fold_slice(slice("t", "b", &[2]), rv(3), at(4_000));
    assert_eq!(
        report(&mut index),
        [2_000, 3_000, 4_000],
        "one for each update, known Service or not"
    );
    index.fold_slice(slice("s", "a", &[3]), rv(4), at(900));
    assert_eq!(report(&mut index), [0; 0], "from before the start");
    index.fold_slice(slice("s", "a", &[4]), rv(5), None);
    assert_eq!(report(&mut index), [0; 0], "no annotation");
    index.fold_slice(slice("s", "a", &[5]), rv(6), at(5_000));
    index.remove_slice(&slice_name("s"), rv(7));
    assert_eq!(report(&mut index), [0; 0], "gone before it was programmed");
    index.fold_slice(slice("s", "a", &[5]), rv(8), at(6_000));
    assert_eq!(report(&mut index), [6_000], "only the later one after a comeback");
    index.fold_slice(slice("s", "a", &[6]), rv(9), at(6_000));
    assert_eq!(
        report(&mut index),
        [0; 0],
        "an annotation that was reported already"
    );
}

#[test]
fn changes_of_services_are_measured_where_they_alter_rules() {
    let mut index = Index::new("n1".into(), ExternalIps::Honoured, Moment(1_000));
    let at = |time| Began::seen(Moment(time));
    let listed = |index: &mut Index<Ipv4Addr>, number| {
        index.advance(Watermark {
            services: rv(number),
            ..Watermark::default()
        });
    };
    index.list_begins(Resource::Services);
    index.fold_service_change(&name("a"), Some(service("a", 1)), rv(1), at(2_000));
    listed(&mut index, 1);
    assert_eq!(report(&mut index), [0; 0], "a restart invents nothing");

    let mut other = service("a", 1);
    other.affinity = Some(pointsman_model::Affinity {
        timeout_seconds: 5.try_into().unwrap(),
    });
    index.fold_service_change(&name("a"), Some(other.clone()), rv(2), at(3_000));
    index.fold_service_change(&name("b"), Some(service("b", 2)), rv(3), at(4_000));
    assert_eq!(report(&mut index), [3_000, 4_000], "a change and a creation");
    index.fold_service_change(&name("a"), Some(other.clone()), rv(4), at(5_000));
    assert_eq!(report(&mut index), [0; 0], "only its labels are others");
    index.fold_service_change(&name("a"), Some(service("a", 1)), rv(5), at(6_000));
    index.fold_service_change(&name("a"), Some(other), rv(6), at(7_000));
    index.force_full();
    assert_eq!(
        report(&mut index),
        [0; 0],
        "it ends where it began, whatever else is written"
    );

    index.fold_service_change(&name("a"), None, rv(7), at(8_000));
    let batch = index.checkout();
    index.abort(batch, Recovery::FullResync);
    assert_eq!(report(&mut index), [8_000], "a deletion, once the kernel has it");

    index.list_begins(Resource::Services);
    index.fold_service_change(&name("b"), Some(service("b", 3)), rv(9), at(9_000));
    index.fold_service_change(&name("c"), Some(service("c", 4)), rv(8), at(9_500));
    listed(&mut index, 9);
    assert_eq!(
        report(&mut index),
        [9_000, 9_500],
        "what happened while nobody watched"
    );
}

#[test]
fn what_is_deleted_leaves_nothing_behind() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), None);
    index.fold_service(&name("b"), Some(service("b", 2)), None);
    index.fold_slice(slice("a-1", "a", &[1]), None, None);
    let batch = index.checkout();
    let _ = index.commit(batch);
    index.fold_service(&name("a"), None, None);
    index.remove_slice(&slice_name("a-1"), None);
    let batch = index.checkout();
    assert_eq!(names(&batch), ["a"]);
    assert!(batch.changes[0].after.is_none());
    let _ = index.commit(batch);
    assert_eq!(
        index.totals(),
        Totals {
            services: 1,
            ports: 1,
            ..Totals::default()
        }
    );
}

#[test]
fn every_endpoint_can_be_asked_about() {
    let mut index = index();
    index.fold_service(&name("a"), Some(service("a", 1)), None);
    index.fold_slice(slice("a-1", "a", &[1, 2]), None, None);
    let port = service("a", 1).port_name(&service("a", 1).ports[0]);
    let judged = index.judged(&port);
    assert_eq!(judged.len(), 2);
    assert!(
        judged
            .iter()
            .all(|(_, judgement)| judgement.cluster == crate::select::Verdict::Used)
    );
    assert!(
        index
            .judged(&ServicePortName {
                service: name("b"),
                ..port
            })
            .is_empty()
    );
}

#[test]
fn a_service_takes_over_what_its_rival_gives_up() {
    let rival = |text, end| {
        let external = pointsman_model::External {
            external_ips: [Ipv4Addr::new(1, 1, 1, 1)].into(),
            ..Default::default()
        };
        Service {
            external: Some(Box::new(external)),
            ..service(text, end)
        }
    };
    let mut index = index();
    index.fold_service(&name("b"), Some(rival("b", 2)), None);
    index.fold_service(&name("a"), Some(rival("a", 1)), None);
    let owned = |batch: &Batch<Ipv4Addr>| -> Vec<usize> {
        let states = batch.changes.iter().filter_map(|change| change.after.as_ref());
        states
            .map(|state| state.ports().next().unwrap().external_ips().count())
            .collect()
    };
    let batch = index.checkout();
    assert_eq!(owned(&batch), [1, 0]);
    let _ = index.commit(batch);
    assert_eq!(index.claims().contested(), 1);
    index.fold_service(&name("a"), None, None);
    let batch = index.checkout();
    assert_eq!((names(&batch), owned(&batch)), (vec!["a", "b"], vec![1]));
    let _ = index.commit(batch);
    assert_eq!(index.claims().contested(), 0);
}

/// A Service that names these of a few addresses, as external ones and as a load balancer's.
fn claiming(number: u8, created: Option<i64>, external: &[u8], vips: &[u8]) -> Service<Ipv4Addr> {
    let addresses = |ends: &[u8]| ends.iter().map(|end| Ipv4Addr::new(172, 30, 0, *end)).collect();
    let external = pointsman_model::External {
        external_ips: addresses(external),
        load_balancer_vips: addresses(vips),
        ..Default::default()
    };
    Service {
        created: created.map(Moment::from_seconds),
        external: Some(Box::new(external)),
        ..service(&number.to_string(), number)
    }
}

/// Says in other words who should own an address.
fn rightful_owner(services: &BTreeMap<u8, Service<Ipv4Addr>>, at: Ipv4Addr) -> Option<&ServiceName> {
    let by_age = |is_named: fn(&Service<Ipv4Addr>, Ipv4Addr) -> bool| {
        let named = services.values().filter(|service| is_named(service, at));
        let (dated, undated): (Vec<_>, Vec<_>) = named.partition(|service| service.created.is_some());
        let oldest = dated.into_iter().min_by_key(|service| service.created);
        oldest.or_else(|| undated.into_iter().next())
    };
    by_age(|service, at| service.cluster_ip == at)
        .or_else(|| by_age(|service, at| service.load_balancer_vips().contains(&at)))
        .or_else(|| by_age(|service, at| service.external_ips().contains(&at)))
        .map(|service| &service.name)
}

/// A Service comes, changes or goes.
fn claim_step() -> impl Strategy<Value = (u8, Option<Service<Ipv4Addr>>)> {
    let ends = || prop::collection::btree_set(0..6u8, 0..3).prop_map(Vec::from_iter);
    let service = (prop::option::of(1..3i64), ends(), ends());
    (0..4u8, prop::option::weighted(0.8, service)).prop_map(|(number, service)| {
        let claiming = service.map(|(created, external, vips)| claiming(number, created, &external, &vips));
        (number, claiming)
    })
}

proptest! {
    #[test]
    fn an_address_has_its_rightful_owner_after_every_history(
        steps in prop::collection::vec((claim_step(), any::<bool>()), 1..30),
    ) {
        let mut index = index();
        let mut services = BTreeMap::new();
        for ((number, service), commit) in steps {
            index.fold_service(&name(&number.to_string()), service.clone(), None);
            match service {
                Some(service) => services.insert(number, service),
                None => services.remove(&number),
            };
            for end in 0..6 {
                let at = Ipv4Addr::new(172, 30, 0, end);
                let destination = Destination::Address(at, Protocol::Tcp, Port::new(80).unwrap());
                prop_assert_eq!(index.claims().owner(&destination), rightful_owner(&services, at), "{}", at);
            }
            if commit {
                let batch = index.checkout();
                let _ = index.commit(batch);
                let programmed: Vec<_> = index.programmed().map(|(_, state)| state.clone()).collect();
                prop_assert_eq!(programmed, index.desired().collect::<Vec<_>>());
            }
        }
    }
}

/// One step of a random life of the index.
#[derive(Clone, Debug)]
enum Step {
    Slice(u8, u8, Vec<u8>, i64),
    SliceGone(u8),
    Service(u8, bool),
    Commit,
    Fail(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4u8, 0..3u8, prop::collection::vec(0..4u8, 0..3), 2_000..9_000i64)
            .prop_map(|(slice, service, ends, time)| Step::Slice(slice, service, ends, time)),
        1 => (0..4u8).prop_map(Step::SliceGone),
        2 => (0..3u8, any::<bool>()).prop_map(|(service, there)| Step::Service(service, there)),
        1 => Just(Step::Commit),
        1 => any::<bool>().prop_map(Step::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_programmed_in_the_end_is_what_was_desired(steps in prop::collection::vec(step(), 1..40)) {
        let mut index = index();
        let mut revision = 0;
        for step in steps {
            revision += 1;
            match step {
                Step::Slice(number, of, ends, time) => {
                    let slice = slice(&format!("s{number}"), &format!("{of}"), &ends);
                    index.fold_slice(slice, rv(revision), Some(Moment(time)));
                }
                Step::SliceGone(number) => index.remove_slice(&slice_name(&format!("s{number}")), rv(revision)),
                Step::Service(number, there) => {
                    let text = number.to_string();
                    index.fold_service(&name(&text), there.then(|| service(&text, number)), rv(revision));
                }
                Step::Commit => {
                    let batch = index.checkout();
                    let _ = index.commit(batch);
                }
                Step::Fail(retry) => {
                    let batch = index.checkout();
                    index.abort(batch, if retry { Recovery::Retry } else { Recovery::FullResync });
                }
            }
        }
        let batch = index.checkout();
        let committed = index.commit(batch);
        prop_assert!(!index.has_changes());
        let programmed: Vec<_> = index.programmed().map(|(_, state)| state.clone()).collect();
        let desired: Vec<_> = index.desired().collect();
        prop_assert_eq!(&programmed, &desired);
        let mut totals = Totals::default();
        for state in &programmed {
            totals.replace(None, Some(state));
        }
        prop_assert_eq!(totals, committed.totals);
    }
}

#[test]
fn addresses_on_a_node_are_those_that_no_slice_has_elsewhere() {
    let mut index = index();
    let mut here = slice("a-1", "a", &[1, 2, 3]);
    here.endpoints[1].conditions.ready = false;
    index.fold_slice(here, rv(1), None);
    let mut elsewhere = slice("b-1", "b", &[3, 4]);
    for endpoint in &mut elsewhere.endpoints {
        endpoint.node = None;
    }
    index.fold_slice(elsewhere, rv(2), None);
    let on = |node: &str| index.addresses_on(|other| other.as_str() == node);
    let both = [1, 2].map(|end| Ipv4Addr::new(10, 0, 0, end));
    assert!(on("n1").into_iter().eq(both), "ready or not");
    assert!(on("n2").is_empty());
}
