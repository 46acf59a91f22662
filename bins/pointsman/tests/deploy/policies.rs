//! Do the manifests leave out every right that a role can do without?
//!
//! The embedded server evaluates no admission policies; here is checked that they are well formed, complete and
//! bound, and that the shutdown gate's asks what the gate knows. What the probers' lets through was seen on a kube-apiserver of Kubernetes 1.37: a prober's token changes its condition
//! of pods of its node, and is refused other nodes' pods, other conditions and fields, labels, annotations and finalizers.
//! The gate's was seen there to add its hook, with bounds of 1 s, 3 s and 5 s for grace periods of 4 s, 9 s and 12 s, and to leave
//! alone pods with 3 s and those with a hook.

use super::{deploy, documents, folders};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pointsman_harness::Server;
use pointsman_protocol::gate::{Question, Subject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The objects of a kind in a folder, each also as the type that clients have for it. A field that the type does not
/// have would be lost on the way.
async fn typed<T: DeserializeOwned + Serialize>(server: &Server, folder: &str, kind: &str) -> Vec<T> {
    let mut found = Vec::new();
    for object in objects(server, folder).await {
        if object["kind"] == kind {
            let typed: T = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(serde_json::to_value(&typed).unwrap(), object);
            found.push(typed);
        }
    }
    found
}

async fn objects(server: &Server, folder: &str) -> Vec<Value> {
    let documents = documents(server, &deploy().join(folder)).await;
    let read = |text: &String| serde_saphyr::from_str(text).unwrap();
    documents.iter().map(read).collect()
}

async fn workloads(server: &Server) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for folder in folders() {
        let folder = folder.file_name().unwrap().to_str().unwrap().to_owned();
        for object in objects(server, &folder).await {
            if object["spec"]["template"].is_object() {
                found.push((folder.clone(), object["spec"]["template"].clone()));
            }
        }
    }
    found
}

/// The expressions of the one policy in a folder, which is bound everywhere and about this account.
async fn checks(folder: &str, account: &str, resource: &str) -> String {
    let server = Server::start(&[]).await;
    let policies: Vec<ValidatingAdmissionPolicy> = typed(&server, folder, "ValidatingAdmissionPolicy").await;
    let bindings: Vec<ValidatingAdmissionPolicyBinding> =
        typed(&server, folder, "ValidatingAdmissionPolicyBinding").await;
    let ([policy], [binding]) = (policies.as_slice(), bindings.as_slice()) else {
        panic!("there is one policy and one binding: {policies:?} {bindings:?}");
    };
    let bound = &binding.spec;
    assert_eq!(Some(&bound.policy_name), policy.metadata.name.as_ref());
    assert_eq!(bound.validation_actions, ["Deny"]);
    assert!(bound.match_resources.is_none(), "it holds in every namespace");
    let spec = policy.spec.as_ref().unwrap();
    assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
    let constraints = spec.match_constraints.as_ref().unwrap();
    let rules = constraints.resource_rules.as_ref().unwrap();
    let resources = rules[0].resources.as_ref().unwrap();
    assert!(resources.contains(&resource.to_owned()), "{resources:?}");
    let account = format!("system:serviceaccount:kube-system:{account}");
    let conditions = spec.match_conditions.as_ref().unwrap();
    assert!(conditions.iter().all(|it| it.expression.contains(&account)));
    let variables = spec.variables.iter().flatten();
    let validations = spec.validations.iter().flatten();
    let all = variables
        .map(|it| it.expression.as_str())
        .chain(validations.map(|it| it.expression.as_str()));
    let text = all.collect::<Vec<_>>().join("\n");
    is_balanced(&text);
    text
}

fn is_balanced(text: &str) {
    let count = |sign| text.matches(sign).count();
    assert_eq!(count('('), count(')'), "{text}");
    assert_eq!(count('['), count(']'), "{text}");
    assert_eq!(count('{'), count('}'), "{text}");
    assert_eq!(count('"') % 2, 0, "{text}");
}

