use super::*;
use crate::kinds;
use crate::strategy::mangled::{any_json, mangled};
use proptest::prelude::*;

fn now() -> Timestamp {
    "2024-05-01T10:00:00Z".parse().unwrap()
}

fn kind(api_version: &str, kind: &str) -> &'static Kind {
    Kind::by_type(api_version, kind).unwrap()
}

/// The row of an object that is 140 seconds old and named `x`, cells separated by bars.
fn line(kind: &Kind, mut object: Value) -> String {
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2024-05-01T09:57:40Z");
    let cells: Vec<String> = kind
        .printer
        .cells(&object, now())
        .iter()
        .map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned))
        .collect();
    cells.join("|")
}

/// The narrow cells of a pod after its name: ready, status, restarts.
fn pod(object: Value) -> String {
    let line = line(&kinds::POD, object);
    let cells: Vec<&str> = line.split('|').collect();
    cells[1..4].join("|")
}

fn running(name: &str) -> Value {
    json!({"name": name, "ready": true, "state": {"running": {}}})
}

fn ended(name: &str, exit_code: i64, reason: &str) -> Value {
    json!({"name": name, "state": {"terminated": {"exitCode": exit_code, "reason": reason}}})
}

#[test]
fn headings_are_kubectls_own() {
    let headings = |api_version, name| {
        let columns = kind(api_version, name).printer.columns;
        let names: Vec<String> = columns
            .iter()
            .map(|column| {
                let wide = if column.priority > 0 { "+" } else { "" };
                format!("{wide}{}", column.name)
            })
            .collect();
        names.join(" | ")
    };
    for (api_version, name, expected) in [
        (
            "v1",
            "Pod",
            "Name | Ready | Status | Restarts | Age | +IP | +Node | +Nominated Node | +Readiness Gates",
        ),
        (
            "v1",
            "Service",
            "Name | Type | Cluster-IP | External-IP | Port(s) | Age | +Selector",
        ),
        ("v1", "Endpoints", "Name | Endpoints | Age"),
        (
            "v1",
            "Node",
            "Name | Status | Roles | Age | Version | +Internal-IP | +External-IP | +OS-Image | +Kernel-Version | \
             +Container-Runtime",
        ),
        (
            "v1",
            "Event",
            "Last Seen | Type | Reason | Object | +Subobject | +Source | Message | +First Seen | +Count | +Name",
        ),
        ("v1", "Namespace", "Name | Status | Age"),
        ("v1", "ConfigMap", "Name | Data | Age"),
        ("v1", "ServiceAccount", "Name | Age"),
        (
            "apps/v1",
            "Deployment",
            "Name | Ready | Up-to-date | Available | Age | +Containers | +Images | +Selector",
        ),
        (
            "apps/v1",
            "ReplicaSet",
            "Name | Desired | Current | Ready | Age | +Containers | +Images | +Selector",
        ),
        (
            "apps/v1",
            "DaemonSet",
            "Name | Desired | Current | Ready | Up-to-date | Available | Node Selector | Age | +Containers | \
             +Images | +Selector",
        ),
        ("coordination.k8s.io/v1", "Lease", "Name | Holder | Age"),
        (
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "Name | AddressType | Ports | Endpoints | Age",
        ),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", "Name | Created At"),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "Name | Role | Age | +Users | +Groups | +ServiceAccounts",
        ),
        ("config.openshift.io/v1", "Node", "Name | Profile | Age"),
    ] {
        assert_eq!(headings(api_version, name), expected);
    }
}

#[test]
fn a_running_pod_shows_where_it_is() {
    let object = json!({
        "spec": {"containers": [{"name": "a"}], "nodeName": "n1", "readinessGates": [{"conditionType": "lb"}]},
        "status": {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.5"}],
            "conditions": [{"type": "lb", "status": "True"}],
            "containerStatuses": [{
                "name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2024-05-01T09:57:00Z"}},
            }],
        },
    });
    assert_eq!(
        line(&kinds::POD, object),
        "x|1/1|Running|2 (3m ago)|2m20s|10.0.0.5|n1|<none>|1/1"
    );
    assert_eq!(
        line(&kinds::POD, json!({"status": {"phase": "Pending"}})),
        "x|0/0|Pending|0|2m20s|<none>|<none>|<none>|<none>"
    );
}

