use super::*;
use serde_json::json;

fn node_user() -> User {
    User::new("system:node:n1", &[NODES])
}

fn kind(group: &str, plural: &str) -> &'static Kind {
    Kind::by_resource(group, "v1", plural).unwrap()
}

fn request<'a>(user: &'a User, verb: &'a str, plural: &str, name: &'a str) -> Request<'a> {
    let (group, namespace) = match plural {
        "nodes" => ("", ""),
        "leases" => ("coordination.k8s.io", LEASE_NAMESPACE),
        _ => ("", "default"),
    };
    Request {
        user,
        verb,
        kind: kind(group, plural),
        subresource: "",
        namespace,
        name,
        old: None,
        new: None,
        field_selector_node: None,
        related: false,
    }
}

fn pod_on(node: &str) -> Value {
    json!({"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {"nodeName": node}})
}

#[test]
fn others_are_not_restricted_and_a_nameless_node_may_nothing() {
    let admin = User::new("system:node:n1", &["system:masters"]);
    assert_eq!(check(&request(&admin, "delete", "nodes", "n2")), Ok(()));
    assert!(!applies(&admin));
    let nameless = User::new("kubelet", &[NODES]);
    assert!(check(&request(&nameless, "get", "services", "x")).is_err());
}

#[test]
fn a_node_writes_its_own_node_object_only() {
    let user = node_user();
    let node = json!({"metadata": {"name": "n1"}});
    for verb in ["create", "update", "patch"] {
        let write = Request {
            new: Some(&node),
            ..request(&user, verb, "nodes", "n1")
        };
        assert_eq!(check(&write), Ok(()), "{verb}");
        assert!(check(&Request { name: "n2", ..write }).is_err(), "{verb}");
        assert!(
            check(&Request {
                name: "n2",
                subresource: "status",
                ..write
            })
            .is_err(),
            "{verb}"
        );
    }
    assert_eq!(check(&request(&user, "get", "nodes", "n2")), Ok(()));
    assert!(check(&request(&user, "deletecollection", "nodes", "")).is_err());
}

#[test]
fn a_node_does_not_change_its_taints_owners_or_reserved_labels() {
    let user = node_user();
    let old = json!({"metadata": {"name": "n1", "labels": {"node-restriction.kubernetes.io/a": "b"}}});
    let with = |path: &[&str], text: Value| {
        let mut new = old.clone();
        pointsman_rules::value::set(&mut new, path, text);
        new
    };
    let update = |new: &Value| {
        check(&Request {
            old: Some(&old),
            new: Some(new),
            ..request(&user, "patch", "nodes", "n1")
        })
    };
    assert!(
        update(&with(
            &["spec", "taints"],
            json!([{"key": "k", "effect": "NoExecute"}])
        ))
        .is_err()
    );
    assert_eq!(update(&with(&["spec", "taints"], json!([]))), Ok(()));
    assert!(update(&with(&["metadata", "ownerReferences"], json!([{"name": "x"}]))).is_err());
    assert_eq!(update(&with(&["spec", "providerID"], json!("p"))), Ok(()));
    for (label, allowed) in [
        ("mine", true),
        ("example.com/x", true),
        ("notkubernetes.io/x", true),
        ("kubernetes.io/hostname", true),
        ("topology.kubernetes.io/zone", true),
        ("node.kubernetes.io/anything", true),
        ("node-role.kubernetes.io/master", false),
        ("x.k8s.io/y", false),
        ("node-restriction.kubernetes.io/a", false),
        ("x.node-restriction.kubernetes.io/a", false),
    ] {
        assert_eq!(
            update(&with(&["metadata", "labels", label], json!("new"))).is_ok(),
            allowed,
            "{label}"
        );
        let fresh = json!({"metadata": {"labels": {label: "x"}}});
        let create = Request {
            new: Some(&fresh),
            ..request(&user, "create", "nodes", "n1")
        };
        assert_eq!(check(&create).is_ok(), allowed, "create {label}");
    }
    // Removing a restricted label is a change too.
    assert!(update(&json!({"metadata": {"name": "n1"}})).is_err());
    // At creation a node may bring taints.
    let tainted = json!({"metadata": {"name": "n1"}, "spec": {"taints": [{"key": "k"}]}});
    assert_eq!(
        check(&Request {
            new: Some(&tainted),
            ..request(&user, "create", "nodes", "n1")
        }),
        Ok(())
    );
}

#[test]
fn a_node_neither_sets_nor_changes_nor_drops_its_pod_ranges() {
    let user = node_user();
    let node = |spec: Value| json!({"metadata": {"name": "n1"}, "spec": spec});
    let ranges = |range: &str| node(json!({"podCIDR": range, "podCIDRs": [range]}));
    let (none, empty) = (node(json!({})), node(json!({"podCIDR": "", "podCIDRs": []})));
    let (one, other) = (ranges("10.0.0.0/24"), ranges("0.0.0.0/0"));
    let write = |verb: &str, old: Option<&Value>, new: &Value| {
        check(&Request {
            old,
            new: Some(new),
            ..request(&user, verb, "nodes", "n1")
        })
    };
    for fine in [&none, &empty] {
        assert_eq!(write("create", None, fine), Ok(()));
        assert_eq!(write("patch", Some(&none), fine), Ok(()));
        assert!(write("update", Some(&one), fine).is_err());
    }
    assert_eq!(write("update", Some(&one), &one), Ok(()));
    let grasping = [
        node(json!({"podCIDR": "0.0.0.0/0"})),
        node(json!({"podCIDRs": ["0.0.0.0/0"]})),
    ];
    for new in &grasping {
        assert!(write("create", None, new).is_err(), "{new}");
        assert!(write("patch", Some(&none), new).is_err(), "{new}");
    }
    assert!(write("update", Some(&one), &other).is_err());
}

#[test]
fn a_node_keeps_only_its_own_lease() {
    let user = node_user();
    for verb in ["get", "create", "update", "patch", "delete"] {
        let own = request(&user, verb, "leases", "n1");
        assert_eq!(check(&own), Ok(()), "{verb}");
        assert!(check(&Request { name: "n2", ..own }).is_err());
        assert!(
            check(&Request {
                namespace: "kube-system",
                ..own
            })
            .is_err()
        );
    }
    assert!(check(&request(&user, "list", "leases", "")).is_err());
}

#[test]
fn a_node_reads_reports_and_deletes_its_own_pods() {
    let user = node_user();
    let (own, other) = (pod_on("n1"), pod_on("n2"));
    let mut reported = own.clone();
    reported["status"] = json!({"phase": "Running"});
    for (verb, subresource) in [
        ("get", ""),
        ("delete", ""),
        ("patch", "status"),
        ("update", "status"),
        ("create", "eviction"),
    ] {
        let with = |pod| Request {
            subresource,
            old: Some(pod),
            ..request(&user, verb, "pods", "p")
        };
        assert_eq!(
            check(&Request {
                new: Some(&reported),
                ..with(&own)
            }),
            Ok(()),
            "{verb} {subresource}"
        );
        assert!(check(&with(&other)).is_err(), "{verb} {subresource}");
        assert!(
            check(&Request {
                old: None,
                ..with(&own)
            })
            .is_err(),
            "{verb} {subresource}"
        );
    }
    let mut relabelled = reported.clone();
    relabelled["metadata"]["labels"]["app"] = json!("y");
    let status = Request {
        subresource: "status",
        old: Some(&own),
        ..request(&user, "patch", "pods", "p")
    };
    assert!(
        check(&Request {
            new: Some(&relabelled),
            ..status
        })
        .is_err()
    );
    for verb in ["create", "update", "patch", "deletecollection"] {
        let write = Request {
            old: Some(&own),
            new: Some(&own),
            ..request(&user, verb, "pods", "p")
        };
        assert!(check(&write).is_err(), "{verb}");
    }
    assert!(
        check(&Request {
            subresource: "binding",
            old: Some(&own),
            ..request(&user, "create", "pods", "p")
        })
        .is_err()
    );
}

#[test]
fn listing_pods_needs_the_selector_of_its_own_node() {
    let user = node_user();
    for verb in ["list", "watch"] {
        let list = request(&user, verb, "pods", "");
        assert!(check(&list).is_err());
        assert!(
            check(&Request {
                field_selector_node: Some("n2"),
                ..list
            })
            .is_err()
        );
        assert_eq!(
            check(&Request {
                field_selector_node: Some("n1"),
                ..list
            }),
            Ok(())
        );
    }
    assert_eq!(check(&request(&user, "list", "services", "")), Ok(()));
}

#[test]
fn a_node_reads_what_its_pods_name_and_its_settings() {
    let user = node_user();
    for plural in ["secrets", "configmaps", "serviceaccounts"] {
        for verb in ["get", "list", "watch"] {
            let read = request(&user, verb, plural, "x");
            assert!(
                check(&read).unwrap_err().contains("no relationship found"),
                "{plural}"
            );
            assert_eq!(
                check(&Request {
                    related: true,
                    ..read
                }),
                Ok(())
            );
            let whole = request(&user, verb, plural, "");
            assert!(check(&whole).is_err(), "all {plural} at once");
        }
        let write = Request {
            related: true,
            ..request(&user, "update", plural, "x")
        };
        assert!(check(&write).is_err());
    }
    let settings = |namespace: &'static str, name: &'static str| Request {
        namespace,
        ..request(&user, "watch", "configmaps", name)
    };
    assert_eq!(check(&settings("kube-system", "pointsman-node")), Ok(()));
    assert!(check(&settings("default", "pointsman-node")).is_err());
    assert!(check(&settings("kube-system", "pointsman-controllers")).is_err());
}

#[test]
fn a_node_gets_tokens_of_its_own_pods() {
    let user = node_user();
    let own = ["api".to_owned()];
    let drivers = [json!({"spec": {"tokenRequests": [{"audience": "storage"}]}})];
    let pod = |node: &str| {
        let tokens =
            json!([{"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"audience": "vault"}}]);
        let mut pod = pod_on(node);
        pod["spec"]["volumes"] = json!([{"projected": {"sources": tokens}}]);
        pod
    };
    let asked = |uid: &str, audience: &str| json!({"spec": {"audiences": [audience], "boundObjectRef": {"kind": "Pod", "uid": uid}}});
    let check = |user: &User, asked: Value, pod: Option<Value>| {
        check_token(user, &asked, pod.as_ref(), &own, &drivers)
    };
    assert_eq!(check(&user, asked("u", "api"), Some(pod("n1"))), Ok(()));
    assert_eq!(check(&user, asked("u", "vault"), Some(pod("n1"))), Ok(()));
    assert_eq!(
        check(&user, asked("u", "storage"), Some(pod_on("n1"))),
        Ok(()),
        "its driver asks for it"
    );
    assert!(
        check(&user, asked("u", "other"), Some(pod("n1"))).is_err(),
        "nobody asks for it"
    );
    assert!(
        check(&user, asked("u", "api"), Some(pod_on("n1"))).is_err(),
        "it declined"
    );
    assert!(check(&user, asked("u", "api"), Some(pod("n2"))).is_err());
    assert!(check(&user, asked("u", "api"), Some(pod(""))).is_err());
    assert!(check(&user, asked("", "api"), Some(pod("n1"))).is_err());
    assert!(check(&user, asked("u", "api"), None).is_err());
    let nameless = User::new("kubelet", &[NODES]);
    assert!(check(&nameless, asked("u", "api"), Some(pod("n1"))).is_err());
    let admin = User::new("admin", &["system:masters"]);
    assert_eq!(check(&admin, json!({}), None), Ok(()));
}

#[test]
fn a_node_says_and_reads_of_storage_devices_and_certificates_what_is_its_own() {
    let user = node_user();
    let about = |node: &str| json!({"metadata": {"name": "x"}, "spec": {"nodeName": node}});
    let (own, other) = (about("n1"), about("n2"));
    let ask = |verb, group, plural, name| Request {
        kind: kind(group, plural),
        ..request(&user, verb, "services", name)
    };
    for verb in ["get", "create", "update", "patch", "delete"] {
        let csi = |name| check(&ask(verb, "storage.k8s.io", "csinodes", name));
        assert!(csi("n1").is_ok() && csi("n2").is_err(), "{verb}");
    }
    for (verb, group, plural) in [
        ("get", "storage.k8s.io", "volumeattachments"),
        ("delete", "resource.k8s.io", "resourceslices"),
        ("deletecollection", "resource.k8s.io", "resourceslices"),
        ("get", "certificates.k8s.io", "podcertificaterequests"),
    ] {
        let of = |object| {
            check(&Request {
                old: Some(object),
                ..ask(verb, group, plural, "x")
            })
        };
        assert!(of(&own).is_ok() && of(&other).is_err(), "{verb} {plural}");
    }
    let slices = |old, new| {
        check(&Request {
            old: Some(old),
            new: Some(new),
            ..ask("update", "resource.k8s.io", "resourceslices", "x")
        })
    };
    assert!(slices(&own, &own).is_ok() && slices(&own, &other).is_err() && slices(&other, &own).is_err());
    let certify = |new, related| {
        check(&Request {
            new: Some(new),
            related,
            ..ask("create", "certificates.k8s.io", "podcertificaterequests", "x")
        })
    };
    assert!(certify(&own, true).is_ok());
    assert!(certify(&own, false).is_err() && certify(&other, true).is_err());
    let list = ask("list", "certificates.k8s.io", "podcertificaterequests", "");
    assert!(check(&list).is_err());
    assert_eq!(
        check(&Request {
            field_selector_node: Some("n1"),
            ..list
        }),
        Ok(())
    );
    let claim = ask("get", "resource.k8s.io", "resourceclaims", "x");
    assert!(check(&claim).is_err());
    assert_eq!(
        check(&Request {
            related: true,
            ..claim
        }),
        Ok(())
    );
}