fn looks_at(text: &str, needed: &[&str]) {
    for needed in needed {
        assert!(text.contains(needed), "nothing looks at {needed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prober_is_held_to_its_condition_on_pods_of_its_own_node() {
    let text = checks("probe-only", "pointsman-probe", "pods/*").await;
    looks_at(
        &text,
        &[
            "authentication.kubernetes.io/node-name",
            "oldObject.?spec.nodeName",
            pointsman_probe_only::GATE,
            "object.status.all(",
            "metadata.?labels",
            "metadata.?annotations",
            "metadata.?finalizers",
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_held_to_the_lease_of_its_own_node() {
    let text = checks("proxy", "pointsman-proxy", "leases").await;
    looks_at(
        &text,
        &[
            "authentication.kubernetes.io/node-name",
            "variables.tokenNode == object.metadata.name",
            "request.namespace == \"pointsman-peers\"",
        ],
    );
}

/// What an expression that only puts texts together becomes.
fn put_together(expression: &str, values: &[(&str, &str)]) -> String {
    let part = |part: &str| {
        let text = part
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .map(str::to_owned);
        text.unwrap_or_else(|| {
            let value = values.iter().find(|(name, _)| *name == part);
            value.unwrap_or_else(|| panic!("what is {part}?")).1.to_owned()
        })
    };
    expression.split('+').map(|it| part(it.trim())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gates_policy_asks_a_question_that_the_gate_knows_in_labelled_namespaces_only() {
    let server = Server::start(&[]).await;
    let policies: Vec<MutatingAdmissionPolicy> = typed(&server, "gate", "MutatingAdmissionPolicy").await;
    let bindings: Vec<MutatingAdmissionPolicyBinding> =
        typed(&server, "gate", "MutatingAdmissionPolicyBinding").await;
    let ([policy], [binding]) = (policies.as_slice(), bindings.as_slice()) else {
        panic!("there is one policy and one binding: {policies:?} {bindings:?}");
    };
    let (bound, spec) = (binding.spec.as_ref().unwrap(), policy.spec.as_ref().unwrap());
    assert_eq!(bound.policy_name, policy.metadata.name);
    let resources = bound.match_resources.as_ref().unwrap();
    let labels = resources
        .namespace_selector
        .as_ref()
        .unwrap()
        .match_labels
        .as_ref();
    let labels: Vec<_> = labels.unwrap().iter().collect();
    assert_eq!(
        labels,
        [(&"pointsman.io/shutdown-gate".to_owned(), &"enabled".to_owned())]
    );

    assert_eq!(
        spec.failure_policy.as_deref(),
        Some("Ignore"),
        "a pod is created all the same"
    );
    let rules = spec
        .match_constraints
        .as_ref()
        .unwrap()
        .resource_rules
        .as_ref()
        .unwrap();
    assert_eq!(
        rules[0].operations.as_deref(),
        Some(["CREATE".to_owned()].as_slice())
    );
    assert_eq!(
        rules[0].resources.as_deref(),
        Some(["pods".to_owned()].as_slice())
    );
    let variable = |name: &str| {
        let mut variables = spec.variables.iter().flatten();
        let found = variables.find(|it| it.name == name);
        found
            .unwrap_or_else(|| panic!("no variable {name}"))
            .expression
            .as_str()
    };
    let conditions = spec
        .match_conditions
        .iter()
        .flatten()
        .map(|it| it.expression.as_str());
    let patches = spec.mutations.iter().flatten();
    let patches: Vec<&str> = patches
        .map(|it| it.json_patch.as_ref().unwrap().expression.as_deref().unwrap())
        .collect();
    let variables = spec.variables.iter().flatten().map(|it| it.expression.as_str());
    for text in conditions.chain(variables).chain(patches.iter().copied()) {
        is_balanced(text);
    }
    // All but the annotation is for pods without a hook of their own.
    let (annotation, others) = patches.split_first().unwrap();
    looks_at(annotation, &["pointsman.io/shutdown-gate-hook", "variables.said"]);
    assert_eq!(others.len(), 2);
    assert!(
        others.iter().all(|it| it.starts_with("variables.hasHook ? [] :")),
        "{others:?}"
    );
    assert_eq!(
        variable("hook"),
        r#"{"exec": {"command": ["sh", "-c", variables.command]}}"#
    );

    let url = put_together(
        variable("url"),
        &[("request.namespace", "shop"), ("variables.bound", "5s")],
    );
    let (host, asked) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let services: Vec<Service> = typed(&server, "sli", "Service").await;
    let gate = services
        .iter()
        .find(|it| it.metadata.name.as_deref() == Some("pointsman-gate"));
    let gate = gate.expect("the gate has a Service");
    let port = gate.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port;
    let namespace = gate.metadata.namespace.as_deref().unwrap();
    assert_eq!(host, format!("pointsman-gate.{namespace}.svc:{port}"));
    let (path, query) = asked.split_once('?').unwrap();
    let shell = |text: &str| {
        text.replace("$POINTSMAN_POD_NAME", "web-1")
            .replace("$POINTSMAN_POD_UID", "u1")
    };
    let question = Question::decode(&format!("/{}", shell(path)), &shell(query)).unwrap();
    let about = Subject::Pod {
        pod: "shop/web-1".into(),
        uid: "u1".into(),
    };
    assert_eq!(question.subject, about);
    let waits = question.bound.unwrap() + question.drain;
    // Without it, servers that end at once lose the requests they have.
    assert_eq!(question.drain.as_secs(), 1);
    for name in ["POINTSMAN_POD_NAME", "POINTSMAN_POD_UID"] {
        assert!(variable("names").contains(&format!("dyn(\"{name}\")")));
    }
    for patience in ["wget -qO- -T ", "curl -fsS -m "] {
        let (_, rest) = variable("command").split_once(patience).unwrap();
        let seconds: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(
            seconds > waits.as_secs(),
            "{patience} gives up before the gate answers"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_have_the_rights_they_need_and_no_others() {
    let server = Server::start(&[]).await;
    for (folder, template) in workloads(&server).await {
        let pod = &template["spec"];
        for container in pod["containers"].as_array().unwrap() {
            let own = &container["securityContext"];
            let either = |field: &str| match &own[field] {
                Value::Null => pod["securityContext"][field].clone(),
                own => own.clone(),
            };
            assert_eq!(own["readOnlyRootFilesystem"], true, "{folder}");
            if folder == "proxy" {
                // iptables mode writes sysctls; `proxy-nftables` is the one with fewer rights.
                assert_eq!(own["privileged"], true);
                continue;
            }
            assert_eq!(own["allowPrivilegeEscalation"], false, "{folder}");
            assert_eq!(own["privileged"], Value::Null, "{folder}");
            assert_eq!(own["capabilities"]["drop"], json!(["ALL"]), "{folder}");
            assert_eq!(either("seccompProfile")["type"], "RuntimeDefault", "{folder}");
            let added = match &*folder {
                "proxy-nftables" => json!(["NET_ADMIN", "NET_RAW"]),
                "observer" => json!(["NET_ADMIN"]),
                _ => Value::Null,
            };
            assert_eq!(own["capabilities"]["add"], added, "{folder}");
            assert_eq!(either("runAsNonRoot") == true, added.is_null(), "{folder}");
        }
        assert_eq!(pod["automountServiceAccountToken"], true, "{folder}");
        for field in ["hostPID", "hostIPC"] {
            assert_eq!(pod[field], Value::Null, "{folder}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_give_no_token_to_pods_that_do_not_ask() {
    let server = Server::start(&[]).await;
    for folder in folders() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        for object in objects(&server, name).await {
            if object["kind"] == "ServiceAccount" {
                assert_eq!(object["automountServiceAccountToken"], false, "{name}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_take_one_of_several_replicas_at_a_time_and_wait_for_nothing_else() {
    let server = Server::start(&[]).await;
    let mut several = Vec::new();
    for folder in folders() {
        let folder = folder.file_name().unwrap().to_str().unwrap();
        let objects = objects(&server, folder).await;
        let mut deployments = objects.iter().filter(|object| object["kind"] == "Deployment");
        let workload = deployments.find(|object| object["spec"]["replicas"].as_u64() > Some(1));
        let budgets: Vec<PodDisruptionBudget> = typed(&server, folder, "PodDisruptionBudget").await;
        // Pods of a DaemonSet are left alone by drains, and a budget for a single replica protects nothing or blocks them.
        assert_eq!(budgets.len(), usize::from(workload.is_some()), "{folder}");
        let (Some(workload), [budget]) = (workload, budgets.as_slice()) else {
            continue;
        };
        several.push(folder.to_owned());
        let spec = budget.spec.as_ref().unwrap();
        // Unlike a number of pods that must stay, this lets a drain go on however many replicas an operator chooses.
        assert_eq!(spec.max_unavailable, Some(IntOrString::Int(1)), "{folder}");
        let selected = serde_json::to_value(&spec.selector).unwrap();
        assert_eq!(selected, workload["spec"]["selector"], "{folder}");
    }
    assert_eq!(several, ["controllers"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_with_an_address_of_their_own_are_reached_only_where_they_listen() {
    let server = Server::start(&[]).await;
    let mut seen = 0;
    for (folder, template) in workloads(&server).await {
        // Network policies say nothing about pods that use their node's network.
        if template["spec"]["hostNetwork"] == true {
            continue;
        }
        seen += 1;
        let policies: Vec<NetworkPolicy> = typed(&server, &folder, "NetworkPolicy").await;
        let [policy] = policies.as_slice() else {
            panic!("{folder} has no network policy")
        };
        let spec = policy.spec.as_ref().unwrap();
        let selected = spec.pod_selector.as_ref().unwrap();
        for (key, value) in selected.match_labels.as_ref().unwrap() {
            assert_eq!(template["metadata"]["labels"][key], json!(value), "{folder}");
        }
        let ports = template["spec"]["containers"][0]["ports"]
            .as_array()
            .unwrap()
            .clone();
        for port in spec
            .ingress
            .iter()
            .flatten()
            .flat_map(|rule| rule.ports.iter().flatten())
        {
            let port = serde_json::to_value(port).unwrap()["port"].clone();
            assert!(
                ports.iter().any(|known| known["name"] == port),
                "{folder}: {port}"
            );
        }
    }
    assert_eq!(seen, 2, "the controllers and the collector");
}
