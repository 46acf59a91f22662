use super::*;
use pointsman_api_client::{Event, ObjectKey};
use pointsman_model::Revision;
use pointsman_protocol::gate::Outcome;
use pointsman_protocol::watermark::Report;
use pointsman_sli::gate::OVERDUE_WAIT;
use serde_json::json;

const BOUND: Duration = Duration::from_secs(5);
const NODE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A slice of default/web with these pods, ready or terminating.
fn slice(world: &mut World, revision: u64, pods: &[(&str, bool)]) {
    let endpoints = pods.iter().map(|(name, ready)| {
        json!({ "conditions": { "ready": ready, "terminating": !ready }, "nodeName": "n1",
            "targetRef": { "kind": "Pod", "namespace": "default", "name": name, "uid": format!("uid-{name}") } })
    });
    let object = json!({
        "metadata": { "namespace": "default", "labels": { "kubernetes.io/service-name": "web" } },
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    let slice = Event::Applied {
        key: ObjectKey::new("default", "web-1"),
        object: serde_json::from_value(object).unwrap(),
        resource_version: revision.to_string().into(),
    };
    world.slice(slice, Moment(0));
}

/// Our watch shows a pod.
fn pod(world: &mut World, name: &str, deleting: bool) {
    let mut object =
        json!({ "metadata": { "namespace": "default", "name": name, "uid": format!("uid-{name}") } });
    if deleting {
        object["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:30Z".into();
    }
    let pod = Event::Applied {
        key: ObjectKey::new("default", name),
        object: serde_json::from_value(object).unwrap(),
        resource_version: "3".into(),
    };
    world.pod(pod, Moment(0));
}

/// Everything is listed: default/web has these pods.
fn world(pods: &[(&str, bool)]) -> World {
    let mut world = World::new();
    slice(&mut world, 10, pods);
    world.slice(Event::Synced("10".into()), Moment(0));
    world.node(Event::Synced("10".into()));
    world
}

fn programmer(world: &mut World, name: &str, slices: u64) {
    let id = world.fold.join(name, Moment(0));
    let mut report = Report {
        generation: 1,
        ..Report::default()
    };
    report.progress.committed.slices = Some(Revision(slices));
    world.fold.report(id, report, Moment(0)).unwrap();
}

/// What the API server says.
fn said(pods: &[(&str, bool)]) -> Option<Arc<[PodState]>> {
    let states = pods.iter().map(|(name, deleting)| PodState {
        pod: format!("default/{name}").into(),
        uid: format!("uid-{name}").into(),
        node: Some("n1".into()),
        deleting: *deleting,
    });
    Some(states.collect())
}

type Reply = oneshot::Receiver<Result<Answer, Refused>>;

fn ask(gates: &mut Gates, id: u64, gate: Subject, source: IpAddr, now: Instant) -> Reply {
    let (reply, answer) = oneshot::channel();
    let id = GateId(id);
    let bound = BOUND;
    gates.ask(
        Question {
            id,
            source,
            gate,
            bound,
            reply,
        },
        now,
    );
    answer
}

fn of_pod(name: &str) -> Subject {
    Subject::Pod {
        pod: format!("default/{name}"),
        uid: format!("uid-{name}"),
    }
}

fn of_service() -> Subject {
    let service = "default/web".into();
    Subject::Service { service, node: None }
}

fn outcome(reply: &mut Reply) -> Option<Outcome> {
    Some(reply.try_recv().ok()?.unwrap().outcome)
}

#[tokio::test]
async fn nothing_opens_before_endpoints_and_nodes_are_listed() {
    let (mut world, mut gates, now) = (World::new(), Gates::default(), Instant::now());
    let mut pod = ask(&mut gates, 1, of_pod("a"), NODE, now);
    let mut service = ask(&mut gates, 2, of_service(), NODE, now);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    slice(&mut world, 10, &[("a", false)]);
    world.slice(Event::Synced("10".into()), Moment(0));
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    world.node(Event::Synced("10".into()));
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut pod), Some(Outcome::NoProgrammers));
    assert_eq!((outcome(&mut service), gates.take_reads().len()), (None, 1));
}

#[tokio::test]
async fn the_last_programmer_opens_the_gate() {
    let (mut world, mut gates, now) = (world(&[("a", false)]), Gates::default(), Instant::now());
    programmer(&mut world, "n1", 10);
    programmer(&mut world, "n2", 9);
    let answer = ask(&mut gates, 1, of_pod("a"), NODE, now);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    programmer(&mut world, "n2", 12);
    let later = now + Duration::from_millis(30);
    assert_eq!(gates.open(&mut world, later, Moment(0)).len(), 1);
    let opened = answer.await.unwrap().unwrap();
    assert_eq!(
        (opened.outcome, opened.waited),
        (Outcome::Everywhere, Duration::from_millis(30))
    );
    assert_eq!(gates.wake(), None);
}

#[tokio::test]
async fn a_node_that_hangs_is_named_when_the_wait_is_over() {
    let (mut world, mut gates, now) = (world(&[("a", false)]), Gates::default(), Instant::now());
    programmer(&mut world, "n1", 10);
    programmer(&mut world, "n2", 9);
    let answer = ask(&mut gates, 1, of_pod("a"), NODE, now);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    assert!(gates.wake() <= Some(now + OVERDUE_WAIT));
    assert!(gates.open(&mut world, now + OVERDUE_WAIT, Moment(0)).is_empty());
    assert_eq!(gates.wake(), Some(now + BOUND));
    gates.open(&mut world, now + BOUND, Moment(0));
    let opened = answer.await.unwrap().unwrap();
    assert_eq!(
        (opened.outcome, opened.behind),
        (Outcome::Bound, vec!["n2".to_owned()])
    );
    assert_eq!(gates.recent.len(), 1);
}

#[tokio::test]
async fn a_slice_that_takes_the_pod_out_of_use_finds_its_gate() {
    let (mut world, mut gates, now) = (world(&[("a", true)]), Gates::default(), Instant::now());
    programmer(&mut world, "n1", 20);
    pod(&mut world, "a", true);
    let mut answer = ask(&mut gates, 1, of_pod("a"), NODE, now);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    assert!(gates.take_reads().is_empty(), "the deletion is known");
    slice(&mut world, 11, &[("a", false)]);
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut answer), Some(Outcome::Everywhere));
}

