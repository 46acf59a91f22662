//! What is there to know about a kind?
//!
//! One row per kind ([`crate::kinds`]), read by routing, discovery, OpenAPI, authorization, the store's
//! key layout and every write. Whatever differs between kinds hangs on the row: the names, the verbs, the
//! rules of a write and admission ([`Strategy`]), and the columns of tables ([`Printer`]).

use crate::custom::{self, Definition};
use crate::kinds;
use crate::strategy::{Plain, Strategy};
use crate::table::{Printer, simple};
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `/namespaces/<ns>/<plural>/<name>`.
    Namespaced,
    /// `/<plural>/<name>`.
    Cluster,
}

/// One served kind. Two kinds are the same if they are the same row.
pub struct Kind {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// The `kind` field.
    pub kind: &'static str,
    /// The resource name in URLs.
    pub plural: &'static str,
    /// The name for one object; the kind in lower case if empty.
    pub singular: &'static str,
    /// Abbreviations that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Groupings such as `all`.
    pub categories: &'static [&'static str],
    pub scope: Scope,
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Whether DELETE answers with the object instead of a Success Status.
    pub delete_returns_object: bool,
    /// Whether a deletion that does not say what becomes of its dependents lets them go. Upstream keeps that for the
    /// oldest controllers.
    pub orphans: bool,
    /// Whether the kind follows the rules of custom resources (no strategic merge patch, PUT needs
    /// a resourceVersion).
    pub custom: bool,
    /// The kind whose stored objects this kind shows, if it has none of its own (`events.k8s.io`
    /// shows core events).
    pub stored_as: Option<&'static Kind>,
    /// What field selectors may name besides `metadata.name` and `metadata.namespace`. The strategy reads
    /// them; they lie in `spec`, `status` or at the top, and are plain values.
    pub selectable: &'static [&'static str],
    /// What happens to an object on its way in.
    pub strategy: &'static dyn Strategy,
    /// What kubectl prints about an object.
    pub printer: Printer,
    /// What comes of an object.
    pub acted_on: ActedOn,
    /// Where the numbers of the scale subresource are, if not where workloads have them.
    pub scale: Option<&'static ScalePaths>,
    /// What a kind that was defined at run time has besides its row.
    pub defined: Option<&'static Defined>,
}

/// Where an object has the numbers of its scale subresource.
#[derive(Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// How many are desired.
    pub replicas: &'static [&'static str],
    /// How many were observed.
    pub observed: &'static [&'static str],
    /// The selector of their pods, as text.
    pub selector: Option<&'static [&'static str]>,
}

/// The part of a definition that can change while its row stays.
#[derive(Debug)]
pub struct Defined {
    index: usize,
    definition: RwLock<Arc<Definition>>,
}

impl Defined {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            definition: RwLock::default(),
        }
    }

    pub(crate) fn set(&self, definition: Definition) {
        *self.definition.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(definition);
    }

    pub fn get(&self) -> Arc<Definition> {
        self.definition
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Who makes of an object what its author expects. Nobody should take storage for a promise: where it is not this
/// program, whoever creates an object is warned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActedOn {
    /// This program, or the object is there to be read.
    Here,
    /// Another program, if it runs.
    ByProgram(&'static str),
    /// Nothing that could run beside this server; what that means.
    Nowhere(&'static str),
}

impl ActedOn {
    /// What to warn about whoever creates a `kind`; `runs` says whether a program is known to run.
    pub fn warning(self, kind: &str, runs: impl FnOnce(&str) -> bool) -> Option<String> {
        match self {
            Self::ByProgram(program) if !runs(program) => Some(format!(
                "{kind} is stored, but has no effect unless {program} runs in this cluster"
            )),
            Self::Nowhere(so) => Some(format!("{kind} is stored, but not acted upon: {so}")),
            Self::Here | Self::ByProgram(_) => None,
        }
    }
}

/// A served subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The status half of an object.
    Status,
    /// `autoscaling/v1` Scale over `spec.replicas`.
    Scale,
    /// Assigns a pod to a node, once.
    Binding,
    /// Deletes a pod if its disruption budgets allow it.
    Eviction,
    /// Empties a namespace's `spec.finalizers`.
    Finalize,
    /// The node agent's log stream.
    Log,
    /// The conditions of a certificate request.
    Approval,
    /// Issues a token of a service account.
    Token,
    /// A command in a container, with its streams.
    Exec,
    /// The streams of a container's own program.
    Attach,
    /// Connections to ports in a pod.
    Portforward,
    /// Requests to a program.
    Proxy,
}

impl Subresource {
    /// The last path element.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Finalize => "finalize",
            Self::Log => "log",
            Self::Approval => "approval",
            Self::Token => "token",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::Portforward => "portforward",
            Self::Proxy => "proxy",
        }
    }

    /// Whether requests are passed on to a program in the cluster.
    pub fn connects(self) -> bool {
        matches!(self, Self::Exec | Self::Attach | Self::Portforward | Self::Proxy)
    }
}

