//! Rollouts from the first step to the last.

mod common;

use common::*;
use pointsman_model::Labels;
use pointsman_objects::template::Template;
use pointsman_workloads::deployment::{HISTORY_ANNOTATION, REVISION_ANNOTATION};
use proptest::prelude::*;
use serde_json::json;

fn settled(replicas: i32) -> Cluster {
    let mut cluster = Cluster::new(deployment(replicas, json!("25%"), json!("25%")));
    cluster.settle();
    cluster
}

#[test]
fn a_new_deployment_gets_one_replica_set_and_finishes() {
    let cluster = settled(3);
    assert_eq!(cluster.sizes(), [("1".into(), 3)]);
    assert_eq!(cluster.progress(), ("True", "NewReplicaSetAvailable"));
    assert!(cluster.rollout_done());
    let set = &cluster.sets[0];
    assert_eq!(
        set.metadata.annotations.get("team"),
        Some("a"),
        "annotations are handed down"
    );
    assert_eq!(
        set.spec
            .selector
            .match_labels
            .get("pod-template-hash")
            .map(String::as_str),
        set.metadata.labels.get("pod-template-hash")
    );
    assert!(set.metadata.name.starts_with("web-"));
    assert_eq!(
        cluster.deployment.metadata.annotations.get(REVISION_ANNOTATION),
        Some("1")
    );
    assert_eq!(cluster.deployment.status.unavailable_replicas, 0);
}

#[test]
fn an_update_is_a_second_revision_and_an_undo_makes_the_first_the_third() {
    let mut cluster = settled(4);
    cluster.set_image("v2");
    assert!(!cluster.rollout_done(), "the status is of the old generation");
    cluster.deployment_step();
    assert_eq!(cluster.progress(), ("True", "NewReplicaSetCreated"));
    cluster.settle();
    assert_eq!(cluster.sizes(), [("2".into(), 4)]);
    cluster.set_image("v1");
    cluster.settle();
    assert_eq!(cluster.sizes(), [("3".into(), 4)]);
    assert_eq!(cluster.sets.len(), 2, "the old replica set is used again");
    let first = cluster
        .sets
        .iter()
        .find(|set| set.spec.replicas > 0)
        .expect("the first");
    assert_eq!(first.metadata.annotations.get(HISTORY_ANNOTATION), Some("1"));
    assert_eq!(
        cluster.deployment.metadata.annotations.get(REVISION_ANNOTATION),
        Some("3")
    );
    assert!(cluster.rollout_done());
    assert_eq!(cluster.progress(), ("True", "NewReplicaSetAvailable"));
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut cluster = settled(4);
    cluster.pause(true);
    cluster.set_image("v2");
    cluster.settle();
    assert_eq!(cluster.progress(), ("Unknown", "DeploymentPaused"));
    assert_eq!(cluster.sizes(), [("1".into(), 4)]);
    cluster.resize(6);
    cluster.settle();
    assert_eq!(cluster.sizes(), [("1".into(), 6)]);
    cluster.pause(false);
    cluster.deployment_step();
    assert_eq!(cluster.progress(), ("Unknown", "DeploymentResumed"));
    cluster.settle();
    assert_eq!(cluster.sizes(), [("2".into(), 6)]);
    assert!(cluster.rollout_done());
}

#[test]
fn recreate_waits_until_the_last_old_pod_is_gone() {
    let mut cluster = settled(3);
    cluster.deployment.spec.strategy.r#type = "Recreate".into();
    cluster.set_image("v2");
    cluster.deployment_step();
    cluster.set_step(0);
    for _ in 0..5 {
        cluster.deployment_step();
        assert_eq!(
            (cluster.sets.len(), cluster.pods.len()),
            (1, 3),
            "all three are terminating"
        );
    }
    cluster.settle();
    assert_eq!(cluster.sizes(), [("2".into(), 3)]);
    assert_eq!(cluster.available(), 3);
}

#[test]
fn a_rollout_that_stands_still_misses_its_deadline_and_recovers() {
    let mut cluster = settled(2);
    cluster.deployment.spec.progress_deadline_seconds = Some(60);
    cluster.set_image("broken");
    for _ in 0..5 {
        cluster.deployment_step();
        (0..cluster.sets.len()).for_each(|index| {
            cluster.set_step(index);
        });
    }
    let strikes = cluster.plan().look_again.expect("a deadline");
    cluster.second = i64::try_from(strikes.since(at(0)).as_secs()).expect("a short time");
    cluster.deployment_step();
    assert_eq!(cluster.progress(), ("False", "ProgressDeadlineExceeded"));
    assert!(!cluster.deployment_step(), "and then it is quiet");
    assert!(
        cluster.available() >= 1,
        "25 % of two rounds down: nothing old was taken"
    );
    cluster.set_image("v3");
    cluster.settle();
    assert_eq!(cluster.progress(), ("True", "NewReplicaSetAvailable"));
    assert_eq!(cluster.sizes().len(), 1);
}

#[test]
fn old_replica_sets_beyond_the_history_limit_are_deleted() {
    let mut cluster = settled(1);
    cluster.deployment.spec.revision_history_limit = 2;
    for version in 2..8 {
        cluster.set_image(&format!("v{version}"));
        cluster.settle();
    }
    let mut kept: Vec<&str> = cluster
        .sets
        .iter()
        .filter_map(|set| set.metadata.annotations.get(REVISION_ANNOTATION))
        .collect();
    kept.sort();
    assert_eq!(kept, ["5", "6", "7"]);
}

