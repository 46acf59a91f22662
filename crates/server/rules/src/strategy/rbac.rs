//! What makes roles and role bindings well-formed?

use super::{Context, Part, Strategy};
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{NameRule, immutable, invalid_each, names};
use crate::selector::LabelSelector;
use crate::value::{at, at_mut, list_at, set, str_at};
use serde_json::Value;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Rules for Roles and ClusterRoles.
pub enum RoleStrategy {
    Namespaced,
    Cluster,
}

/// Rules for RoleBindings and ClusterRoleBindings.
pub enum BindingStrategy {
    Namespaced,
    Cluster,
}

impl Strategy for RoleStrategy {
    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        self.validate(object)
    }

    fn validate_update(&self, new: &Value, _old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        self.validate(new)
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    /// Upstream reconciles roles with PUT.
    fn create_on_update(&self) -> bool {
        true
    }
}

impl RoleStrategy {
    fn validate(&self, role: &Value) -> FieldErrors {
        let mut errors = Vec::new();
        for (index, rule) in list_at(role, &["rules"]).iter().enumerate() {
            self.validate_rule(rule, &format!("rules[{index}]"), &mut errors);
        }
        if matches!(self, RoleStrategy::Cluster) && at(role, &["aggregationRule"]).is_some() {
            let path = "aggregationRule.clusterRoleSelectors";
            let selectors = list_at(role, &["aggregationRule", "clusterRoleSelectors"]);
            if selectors.is_empty() {
                errors.push(FieldError::required(
                    path,
                    "at least one clusterRoleSelector required if aggregationRule is non-nil",
                ));
            }
            for (index, selector) in selectors.iter().enumerate() {
                let path = format!("{path}[{index}]");
                errors.extend(
                    LabelSelector::from_object(Some(selector), &path)
                        .err()
                        .into_iter()
                        .flatten(),
                );
            }
        }
        errors
    }

    fn validate_rule(&self, rule: &Value, path: &str, errors: &mut FieldErrors) {
        let has = |field: &str| !list_at(rule, &[field]).is_empty();
        if !has("verbs") {
            errors.push(FieldError::required(
                format!("{path}.verbs"),
                "verbs must contain at least one value",
            ));
        }
        if has("nonResourceURLs") {
            let mut refuse = |why: &str| {
                let urls = at(rule, &["nonResourceURLs"]).cloned().unwrap_or_default();
                errors.push(FieldError::invalid(format!("{path}.nonResourceURLs"), urls, why));
            };
            if matches!(self, RoleStrategy::Namespaced) {
                refuse("namespaced rules cannot apply to non-resource URLs");
            }
            if has("apiGroups") || has("resources") || has("resourceNames") {
                refuse("rules cannot apply to both regular resources and non-resource URLs");
            }
            return;
        }
        let needed = [
            ("apiGroups", "resource rules must supply at least one api group"),
            ("resources", "resource rules must supply at least one resource"),
        ];
        for (field, why) in needed {
            if !has(field) {
                errors.push(FieldError::required(format!("{path}.{field}"), why));
            }
        }
    }
}

impl Strategy for BindingStrategy {
    fn default(&self, object: &mut Value, _context: &Context<'_>) {
        if at(object, &["roleRef"]).is_some() && str_at(object, &["roleRef", "apiGroup"]).is_empty() {
            set(object, &["roleRef", "apiGroup"], GROUP);
        }
        let subjects = at_mut(object, &["subjects"]).and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            let open = str_at(subject, &["apiGroup"]).is_empty();
            if open && matches!(str_at(subject, &["kind"]), "User" | "Group") {
                set(subject, &["apiGroup"], GROUP);
            }
        }
    }

    fn validate_create(&self, object: &Value, _context: &Context<'_>) -> FieldErrors {
        self.validate(object)
    }

    fn validate_update(&self, new: &Value, old: &Value, _part: Part, _context: &Context<'_>) -> FieldErrors {
        let mut errors = self.validate(new);
        immutable(&mut errors, new, old, &["roleRef"]);
        errors
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn create_on_update(&self) -> bool {
        true
    }
}

