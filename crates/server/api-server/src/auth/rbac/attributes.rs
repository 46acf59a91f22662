//! What is being asked, in the words rules are written in?

use crate::auth::User;
use pointsman_rules::ApiError;
use pointsman_rules::status::Subject;

/// One request, as authorization sees it.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the
    /// lower-case HTTP method for a path that is not a resource.
    pub verb: &'a str,
    /// API group; empty for core.
    pub group: &'a str,
    pub resource: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
    /// The namespace; empty for cluster-wide requests.
    pub namespace: &'a str,
    /// The object's name; for list and watch, the one a field selector pins `metadata.name` to.
    pub name: &'a str,
    /// The path of a request that is not about a resource.
    pub path: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    /// A cluster-wide request about a resource.
    pub fn resource(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self {
            user,
            verb,
            group,
            resource,
            subresource: "",
            namespace: "",
            name: "",
            path: None,
        }
    }

    /// A request about a path that is not a resource.
    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Self {
        Self {
            path: Some(path),
            ..Self::resource(user, verb, "", "")
        }
    }

    /// The same request in a namespace.
    #[must_use]
    pub fn in_namespace(self, namespace: &'a str) -> Self {
        Self { namespace, ..self }
    }

    /// The same request about one object.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// The same request about a subresource.
    #[must_use]
    pub fn subresource(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }

    /// Whether the request only reads.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    fn refusal(&self) -> String {
        let (user, verb) = (&self.user.name, self.verb);
        if let Some(path) = self.path {
            return format!("User {user:?} cannot {verb} path {path:?}");
        }
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let resource = format!("{}{slash}{}", self.resource, self.subresource);
        let what = format!(
            "User {user:?} cannot {verb} resource {resource:?} in API group {:?}",
            self.group
        );
        if self.namespace.is_empty() {
            format!("{what} at the cluster scope")
        } else {
            format!("{what} in the namespace {:?}", self.namespace)
        }
    }
}

/// The 403 for a request that no rule allows; `reason` may add what went wrong on the way.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let colon = if reason.is_empty() { "" } else { ": " };
    ApiError::Forbidden {
        subject: Subject {
            group: attributes.group.into(),
            kind: attributes.resource.into(),
            name: attributes.name.into(),
        },
        why: format!("{}{colon}{reason}", attributes.refusal()),
        cause: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_user_verb_resource_group_and_namespace() {
        let user = User::new("alice", &[]);
        let list = Attributes::resource(&user, "list", "apps", "deployments").in_namespace("x");
        assert_eq!(
            list.subresource("scale").refusal(),
            r#"User "alice" cannot list resource "deployments/scale" in API group "apps" in the namespace "x""#
        );
        assert_eq!(
            Attributes::resource(&user, "get", "", "nodes").refusal(),
            r#"User "alice" cannot get resource "nodes" in API group "" at the cluster scope"#
        );
        let path = Attributes::path(&user, "get", "/metrics");
        assert!(
            forbidden(&path, "why")
                .to_string()
                .ends_with(r#"User "alice" cannot get path "/metrics": why"#)
        );
    }
}
