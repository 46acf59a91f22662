//! Which rules apply to a user?
//!
//! The index is folded from the stored objects one at a time: [`Policy::upsert`] and
//! [`Policy::remove`] take an object as a watch delivers it. Bindings are found by subject, per
//! namespace; the empty namespace holds the cluster-wide ones.

use super::attributes::Attributes;
use super::rule::Rule;
use crate::auth::User;
use crate::auth::authn::service_account_user;
use pointsman_rules::value::{at, list_at, map_at, str_at};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What authorization says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A rule allows it.
    Allow,
    /// No rule allows it.
    NoOpinion {
        /// What went wrong on the way, such as a binding to a role that does not exist; often
        /// empty.
        reason: String,
    },
}

/// The roles and bindings of a cluster, indexed for decisions.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Rules of Roles by namespace and name.
    roles: HashMap<String, HashMap<String, Arc<[Rule]>>>,
    cluster_roles: BTreeMap<String, ClusterRole>,
    /// Grants by namespace; `""` holds those of ClusterRoleBindings.
    grants: HashMap<String, Grants>,
    /// What each binding put into `grants`, by namespace and name.
    bindings: HashMap<(String, String), Binding>,
}

#[derive(Clone, Debug)]
struct ClusterRole {
    labels: BTreeMap<String, String>,
    rules: Arc<[Rule]>,
    /// Selectors of the roles whose rules this one gathers.
    aggregates: Option<Vec<Selector>>,
    /// What the role allows: its own rules, or those it gathers.
    effective: Arc<[Rule]>,
}

/// Bindings by the user or group they name, then by the binding's own name.
#[derive(Clone, Debug, Default)]
struct Grants {
    users: HashMap<String, BTreeMap<String, RoleRef>>,
    groups: HashMap<String, BTreeMap<String, RoleRef>>,
}

#[derive(Clone, Debug)]
struct Binding {
    role: RoleRef,
    users: BTreeSet<String>,
    groups: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoleRef {
    Role(String),
    ClusterRole(String),
}

/// One grant that applies to a user: which binding, through which subject, to which role.
struct Applied<'a> {
    namespace: &'a str,
    binding: &'a str,
    subject: (&'static str, &'a str),
    role: &'a RoleRef,
}

impl Policy {
    /// Folds in a Role, ClusterRole, RoleBinding or ClusterRoleBinding, replacing the one of that
    /// name. Other kinds are ignored.
    pub fn upsert(&mut self, object: &Value) {
        let namespace = str_at(object, &["metadata", "namespace"]);
        let name = str_at(object, &["metadata", "name"]);
        match str_at(object, &["kind"]) {
            "Role" => {
                let rules = rules_of(object).into();
                self.roles
                    .entry(namespace.into())
                    .or_default()
                    .insert(name.into(), rules);
            }
            "ClusterRole" => {
                self.cluster_roles
                    .insert(name.into(), ClusterRole::from_wire(object));
                self.aggregate();
            }
            "RoleBinding" => self.bind(namespace, name, object),
            "ClusterRoleBinding" => self.bind("", name, object),
            _ => {}
        }
    }

    /// Forgets an object by kind, namespace (empty for cluster kinds) and name.
    pub fn remove(&mut self, kind: &str, namespace: &str, name: &str) {
        match kind {
            "Role" => {
                if let Some(roles) = self.roles.get_mut(namespace) {
                    roles.remove(name);
                    if roles.is_empty() {
                        self.roles.remove(namespace);
                    }
                }
            }
            "ClusterRole" => {
                self.cluster_roles.remove(name);
                self.aggregate();
            }
            "RoleBinding" => self.unbind(namespace, name),
            "ClusterRoleBinding" => self.unbind("", name),
            _ => {}
        }
    }