#[test]
fn a_pod_in_trouble_says_what_kind() {
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (status, expected) in [
        (
            json!({"phase": "Running", "containerStatuses": [
                {"name": "a", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}, running("b"),
            ]}),
            "1/2|CrashLoopBackOff|4",
        ),
        (
            json!({"phase": "Succeeded", "containerStatuses": [ended("a", 0, "Completed"), ended("b", 0, "Completed")]}),
            "0/2|Completed|0",
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [ended("a", 0, "Completed"), ended("b", 1, "Error")]}),
            "0/2|Error|0",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [ended("a", 0, "Completed"), running("b")]}),
            "1/2|NotReady|0",
        ),
        (
            json!({"phase": "Running", "conditions": ready, "containerStatuses": [
                ended("a", 0, "Completed"), running("b"),
            ]}),
            "1/2|Running|0",
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"signal": 9}}}]}),
            "0/2|Signal:9|0",
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 3}}}]}),
            "0/2|ExitCode:3|0",
        ),
        (json!({"phase": "Failed", "reason": "Evicted"}), "0/2|Evicted|0"),
        (
            json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
            ]}),
            "0/2|SchedulingGated|0",
        ),
    ] {
        assert_eq!(pod(json!({"spec": spec, "status": status})), expected, "{status}");
    }
}

#[test]
fn an_initializing_pod_says_how_far_it_is() {
    let spec = json!({
        "containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "side", "restartPolicy": "Always"}, {"name": "j"}],
    });
    let started =
        json!({"name": "side", "started": true, "ready": true, "restartCount": 1, "state": {"running": {}}});
    for (statuses, expected) in [
        (json!([{"name": "i", "state": {"running": {}}}]), "0/2|Init:0/3|0"),
        (
            json!([ended("i", 0, "Completed"), started, {"name": "j", "state": {"waiting": {"reason": "PodInitializing"}}}]),
            "1/2|Init:2/3|1",
        ),
        (
            json!([{"name": "i", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
            "0/2|Init:CrashLoopBackOff|3",
        ),
        (json!([ended("i", 1, "Error")]), "0/2|Init:Error|0"),
        (json!([ended("i", 2, "")]), "0/2|Init:ExitCode:2|0"),
    ] {
        let status = json!({"phase": "Pending", "initContainerStatuses": statuses});
        assert_eq!(
            pod(json!({"spec": spec, "status": status})),
            expected,
            "{statuses}"
        );
    }
    let status = json!({
        "phase": "Running",
        "initContainerStatuses": [ended("i", 0, "Completed"), started, ended("j", 0, "Completed")],
        "containerStatuses": [running("a")],
    });
    assert_eq!(pod(json!({"spec": spec, "status": status})), "2/2|Running|1");
}

#[test]
fn a_pod_that_goes_away_is_terminating_or_lost() {
    let mut object = json!({
        "metadata": {"deletionTimestamp": "2024-05-01T10:00:10Z"},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Running", "containerStatuses": [running("a")]},
    });
    assert_eq!(pod(object.clone()), "1/1|Terminating|0");
    object["status"]["reason"] = json!("NodeLost");
    assert_eq!(pod(object.clone()), "1/1|Unknown|0");
    object["status"] = json!({"phase": "Succeeded"});
    assert_eq!(pod(object), "0/1|Succeeded|0");
}

#[test]
fn services_show_addresses_and_ports() {
    let service = &kinds::SERVICE;
    for (object, expected) in [
        (
            json!({"spec": {
                "type": "ClusterIP", "clusterIPs": ["10.96.0.1"], "selector": {"b": "2", "a": "1"},
                "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
            }}),
            "x|ClusterIP|10.96.0.1|<none>|80/TCP,53/UDP|2m20s|a=1,b=2",
        ),
        (
            json!({"spec": {
                "type": "NodePort", "clusterIPs": ["10.96.0.1", "fd00::1"], "externalIPs": ["192.0.2.1"],
                "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}],
            }}),
            "x|NodePort|10.96.0.1|192.0.2.1|80:30080/TCP|2m20s|<none>",
        ),
        (
            json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]}}),
            "x|LoadBalancer|10.96.0.1|<pending>|<none>|2m20s|<none>",
        ),
        (
            json!({
                "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]},
                "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}, {"hostname": "a.example.com"}]}},
            }),
            "x|LoadBalancer|10.96.0.1|203.0.113.9,a.example.com|<none>|2m20s|<none>",
        ),
        (
            json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
            "x|ExternalName|<none>|example.com|<none>|2m20s|<none>",
        ),
        (
            json!({"spec": {"type": "ClusterIP", "clusterIPs": ["None"]}}),
            "x|ClusterIP|None|<none>|<none>|2m20s|<none>",
        ),
    ] {
        assert_eq!(line(service, object.clone()), expected, "{object}");
    }
}

