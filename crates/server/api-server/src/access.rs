//! May this caller do this, to this object?

use crate::auth::rbac::{self, forbidden};
use crate::auth::{Attributes, Decision, Policy, node_restriction};
use crate::cache::object::Object;
use crate::cache::{Fate, Observer};
use crate::http::route::Target;
use crate::request::Request;
use crate::server::Server;
use http::Method;
use parking_lot::RwLock;
use pointsman_rules::status::Subject;
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, kinds};
use serde_json::Value;

/// The policy, kept up with the stored roles and bindings.
#[derive(Debug, Default)]
pub struct PolicyIndex(RwLock<Policy>);

impl PolicyIndex {
    /// Decides a request.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        match self.0.read().authorize(attributes) {
            Decision::Allow => Ok(()),
            Decision::NoOpinion { reason } => Err(forbidden(attributes, &reason)),
        }
    }

    /// Reads the policy.
    pub fn read<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        look(&self.0.read())
    }
}

impl Observer for PolicyIndex {
    fn observe(&self, object: &Object, fate: Fate) {
        if object.kind.group != rbac::GROUP {
            return;
        }
        let mut policy = self.0.write();
        if fate == Fate::Removed {
            policy.remove(object.kind.kind, object.namespace(), object.name());
        } else {
            policy.upsert(&object.value());
        }
    }
}

/// The verb of a request for resources.
pub fn verb(request: &Request) -> &'static str {
    verb_of(&request.method, request.target.name.is_some(), request.watches())
}

/// The verb of a method for an object or for a collection.
pub fn verb_of(method: &Method, named: bool, watches: bool) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if named => "delete",
        "DELETE" => "deletecollection",
        _ if watches => "watch",
        _ if named => "get",
        _ => "list",
    }
}

/// Checks the right to create what a `PUT` did not find: it was authorized as an update.
pub fn may_create_instead(server: &Server, request: &Request, name: &str) -> Result<(), ApiError> {
    let Target { kind, namespace, .. } = &request.target;
    let attributes = Attributes::resource(&request.user, "create", kind.group, kind.plural)
        .in_namespace(namespace)
        .named(name);
    server.policy.authorize(&attributes)
}

impl Server {
    /// Checks what depends on the objects themselves: a node's own realm, and that nobody grants rights
    /// they do not have.
    pub fn may_write(
        &self,
        request: &Request,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<(), ApiError> {
        let target = &request.target;
        let name = target.name.as_deref().unwrap_or_else(|| {
            new.or(old)
                .map_or("", |object| str_at(object, &["metadata", "name"]))
        });
        let refused = |why: String| ApiError::Forbidden {
            subject: Subject::new(target.kind, name),
            why,
            cause: None,
        };
        self.within_node(request, name, old, new, None).map_err(refused)?;
        let Some(new) = new.filter(|_| target.kind.group == rbac::GROUP) else {
            return Ok(());
        };
        let namespace = &target.namespace;
        let checked = self.policy.read(|policy| match target.kind {
            kind if kind == &kinds::ROLE || kind == &kinds::CLUSTER_ROLE => {
                policy.check_role_write(&request.user, namespace, new, old)
            }
            _ => policy.check_binding_write(&request.user, namespace, new, old),
        });
        checked.map_err(|escalation| refused(escalation.to_string()))
    }

    /// Whether a pod of the calling node names the object, or for a volume its claim, or for a Secret its claim's
    /// volume; or whether it is the pod that the new object is about.
    fn is_related(&self, request: &Request, name: &str, old: Option<&Value>, new: Option<&Value>) -> bool {
        let (kind, namespace) = (request.target.kind, &request.target.namespace);
        if let (Some(new), "podcertificaterequests", Some(node)) =
            (new, kind.plural, request.user.node_name())
        {
            let pod = crate::keys::local(namespace, str_at(new, &["spec", "podName"]));
            return self.graph.runs(node, &pod, str_at(new, &["spec", "podUID"]));
        }
        let Some(node) = request
            .user
            .node_name()
            .filter(|_| node_restriction::is_named_by_pods(kind))
        else {
            return false;
        };
        if kind.namespaced() {
            return self.graph.relates(node, kind.plural, namespace, name)
                || kind == &kinds::SECRET && self.mounts_with(node, namespace, name);
        }
        let claim = |field| old.map_or("", |volume| str_at(volume, &["spec", "claimRef", field]));
        self.graph
            .relates(node, "persistentvolumeclaims", claim("namespace"), claim("name"))
    }

    /// Checks that a node stays within its own realm.
    pub fn within_node(
        &self,
        request: &Request,
        name: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        field_selector_node: Option<&str>,
    ) -> Result<(), String> {
        let verb = match verb(request) {
            "watch" if request.target.name.is_some() => "get",
            verb => verb,
        };
        node_restriction::check(&node_restriction::Request {
            user: &request.user,
            verb,
            kind: request.target.kind,
            subresource: request
                .target
                .subresource
                .map_or("", |subresource| subresource.name()),
            namespace: &request.target.namespace,
            name,
            old,
            new,
            field_selector_node,
            related: self.is_related(request, name, old, new),
        })
    }
}
