mod change;

use super::*;
use crate::strategy::mangled::mangled;
use crate::strategy::{ClusterSettings, IpRange, Strategy as _};
use pointsman_model::FeatureGates;
use proptest::prelude::*;

fn with_gate<T>(on: bool, run: impl FnOnce(&Context<'_>) -> T) -> T {
    let gates = FeatureGates::default().with(Feature::SubSecondProbes, on);
    let cluster = ClusterSettings {
        service_ranges: Vec::<IpRange>::new(),
        node_ports: (30000, 32767),
    };
    run(&Context {
        now: "2024-05-01T10:00:00Z".parse().unwrap(),
        gates: &gates,
        cluster: &cluster,
    })
}

/// The object as a create would store it, and what is wrong with it.
fn create(mut pod: Value, gate: bool) -> (Value, Vec<String>) {
    with_gate(gate, |context| {
        PodStrategy.default(&mut pod, context);
        PodStrategy.prepare_create(&mut pod, context);
        let errors = PodStrategy.validate_create(&pod, context);
        (pod, errors.iter().map(ToString::to_string).collect())
    })
}

fn update(old: &Value, mut new: Value, part: Part, gate: bool) -> (Value, Vec<String>) {
    with_gate(gate, |context| {
        PodStrategy.default(&mut new, context);
        PodStrategy.prepare_update(&mut new, old, part, context);
        let errors = PodStrategy.validate_update(&new, old, part, context);
        (new, errors.iter().map(ToString::to_string).collect())
    })
}

fn web() -> Value {
    json!({
        "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {}},
        "spec": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "web", "effect": "NoSchedule"}],
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "conf", "configMap": {"name": "web", "items": [{"key": "a", "path": "b"}]}},
            ],
            "initContainers": [
                {"name": "setup", "image": "setup:1", "command": ["true"]},
                {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always",
                 "startupProbe": {"tcpSocket": {"port": 15001}}},
            ],
            "containers": [{
                "name": "web",
                "image": "nginx:1.25",
                "ports": [{"name": "http", "containerPort": 80}],
                "env": [
                    {"name": "MODE", "value": "fast"},
                    {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "web"}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                "readinessProbe": {
                    "httpGet": {"port": "http"}, "periodSeconds": 1, "periodMilliseconds": -500,
                },
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "securityContext": {"runAsUser": 1000},
            }],
        },
    })
}

fn stored() -> Value {
    let (pod, errors) = create(web(), true);
    assert_eq!(errors, [""; 0]);
    pod
}

/// What is wrong with the web pod after one change to its spec.
fn with(path: &str, value: Value) -> Vec<String> {
    let mut pod = web();
    let (parent, field) = path.rsplit_once('/').expect("a path has a slash");
    pod.pointer_mut(&format!("/spec{parent}"))
        .expect("the parent exists")[field] = value;
    create(pod, true).1
}

#[test]
fn a_typical_pod_is_created_pending_with_its_class() {
    let mut sent = web();
    sent["status"] = json!({"phase": "Running", "podIP": "10.0.0.1"});
    let (pod, errors) = create(sent, true);
    assert_eq!(errors, [""; 0]);
    assert_eq!(
        pod["status"],
        json!({"phase": "Pending", "qosClass": "Burstable"})
    );
    assert_eq!(PodStrategy.first_generation(), Some(1));
}

#[test]
fn a_stored_pod_has_only_fields_that_the_schema_knows() {
    let mut pod = stored();
    pod["spec"]["volumes"] = json!([
        {"name": "a"}, {"name": "b", "hostPath": {"path": "/b"}}, {"name": "c", "secret": {"secretName": "c"}},
        {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    ]);
    pod["spec"]["serviceAccountName"] = json!("robot");
    defaults::default_pod(&mut pod);
    let mut checked = pod.clone();
    let kind = &crate::kinds::POD;
    let complaints = crate::decode::check_object(&mut checked, crate::schema::of(kind)).unwrap();
    assert_eq!(complaints, []);
    assert_eq!(checked, pod);
}

#[test]
fn a_gated_pod_says_why_it_is_not_scheduled() {
    let mut gated = web();
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    let (pod, errors) = create(gated.clone(), true);
    assert_eq!(errors, [""; 0]);
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    gated["spec"]["nodeName"] = json!("n1");
    assert_eq!(
        create(gated, true).1,
        ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]
    );
}