#[test]
fn endpoints_and_slices_show_three_and_count_the_rest() {
    let endpoints = &kinds::ENDPOINTS;
    assert_eq!(line(endpoints, json!({})), "x|<none>|2m20s");
    let addresses: Vec<Value> = (1..=5).map(|n| json!({"ip": format!("10.0.0.{n}")})).collect();
    let subset =
        json!({"addresses": addresses, "notReadyAddresses": [{"ip": "10.9.9.9"}], "ports": [{"port": 80}]});
    assert_eq!(
        line(endpoints, json!({"subsets": [subset]})),
        "x|10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more...|2m20s"
    );
    let bare = json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]});
    assert_eq!(line(endpoints, bare), "x|10.0.0.1|2m20s");
    let six = json!({"subsets": [{"addresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}]});
    assert_eq!(line(endpoints, six), "x|[fd00::1]:80|2m20s");

    let slice = &kinds::ENDPOINT_SLICE;
    let endpoint = |ip: &str| json!({"addresses": [ip], "conditions": {"ready": false}});
    let object = json!({
        "addressType": "IPv4",
        "ports": [{"port": 80}, {"name": "any"}, {}],
        "endpoints": [endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("10.0.0.3"), endpoint("10.0.0.4")],
    });
    assert_eq!(
        line(slice, object),
        "x|IPv4|80,any,*|10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...|2m20s"
    );
    assert_eq!(
        line(slice, json!({"addressType": "IPv6"})),
        "x|IPv6|<unset>|<unset>|2m20s"
    );
}

#[test]
fn nodes_show_readiness_and_roles() {
    let node = &kinds::NODE;
    let object = json!({
        "metadata": {"labels": {
            "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/": "", "kubernetes.io/role": "edge",
        }},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.1.0.1"}],
            "nodeInfo": {
                "kubeletVersion": "v1.37.0", "osImage": "Debian 12", "kernelVersion": "6.1.0",
                "architecture": "amd64", "containerRuntimeVersion": "pointsman://0.1",
            },
        },
    });
    assert_eq!(
        line(node, object),
        "x|Ready,SchedulingDisabled|edge,worker|2m20s|v1.37.0|10.1.0.1|<none>|Debian 12|6.1.0 (amd64)|\
         pointsman://0.1"
    );
    let status = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    assert!(line(node, status("Unknown")).starts_with("x|NotReady|<none>|"));
    assert!(line(node, json!({})).starts_with("x|Unknown|<none>|"));
}

#[test]
fn workloads_show_counts_and_templates() {
    let spec = json!({
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"spec": {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]}},
    });
    let status = json!({"replicas": 2, "readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1});
    let object = json!({"spec": spec, "status": status});
    assert_eq!(
        line(&kinds::DEPLOYMENT, object.clone()),
        "x|1/3|2|1|2m20s|a,b|a:1,b:2|app=web"
    );
    assert_eq!(
        line(&kinds::REPLICA_SET, object),
        "x|3|2|1|2m20s|a,b|a:1,b:2|app=web"
    );
}

#[test]
fn events_show_what_happened_in_either_spelling() {
    let core = json!({
        "type": "Warning", "reason": "Unhealthy", "message": " Probe failed \n", "count": 4,
        "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{web}"},
        "source": {"component": "kubelet", "host": "n1"},
        "firstTimestamp": "2024-05-01T09:00:00Z", "lastTimestamp": "2024-05-01T09:59:30Z",
    });
    assert_eq!(
        line(&kinds::EVENT, core),
        "30s|Warning|Unhealthy|pod/web|spec.containers{web}|kubelet, n1|Probe failed|60m|4|x"
    );
    let new = json!({
        "type": "Normal", "reason": "Scheduled", "note": "Bound", "reportingController": "scheduler",
        "regarding": {"kind": "Pod", "name": "web"}, "eventTime": "2024-05-01T09:59:00.000000Z",
    });
    assert_eq!(
        line(&kinds::EVENT_VIEW, new),
        "60s|Normal|Scheduled|pod/web||scheduler|Bound|60s|1|x"
    );
    let series = json!({
        "eventTime": "2024-05-01T09:00:00.000000Z",
        "series": {"count": 7, "lastObservedTime": "2024-05-01T09:59:55.000000Z"},
    });
    assert_eq!(line(&kinds::EVENT, series), "5s|||||||60m|7|x");
}

#[test]
fn small_kinds_show_their_one_fact() {
    let rbac = "rbac.authorization.k8s.io/v1";
    for (api_version, name, object, expected) in [
        (
            "v1",
            "Namespace",
            json!({"status": {"phase": "Active"}}),
            "x|Active|2m20s",
        ),
        (
            "v1",
            "ConfigMap",
            json!({"data": {"a": "1"}, "binaryData": {"b": ""}}),
            "x|2|2m20s",
        ),
        ("v1", "ServiceAccount", json!({}), "x|2m20s"),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({"spec": {"holderIdentity": "n1"}}),
            "x|n1|2m20s",
        ),
        (rbac, "Role", json!({}), "x|2024-05-01T09:57:40Z"),
        (
            rbac,
            "ClusterRoleBinding",
            json!({
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [
                    {"kind": "User", "name": "ann"}, {"kind": "User", "name": "bob"},
                    {"kind": "Group", "name": "ops"},
                    {"kind": "ServiceAccount", "namespace": "ci", "name": "robot"},
                ],
            }),
            "x|ClusterRole/view|2m20s|ann, bob|ops|ci/robot",
        ),
        (
            "config.openshift.io/v1",
            "Node",
            json!({"spec": {"workerLatencyProfile": "LowUpdateSlowReaction"}}),
            "x|LowUpdateSlowReaction|2m20s",
        ),
        ("config.openshift.io/v1", "Node", json!({}), "x|Default|2m20s"),
        (
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            json!({
                "spec": {"signerName": "a/b", "username": "ann", "expirationSeconds": 3600},
                "status": {"conditions": [{"type": "Approved"}], "certificate": "LS0t"},
            }),
            "x|2m20s|a/b|ann|60m|Approved,Issued",
        ),
        (
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "a/b", "username": "ann"}}),
            "x|2m20s|a/b|ann|<none>|Pending",
        ),
    ] {
        assert_eq!(line(kind(api_version, name), object), expected);
    }
}

