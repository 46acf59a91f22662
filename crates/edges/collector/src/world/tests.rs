use super::*;
use pointsman_model::Revision;
use pointsman_protocol::watermark::Report;
use serde_json::json;

fn slice(revision: u64, conditions: serde_json::Value) -> Event<EndpointSlice> {
    let object = json!({
        "metadata": { "namespace": "default", "name": "web-1",
            "labels": { "kubernetes.io/service-name": "web" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": format!("1970-01-01T00:00:{revision:02}Z") } },
        "endpoints": [{ "conditions": conditions, "nodeName": "n1",
            "targetRef": { "kind": "Pod", "namespace": "default", "name": "a", "uid": "u" } }],
    });
    Event::Applied {
        key: ObjectKey::new("default", "web-1"),
        object: serde_json::from_value(object).unwrap(),
        resource_version: revision.to_string().into(),
    }
}

fn pod(deleting: bool, now: i64) -> (Event<Pod>, Moment) {
    let mut object = json!({
        "metadata": { "namespace": "default", "name": "a", "uid": "u" },
        "spec": { "nodeName": "n1" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    if deleting {
        object["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:30Z".into();
    }
    let event = Event::Applied {
        key: ObjectKey::new("default", "a"),
        object: serde_json::from_value(object).unwrap(),
        resource_version: "3".into(),
    };
    (event, Moment(now))
}

fn ready() -> serde_json::Value {
    json!({ "ready": true, "serving": true, "terminating": false })
}

fn terminating() -> serde_json::Value {
    json!({ "ready": false, "serving": true, "terminating": true })
}

#[test]
fn a_deletion_becomes_a_change_with_its_whole_story() {
    let mut world = World::new();
    assert_eq!(
        world.of_pod("default/a", "u", Moment(0)).0,
        Requirement::Unmarked,
        "nothing is listed yet"
    );
    world.slice(slice(5, ready()), Moment(0));
    world.slice(Event::Synced("5".into()), Moment(0));
    world.node(Event::Synced("5".into()));
    assert_eq!(
        world.fold.changes(Resource::Slices).count(),
        0,
        "a first list is no change"
    );
    let (event, at) = pod(true, 9_100_000);
    world.pod(event, at);
    world.slice(slice(9, terminating()), Moment(9_200_000));
    let change = world.fold.changes(Resource::Slices).next().unwrap().clone();
    assert_eq!(
        (change.what.kind, change.what.pod.as_deref()),
        (Kind::Terminating, Some("default/a"))
    );
    assert_eq!(change.what.triggered, Some(Moment(9_000_000)));
    assert_eq!(change.what.api, Some(Moment(9_100_000)));
    assert_eq!(world.of_pod("default/a", "u", at).0, Requirement::Revision(9));
}

#[test]
fn only_pods_under_deletion_that_are_still_there_count_for_their_service() {
    let mut world = World::new();
    world.slice(slice(5, ready()), Moment(0));
    world.slice(Event::Synced("5".into()), Moment(0));
    world.node(Event::Synced("5".into()));
    let (event, at) = pod(false, 0);
    world.pod(event, at);
    let deleting = |world: &World, node| world.deleting_of_service("default/web", Some(node)).len();
    assert_eq!(deleting(&world, "n1"), 0);
    let (event, at) = pod(true, 0);
    world.pod(event, at);
    assert_eq!((deleting(&world, "n1"), deleting(&world, "n2")), (1, 0));
    let (key, resource_version) = (ObjectKey::new("default", "a"), Some("9".into()));
    world.pod(
        Event::Deleted {
            key,
            resource_version,
            removed: None,
        },
        Moment(0),
    );
    assert_eq!(deleting(&world, "n1"), 0);
}

#[test]
fn a_list_after_a_gap_shows_what_changed_and_nothing_else() {
    let mut world = World::new();
    world.slice(slice(5, ready()), Moment(0));
    world.slice(Event::Synced("5".into()), Moment(0));
    world.node(Event::Synced("5".into()));
    world.slice(Event::Init, Moment(1));
    world.slice(slice(5, ready()), Moment(1));
    assert_eq!(world.fold.changes(Resource::Slices).count(), 0);
    world.slice(
        slice(
            8,
            json!({ "ready": false, "serving": false, "terminating": false }),
        ),
        Moment(2),
    );
    let kinds: Vec<Kind> = world
        .fold
        .changes(Resource::Slices)
        .map(|change| change.what.kind)
        .collect();
    assert_eq!(kinds, [Kind::NotReady]);
    let gone = Event::Deleted {
        key: ObjectKey::new("default", "web-1"),
        resource_version: Some("11".into()),
        removed: None,
    };
    world.slice(gone, Moment(3));
    assert_eq!(
        world.of_pod("default/a", "u", Moment(3)).0,
        Requirement::Revision(11)
    );
}

#[test]
fn an_endpoint_that_is_out_of_use_though_its_pod_is_ready_was_withdrawn() {
    let mut world = World::new();
    let (event, at) = pod(false, 0);
    world.pod(event, at);
    world.slice(slice(5, ready()), Moment(0));
    world.slice(Event::Synced("5".into()), Moment(0));
    let out = json!({ "ready": false, "serving": false, "terminating": false });
    world.slice(slice(8, out), Moment(9_000_000));
    world.slice(slice(9, ready()), Moment(9_500_000));
    let changes = world.fold.changes(Resource::Slices);
    let told: Vec<_> = changes.map(|it| (it.what.kind, it.what.triggered)).collect();
    assert_eq!(
        told,
        [
            (Kind::Withdrawn, Some(Moment(8_000_000))),
            (Kind::Ready, Some(Moment(9_000_000)))
        ]
    );
}

#[test]
fn services_count_when_their_specification_changes() {
    let mut world = World::new();
    world.service(Event::Synced("1".into()), Moment(0));
    let service = |revision: u64, port: u16, extra: &str| {
        let object = json!({ "metadata": { "name": "web", "namespace": "default", "annotations": { "x": extra } },
            "spec": { "clusterIP": "10.96.0.5", "ports": [{ "port": port }] } });
        Event::Applied {
            key: ObjectKey::new("default", "web"),
            object: serde_json::from_value(object).unwrap(),
            resource_version: revision.to_string().into(),
        }
    };
    world.service(service(2, 80, ""), Moment(1));
    world.service(service(3, 80, "annotated"), Moment(2));
    world.service(service(4, 81, ""), Moment(3));
    let id = world.fold.join("n1", Moment(3));
    let mut report = Report {
        generation: 1,
        ..Report::default()
    };
    report.progress.committed.services = Some(Revision(4));
    world.fold.report(id, report, Moment(4)).unwrap();
    let changes: Vec<(u64, Kind, bool)> = world
        .fold
        .changes(Resource::Services)
        .map(|change| (change.what.revision, change.what.kind, change.all.is_some()))
        .collect();
    assert_eq!(
        changes,
        [(2, Kind::ServiceCreated, true), (4, Kind::ServiceChanged, true)]
    );
}

fn service(revision: u64, port: u16, metadata: serde_json::Value) -> Event<Described> {
    let object =
        json!({ "metadata": metadata, "spec": { "clusterIP": "10.96.0.9", "ports": [{ "port": port }] } });
    Event::Applied {
        key: ObjectKey::new("default", "web"),
        object: serde_json::from_value(object).unwrap(),
        resource_version: revision.to_string().into(),
    }
}

fn stamped(at: &str) -> serde_json::Value {
    json!({ "creationTimestamp": "1970-01-01T00:00:01Z", "annotations": { "pointsman.io/last-change-time": at } })
}

/// When the newest change of a Service began, and how well that is known.
fn newest(world: &World) -> (Moment, Dated) {
    let change = world.fold.changes(Resource::Services).next_back().unwrap();
    (change.began(), change.what.dated)
}

#[test]
fn changes_of_services_begin_with_the_servers_write() {
    let mut world = World::new();
    world.service(Event::Synced("1".into()), Moment(0));
    world.service(
        service(5, 80, stamped("1970-01-01T00:00:01.000300Z")),
        Moment(1_006_000),
    );
    assert_eq!(newest(&world), (Moment(1_000_300), Dated::Exact));
    world.service(
        service(6, 81, stamped("1970-01-01T00:00:02.000700Z")),
        Moment(2_006_000),
    );
    assert_eq!(newest(&world), (Moment(2_000_700), Dated::Exact));
    let gone = |removed| Event::Deleted {
        key: ObjectKey::new("default", "web"),
        resource_version: Some("7".into()),
        removed: Moment::parse(removed),
    };
    world.service(gone("1970-01-01T00:00:03.000900Z"), Moment(3_006_000));
    assert_eq!(newest(&world), (Moment(3_000_900), Dated::Exact));
}

#[test]
fn where_the_server_says_less_that_is_marked() {
    let mut world = World::new();
    world.service(Event::Synced("1".into()), Moment(0));
    let created = json!({ "creationTimestamp": "1970-01-01T00:00:01Z" });
    world.service(service(5, 80, created), Moment(1_006_000));
    assert_eq!(
        newest(&world),
        (Moment(1_006_000), Dated::Watch),
        "nearer than the second"
    );
    let managed = json!({ "creationTimestamp": "1970-01-01T00:00:01Z",
        "managedFields": [{ "manager": "kubectl", "time": "1970-01-01T00:00:08Z" }] });
    world.service(service(6, 81, managed), Moment(12_000_000));
    assert_eq!(
        newest(&world),
        (Moment(8_999_999), Dated::Second),
        "our watch was away"
    );
    // The last state of a removed Service still has the stamp of its last change.
    world.service(
        service(7, 82, stamped("1970-01-01T00:00:13.000700Z")),
        Moment(13_006_000),
    );
    let gone = Event::Deleted {
        key: ObjectKey::new("default", "web"),
        resource_version: Some("8".into()),
        removed: Moment::parse("1970-01-01T00:00:13.000700Z"),
    };
    world.service(gone, Moment(20_000_000));
    assert_eq!(newest(&world), (Moment(20_000_000), Dated::Watch));
}

#[test]
fn versions_that_go_back_are_another_history() {
    let mut world = World::new();
    world.slice(Event::Synced("90".into()), Moment(0));
    world.pod(Event::Synced("100".into()), Moment(0));
    world.slice(Event::Synced("95".into()), Moment(0));
    assert!(
        !world.history_lost,
        "watches of different kinds are not equally far"
    );
    world.slice(Event::Init, Moment(0));
    world.slice(Event::Synced("60".into()), Moment(0));
    assert!(world.history_lost);
}