#[test]
fn each_broken_field_is_named_with_its_path() {
    let c = "/containers/0";
    for (path, value, expected) in [
        ("/containers", json!([]), "spec.containers: Required value"),
        (
            &format!("{c}/name"),
            json!("Web"),
            "spec.containers[0].name: Invalid value: \"Web\"",
        ),
        (
            &format!("{c}/name"),
            json!("setup"),
            "spec.initContainers[0].name: Duplicate value: \"setup\"",
        ),
        (
            &format!("{c}/image"),
            json!(""),
            "spec.containers[0].image: Required value",
        ),
        (
            &format!("{c}/image"),
            json!(" a"),
            "spec.containers[0].image: Invalid value",
        ),
        (
            &format!("{c}/imagePullPolicy"),
            json!("Often"),
            "spec.containers[0].imagePullPolicy: Unsupported value",
        ),
        (
            &format!("{c}/ports/0/containerPort"),
            json!(0),
            "spec.containers[0].ports[0].containerPort: Required",
        ),
        (
            &format!("{c}/ports/0/containerPort"),
            json!(70000),
            "spec.containers[0].ports[0].containerPort: Invalid",
        ),
        (
            &format!("{c}/ports/0/name"),
            json!("HTTP"),
            "spec.containers[0].ports[0].name: Invalid",
        ),
        (
            &format!("{c}/ports/0/protocol"),
            json!("ICMP"),
            "spec.containers[0].ports[0].protocol: Unsupported",
        ),
        (
            &format!("{c}/env/0/name"),
            json!("A=B"),
            "spec.containers[0].env[0].name: Invalid",
        ),
        (
            &format!("{c}/env/1/value"),
            json!("x"),
            "spec.containers[0].env[1].valueFrom: Invalid",
        ),
        (
            &format!("{c}/env/1/valueFrom/fieldRef/fieldPath"),
            json!("spec.secret"),
            "spec.containers[0].env[1].valueFrom.fieldRef.fieldPath: Unsupported value",
        ),
        (
            &format!("{c}/envFrom/0/configMapRef"),
            json!(null),
            "spec.containers[0].envFrom[0]: Invalid",
        ),
        (
            &format!("{c}/volumeMounts/0/name"),
            json!("other"),
            "spec.containers[0].volumeMounts[0].name: Not found: \"other\"",
        ),
        (
            &format!("{c}/volumeMounts/0/mountPath"),
            json!(""),
            "spec.containers[0].volumeMounts[0].mountPath: Req",
        ),
        (
            &format!("{c}/volumeMounts/0/subPath"),
            json!("../x"),
            "spec.containers[0].volumeMounts[0].subPath: Inv",
        ),
        (
            &format!("{c}/resources/limits/cpu"),
            json!("fast"),
            "spec.containers[0].resources.limits[cpu]: Invalid value: \"fast\"",
        ),
        (
            &format!("{c}/resources/requests"),
            json!({"cpu": "2"}),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            &format!("{c}/resources/limits/gpu"),
            json!("1"),
            "spec.containers[0].resources.limits[gpu]: Invalid",
        ),
        (
            &format!("{c}/resources/requests"),
            json!({"example.com/gpu": "1"}),
            "spec.containers[0].resources.limits: Required value",
        ),
        (
            &format!("{c}/securityContext"),
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            "spec.containers[0].securityContext: Invalid",
        ),
        (
            &format!("{c}/lifecycle/preStop/sleep/seconds"),
            json!(31),
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31",
        ),
        (
            "/initContainers/0/readinessProbe",
            json!({"exec": {"command": ["x"]}}),
            "spec.initContainers[0].readinessProbe: Forbidden",
        ),
        (
            "/initContainers/0/restartPolicy",
            json!("Sometimes"),
            "spec.initContainers[0].restartPolicy: Unsupported",
        ),
        (
            "/volumes/0/secret",
            json!({"secretName": "s"}),
            "spec.volumes[0].secret: Forbidden",
        ),
        (
            "/volumes/0/name",
            json!("conf"),
            "spec.volumes[1].name: Duplicate value",
        ),
        (
            "/volumes/1/configMap/defaultMode",
            json!(1000),
            "spec.volumes[1].configMap.defaultMode: Invalid",
        ),
        (
            "/volumes/1/configMap/name",
            json!(""),
            "spec.volumes[1].configMap.name: Required",
        ),
        (
            "/volumes",
            json!([{"name": "scratch", "emptyDir": {}}, {"name": "conf", "projected": {"sources": [{"podCertificate":
                {"signerName": "example.com/a", "maxExpirationSeconds": 3599}}]}}]),
            "spec.volumes[1].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 3599",
        ),
        (
            "/volumes",
            json!([{"name": "scratch", "emptyDir": {}}, {"name": "conf", "projected": {"sources": [{"podCertificate":
                {"signerName": "kubernetes.io/a", "maxExpirationSeconds": 86401}}]}}]),
            "spec.volumes[1].projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 86401",
        ),
        (
            "/restartPolicy",
            json!("Maybe"),
            "spec.restartPolicy: Unsupported value: \"Maybe\"",
        ),
        (
            "/dnsPolicy",
            json!("None"),
            "spec.dnsConfig.nameservers: Required value",
        ),
        ("/hostname", json!("a.b"), "spec.hostname: Invalid value: \"a.b\""),
        ("/subdomain", json!("A"), "spec.subdomain: Invalid"),
        ("/nodeSelector/zone", json!("a b"), "spec.nodeSelector: Invalid"),
        (
            "/activeDeadlineSeconds",
            json!(0),
            "spec.activeDeadlineSeconds: Invalid",
        ),
        (
            "/tolerations/0/operator",
            json!("Like"),
            "spec.tolerations[0].operator: Unsupported",
        ),
        (
            "/tolerations/0/operator",
            json!("Exists"),
            "spec.tolerations[0].operator: Invalid value: \"web\"",
        ),
        (
            "/tolerations/0/tolerationSeconds",
            json!(5),
            "spec.tolerations[0].effect: Invalid",
        ),
        (
            "/tolerations/0/effect",
            json!("Never"),
            "spec.tolerations[0].effect: Unsupported",
        ),
        (
            "/tolerations/0/key",
            json!(""),
            "spec.tolerations[0].operator: Invalid",
        ),
        (
            "/hostAliases",
            json!([{"ip": "x"}]),
            "spec.hostAliases[0].ip: Invalid",
        ),
        (
            "/readinessGates",
            json!([{"conditionType": "a b"}]),
            "spec.readinessGates[0].conditionType: Invalid",
        ),
    ] {
        let errors = with(path, value.clone());
        assert!(
            errors.iter().any(|error| error.starts_with(expected)),
            "{path} = {value}: {errors:?}"
        );
    }
}

