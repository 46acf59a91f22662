//! Pods that have to leave.

use std::time::Duration;

use pointsman_model::Moment;
use pointsman_node_health::evict::Evictor;
use pointsman_node_health::taint::{Stay, stay};
use pointsman_objects::Pod;
use pointsman_objects::names::{NOT_READY_TAINT as NOT_READY, UNREACHABLE_TAINT as UNREACHABLE};
use pointsman_objects::taint::{Effect, Taint, Toleration};
use serde_json::{Value, json};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn pod(name: &str, tolerations: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": name, "uid": name },
        "spec": { "nodeName": "n1", "tolerations": tolerations },
    }))
    .expect("a pod")
}

fn tolerating(name: &str, seconds: Value) -> Pod {
    let toleration = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds });
    pod(name, json!([toleration(NOT_READY), toleration(UNREACHABLE)]))
}

fn no_execute(key: &str) -> Taint {
    Taint::new(key, Effect::NoExecute)
}

fn names(evictor: &mut Evictor, now: u64) -> Vec<String> {
    evictor
        .due(s(now))
        .into_iter()
        .map(|eviction| eviction.pod.1.to_string())
        .collect()
}

#[test]
fn pods_leave_when_their_tolerance_ends() {
    let mut evictor = Evictor::default();
    let pods = [
        pod("none", json!([])),
        tolerating("short", 30.into()),
        tolerating("long", 300.into()),
        tolerating("ever", Value::Null),
        tolerating("negative", (-5).into()),
    ];
    evictor.node_seen(&"n1".into(), &[no_execute(UNREACHABLE)], &pods, s(100));
    assert_eq!(names(&mut evictor, 100), ["negative", "none"]);
    assert_eq!(evictor.wake_at(), Some(s(130)));
    assert_eq!(names(&mut evictor, 129), Vec::<String>::new());
    assert_eq!(names(&mut evictor, 130), ["short"]);
    assert_eq!(names(&mut evictor, 10_000), ["long"]);
    assert_eq!(evictor.wake_at(), None);
}

#[test]
fn time_in_which_nobody_could_see_is_given_back() {
    let mut evictor = Evictor::default();
    let pods = [tolerating("a", 30.into())];
    evictor.node_seen(&"n1".into(), &[no_execute(UNREACHABLE)], &pods, s(100));
    evictor.forgive(s(20));
    assert_eq!(evictor.wake_at(), Some(s(150)));
    // Changed tolerations are counted from the same start.
    evictor.pod_seen(&tolerating("a", 40.into()), s(125));
    assert_eq!(names(&mut evictor, 159), Vec::<String>::new());
    assert_eq!(names(&mut evictor, 160), ["a"]);
}

#[test]
fn a_node_that_comes_back_lets_its_pods_stay() {
    let mut evictor = Evictor::default();
    let pods = [tolerating("a", 300.into())];
    evictor.node_seen(&"n1".into(), &[no_execute(UNREACHABLE)], &pods, s(0));
    let kept = evictor.node_seen(
        &"n1".into(),
        &[Taint::new(UNREACHABLE, Effect::NoSchedule)],
        &pods,
        s(100),
    );
    assert_eq!(kept.len(), 1);
    assert_eq!(names(&mut evictor, 1000), Vec::<String>::new());
}

#[test]
fn swapped_taints_and_new_tolerations_count_from_the_same_start() {
    let mut evictor = Evictor::default();
    let pods = [tolerating("a", 300.into())];
    evictor.node_seen(&"n1".into(), &[no_execute(NOT_READY)], &pods, s(0));
    evictor.node_seen(&"n1".into(), &[no_execute(UNREACHABLE)], &pods, s(200));
    assert_eq!(evictor.wake_at(), Some(s(300)));
    assert_eq!(evictor.pod_seen(&tolerating("a", 500.into()), s(210)), None);
    assert_eq!(evictor.wake_at(), Some(s(500)));
    assert!(evictor.pod_seen(&tolerating("a", Value::Null), s(220)).is_some());
    assert_eq!(evictor.wake_at(), None);
    evictor.pod_seen(&pod("a", json!([])), s(230));
    assert_eq!(names(&mut evictor, 230), ["a"]);
}

#[test]
fn a_recreated_pod_starts_anew_and_a_leaving_one_is_left_alone() {
    let mut evictor = Evictor::default();
    evictor.node_seen(
        &"n1".into(),
        &[no_execute(UNREACHABLE)],
        &[tolerating("a", 300.into())],
        s(0),
    );
    let mut again = tolerating("a", 300.into());
    again.metadata.uid = "other".into();
    evictor.pod_seen(&again, s(100));
    assert_eq!(evictor.wake_at(), Some(s(400)));
    again.metadata.deletion = Some(Moment::from_seconds(1));
    evictor.pod_seen(&again, s(110));
    assert_eq!(evictor.wake_at(), None);
}

#[test]
fn failed_evictions_come_again_unless_the_pod_went_meanwhile() {
    let mut evictor = Evictor::default();
    evictor.node_seen(
        &"n1".into(),
        &[no_execute(UNREACHABLE)],
        &[pod("a", json!([])), pod("b", json!([]))],
        s(0),
    );
    let due = evictor.due(s(0));
    evictor.pod_gone(&"ns".into(), &"b".into());
    due.iter().for_each(|eviction| evictor.failed(eviction, s(5)));
    assert_eq!(names(&mut evictor, 5), ["a"]);
}

#[test]
fn a_deleted_node_does_not_save_its_pods() {
    let mut evictor = Evictor::default();
    evictor.node_seen(
        &"n1".into(),
        &[no_execute(UNREACHABLE)],
        &[tolerating("a", 300.into())],
        s(0),
    );
    evictor.node_gone("n1");
    assert_eq!(names(&mut evictor, 300), ["a"]);
}

#[test]
fn the_first_matching_toleration_decides_and_the_shortest_taint_wins() {
    let tolerations: Vec<Toleration> = serde_json::from_value(json!([
        { "key": "a", "operator": "Exists", "tolerationSeconds": 10 },
        { "key": "a", "operator": "Exists", "tolerationSeconds": 5 },
        { "key": "b", "value": "x", "tolerationSeconds": 7 },
        { "operator": "Exists", "effect": "NoExecute" },
    ]))
    .expect("tolerations");
    let with = |key: &str, value: &str| Taint {
        key: key.into(),
        value: value.into(),
        effect: Effect::NoExecute,
    };
    assert_eq!(stay(&[with("a", "")], &tolerations), Stay::For(s(10)));
    assert_eq!(
        stay(&[with("a", ""), with("b", "x")], &tolerations),
        Stay::For(s(7))
    );
    assert_eq!(
        stay(&[with("b", "other")], &tolerations),
        Stay::Forever,
        "the last one covers everything"
    );
    assert_eq!(stay(&[with("b", "other")], &tolerations[..3]), Stay::For(s(0)));
    assert_eq!(stay(&[Taint::new("z", Effect::NoSchedule)], &[]), Stay::Forever);
}