#[tokio::test]
async fn a_pod_that_is_not_being_deleted_gets_an_answer_as_soon_as_the_api_server_says_so() {
    let (mut world, mut gates, now) = (
        world(&[("a", true), ("b", true)]),
        Gates::default(),
        Instant::now(),
    );
    programmer(&mut world, "n1", 20);
    pod(&mut world, "a", false);
    pod(&mut world, "b", false);
    let mut left_alone = ask(&mut gates, 1, of_pod("a"), NODE, now);
    let mut ahead = ask(&mut gates, 2, of_pod("b"), NODE, now);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    assert!(gates.take_reads().is_empty(), "our watch may show it in a moment");
    let now = gates.wake().unwrap();
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    let reads = gates.take_reads();
    assert_eq!(reads.len(), 2);
    assert_eq!(reads[0].1.fields.as_deref(), Some("metadata.name=a"));
    gates.read(GateId(1), said(&[("a", false)]));
    // Whoever asks for b knows of a deletion that our watch has not shown yet.
    gates.read(GateId(2), said(&[("b", true)]));
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut left_alone), Some(Outcome::NotDeleting));
    assert_eq!(outcome(&mut ahead), None);
    slice(&mut world, 11, &[("a", true), ("b", false)]);
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut ahead), Some(Outcome::Everywhere));
    assert!(gates.take_reads().is_empty(), "each gate asks once");
}

#[tokio::test]
async fn the_form_for_a_service_waits_for_the_pod_that_asks_and_not_for_one_that_is_gone() {
    // "old" was dropped from the slice a while ago, "going" is out of use everywhere, "asks" is in use.
    let (mut gates, now) = (Gates::default(), Instant::now());
    let mut world = world(&[("old", false), ("going", false), ("asks", true)]);
    slice(&mut world, 11, &[("going", false), ("asks", true)]);
    programmer(&mut world, "n1", 20);
    pod(&mut world, "going", true);
    pod(&mut world, "asks", false);
    let mut answer = ask(&mut gates, 1, of_service(), NODE, now);
    assert!(
        gates.open(&mut world, now, Moment(0)).is_empty(),
        "the deletion is not seen"
    );
    assert_eq!(gates.take_reads().len(), 1);
    let states = [("going", true), ("asks", true)];
    gates.read(GateId(1), said(&states));
    assert!(
        gates.open(&mut world, now, Moment(0)).is_empty(),
        "no slice says terminating"
    );
    slice(&mut world, 30, &[("going", false), ("asks", false)]);
    assert!(gates.open(&mut world, now, Moment(0)).is_empty(), "n1 is behind");
    programmer(&mut world, "n1", 30);
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut answer), Some(Outcome::Everywhere));

    let mut restarted = ask(&mut gates, 2, of_service(), NODE, now);
    gates.open(&mut world, now, Moment(0));
    gates.read(GateId(2), said(&[("going", false)]));
    gates.open(&mut world, now, Moment(0));
    assert_eq!(outcome(&mut restarted), Some(Outcome::NotDeleting));
}