#[test]
fn host_ports_are_unique_and_follow_the_host_network() {
    let mut pod = web();
    pod["spec"]["hostNetwork"] = json!(true);
    assert_eq!(create(pod.clone(), true).1, [""; 0]);
    pod["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(81);
    assert!(create(pod, true).1[0].starts_with("spec.containers[0].ports[0].hostPort: Invalid value: 81"));
    let ports = json!([{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 80}]);
    let errors = with("/containers/0/ports", ports);
    assert!(
        errors.contains(&"spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\"".to_owned())
    );
}

#[test]
fn offsets_of_any_probe_in_any_container_count_as_use() {
    for (list, role) in [
        ("containers", "livenessProbe"),
        ("initContainers", "startupProbe"),
        ("ephemeralContainers", "readinessProbe"),
    ] {
        let mut spec = json!({list: [{"name": "a", role: {"timeoutMilliseconds": 0}}]});
        assert!(probe::uses_milliseconds(&spec), "{list} {role}");
        probe::drop_milliseconds(&mut spec);
        assert!(!probe::uses_milliseconds(&spec));
    }
}

#[test]
fn grace_is_the_request_or_the_spec_and_nothing_for_pods_that_do_not_run() {
    let running = json!({
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 30},
        "status": {"phase": "Running"},
    });
    assert_eq!(PodStrategy.grace(&running, None), Grace::Seconds(30));
    assert_eq!(PodStrategy.grace(&running, Some(5)), Grace::Seconds(5));
    assert_eq!(PodStrategy.grace(&running, Some(0)), Grace::Now);
    assert_eq!(PodStrategy.grace(&running, Some(-1)), Grace::Seconds(1));
    assert_eq!(
        PodStrategy.grace(&json!({"spec": {"nodeName": "n1"}}), None),
        Grace::Now
    );
    let mut ended = running.clone();
    ended["status"]["phase"] = json!("Succeeded");
    assert_eq!(PodStrategy.grace(&ended, Some(5)), Grace::Now);
    let mut waiting = running;
    waiting["spec"]["nodeName"] = json!("");
    assert_eq!(PodStrategy.grace(&waiting, None), Grace::Now);
}

#[test]
fn field_selectors_see_the_documented_fields() {
    let pod = json!({
        "spec": {"nodeName": "n1", "schedulerName": "s", "hostNetwork": true},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    });
    for (field, value) in [
        ("spec.nodeName", Some("n1")),
        ("spec.host", Some("n1")),
        ("spec.schedulerName", Some("s")),
        ("spec.hostNetwork", Some("true")),
        ("spec.serviceAccountName", Some("")),
        ("status.phase", Some("Running")),
        ("status.podIP", Some("10.0.0.1")),
        ("status.nominatedNodeName", Some("")),
        ("spec.containers", None),
    ] {
        assert_eq!(PodStrategy.selectable(&pod, field).as_deref(), value, "{field}");
    }
}

#[test]
fn names_that_cannot_be_host_names_are_warned_about() {
    assert!(
        PodStrategy
            .warnings(&json!({"metadata": {"name": "web"}}))
            .is_empty()
    );
    assert_eq!(
        PodStrategy.warnings(&json!({"metadata": {"name": "a.b"}})).len(),
        1
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_rule_panics_and_defaulting_twice_is_defaulting_once(
        new in mangled(stored()), old in mangled(stored()), gate: bool, seconds: Option<i64>,
    ) {
        let (created, _) = create(new.clone(), gate);
        for part in [Part::Main, Part::Status] {
            update(&old, new.clone(), part, gate);
        }
        let _ = PodStrategy.bumps_generation(&new, &old);
        let _ = PodStrategy.grace(&new, seconds);
        let _ = PodStrategy.warnings(&new);
        let now = "2024-05-01T10:00:00Z".parse().unwrap();
        let _ = binding::bind(&new, &old, now);
        let _ = binding::evict(&new, &old, now);
        let again = with_gate(gate, |context| {
            let mut again = created.clone();
            PodStrategy.default(&mut again, context);
            again
        });
        prop_assert_eq!(again, created);
    }
}
