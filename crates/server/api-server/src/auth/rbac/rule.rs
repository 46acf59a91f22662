//! What does one rule of a role allow?

use super::attributes::Attributes;
use pointsman_rules::value::list_at;
use serde_json::{Map, Value};

/// One entry of a role's `rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// API groups; `*` is all, the empty string the core group.
    pub api_groups: Vec<String>,
    /// Resources: `*`, `pods`, `pods/status`, `*/scale`.
    pub resources: Vec<String>,
    /// Names the rule is limited to; empty for no limit.
    pub resource_names: Vec<String>,
    /// Paths that are not resources, exact or with a trailing `*`.
    pub non_resource_urls: Vec<String>,
    /// Verbs; `*` is all.
    pub verbs: Vec<String>,
}

const FIELDS: [&str; 5] = [
    "apiGroups",
    "resources",
    "resourceNames",
    "nonResourceURLs",
    "verbs",
];

impl Rule {
    /// Reads a rule as it is in a role; what is not a string is left out.
    pub fn from_wire(rule: &Value) -> Self {
        let [api_groups, resources, resource_names, non_resource_urls, verbs] = FIELDS.map(|field| {
            let texts = list_at(rule, &[field]).iter().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        });
        Self {
            api_groups,
            resources,
            resource_names,
            non_resource_urls,
            verbs,
        }
    }

    /// The rule as it is written in a role.
    pub fn to_wire(&self) -> Value {
        let mut map = Map::new();
        for (field, list) in FIELDS.into_iter().zip(self.lists()) {
            if !list.is_empty() {
                map.insert(field.into(), list.clone().into());
            }
        }
        Value::Object(map)
    }

    /// Whether the rule allows the request.
    pub fn allows(&self, request: &Attributes<'_>) -> bool {
        if !has(&self.verbs, request.verb) {
            return false;
        }
        match request.path {
            Some(path) => self.non_resource_urls.iter().any(|url| url_matches(url, path)),
            None => {
                has(&self.api_groups, request.group)
                    && self
                        .resources
                        .iter()
                        .any(|resource| resource_matches(resource, request))
                    && self.allows_name(request)
            }
        }
    }

    fn allows_name(&self, request: &Attributes<'_>) -> bool {
        // A new object has no name that could be trusted, so a limited rule never allows creating
        // one; creating a subresource, such as an eviction, is about an object that has its name.
        let creates = request.verb == "create" && request.subresource.is_empty();
        self.resource_names.is_empty()
            || !creates && !request.name.is_empty() && contains(&self.resource_names, request.name)
    }

    pub(super) fn lists(&self) -> [&Vec<String>; 5] {
        [
            &self.api_groups,
            &self.resources,
            &self.resource_names,
            &self.non_resource_urls,
            &self.verbs,
        ]
    }
}

impl std::fmt::Display for Rule {
    /// The compact form upstream uses in escalation messages.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            "APIGroups",
            "Resources",
            "ResourceNames",
            "NonResourceURLs",
            "Verbs",
        ];
        let parts = [0, 1, 3, 2, 4]
            .into_iter()
            .filter(|at| !self.lists()[*at].is_empty())
            .map(|at| {
                let items: Vec<String> = self.lists()[at].iter().map(|item| format!("{item:?}")).collect();
                format!("{}:[{}]", names[at], items.join(" "))
            });
        write!(out, "{{{}}}", parts.collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn contains(list: &[String], item: &str) -> bool {
    list.iter().any(|entry| entry == item)
}

pub(super) fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == item)
}

pub(super) fn url_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*'))
}

fn resource_matches(pattern: &str, request: &Attributes<'_>) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.split_once('/') {
        None => request.subresource.is_empty() && pattern == request.resource,
        Some((resource, subresource)) => {
            !request.subresource.is_empty()
                && subresource == request.subresource
                && (resource == "*" || resource == request.resource)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::User;
    use serde_json::json;

    #[test]
    fn a_resource_does_not_include_its_subresources_and_a_star_before_the_slash_is_any_resource() {
        let user = User::default();
        let rule =
            Rule::from_wire(&json!({"apiGroups": [""], "resources": ["pods", "*/scale"], "verbs": ["get"]}));
        let pods = Attributes::resource(&user, "get", "", "pods");
        assert!(rule.allows(&pods));
        assert!(!rule.allows(&pods.subresource("status")));
        assert!(rule.allows(&pods.subresource("scale")));
        assert!(!rule.allows(&Attributes::resource(&user, "get", "apps", "pods")));
        assert!(!rule.allows(&Attributes::resource(&user, "list", "", "pods")));
        assert!(!rule.allows(&Attributes::resource(&user, "get", "", "services")));
    }

    #[test]
    fn names_limit_all_but_never_allow_create_or_an_unnamed_list() {
        let user = User::default();
        let rule = Rule::from_wire(
            &json!({"apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a", ""], "verbs": ["*"]}),
        );
        let request = |verb| Attributes::resource(&user, verb, "apps", "deployments");
        assert!(rule.allows(&request("get").named("a")));
        assert!(!rule.allows(&request("get").named("b")));
        assert!(!rule.allows(&request("create").named("a")));
        assert!(rule.allows(&request("create").named("a").subresource("eviction")));
        assert!(!rule.allows(&request("list")));
        assert!(rule.allows(&request("watch").named("a")));
    }

    #[test]
    fn paths_match_exactly_or_by_prefix_and_are_no_resources() {
        let user = User::default();
        let rule = Rule::from_wire(&json!({"nonResourceURLs": ["/healthz", "/apis/*"], "verbs": ["get"]}));
        for (path, allowed) in [
            ("/healthz", true),
            ("/healthz/x", false),
            ("/apis/apps", true),
            ("/apis", false),
        ] {
            assert_eq!(
                rule.allows(&Attributes::path(&user, "get", path)),
                allowed,
                "{path}"
            );
        }
        assert!(!rule.allows(&Attributes::resource(&user, "get", "", "")));
        let all = Rule::from_wire(&json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}));
        assert!(!all.allows(&Attributes::path(&user, "get", "/metrics")));
    }
}