#[test]
fn a_change_of_size_in_the_middle_of_a_rollout_is_shared() {
    let mut cluster = Cluster::new(deployment(10, json!(3), json!(2)));
    cluster.settle();
    cluster.set_image("v2");
    for _ in 0..3 {
        cluster.deployment_step();
    }
    assert_eq!(
        cluster.sizes(),
        [("1".into(), 8), ("2".into(), 5)].map(|(r, n): (String, i32)| (r, n))
    );
    cluster.resize(20);
    cluster.deployment_step();
    let sizes = cluster.sizes();
    assert_eq!(sizes.iter().map(|(_, size)| size).sum::<i32>(), 23, "{sizes:?}");
    assert!(sizes[0].1 > sizes[1].1, "the larger one gets more: {sizes:?}");
    cluster.settle();
    assert_eq!(cluster.sizes(), [("2".into(), 20)]);
}

#[test]
fn a_name_taken_by_a_stranger_leads_to_another_hash() {
    let mut cluster = Cluster::new(deployment(1, json!(1), json!(0)));
    let name = |cluster: &Cluster| cluster.plan().create.expect("a set").name;
    let first = name(&cluster);
    cluster.deployment.status = cluster.deployment.collided();
    assert_ne!(name(&cluster), first);
}

#[test]
fn strangers_are_adopted_and_mismatches_let_go() {
    let mut cluster = settled(2);
    cluster.sets[0].metadata.owner_references = Box::default();
    assert_eq!(cluster.plan().adopt.len(), 1);
    assert_eq!(cluster.plan().create, None, "first the adoption");
    let mut cluster = settled(2);
    cluster.sets[0].metadata.labels = Labels::new([("app", "other")]);
    assert_eq!(cluster.plan().release.len(), 1);
}

#[test]
fn percentages_round_towards_availability() {
    for (replicas, surge, unavailable, expected) in [
        (10, json!("25%"), json!("25%"), (3, 2)),
        (1, json!("25%"), json!("25%"), (1, 0)),
        (4, json!(0), json!(0), (0, 1)),
        (3, json!("0%"), json!("10%"), (0, 1)),
        (2, json!(0), json!(5), (0, 2)),
        (3, json!("nonsense"), json!(1), (0, 1)),
    ] {
        assert_eq!(
            deployment(replicas, surge.clone(), unavailable).bounds(),
            expected,
            "{replicas} {surge}"
        );
    }
}

#[derive(Clone, Debug)]
enum Turn {
    Deployment,
    Set(usize),
    Kubelet(usize),
    NewImage(u8),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => Just(Turn::Deployment),
        6 => (0usize..6).prop_map(Turn::Set),
        8 => (0usize..20).prop_map(Turn::Kubelet),
        1 => (0u8..4).prop_map(Turn::NewImage),
    ]
}

fn take(cluster: &mut Cluster, turn: &Turn) {
    cluster.second += 1;
    match turn {
        Turn::Deployment => {
            cluster.deployment_step();
        }
        Turn::Set(index) => {
            cluster.set_step(*index);
        }
        Turn::Kubelet(index) => {
            cluster.kubelet_step(*index);
        }
        Turn::NewImage(version) => cluster.set_image(&format!("v{version}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_rolling_update_keeps_its_bounds_in_any_order_of_events_and_ends(
        replicas in 1i32..8,
        surge in 0i32..4,
        unavailable in 0i32..4,
        turns in prop::collection::vec(turn(), 0..120),
    ) {
        let mut cluster = Cluster::new(deployment(replicas, json!(surge), json!(unavailable)));
        cluster.settle();
        let (surge, unavailable) = cluster.deployment.bounds();
        for turn in &turns {
            take(&mut cluster, turn);
            prop_assert!(cluster.wanted() <= replicas + surge, "{} wanted", cluster.wanted());
            prop_assert!(cluster.available() >= replicas - unavailable, "{} available after {turn:?}", cluster.available());
        }
        cluster.settle();
        prop_assert_eq!(cluster.sizes().len(), 1);
        prop_assert_eq!(cluster.available(), replicas);
        prop_assert!(cluster.rollout_done());
        prop_assert_eq!(cluster.progress(), ("True", "NewReplicaSetAvailable"));
    }

    #[test]
    fn any_history_of_sizes_and_images_ends_where_it_should(
        strategy in prop_oneof![Just("RollingUpdate"), Just("Recreate")],
        changes in prop::collection::vec((0i32..9, 0u8..3, prop::collection::vec(turn(), 0..12)), 1..6),
    ) {
        let mut cluster = Cluster::new(deployment(3, json!("25%"), json!("25%")));
        cluster.deployment.spec.strategy.r#type = strategy.into();
        for (replicas, version, turns) in &changes {
            cluster.resize(*replicas);
            cluster.set_image(&format!("v{version}"));
            turns.iter().for_each(|turn| take(&mut cluster, turn));
        }
        let (replicas, version, _) = changes.last().expect("at least one");
        cluster.set_image(&format!("v{version}"));
        cluster.settle();
        prop_assert_eq!(cluster.available(), *replicas);
        prop_assert_eq!(cluster.pods.len() as i32, *replicas);
        prop_assert_eq!(cluster.sizes().len(), usize::from(*replicas > 0));
        let image = |template: &Template| template.0["spec"]["containers"][0]["image"].clone();
        for set in cluster.sets.iter().filter(|set| set.spec.replicas > 0) {
            prop_assert_eq!(image(&set.spec.template), image(&cluster.deployment.spec.template));
        }
    }
}
