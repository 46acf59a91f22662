//! Where do objects of a kind live on the server?

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// What must not appear as it is inside one segment of a path.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'?')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A collection that the API serves: group, version and plural.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// Plural in lower case.
    pub plural: &'static str,
}

impl Resource {
    pub const PODS: Self = Self::core("pods");
    pub const SERVICES: Self = Self::core("services");
    pub const NODES: Self = Self::core("nodes");
    /// Endpoints, the classic kind.
    pub const ENDPOINTS: Self = Self::core("endpoints");
    /// Events of the core group.
    pub const EVENTS: Self = Self::core("events");
    pub const ENDPOINT_SLICES: Self = Self::new("discovery.k8s.io", "v1", "endpointslices");
    pub const LEASES: Self = Self::new("coordination.k8s.io", "v1", "leases");
    /// The ranges that cluster addresses are taken from.
    pub const SERVICE_CIDRS: Self = Self::new("networking.k8s.io", "v1", "servicecidrs");
    pub const REPLICA_SETS: Self = Self::new("apps", "v1", "replicasets");
    pub const DEPLOYMENTS: Self = Self::new("apps", "v1", "deployments");
    pub const STATEFUL_SETS: Self = Self::new("apps", "v1", "statefulsets");
    pub const CONTROLLER_REVISIONS: Self = Self::new("apps", "v1", "controllerrevisions");
    pub const PERSISTENT_VOLUME_CLAIMS: Self = Self::core("persistentvolumeclaims");
    pub const JOBS: Self = Self::new("batch", "v1", "jobs");
    pub const POD_DISRUPTION_BUDGETS: Self = Self::new("policy", "v1", "poddisruptionbudgets");
    pub const DAEMON_SETS: Self = Self::new("apps", "v1", "daemonsets");

    /// A collection of a named group.
    pub const fn new(group: &'static str, version: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version,
            plural,
        }
    }

    /// A collection of the core group, version 1.
    pub const fn core(plural: &'static str) -> Self {
        Self::new("", "v1", plural)
    }

    /// The path of the collection, in one namespace or over all.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if let Some(namespace) = namespace {
            path.push_str("/namespaces/");
            path.extend(utf8_percent_encode(namespace, SEGMENT));
        }
        path.push('/');
        path.push_str(self.plural);
        path
    }
}

/// Adds one more segment to a path.
pub(crate) fn push_segment(path: &mut String, segment: &str) {
    path.push('/');
    path.extend(utf8_percent_encode(segment, SEGMENT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_kubernetes_api() {
        assert_eq!(Resource::PODS.path(None), "/api/v1/pods");
        assert_eq!(
            Resource::ENDPOINT_SLICES.path(Some("a b")),
            "/apis/discovery.k8s.io/v1/namespaces/a%20b/endpointslices"
        );
        let mut path = Resource::LEASES.path(Some("kube-system"));
        push_segment(&mut path, "../x");
        assert!(path.ends_with("/leases/..%2Fx"), "{path}");
    }
}