#[tokio::test]
async fn without_an_api_server_the_form_for_a_service_takes_its_time() {
    let (mut world, mut gates, now) = (
        world(&[("going", false), ("asks", true)]),
        Gates::default(),
        Instant::now(),
    );
    programmer(&mut world, "n1", 20);
    pod(&mut world, "going", true);
    let mut answer = ask(&mut gates, 1, of_service(), NODE, now);
    gates.open(&mut world, now, Moment(0));
    gates.read(GateId(1), None);
    let soon = now + Duration::from_millis(500);
    assert!(gates.open(&mut world, soon, Moment(0)).is_empty());
    pod(&mut world, "asks", true);
    let settled = now + Duration::from_millis(1_500);
    assert!(
        gates.open(&mut world, settled, Moment(0)).is_empty(),
        "it is seen, and in use"
    );
    slice(&mut world, 15, &[("going", false), ("asks", false)]);
    gates.open(&mut world, settled + Duration::from_millis(100), Moment(0));
    assert_eq!(outcome(&mut answer), Some(Outcome::Everywhere));
}

#[tokio::test]
async fn whoever_hangs_up_is_forgotten() {
    let (mut world, mut gates, now) = (world(&[("a", false)]), Gates::default(), Instant::now());
    programmer(&mut world, "n1", 9);
    let reply = ask(&mut gates, 1, of_pod("a"), NODE, now);
    gates.open(&mut world, now, Moment(0));
    gates.hung_up(GateId(1));
    drop(reply);
    assert_eq!((gates.waiting().len(), gates.wake()), (0, None));
    // Nobody says goodbye: it is noticed at the next look.
    drop(ask(&mut gates, 2, of_pod("a"), NODE, now));
    assert!(gates.open(&mut world, now, Moment(0)).is_empty());
    assert_eq!((gates.waiting().len(), gates.sources.len()), (0, 0));
}

#[tokio::test]
async fn one_source_cannot_take_the_place_of_the_others() {
    let (mut gates, now) = (Gates::default(), Instant::now());
    let mut world = world(&[("a", false)]);
    programmer(&mut world, "n1", 9);
    let mut held: Vec<Reply> = (0..OF_ONE_SOURCE as u64)
        .map(|id| ask(&mut gates, id, of_pod("a"), NODE, now))
        .collect();
    let mut refused = ask(&mut gates, 1_000, of_pod("a"), NODE, now);
    assert_eq!(refused.try_recv().unwrap(), Err(Refused::TooManyOfSource));
    let other = IpAddr::from([10, 0, 0, 2]);
    let mut accepted = ask(&mut gates, 1_001, of_pod("a"), other, now);
    gates.open(&mut world, now, Moment(0));
    assert!(accepted.try_recv().is_err() && held[0].try_recv().is_err());
    gates.hung_up(GateId(0));
    held.remove(0);
    let mut again = ask(&mut gates, 1_002, of_pod("a"), NODE, now);
    gates.open(&mut world, now, Moment(0));
    assert!(again.try_recv().is_err(), "it waits");
    assert_eq!(gates.waiting().len(), OF_ONE_SOURCE + 1);
}

#[tokio::test]
async fn ten_thousand_gates_cost_each_event_only_those_that_it_concerns() {
    const GATES: u64 = 10_000;
    const EVENTS: u64 = 1_000;
    let (mut gates, now) = (Gates::default(), Instant::now());
    let mut world = world(&[("a", false), ("b", true)]);
    programmer(&mut world, "n1", 9);
    programmer(&mut world, "n2", 5);
    pod(&mut world, "b", true);
    let source = |id: u64| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + (id / 500) as u32));
    let mut replies: Vec<Reply> = (0..GATES - 1)
        .map(|id| ask(&mut gates, id, of_pod("a"), source(id), now))
        .collect();
    let mut other = ask(&mut gates, GATES, of_pod("b"), source(GATES), now);
    gates.open(&mut world, now, Moment(0));
    assert_eq!(gates.visited, GATES, "each is looked at once when it comes");
    // Lines, pods and slices that concern none of them.
    for event in 0..EVENTS {
        programmer(&mut world, "n1", 10 + event);
        programmer(&mut world, "n3", 10 + event);
        pod(&mut world, "c", false);
        gates.open(&mut world, now, Moment(0));
    }
    assert_eq!(gates.visited, GATES, "{EVENTS} events visited none");
    slice(&mut world, 2_000, &[("a", false), ("b", false)]);
    world.take_touched();
    pod(&mut world, "b", true);
    gates.open(&mut world, now, Moment(0));
    assert_eq!(gates.visited, GATES + 1, "only the gate of b");
    programmer(&mut world, "n2", 10);
    assert_eq!(gates.open(&mut world, now, Moment(0)).len() as u64, GATES - 1);
    assert_eq!(gates.visited, 2 * GATES, "and all of a once they open");
    assert!(
        replies
            .iter_mut()
            .all(|it| outcome(it) == Some(Outcome::Everywhere))
    );
    assert_eq!(outcome(&mut other), None);
}