#[test]
fn a_table_carries_columns_cells_and_the_asked_part_of_each_object() {
    let pod = &kinds::POD;
    let object = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "web", "resourceVersion": "7"},
        "status": {"phase": "Succeeded"},
    });
    let list = json!({"resourceVersion": "9", "continue": "t", "remainingItemCount": 1});
    let rendered = |include| table(pod, [&object].into_iter(), include, list.clone(), now());
    let shown = rendered(IncludeObject::Metadata);
    assert_eq!(shown["kind"], "Table");
    assert_eq!(shown["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(shown["metadata"], list);
    assert_eq!(
        shown["columnDefinitions"][0],
        json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name of the object, unique among its kind in a namespace.",
        })
    );
    assert_eq!(
        shown["rows"][0]["object"],
        json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": "web", "resourceVersion": "7"},
        })
    );
    assert_eq!(shown["rows"][0]["conditions"][0]["type"], "Completed");
    assert_eq!(rendered(IncludeObject::Object)["rows"][0]["object"], object);
    assert_eq!(rendered(IncludeObject::None)["rows"][0]["object"], Value::Null);
    let empty = table(pod, std::iter::empty(), IncludeObject::None, json!({}), now());
    assert_eq!(empty["rows"], json!([]));
}

#[test]
fn watch_events_name_columns_once_and_keep_the_mark_of_the_initial_list() {
    let lease = &kinds::LEASE;
    let object = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
    let first = table_event_object(lease, &object, IncludeObject::None, true, now());
    assert_eq!(first["columnDefinitions"].as_array().unwrap().len(), 3);
    assert_eq!(first["metadata"]["resourceVersion"], "7");
    let later = table_event_object(lease, &object, IncludeObject::None, false, now());
    assert_eq!(later["columnDefinitions"], Value::Null);
    assert_eq!(later["rows"], first["rows"]);
    let mark = json!({"metadata": {"annotations": {"k8s.io/initial-events-end": "true"}}});
    let marked = table_event_object(lease, &mark, IncludeObject::None, false, now());
    assert_eq!(
        marked["rows"][0]["object"]["metadata"]["annotations"],
        mark["metadata"]["annotations"]
    );
}

