//! Which rights do the roles of this program need that work for a whole cluster?

use super::{
    APPS, AUTHENTICATION, AUTHORIZATION, COORDINATION, DISCOVERY, EVENTS, LIST_WATCH, READ, events, paths,
    rule,
};
use serde_json::Value;

pub(super) fn controller_rules() -> Vec<Value> {
    vec![
        rule(&[""], &["services", "namespaces"], READ),
        // Node lifecycle writes taints and conditions, and removes nothing.
        rule(&[""], &["nodes"], &["get", "list", "watch", "update", "patch"]),
        rule(&[""], &["nodes/status"], &["update", "patch"]),
        // ReplicaSets create and delete pods, taint eviction and pod collection delete them.
        rule(
            &[""],
            &["pods"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule(&[""], &["pods/status"], &["update", "patch"]),
        rule(&[""], &["pods/binding", "pods/eviction"], &["create"]),
        rule(
            &[DISCOVERY],
            &["endpointslices"],
            &[READ, &["create", "update", "patch", "delete"]].concat(),
        ),
        // Kept for readers that know nothing newer than Endpoints.
        rule(
            &[""],
            &["endpoints"],
            &[READ, &["create", "update", "patch", "delete"]].concat(),
        ),
        rule(
            &[APPS],
            &["daemonsets", "deployments", "statefulsets"],
            &["get", "list", "watch", "update", "patch"],
        ),
        rule(
            &[APPS],
            &[
                "daemonsets/status",
                "deployments/status",
                "replicasets/status",
                "statefulsets/status",
            ],
            &["update", "patch"],
        ),
        // Templates of StatefulSets as they were, and the claims of their pods.
        rule(
            &[APPS],
            &["controllerrevisions"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule(&[""], &["persistentvolumeclaims"], &["get", "create"]),
        // A Job is removed at the end of its time to live.
        rule(
            &["batch"],
            &["jobs"],
            &["get", "list", "watch", "update", "patch", "delete"],
        ),
        rule(&["batch"], &["jobs/status"], &["update", "patch"]),
        rule(
            &[APPS],
            &["replicasets"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule(&["policy"], &["poddisruptionbudgets"], READ),
        rule(
            &["policy"],
            &["poddisruptionbudgets/status"],
            &["update", "patch"],
        ),
        // Latency profiles are read, and their progress reported.
        rule(&["config.openshift.io"], &["nodes"], READ),
        rule(&["config.openshift.io"], &["nodes/status"], &["update", "patch"]),
        rule(&[""], &["configmaps"], READ),
        // Heartbeats of all nodes are watched; only leader election writes leases.
        rule(&[COORDINATION], &["leases"], READ),
        rule(&[AUTHENTICATION], &["tokenreviews"], &["create"]),
        rule(&[AUTHORIZATION], &["subjectaccessreviews"], &["create"]),
        events(),
    ]
}

pub(super) fn sli_rules() -> Vec<Value> {
    vec![
        rule(&[""], &["services", "pods", "nodes"], LIST_WATCH),
        rule(&[DISCOVERY], &["endpointslices"], LIST_WATCH),
        rule(&[""], &["nodes/metrics"], &["get"]),
        paths(&["/metrics", "/watermark", "/clock"], &["get"]),
        // The latency profile and how far it is rolled out.
        rule(&["config.openshift.io"], &["nodes"], READ),
        rule(&["", EVENTS], &["events"], &["create", "patch"]),
    ]
}

pub(super) fn dns_rules() -> Vec<Value> {
    vec![
        rule(&[""], &["services"], LIST_WATCH),
        rule(&[DISCOVERY], &["endpointslices"], LIST_WATCH),
        // Who reads its metrics is for the server to say.
        rule(&[AUTHENTICATION], &["tokenreviews"], &["create"]),
        rule(&[AUTHORIZATION], &["subjectaccessreviews"], &["create"]),
    ]
}