    /// Decides one request.
    pub fn authorize(&self, request: &Attributes<'_>) -> Decision {
        if request.user.is_master() {
            return Decision::Allow;
        }
        let mut missing = Vec::new();
        for applied in self.applied(request.user, scope(request)) {
            match self.rules(applied.namespace, applied.role) {
                Some(rules) if rules.iter().any(|rule| rule.allows(request)) => return Decision::Allow,
                Some(_) => {}
                None => missing.push(applied.role.missing()),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        let reason = if missing.is_empty() {
            String::new()
        } else {
            format!("RBAC: {}", missing.join(", "))
        };
        Decision::NoOpinion { reason }
    }

    /// Why a request is allowed, in upstream's words; nothing if it is not, or needs no rule.
    pub fn explain(&self, request: &Attributes<'_>) -> Option<String> {
        let applied = self.applied(request.user, scope(request)).find(|applied| {
            let rules = self.rules(applied.namespace, applied.role);
            rules.is_some_and(|rules| rules.iter().any(|rule| rule.allows(request)))
        })?;
        Some(format!("RBAC: allowed by {applied}"))
    }

    /// Every rule that applies to `user` in `namespace`, and what was missing on the way.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut rules, mut missing) = (Vec::new(), Vec::new());
        for applied in self.applied(user, namespace) {
            match self.rules(applied.namespace, applied.role) {
                Some(found) => rules.extend(found.iter().cloned()),
                None => missing.push(applied.role.missing()),
            }
        }
        (rules, missing)
    }

    /// The rules of the ClusterRole `name` as its `rules` field should show them, if it gathers
    /// them from others.
    pub fn aggregated_rules(&self, name: &str) -> Option<Vec<Value>> {
        let role = self.cluster_roles.get(name)?;
        role.aggregates.as_ref()?;
        Some(role.effective.iter().map(Rule::to_wire).collect())
    }

    /// The names of the ClusterRoles that gather rules from others.
    pub fn aggregated_roles(&self) -> impl Iterator<Item = &str> {
        let aggregated = self
            .cluster_roles
            .iter()
            .filter(|(_, role)| role.aggregates.is_some());
        aggregated.map(|(name, _)| name.as_str())
    }

    /// The rules behind a reference from a binding in `namespace`.
    pub(super) fn rules(&self, namespace: &str, role: &RoleRef) -> Option<&Arc<[Rule]>> {
        match role {
            RoleRef::Role(name) => self.roles.get(namespace)?.get(name),
            RoleRef::ClusterRole(name) => self.cluster_roles.get(name).map(|role| &role.effective),
        }
    }

    /// The grants of `user`: cluster-wide ones first, then those of `namespace`.
    fn applied<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = Applied<'a>> {
        let namespaces = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        namespaces.flat_map(move |namespace| {
            let grants = self.grants.get(namespace);
            let by_user = grants.and_then(|grants| grants.users.get(&user.name));
            let by_user = by_user.map(|bindings| ("User", user.name.as_str(), bindings));
            let by_group = user.groups.iter().filter_map(move |group| {
                let bindings = grants?.groups.get(group)?;
                Some(("Group", group.as_str(), bindings))
            });
            by_user
                .into_iter()
                .chain(by_group)
                .flat_map(move |(kind, name, bindings)| {
                    bindings.iter().map(move |(binding, role)| Applied {
                        namespace,
                        binding,
                        subject: (kind, name),
                        role,
                    })
                })
        })
    }

    fn bind(&mut self, namespace: &str, name: &str, object: &Value) {
        self.unbind(namespace, name);
        let Some(binding) = Binding::from_wire(namespace, object) else {
            return;
        };
        let grants = self.grants.entry(namespace.into()).or_default();
        for user in &binding.users {
            grants
                .users
                .entry(user.clone())
                .or_default()
                .insert(name.into(), binding.role.clone());
        }
        for group in &binding.groups {
            grants
                .groups
                .entry(group.clone())
                .or_default()
                .insert(name.into(), binding.role.clone());
        }
        self.bindings.insert((namespace.into(), name.into()), binding);
    }

    fn unbind(&mut self, namespace: &str, name: &str) {
        let Some(binding) = self.bindings.remove(&(namespace.to_owned(), name.to_owned())) else {
            return;
        };
        let Some(grants) = self.grants.get_mut(namespace) else {
            return;
        };
        forget(&mut grants.users, &binding.users, name);
        forget(&mut grants.groups, &binding.groups, name);
        if grants.users.is_empty() && grants.groups.is_empty() {
            self.grants.remove(namespace);
        }
    }

    /// Recomputes what aggregating roles gather. Roles number in the hundreds and change rarely.
    fn aggregate(&mut self) {
        let gathered: Vec<(String, Arc<[Rule]>)> = self
            .cluster_roles
            .iter()
            .filter(|(_, role)| role.aggregates.is_some())
            .map(|(name, _)| (name.clone(), self.gather(name)))
            .collect();
        for (name, rules) in gathered {
            self.cluster_roles.get_mut(&name).expect("listed above").effective = rules;
        }
    }

    /// The rules of all roles that `name` selects, directly or through another aggregating role.
    fn gather(&self, name: &str) -> Arc<[Rule]> {
        let mut rules: Vec<Rule> = Vec::new();
        let mut seen = BTreeSet::from([name]);
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            let role = &self.cluster_roles[name];
            let Some(selectors) = &role.aggregates else {
                for rule in role.rules.iter() {
                    if !rules.contains(rule) {
                        rules.push(rule.clone());
                    }
                }
                continue;
            };
            let selected = self
                .cluster_roles
                .iter()
                .rev()
                .filter(|(_, other)| selectors.iter().any(|selector| selector.matches(&other.labels)));
            open.extend(
                selected
                    .map(|(name, _)| name.as_str())
                    .filter(|name| seen.insert(name)),
            );
        }
        rules.into()
    }
}

