//! What does a path ask for?

use http::Method;
use pointsman_rules::Kind;
use pointsman_rules::kind::{Scope, Subresource};
use pointsman_rules::measured::Measured;
use pointsman_rules::review::Review;

/// What a request path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/version`.
    Version,
    /// `/healthz`, `/livez` or `/readyz`, with an optional single check.
    Health {
        /// `healthz`, `livez` or `readyz`.
        probe: String,
        /// The name of one check.
        check: Option<String>,
    },
    /// `/metrics`.
    Metrics,
    /// `/.well-known/openid-configuration`: how tokens of service accounts are verified elsewhere.
    OpenIdConfiguration,
    /// `/openid/v1/jwks`: the keys for that.
    OpenIdKeys,
    /// `/backup`: everything in the store.
    Backup,
    /// `/`: the paths there are.
    Root,
    /// `/api`.
    Api,
    /// `/apis`.
    Apis,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/v1` (empty group) or `/apis/<group>/<version>`.
    GroupVersion(String, String),
    /// `/openapi/v2`.
    Swagger,
    /// `/openapi/v3`.
    OpenApiIndex,
    /// `/openapi/v3/api/v1` or `/openapi/v3/apis/<group>/<version>`.
    OpenApi(String, String),
    /// An object or a collection.
    Resource(Target),
    /// What is measured at the moment of the question.
    Measured {
        measured: &'static Measured,
        /// Empty for nodes, and for pods of all namespaces.
        namespace: String,
        name: Option<String>,
    },
    /// POST of an access review or similar virtual resource.
    Review {
        review: &'static Review,
        /// Empty for reviews that are not local to one.
        namespace: String,
    },
}

/// The object or collection that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub kind: &'static Kind,
    /// The namespace; empty for cluster-wide kinds and for all namespaces.
    pub namespace: String,
    /// The object's name; `None` for the collection.
    pub name: Option<String>,
    pub subresource: Option<Subresource>,
    /// Whether the path itself asks to watch, in the old `/watch/` form.
    pub watch: bool,
}

impl Target {
    /// `None` if there is no such place: a namespace belongs in the path of namespaced kinds only, and
    /// only their whole collection can be named without one.
    fn new(
        kind: &'static Kind,
        namespace: &str,
        name: Option<&str>,
        subresource: Option<&str>,
    ) -> Option<Self> {
        let whole = name.is_none() && subresource.is_none();
        let placed = if kind.namespaced() {
            !namespace.is_empty() || whole
        } else {
            namespace.is_empty()
        };
        let subresource = match subresource {
            None => None,
            Some(name) => Some(kind.subresources.iter().copied().find(|sub| sub.name() == name)?),
        };
        placed.then(|| Self {
            kind,
            namespace: namespace.into(),
            name: name.map(str::to_owned),
            subresource,
            watch: false,
        })
    }
}

/// Finds what `path` names; `None` if it names nothing that is served.
pub fn route(path: &str) -> Option<Route> {
    let written: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    // What is behind a proxy is another program's business.
    let written = match written.as_slice() {
        ["api", "v1", "namespaces", _, "pods" | "services", _, "proxy", ..] => &written[..7],
        ["api", "v1", "nodes", _, "proxy", ..] => &written[..5],
        whole => whole,
    };
    let segments: Option<Vec<String>> = written.iter().map(|segment| decode_segment(segment)).collect();
    let segments = segments?;
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    match parts.as_slice() {
        [] => Some(Route::Root),
        ["version"] => Some(Route::Version),
        ["metrics"] => Some(Route::Metrics),
        [".well-known", "openid-configuration"] => Some(Route::OpenIdConfiguration),
        ["openid", "v1", "jwks"] => Some(Route::OpenIdKeys),
        ["backup"] => Some(Route::Backup),
        [probe @ ("healthz" | "livez" | "readyz"), check @ ..] if check.len() <= 1 => Some(Route::Health {
            probe: (*probe).into(),
            check: check.first().map(|check| (*check).into()),
        }),
        ["openapi", "v2"] => Some(Route::Swagger),
        ["openapi", "v3"] => Some(Route::OpenApiIndex),
        ["openapi", "v3", "api", version] => Some(Route::OpenApi(String::new(), (*version).into())),
        ["openapi", "v3", "apis", group, version] => Some(Route::OpenApi((*group).into(), (*version).into())),
        ["api"] => Some(Route::Api),
        ["apis"] => Some(Route::Apis),
        ["apis", group] => Some(Route::Group((*group).into())),
        ["api", version] => Some(Route::GroupVersion(String::new(), (*version).into())),
        ["apis", group, version] => Some(Route::GroupVersion((*group).into(), (*version).into())),
        ["api", version, rest @ ..] => resource("", version, rest),
        ["apis", Measured::GROUP, version, rest @ ..] => measured(version, rest),
        ["apis", group, version, rest @ ..] => resource(group, version, rest),
        _ => None,
    }
}

fn measured(version: &str, rest: &[&str]) -> Option<Route> {
    let found = |plural: &str, scope: Scope, namespace: &str, name: Option<&str>| {
        let mut all = Measured::of_group(Measured::GROUP, version);
        let measured = all.find(|measured| measured.plural == plural)?;
        // Only a whole collection can be named without a namespace.
        let fits = measured.scope == scope || namespace.is_empty() && name.is_none();
        fits.then(|| Route::Measured {
            measured,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
        })
    };
    match *rest {
        ["namespaces", namespace, plural] => found(plural, Scope::Namespaced, namespace, None),
        ["namespaces", namespace, plural, name] => found(plural, Scope::Namespaced, namespace, Some(name)),
        [plural] => found(plural, Scope::Cluster, "", None),
        [plural, name] => found(plural, Scope::Cluster, "", Some(name)),
        _ => None,
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    if let ["watch", rest @ ..] = rest {
        return match resource(group, version, rest)? {
            Route::Resource(target) => Some(Route::Resource(Target {
                watch: true,
                ..target
            })),
            _ => None,
        };
    }
    let review = |plural: &str, namespace: &str| {
        Review::by_resource(group, version, plural).map(|review| Route::Review {
            review,
            namespace: namespace.into(),
        })
    };
    let target = |namespace: &str, plural: &str, name: Option<&str>, subresource: Option<&str>| {
        let kind = Kind::by_resource(group, version, plural)?;
        Target::new(kind, namespace, name, subresource).map(Route::Resource)
    };
    match rest {
        // Namespaces are objects and path prefixes at once; their own subresources come first.
        ["namespaces", name, sub @ ("status" | "finalize")] if group.is_empty() => {
            target("", "namespaces", Some(name), Some(sub))
        }
        ["namespaces", namespace, "bindings"] if group.is_empty() => {
            target(namespace, "pods", None, Some("binding"))
        }
        ["namespaces", namespace, plural] => {
            review(plural, namespace).or_else(|| target(namespace, plural, None, None))
        }
        ["namespaces", namespace, plural, name] => target(namespace, plural, Some(name), None),
        ["namespaces", namespace, plural, name, sub] => target(namespace, plural, Some(name), Some(sub)),
        [plural] => review(plural, "").or_else(|| target("", plural, None, None)),
        [plural, name] => target("", plural, Some(name), None),
        [plural, name, sub] => target("", plural, Some(name), Some(sub)),
        _ => None,
    }
}

/// What a path would name if its kind were served: who may not ask for that is told so, everybody else that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unserved<'a> {
    pub group: &'a str,
    pub plural: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
}

impl<'a> Unserved<'a> {
    /// `None` if the path cannot be about a resource.
    pub fn of(path: &'a str) -> Option<Self> {
        let mut parts = path.split('/').filter(|segment| !segment.is_empty());
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let _version = parts.next()?;
        let mut plural = parts.next()?;
        let mut namespace = "";
        let mut rest = parts.clone();
        if plural == "namespaces"
            && let (Some(first), Some(second)) = (rest.next(), rest.next())
        {
            (namespace, plural, parts) = (first, second, rest);
        }
        let (name, subresource) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        Some(Self {
            group,
            plural,
            namespace,
            name,
            subresource,
        })
    }

    /// The verb of a request about it.
    pub fn verb(&self, method: &Method) -> &'static str {
        match (method.as_str(), self.name.is_empty()) {
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "deletecollection",
            ("DELETE", false) => "delete",
            _ => "",
        }
    }
}

/// Undoes percent-encoding; `None` if the result is not UTF-8 or could be mistaken for a path.
fn decode_segment(segment: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(segment)
        .decode_utf8()
        .ok()?
        .into_owned();
    (!decoded.contains('/') && decoded != "." && decoded != "..").then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        match route(path) {
            Some(Route::Resource(target)) => target,
            other => panic!("{path} is {other:?}"),
        }
    }

    #[test]
    fn a_path_of_an_unserved_kind_is_taken_apart_as_others_are() {
        let of = |path| {
            let found = Unserved::of(path)?;
            Some([
                found.group,
                found.namespace,
                found.plural,
                found.name,
                found.subresource,
            ])
        };
        assert_eq!(of("/apis/a.b/v1/things"), Some(["a.b", "", "things", "", ""]));
        assert_eq!(
            of("/apis/a.b/v1/namespaces/n/things/x/status"),
            Some(["a.b", "n", "things", "x", "status"])
        );
        assert_eq!(of("/api/v9/namespaces/n"), Some(["", "", "namespaces", "n", ""]));
        for path in ["/apis/a.b/v1", "/api", "/", "/metrics/x/y/z"] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn objects_collections_and_subresources_are_found() {
        let pod = target("/api/v1/namespaces/a/pods/x/status");
        assert_eq!(
            (pod.kind.plural, pod.namespace.as_str(), pod.name.as_deref()),
            ("pods", "a", Some("x"))
        );
        assert_eq!(pod.subresource, Some(Subresource::Status));
        let pods = target("/api/v1/pods");
        assert_eq!(
            (pods.namespace.as_str(), pods.name, pods.watch),
            ("", None, false)
        );
        assert_eq!(target("/api/v1/namespaces/a").name.as_deref(), Some("a"));
        assert_eq!(
            target("/api/v1/namespaces/a/finalize").subresource,
            Some(Subresource::Finalize)
        );
        let deployments = target("/apis/apps/v1/namespaces/a/deployments");
        assert_eq!(deployments.kind.qualified_plural(), "deployments.apps");
        assert_eq!(target("/api/v1/nodes/n1").name.as_deref(), Some("n1"));
        assert!(target("/api/v1/watch/namespaces/a/pods").watch);
        let proxied = target("/api/v1/namespaces/a/services/https:x:web/proxy/../b%2Fc//d");
        assert_eq!(proxied.subresource, Some(Subresource::Proxy));
        assert_eq!(proxied.name.as_deref(), Some("https:x:web"));
        assert_eq!(
            target("/api/v1/nodes/n1/proxy/metrics").subresource,
            Some(Subresource::Proxy)
        );
        let role = target("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode");
        assert_eq!(role.name.as_deref(), Some("system:node"));
    }

    #[test]
    fn paths_that_name_nothing_are_refused() {
        for path in [
            "/api/v1/widgets",
            "/api/v1/pods/x",
            "/api/v1/namespaces/a/nodes",
            "/api/v1/namespaces/a/nodes/n",
            "/api/v1/namespaces/a/pods/x/exec/y",
            "/api/v1/namespaces/a/pods/x/status/y",
            "/apis/apps/v2/deployments",
            "/api/v1/namespaces/a/pods/%2e%2e",
            "/api/v1/namespaces/a/pods/x%2Fy",
            "/api/v1/namespaces/a/pods/%ff",
            "/apis/metrics.k8s.io/v1/nodes",
            "/apis/metrics.k8s.io/v1beta1/pods/x",
            "/apis/metrics.k8s.io/v1beta1/services",
            "/apis/metrics.k8s.io/v1beta1/namespaces/a/nodes",
            "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/x/y",
        ] {
            assert_eq!(route(path), None, "{path}");
        }
    }

    #[test]
    fn measurements_are_found_for_all_and_for_one() {
        let of = |path: &str| match route(&format!("/apis/metrics.k8s.io/v1beta1/{path}")) {
            Some(Route::Measured {
                measured,
                namespace,
                name,
            }) => (measured.kind, namespace, name.unwrap_or_default()),
            other => panic!("{path} is {other:?}"),
        };
        let is = |kind, namespace: &str, name: &str| (kind, namespace.to_owned(), name.to_owned());
        assert_eq!(of("nodes"), is("NodeMetrics", "", ""));
        assert_eq!(of("nodes/n1"), is("NodeMetrics", "", "n1"));
        assert_eq!(of("pods"), is("PodMetrics", "", ""));
        assert_eq!(of("namespaces/a/pods"), is("PodMetrics", "a", ""));
        assert_eq!(of("namespaces/a/pods/x"), is("PodMetrics", "a", "x"));
    }

    #[test]
    fn well_known_paths_are_found() {
        assert_eq!(
            route("/readyz/etcd"),
            Some(Route::Health {
                probe: "readyz".into(),
                check: Some("etcd".into())
            })
        );
        assert_eq!(
            route("/openapi/v3/apis/apps/v1"),
            Some(Route::OpenApi("apps".into(), "v1".into()))
        );
        assert_eq!(
            route("/api/v1"),
            Some(Route::GroupVersion("".into(), "v1".into()))
        );
        let review = route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").unwrap();
        assert!(matches!(review, Route::Review { .. }));
    }
}
