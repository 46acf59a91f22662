use super::daemon_set::DaemonSetStrategy;
use super::deployment::DeploymentStrategy;
use super::mangled::mangled;
use super::replica_set::ReplicaSetStrategy;
use super::{ClusterSettings, Context, Part, Strategy};
use crate::{Kind, kinds};
use pointsman_model::{Feature, FeatureGates};
use proptest::prelude::*;
use serde_json::{Value, json};

fn with_gate<T>(on: bool, run: impl FnOnce(&Context<'_>) -> T) -> T {
    let gates = FeatureGates::default().with(Feature::SubSecondProbes, on);
    let cluster = ClusterSettings {
        service_ranges: Vec::new(),
        node_ports: (30000, 32767),
    };
    run(&Context {
        now: "2024-05-01T10:00:00Z".parse().unwrap(),
        gates: &gates,
        cluster: &cluster,
    })
}

fn create(strategy: &dyn Strategy, mut object: Value, gate: bool) -> (Value, Vec<String>) {
    with_gate(gate, |context| {
        strategy.default(&mut object, context);
        strategy.prepare_create(&mut object, context);
        let errors = strategy.validate_create(&object, context);
        (object, errors.iter().map(ToString::to_string).collect())
    })
}

fn update(
    strategy: &dyn Strategy,
    old: &Value,
    mut new: Value,
    part: Part,
    gate: bool,
) -> (Value, Vec<String>) {
    with_gate(gate, |context| {
        strategy.default(&mut new, context);
        strategy.prepare_update(&mut new, old, part, context);
        let errors = strategy.validate_update(&new, old, part, context);
        (new, errors.iter().map(ToString::to_string).collect())
    })
}

fn web() -> Value {
    json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{
                    "name": "web", "image": "nginx:1",
                    "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 1, "periodMilliseconds": -500},
                }]},
            },
        },
    })
}

fn stored(strategy: &dyn Strategy) -> Value {
    let (object, errors) = create(strategy, web(), true);
    assert_eq!(errors, [""; 0]);
    object
}

fn edit(object: &Value, path: &str, value: Value) -> Value {
    let mut edited = object.clone();
    let (parent, field) = path.rsplit_once('/').unwrap();
    edited.pointer_mut(parent).unwrap()[field] = value;
    edited
}

#[test]
fn a_deployment_gets_the_upstream_rollout() {
    let deployment = stored(&DeploymentStrategy);
    let spec = &deployment["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["revisionHistoryLimit"], 10);
    assert_eq!(spec["progressDeadlineSeconds"], 600);
    assert_eq!(
        spec["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}})
    );
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(spec["template"]["spec"].get("enableServiceLinks"), None);
    assert_eq!(deployment["status"], json!({}));
    assert_eq!(stored(&ReplicaSetStrategy)["spec"]["replicas"], 1);
}

#[test]
fn a_daemon_set_gets_the_upstream_update_strategy() {
    let (object, errors) = create(&DaemonSetStrategy, web(), true);
    assert_eq!(errors, [""; 0]);
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
    assert_eq!(object["spec"]["updateStrategy"], rolling);
    assert!(
        object["spec"]["replicas"].is_null(),
        "nodes are counted, not replicas"
    );
    let odd = edit(&web(), "/spec/updateStrategy", json!({"type": "Sometimes"}));
    let expected = "spec.updateStrategy.type: Unsupported value: \"Sometimes\"";
    assert!(create(&DaemonSetStrategy, odd, true).1[0].starts_with(expected));
}

#[test]
fn stored_workloads_have_only_fields_that_the_schema_knows() {
    for kind in [&kinds::DEPLOYMENT, &kinds::REPLICA_SET, &kinds::DAEMON_SET] {
        let object = stored(kind.strategy);
        let mut checked = object.clone();
        let complaints = crate::decode::check_object(&mut checked, crate::schema::of(kind)).unwrap();
        assert_eq!(complaints, []);
        assert_eq!(checked, object);
    }
}

#[test]
fn all_kinds_refuse_what_cannot_work() {
    for (path, value, expected) in [
        ("/spec/selector", json!(null), "spec.selector: Required value"),
        (
            "/spec/selector",
            json!({}),
            "spec.selector: Invalid value: {}: empty selector",
        ),
        (
            "/spec/selector/matchLabels/app",
            json!("db"),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match",
        ),
        (
            "/spec/selector",
            json!({"matchExpressions": [{"key": "app", "operator": "Like"}]}),
            "spec.selector.matchExpressions[0].operator: Invalid",
        ),
        ("/spec/replicas", json!(-1), "spec.replicas: Invalid value: -1"),
        (
            "/spec/minReadySeconds",
            json!(-1),
            "spec.minReadySeconds: Invalid value: -1",
        ),
        (
            "/spec/template/spec/restartPolicy",
            json!("Never"),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\"",
        ),
        (
            "/spec/template/spec/activeDeadlineSeconds",
            json!(5),
            "spec.template.spec.activeDeadlineSeconds: Forbidden",
        ),
        (
            "/spec/template/spec/containers/0/image",
            json!(""),
            "spec.template.spec.containers[0].image: Required",
        ),
        (
            "/spec/template/spec/containers/0/readinessProbe/periodMilliseconds",
            json!(-900),
            "spec.template.spec.containers[0].readinessProbe.periodMilliseconds: Invalid value: -900: the sum of \
             periodSeconds and periodMilliseconds is 100ms, must be at least 200ms for httpGet",
        ),
    ] {
        for strategy in [
            &DeploymentStrategy as &dyn Strategy,
            &ReplicaSetStrategy,
            &DaemonSetStrategy,
        ] {
            let errors = create(strategy, edit(&web(), path, value.clone()), true).1;
            assert!(
                errors.iter().any(|error| error.starts_with(expected)),
                "{path} = {value}: {errors:?}"
            );
        }
    }
}

#[test]
fn containers_of_a_stateful_set_mount_its_claims() {
    let sets = Kind::by_type("apps/v1", "StatefulSet").unwrap().strategy;
    let mut set = web();
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {}}]);
    let mount = |names: &[&str]| {
        let mounts: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
            .collect();
        let mut set = edit(
            &set,
            "/spec/template/spec/containers/0/volumeMounts",
            json!(mounts),
        );
        // A claim takes the place of the volume of its name, whatever that says.
        set["spec"]["template"]["spec"]["volumes"] =
            json!([{"name": "data", "hostPath": {}}, {"name": "own", "emptyDir": {}}]);
        create(sets, set, true)
    };
    let (stored, errors) = mount(&["data", "own"]);
    assert_eq!(errors, [""; 0]);
    assert_eq!(
        stored["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"],
        Value::Null
    );
    assert_eq!(
        mount(&["other"]).1,
        ["spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"other\""]
    );
}