#[test]
fn the_query_parameter_has_three_values() {
    assert_eq!(IncludeObject::parse(None), Some(IncludeObject::Metadata));
    assert_eq!(IncludeObject::parse(Some("Object")), Some(IncludeObject::Object));
    assert_eq!(IncludeObject::parse(Some("None")), Some(IncludeObject::None));
    assert_eq!(IncludeObject::parse(Some("All")), None);
}

/// An object with something in every place that a table reads.
fn everything() -> Value {
    let status = json!({
        "name": "a", "ready": true, "started": true, "restartCount": 1,
        "state": {"running": {}, "terminated": {"exitCode": 1}, "waiting": {"reason": "Why"}},
        "lastState": {"terminated": {"finishedAt": "2024-05-01T09:00:00Z"}},
    });
    json!({
        "metadata": {
            "name": "a", "creationTimestamp": "2024-05-01T09:00:00Z", "labels": {"kubernetes.io/role": "r"},
        },
        "spec": {
            "containers": [{"name": "a"}], "initContainers": [{"name": "a", "restartPolicy": "Always"}],
            "readinessGates": [{"conditionType": "a"}], "type": "LoadBalancer", "clusterIPs": ["a"],
            "externalIPs": ["a"], "ports": [{"port": 1, "nodePort": 2}],
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
            "template": {"spec": {"containers": [{"name": "a", "image": "b"}]}},
        },
        "status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "a"}],
            "containerStatuses": [status], "initContainerStatuses": [status],
            "addresses": [{"type": "InternalIP", "address": "a"}], "nodeInfo": {"architecture": "a"},
            "loadBalancer": {"ingress": [{"ip": "a"}]},
        },
        "subsets": [{"addresses": [{"ip": "a"}], "ports": [{"port": 1}]}],
        "endpoints": [{"addresses": ["a"]}],
        "series": {"count": 1, "lastObservedTime": "2024-05-01T09:00:00Z"},
        "subjects": [{"kind": "User", "name": "a"}],
        "data": {"a": "b"},
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_value_has_a_row_with_a_cell_per_column(object in prop_oneof![mangled(everything()), any_json()]) {
        for kind in kinds::ALL.iter() {
            prop_assert_eq!(kind.printer.cells(&object, now()).len(), kind.printer.columns.len());
            let shown = table_event_object(kind, &object, IncludeObject::Metadata, true, now());
            prop_assert!(shown["rows"][0]["cells"].is_array());
        }
    }
}