/// The verbs of a kind that can be used in every way.
pub const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

impl Kind {
    /// A kind without behaviour of its own: all verbs, no subresources, no rules but those of metadata
    /// and schema, tables of name and age.
    pub const fn plain(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
    ) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
            singular: "",
            short_names: &[],
            categories: &[],
            scope,
            verbs: ALL_VERBS,
            subresources: &[],
            delete_returns_object: false,
            orphans: false,
            custom: false,
            stored_as: None,
            selectable: &[],
            strategy: &Plain,
            printer: simple::NAME_AND_AGE,
            acted_on: ActedOn::Here,
            scale: None,
            defined: None,
        }
    }

    /// The resource name for one object, as kubectl accepts it.
    pub fn singular(&self) -> String {
        match self.singular {
            "" => self.kind.to_ascii_lowercase(),
            singular => singular.to_owned(),
        }
    }

    /// The `apiVersion` field: `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        crate::discovery::group_version(self.group, self.version)
    }

    /// The name in messages: `pods`, `deployments.apps`.
    pub fn qualified_plural(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The kind under which the store keeps objects of this kind.
    pub fn stored(&'static self) -> &'static Kind {
        self.stored_as.unwrap_or(self)
    }

    /// Whether a field selector may name `field`.
    pub fn can_select(&self, field: &str) -> bool {
        match field {
            "metadata.name" => true,
            "metadata.namespace" => self.namespaced(),
            _ => self.selectable.contains(&field),
        }
    }

    /// Finds a kind by its place in a URL.
    pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        let built_in = TABLE.by_resource.get(&(group, version, plural)).copied();
        built_in.or_else(|| custom::by_resource(group, version, plural))
    }

    /// Finds a kind by its `apiVersion` and `kind`.
    pub fn by_type(api_version: &str, kind: &str) -> Option<&'static Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let built_in = TABLE.by_type.get(&(group, version, kind)).copied();
        built_in.or_else(|| custom::by_type(group, version, kind))
    }

    /// Finds a kind by its place in the store. A kind that shows another one's objects has none.
    pub fn by_store_key(group: &str, plural: &str) -> Option<&'static Kind> {
        let built_in = TABLE.by_store_key.get(&(group, plural)).copied();
        built_in.or_else(|| custom::by_store_key(group, plural))
    }

    /// The position in the table, a dense number for arrays by kind.
    pub fn index(&self) -> usize {
        if let Some(defined) = self.defined {
            return defined.index;
        }
        *TABLE
            .index
            .get(&std::ptr::from_ref(self).addr())
            .expect("kinds exist only in the table")
    }
}

/// The built-in rows by all that they are looked up by.
struct Table {
    by_resource: HashMap<(&'static str, &'static str, &'static str), &'static Kind>,
    by_type: HashMap<(&'static str, &'static str, &'static str), &'static Kind>,
    by_store_key: HashMap<(&'static str, &'static str), &'static Kind>,
    /// By address: a row is itself.
    index: HashMap<usize, usize>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let all = || kinds::ALL.iter().copied();
    let stored = all().filter(|kind| kind.stored_as.is_none());
    Table {
        by_resource: all()
            .map(|kind| ((kind.group, kind.version, kind.plural), kind))
            .collect(),
        by_type: all()
            .map(|kind| ((kind.group, kind.version, kind.kind), kind))
            .collect(),
        by_store_key: stored.map(|kind| ((kind.group, kind.plural), kind)).collect(),
        index: all()
            .enumerate()
            .map(|(at, kind)| (std::ptr::from_ref(kind).addr(), at))
            .collect(),
    }
});

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Kind {}

impl Hash for Kind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// By name, which is unique.
impl Ord for Kind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let name = |kind: &Self| (kind.group, kind.plural, kind.version);
        name(self).cmp(&name(other))
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified_plural())
    }
}
