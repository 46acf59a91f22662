//! Would writing this role or binding give somebody more than the writer has?
//!
//! A writer may grant only what they hold, unless they have the verb `escalate` on the role or
//! `bind` on the role a binding points to.

use super::attributes::Attributes;
use super::policy::{Decision, Policy, RoleRef, is_aggregating, rules_of};
use super::rule::{Rule, contains, has, url_matches};
use crate::auth::User;
use pointsman_rules::value;
use serde_json::Value;

/// Why a role or binding may not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Escalation {
    /// The writer would grant what they do not hold.
    #[error("{0}")]
    NotHeld(String),
    /// The role a binding points to does not exist, so what it grants cannot be judged.
    #[error("{0}")]
    RoleNotFound(String),
}

impl Policy {
    /// Whether `user`, in `namespace` (empty for cluster-wide), holds all of `granted`.
    pub fn escalation_check(&self, user: &User, namespace: &str, granted: &[Rule]) -> Result<(), Escalation> {
        if user.is_master() {
            return Ok(());
        }
        let (held, missing_roles) = self.rules_for(user, namespace);
        let missing = covers(&held, granted);
        if missing.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = compact(missing).iter().map(ToString::to_string).collect();
        lines.sort_unstable();
        let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
        let mut message = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            groups.join(" "),
            lines.join("\n")
        );
        if !missing_roles.is_empty() {
            message.push_str(&format!("; resolution errors: [{}]", missing_roles.join(", ")));
        }
        Err(Escalation::NotHeld(message))
    }

    /// Checks the write of a Role or ClusterRole; `namespace` is empty for the latter.
    pub fn check_role_write(
        &self,
        user: &User,
        namespace: &str,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), Escalation> {
        if user.is_master() || only_deletion_fields_change(new, old) {
            return Ok(());
        }
        let resource = if namespace.is_empty() {
            "clusterroles"
        } else {
            "roles"
        };
        let escalate = Attributes::resource(user, "escalate", super::GROUP, resource)
            .in_namespace(namespace)
            .named(value::str_at(new, &["metadata", "name"]));
        if self.authorize(&escalate) == Decision::Allow {
            return Ok(());
        }
        self.escalation_check(user, namespace, &rules_of(new))?;
        if is_aggregating(new) || old.is_some_and(is_aggregating) {
            // Gathering may pull in any rule, now or later.
            let everything = [rule(&["*"], &["*"], &[], &["*"]), rule(&[], &[], &["*"], &["*"])];
            self.escalation_check(user, namespace, &everything).map_err(|_| {
                Escalation::NotHeld("must have cluster-admin privileges to use the aggregationRule".into())
            })?;
        }
        Ok(())
    }

    /// Checks the write of a RoleBinding or ClusterRoleBinding; `namespace` is empty for the latter.
    pub fn check_binding_write(
        &self,
        user: &User,
        namespace: &str,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), Escalation> {
        if user.is_master() || only_deletion_fields_change(new, old) {
            return Ok(());
        }
        // A malformed reference is validation's to refuse.
        let Some(role) = RoleRef::from_wire(new) else {
            return Ok(());
        };
        let (_, resource, name) = role.parts();
        let bind = Attributes::resource(user, "bind", super::GROUP, resource)
            .in_namespace(namespace)
            .named(name);
        if self.authorize(&bind) == Decision::Allow {
            return Ok(());
        }
        let rules = self
            .rules(namespace, &role)
            .ok_or_else(|| Escalation::RoleNotFound(role.missing()))?;
        self.escalation_check(user, namespace, rules)
    }
}

fn rule(groups: &[&str], resources: &[&str], urls: &[&str], verbs: &[&str]) -> Rule {
    let own = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect();
    Rule {
        api_groups: own(groups),
        resources: own(resources),
        non_resource_urls: own(urls),
        verbs: own(verbs),
        ..Rule::default()
    }
}

/// Whether an update only touches what the garbage collector needs to delete the object.
fn only_deletion_fields_change(new: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    let strip = |object: &Value| {
        let mut object = object.clone();
        for field in [
            "ownerReferences",
            "finalizers",
            "managedFields",
            "resourceVersion",
        ] {
            value::remove(&mut object, &["metadata", field]);
        }
        object
    };
    strip(new) == strip(old)
}

/// The parts of `granted`, each with one verb and one target, that no rule of `held` covers.
pub fn covers(held: &[Rule], granted: &[Rule]) -> Vec<Rule> {
    let parts = granted.iter().flat_map(break_down);
    parts
        .filter(|part| !held.iter().any(|rule| rule_covers(rule, part)))
        .collect()
}

fn break_down(granted: &Rule) -> Vec<Rule> {
    let no_name = [String::new()];
    let names = if granted.resource_names.is_empty() {
        &no_name[..]
    } else {
        &granted.resource_names
    };
    let mut parts = Vec::new();
    for verb in &granted.verbs {
        for group in &granted.api_groups {
            for resource in &granted.resources {
                for name in names {
                    let mut part = rule(&[group], &[resource], &[], &[verb]);
                    if !name.is_empty() {
                        part.resource_names.push(name.clone());
                    }
                    parts.push(part);
                }
            }
        }
        parts.extend(
            granted
                .non_resource_urls
                .iter()
                .map(|url| rule(&[], &[], &[url], &[verb])),
        );
    }
    parts
}

/// Whether `held` covers `part`, which has one verb and one target.
fn rule_covers(held: &Rule, part: &Rule) -> bool {
    let covers_resource = |resource: &String| {
        let by_subresource = || resource.split_once('/').map(|(_, sub)| format!("*/{sub}"));
        has(&held.resources, resource) || by_subresource().is_some_and(|any| contains(&held.resources, &any))
    };
    // Names limit resources, not paths.
    let names_cover = held.resource_names.is_empty()
        || part.resources.is_empty()
        || !part.resource_names.is_empty()
            && part
                .resource_names
                .iter()
                .all(|name| contains(&held.resource_names, name));
    part.verbs.iter().all(|verb| has(&held.verbs, verb))
        && part.api_groups.iter().all(|group| has(&held.api_groups, group))
        && part.resources.iter().all(covers_resource)
        && part
            .non_resource_urls
            .iter()
            .all(|url| held.non_resource_urls.iter().any(|own| url_matches(own, url)))
        && names_cover
}

/// Joins parts that differ only in their verb.
fn compact(parts: Vec<Rule>) -> Vec<Rule> {
    let mut joined: Vec<Rule> = Vec::new();
    for part in parts {
        let same = |rule: &&mut Rule| rule.lists()[..4] == part.lists()[..4];
        match joined.iter_mut().find(same) {
            Some(rule) => rule.verbs.extend(part.verbs),
            None => joined.push(part),
        }
    }
    joined
}