fn scope<'a>(request: &Attributes<'a>) -> &'a str {
    if request.path.is_some() {
        ""
    } else {
        request.namespace
    }
}

fn forget(
    index: &mut HashMap<String, BTreeMap<String, RoleRef>>,
    subjects: &BTreeSet<String>,
    binding: &str,
) {
    for subject in subjects {
        if let Some(bindings) = index.get_mut(subject) {
            bindings.remove(binding);
            if bindings.is_empty() {
                index.remove(subject);
            }
        }
    }
}

pub(super) fn rules_of(role: &Value) -> Vec<Rule> {
    list_at(role, &["rules"]).iter().map(Rule::from_wire).collect()
}

impl ClusterRole {
    fn from_wire(object: &Value) -> Self {
        let rules: Arc<[Rule]> = rules_of(object).into();
        let selectors = list_at(object, &["aggregationRule", "clusterRoleSelectors"]);
        let aggregates = (!selectors.is_empty()).then(|| selectors.iter().map(Selector::from_wire).collect());
        Self {
            labels: texts(object, &["metadata", "labels"]),
            effective: rules.clone(),
            rules,
            aggregates,
        }
    }
}

impl RoleRef {
    pub(super) fn from_wire(binding: &Value) -> Option<Self> {
        let name = str_at(binding, &["roleRef", "name"]);
        match str_at(binding, &["roleRef", "kind"]) {
            "Role" => Some(RoleRef::Role(name.into())),
            "ClusterRole" => Some(RoleRef::ClusterRole(name.into())),
            _ => None,
        }
    }

    pub(super) fn parts(&self) -> (&'static str, &'static str, &str) {
        match self {
            RoleRef::Role(name) => ("Role", "roles", name),
            RoleRef::ClusterRole(name) => ("ClusterRole", "clusterroles", name),
        }
    }

    pub(super) fn missing(&self) -> String {
        let (_, plural, name) = self.parts();
        format!(
            "{}.{} {name:?} not found",
            plural.trim_end_matches('s'),
            super::GROUP
        )
    }
}

impl Binding {
    fn from_wire(namespace: &str, object: &Value) -> Option<Self> {
        let role = RoleRef::from_wire(object)?;
        let mut binding = Self {
            role,
            users: BTreeSet::new(),
            groups: BTreeSet::new(),
        };
        for subject in list_at(object, &["subjects"]) {
            let name = str_at(subject, &["name"]);
            match str_at(subject, &["kind"]) {
                "User" => drop(binding.users.insert(name.into())),
                "Group" => drop(binding.groups.insert(name.into())),
                "ServiceAccount" => {
                    let own = Some(str_at(subject, &["namespace"])).filter(|own| !own.is_empty());
                    binding
                        .users
                        .insert(service_account_user(own.unwrap_or(namespace), name));
                }
                _ => {}
            }
        }
        Some(binding)
    }
}

impl std::fmt::Display for Applied<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, _, role) = self.role.parts();
        let (subject, name) = self.subject;
        if self.namespace.is_empty() {
            write!(
                out,
                "ClusterRoleBinding {:?} of {kind} {role:?} to {subject} {name:?}",
                self.binding
            )
        } else {
            let binding = format!("{}/{}", self.binding, self.namespace);
            write!(
                out,
                "RoleBinding {binding:?} of {kind} {role:?} to {subject} {name:?}"
            )
        }
    }
}

/// A label selector as it is written in an aggregation rule.
#[derive(Clone, Debug)]
struct Selector {
    labels: BTreeMap<String, String>,
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Selector {
    fn from_wire(selector: &Value) -> Self {
        let expressions = list_at(selector, &["matchExpressions"])
            .iter()
            .map(|expression| Expression {
                key: str_at(expression, &["key"]).into(),
                operator: str_at(expression, &["operator"]).into(),
                values: list_at(expression, &["values"])
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            });
        Self {
            labels: texts(selector, &["matchLabels"]),
            expressions: expressions.collect(),
        }
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .expressions
                .iter()
                .all(|expression| expression.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // An operator we do not know selects nothing: gathering less is the safe mistake.
            _ => false,
        }
    }
}

fn texts(object: &Value, path: &[&str]) -> BTreeMap<String, String> {
    let Some(map) = map_at(object, path) else {
        return BTreeMap::new();
    };
    let pairs = map
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    pairs.collect()
}

/// Whether a ClusterRole gathers its rules from others.
pub(super) fn is_aggregating(role: &Value) -> bool {
    at(role, &["aggregationRule"]).is_some_and(|rule| !list_at(rule, &["clusterRoleSelectors"]).is_empty())
}