#[test]
fn a_rollout_must_be_able_to_proceed() {
    for (strategy, expected) in [
        (
            json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
        ),
        (
            json!({"rollingUpdate": {"maxSurge": "many"}}),
            "spec.strategy.rollingUpdate.maxSurge: Invalid",
        ),
        (
            json!({"rollingUpdate": {"maxSurge": -1}}),
            "spec.strategy.rollingUpdate.maxSurge: Invalid",
        ),
        (
            json!({"type": "Recreate", "rollingUpdate": {}}),
            "spec.strategy.rollingUpdate: Forbidden",
        ),
        (
            json!({"type": "Gradual"}),
            "spec.strategy.type: Unsupported value",
        ),
    ] {
        let errors = create(
            &DeploymentStrategy,
            edit(&web(), "/spec/strategy", strategy.clone()),
            true,
        )
        .1;
        assert!(
            errors.iter().any(|error| error.starts_with(expected)),
            "{strategy}: {errors:?}"
        );
    }
    let recreate = edit(&web(), "/spec/strategy", json!({"type": "Recreate"}));
    assert_eq!(create(&DeploymentStrategy, recreate, true).1, [""; 0]);
    let surge = edit(
        &web(),
        "/spec/strategy",
        json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "200%"}}),
    );
    assert_eq!(create(&DeploymentStrategy, surge, true).1, [""; 0]);
    let slow = edit(&web(), "/spec/minReadySeconds", json!(600));
    assert_eq!(
        create(&DeploymentStrategy, slow, true).1,
        ["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"]
    );
}