impl BindingStrategy {
    fn validate(&self, binding: &Value) -> FieldErrors {
        let mut errors = Vec::new();
        let group = str_at(binding, &["roleRef", "apiGroup"]);
        if group != GROUP {
            errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[GROUP]));
        }
        let kinds: &[&str] = match self {
            BindingStrategy::Namespaced => &["Role", "ClusterRole"],
            BindingStrategy::Cluster => &["ClusterRole"],
        };
        let kind = str_at(binding, &["roleRef", "kind"]);
        if !kinds.contains(&kind) {
            errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
        }
        match str_at(binding, &["roleRef", "name"]) {
            "" => errors.push(FieldError::required("roleRef.name", "")),
            name => invalid_each(&mut errors, "roleRef.name", name, names::path_segment(name)),
        }
        for (index, subject) in list_at(binding, &["subjects"]).iter().enumerate() {
            self.validate_subject(subject, &format!("subjects[{index}]"), &mut errors);
        }
        errors
    }

    fn validate_subject(&self, subject: &Value, path: &str, errors: &mut FieldErrors) {
        let name = str_at(subject, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        let group = str_at(subject, &["apiGroup"]);
        match str_at(subject, &["kind"]) {
            "ServiceAccount" => {
                if !name.is_empty() {
                    invalid_each(errors, &format!("{path}.name"), name, names::dns_subdomain(name));
                }
                if !group.is_empty() {
                    errors.push(FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        group,
                        &[""],
                    ));
                }
                let clusterwide = matches!(self, BindingStrategy::Cluster);
                if clusterwide && str_at(subject, &["namespace"]).is_empty() {
                    errors.push(FieldError::required(format!("{path}.namespace"), ""));
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    errors.push(FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        group,
                        &[GROUP],
                    ));
                }
            }
            other => errors.push(FieldError::not_supported(
                format!("{path}.kind"),
                other,
                &["ServiceAccount", "User", "Group"],
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::testing::{created, updated};
    use serde_json::json;

    #[test]
    fn rules_say_who_may_do_what_to_what() {
        let check = |strategy: RoleStrategy, rule: Value, expected: &[&str]| {
            assert_eq!(created(&strategy, json!({"rules": [rule]})).1, expected);
        };
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        check(RoleStrategy::Namespaced, pods, &[]);
        check(
            RoleStrategy::Cluster,
            json!({}),
            &[
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        );
        check(
            RoleStrategy::Cluster,
            json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}),
            &[],
        );
        check(
            RoleStrategy::Namespaced,
            json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}),
            &[
                r#"rules[0].nonResourceURLs: Invalid value: ["/metrics"]: namespaced rules cannot apply to non-resource URLs"#,
            ],
        );
    }

    #[test]
    fn bindings_name_a_role_and_subjects() {
        let binding = |kind: &str, subject: Value| json!({"roleRef": {"kind": kind, "name": "system:node"}, "subjects": [subject]});
        let user = json!({"kind": "User", "name": "jane"});
        let (stored, errors) = created(&BindingStrategy::Namespaced, binding("Role", user.clone()));
        assert!(errors.is_empty());
        assert_eq!(stored["roleRef"]["apiGroup"], GROUP);
        assert_eq!(stored["subjects"][0]["apiGroup"], GROUP);
        assert_eq!(
            created(
                &BindingStrategy::Cluster,
                binding("Role", json!({"kind": "ServiceAccount", "name": "a"}))
            )
            .1,
            [
                r#"roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole""#,
                "subjects[0].namespace: Required value",
            ]
        );
        assert_eq!(
            created(
                &BindingStrategy::Cluster,
                binding("ClusterRole", json!({"kind": "Robot", "name": "a"}))
            )
            .1,
            [
                r#"subjects[0].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group""#
            ]
        );
        let new = binding("ClusterRole", user);
        let errors = updated(&BindingStrategy::Namespaced, new, &stored, Part::Main).1;
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].starts_with("roleRef: Invalid value: {") && errors[0].ends_with(": field is immutable")
        );
    }
}
