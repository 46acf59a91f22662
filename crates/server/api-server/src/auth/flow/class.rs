//! Which share of the server does a request use?

use super::pool::Width;
use crate::auth::authn::{AUTHENTICATED, NODES};
use crate::auth::rbac::Attributes;

/// A group of requests with seats of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Never waits: administrators, so that a full server can be repaired, and health checks.
    Exempt,
    /// Heartbeats of nodes and leases of leader elections.
    NodeHigh,
    /// This program's roles and other system users.
    System,
    /// People and programs with a credential.
    Workload,
    CatchAll,
}

impl Class {
    /// The classes that share the limits.
    pub const SHARING: [Class; 4] = [Class::NodeHigh, Class::System, Class::Workload, Class::CatchAll];

    /// The name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Class::Exempt => "exempt",
            Class::NodeHigh => "node-high",
            Class::System => "system",
            Class::Workload => "workload",
            Class::CatchAll => "catch-all",
        }
    }

    /// The share of the limits; all shares together are 100.
    pub(super) fn share_percent(self) -> usize {
        match self {
            Class::Exempt => 0,
            Class::NodeHigh => 20,
            Class::System => 35,
            Class::Workload => 40,
            Class::CatchAll => 5,
        }
    }
}

/// What a request takes while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Seats of the limit on reads.
    Read,
    /// Seats of the limit on writes.
    Write,
    /// A place among the watches of its user.
    Watch,
    /// A place among the logs, and whatever else streams.
    Log,
}

/// Which class a request of this width belongs to.
pub fn classify(request: &Attributes<'_>, width: Width) -> Class {
    let user = request.user;
    if user.is_master() || is_health(request) {
        return Class::Exempt;
    }
    let is_lease = request.group == "coordination.k8s.io" && request.resource == "leases";
    let is_node = request.group.is_empty() && request.resource == "nodes";
    let heartbeat = user.in_group(NODES) && (is_lease || is_node && request.verb != "list");
    let election = is_lease && request.namespace == "kube-system" && user.in_group(AUTHENTICATED);
    // A list of all leases is no heartbeat, whoever asks.
    let one_object = !matches!(request.verb, "list" | "watch" | "deletecollection");
    // Neither is a large body.
    if one_object && width == Width::ONE && (heartbeat || election) {
        Class::NodeHigh
    } else if !user.in_group(AUTHENTICATED) {
        Class::CatchAll
    } else if user.name.starts_with("system:") && !user.name.starts_with("system:serviceaccount:") {
        Class::System
    } else {
        Class::Workload
    }
}

/// What a request takes while it runs.
pub fn duty(request: &Attributes<'_>) -> Duty {
    let streams = matches!(
        request.subresource,
        "exec" | "attach" | "portforward" | "proxy" | "log"
    );
    if request.verb == "watch" {
        Duty::Watch
    } else if streams && request.path.is_none() {
        Duty::Log
    } else if request.is_read_only() {
        Duty::Read
    } else {
        Duty::Write
    }
}

fn is_health(request: &Attributes<'_>) -> bool {
    let Some(path) = request.path else { return false };
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("healthz" | "livez" | "readyz")) && request.is_read_only()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::User;

    #[test]
    fn shares_add_up() {
        assert_eq!(
            Class::SHARING.map(Class::share_percent).iter().sum::<usize>(),
            100
        );
    }

    #[test]
    fn requests_fall_into_the_class_of_their_purpose() {
        let node = User::new("system:node:n1", &[NODES, AUTHENTICATED]);
        let controllers = User::new("system:pointsman-controllers", &[AUTHENTICATED]);
        let person = User::new("alice", &[AUTHENTICATED]);
        let robot = User::new("system:serviceaccount:x:y", &[AUTHENTICATED]);
        let admin = User::new("root", &["system:masters", AUTHENTICATED]);
        let stranger = User::anonymous();
        let lease = |user, verb, namespace| {
            classify(
                &Attributes::resource(user, verb, "coordination.k8s.io", "leases").in_namespace(namespace),
                Width::ONE,
            )
        };
        let node_status = Attributes::resource(&node, "patch", "", "nodes").subresource("status");
        assert_eq!(lease(&node, "update", "kube-node-lease"), Class::NodeHigh);
        assert_eq!(classify(&node_status, Width::ONE), Class::NodeHigh);
        assert_eq!(classify(&node_status, Width::of_body(1 << 20)), Class::System);
        assert_eq!(lease(&controllers, "update", "kube-system"), Class::NodeHigh);
        assert_eq!(lease(&controllers, "list", "kube-system"), Class::System);
        assert_eq!(lease(&person, "update", "default"), Class::Workload);
        assert_eq!(lease(&stranger, "update", "kube-system"), Class::CatchAll);
        let pods = |user| classify(&Attributes::resource(user, "list", "", "pods"), Width::ONE);
        assert_eq!(pods(&node), Class::System);
        assert_eq!(pods(&robot), Class::Workload);
        assert_eq!(pods(&admin), Class::Exempt);
        assert_eq!(
            classify(&Attributes::path(&stranger, "get", "/readyz/store"), Width::ONE),
            Class::Exempt
        );
        assert_eq!(
            classify(&Attributes::path(&stranger, "get", "/version"), Width::ONE),
            Class::CatchAll
        );
    }

    #[test]
    fn watches_and_streams_run_long() {
        let user = User::default();
        let request = |verb| Attributes::resource(&user, verb, "", "pods");
        assert_eq!(duty(&request("watch")), Duty::Watch);
        assert_eq!(duty(&request("get").subresource("log")), Duty::Log);
        assert_eq!(duty(&request("list")), Duty::Read);
        assert_eq!(duty(&request("deletecollection")), Duty::Write);
        assert_eq!(duty(&request("create").subresource("binding")), Duty::Write);
        assert_eq!(duty(&Attributes::path(&user, "post", "/x")), Duty::Write);
    }
}