#[test]
fn the_selector_never_changes() {
    for strategy in [
        &DeploymentStrategy as &dyn Strategy,
        &ReplicaSetStrategy,
        &DaemonSetStrategy,
    ] {
        let old = stored(strategy);
        let mut new = edit(&old, "/spec/selector", json!({"matchLabels": {"app": "db"}}));
        new["spec"]["template"]["metadata"]["labels"]["app"] = json!("db");
        assert_eq!(
            update(strategy, &old, new, Part::Main, true).1,
            [r#"spec.selector: Invalid value: {"matchLabels":{"app":"db"}}: field is immutable"#]
        );
    }
}

#[test]
fn generations_count_specs_and_for_deployments_annotations() {
    let old = stored(&DeploymentStrategy);
    let scaled = edit(&old, "/spec/replicas", json!(2));
    let annotated = edit(&old, "/metadata/annotations", json!({"a": "b"}));
    let labelled = edit(&old, "/metadata/labels", json!({"a": "b"}));
    let reported = edit(&old, "/status", json!({"replicas": 1}));
    for (new, deployment, replica_set) in [
        (&scaled, true, true),
        (&annotated, true, false),
        (&labelled, false, false),
        (&reported, false, false),
    ] {
        assert_eq!(
            DeploymentStrategy.bumps_generation(new, &old),
            deployment,
            "{new}"
        );
        assert_eq!(
            ReplicaSetStrategy.bumps_generation(new, &old),
            replica_set,
            "{new}"
        );
    }
}

#[test]
fn each_part_keeps_the_other() {
    let mut old = stored(&DeploymentStrategy);
    old["status"] = json!({"replicas": 1});
    let mut new = edit(&old, "/spec/replicas", json!(5));
    new["status"] = json!({"replicas": 5, "readyReplicas": 5, "availableReplicas": 5});
    new["metadata"]["labels"] = json!({"app": "other"});
    let (main, _) = update(&DeploymentStrategy, &old, new.clone(), Part::Main, true);
    assert_eq!(
        (&main["spec"]["replicas"], &main["status"]),
        (&json!(5), &old["status"])
    );
    let (status, errors) = update(&DeploymentStrategy, &old, new.clone(), Part::Status, true);
    assert_eq!(errors, [""; 0]);
    assert_eq!(
        (&status["spec"], &status["status"]),
        (&old["spec"], &new["status"])
    );
    assert_eq!(status["metadata"]["labels"], json!({"app": "web"}));
    let (status, _) = update(&ReplicaSetStrategy, &old, new, Part::Status, true);
    assert_eq!(status["metadata"]["labels"], json!({"app": "other"}));
}

#[test]
fn counters_fit_into_the_replicas() {
    let mut old = stored(&DeploymentStrategy);
    old["status"] = json!({"collisionCount": 2});
    for (status, field) in [
        (json!({"replicas": 1, "readyReplicas": 2}), "status.readyReplicas"),
        (
            json!({"replicas": 2, "availableReplicas": 2, "readyReplicas": 1}),
            "status.availableReplicas",
        ),
        (json!({"replicas": -1}), "status.replicas"),
        (json!({"collisionCount": 1}), "status.collisionCount"),
    ] {
        let new = edit(&old, "/status", status.clone());
        let errors = update(&DeploymentStrategy, &old, new, Part::Status, true).1;
        assert!(
            errors.iter().any(|error| error.starts_with(field)),
            "{status}: {errors:?}"
        );
    }
}

#[test]
fn a_closed_gate_drops_offsets_from_templates_unless_they_are_in_use() {
    let offset = |object: &Value| {
        object["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
            .get("periodMilliseconds")
            .cloned()
    };
    for strategy in [
        &DeploymentStrategy as &dyn Strategy,
        &ReplicaSetStrategy,
        &DaemonSetStrategy,
    ] {
        let (plain, _) = create(strategy, web(), false);
        assert_eq!(offset(&plain), None);
        let (still_plain, _) = update(strategy, &plain, web(), Part::Main, false);
        assert_eq!(offset(&still_plain), None);
        let old = stored(strategy);
        let (kept, errors) = update(strategy, &old, web(), Part::Main, false);
        assert_eq!((offset(&kept), errors), (Some(json!(-500)), Vec::new()));
        let (opened, _) = update(strategy, &plain, web(), Part::Main, true);
        assert_eq!(offset(&opened), Some(json!(-500)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_rule_panics_and_defaulting_twice_is_defaulting_once(
        new in mangled(stored(&DeploymentStrategy)), old in mangled(stored(&DeploymentStrategy)), gate: bool,
    ) {
        for strategy in [&DeploymentStrategy as &dyn Strategy, &ReplicaSetStrategy, &DaemonSetStrategy] {
            let (created, _) = create(strategy, new.clone(), gate);
            for part in [Part::Main, Part::Status] {
                update(strategy, &old, new.clone(), part, gate);
            }
            let _ = strategy.bumps_generation(&new, &old);
            let _ = crate::scale::apply_scale(&new, &kinds::DEPLOYMENT, &old);
            for kind in kinds::ALL.iter() {
                let _ = crate::scale::scale_of(&new, kind);
            }
            let again = with_gate(gate, |context| {
                let mut again = created.clone();
                strategy.default(&mut again, context);
                again
            });
            prop_assert_eq!(again, created);
        }
    }
}
