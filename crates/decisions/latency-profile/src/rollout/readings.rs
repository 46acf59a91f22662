//! What do the components say about themselves?

use crate::plan::Change;
use crate::state::{Component, Pool, Span, State};
use crate::units::{GracePeriod, ReportPeriod, Tolerations};
use std::collections::BTreeMap;
use thiserror::Error;

/// Everything that was read in one round.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Readings {
    /// The agents on nodes.
    pub nodes: NodesReading,
    /// The controller manager.
    pub grace: Single<GracePeriod>,
    /// The API server.
    pub tolerations: Single<Tolerations>,
}

/// What is written for nodes and what each of them announces.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NodesReading {
    /// Written, by pool; a pool without an entry uses the default pool's.
    pub configured: BTreeMap<Pool, ReportPeriod>,
    pub nodes: BTreeMap<String, NodeReading>,
    /// Epoch of the last claim that wrote it.
    pub epoch: Option<u64>,
    /// What is wrong with what is written.
    pub problem: Option<Problem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReading {
    /// The pool it belongs to.
    pub pool: Pool,
    /// What it announces to use, if it knows the setting.
    pub announced: Option<ReportPeriod>,
    /// It is called unreachable already, or never was there: nobody waits for it.
    pub silent: bool,
}

/// A component with a single value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Single<T> {
    pub configured: Option<T>,
    /// What the component announces to use, if it knows the setting.
    pub announced: Option<T>,
    /// Epoch of the last claim that wrote it.
    pub epoch: Option<u64>,
    /// What is wrong with what is written.
    pub problem: Option<Problem>,
}

impl<T> Default for Single<T> {
    fn default() -> Self {
        Self {
            configured: None,
            announced: None,
            epoch: None,
            problem: None,
        }
    }
}

/// Something that keeps a component from being read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// The text is no value; the component ignores it.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be read or written, and trying again will not help.
    #[error("{0}")]
    Refused(String),
}

impl Problem {
    /// One word for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidValue",
            Self::Refused(_) => "Refused",
        }
    }
}

/// A component that does not say what it uses, so nothing can be proved about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{component} does not announce {setting}: {who}", component = .component.name(), setting = .component.setting())]
pub struct Unaware {
    pub component: Component,
    /// Which instances, and what can be done.
    pub who: String,
}

impl Readings {
    /// Everything that may be in force, or who keeps it to itself.
    pub fn state(&self) -> Result<State, Unaware> {
        let mut reports: BTreeMap<Pool, Span<ReportPeriod>> = BTreeMap::new();
        let mut add = |pool: &Pool, period: ReportPeriod| {
            let span = reports.entry(pool.clone()).or_insert(Span::exactly(period));
            *span = span.and(period);
        };
        for (pool, period) in &self.nodes.configured {
            add(pool, *period);
        }
        let mut unaware = Vec::new();
        for (name, node) in self.nodes.nodes.iter().filter(|(_, node)| !node.silent) {
            match node.announced {
                Some(period) => add(&node.pool, period),
                None => unaware.push(name.as_str()),
            }
        }
        if !unaware.is_empty() {
            return Err(Unaware {
                component: Component::Kubelet,
                who: list(&unaware, "; upgrade or remove them"),
            });
        }
        let single = |component: Component| Unaware {
            component,
            who: "no running instance knows the setting; start or upgrade it".into(),
        };
        let grace = self.grace.announced;
        let grace = grace.ok_or_else(|| single(Component::KubeControllerManager))?;
        let tolerations = self.tolerations.announced;
        let tolerations = tolerations.ok_or_else(|| single(Component::KubeAPIServer))?;
        Ok(State {
            reports,
            grace: Span::of([grace].into_iter().chain(self.grace.configured)).expect("one value at least"),
            tolerations: Span::of([tolerations].into_iter().chain(self.tolerations.configured))
                .expect("one value at least"),
        })
    }

    /// Whether a change is what is written already.
    pub fn is_written(&self, change: &Change) -> bool {
        match change {
            Change::Reports(periods) => {
                let written = &self.nodes.configured;
                // A pool without an entry of its own uses the default pool's.
                let default = written.get(&Pool::default());
                periods
                    .iter()
                    .all(|(pool, period)| written.get(pool).or(default) == Some(period))
            }
            Change::Grace(grace) => self.grace.configured == Some(*grace),
            Change::Tolerations(tolerations) => self.tolerations.configured == Some(*tolerations),
        }
    }

    /// Epoch of the last claim that wrote a component.
    pub fn epoch(&self, component: Component) -> Option<u64> {
        match component {
            Component::Kubelet => self.nodes.epoch,
            Component::KubeControllerManager => self.grace.epoch,
            Component::KubeAPIServer => self.tolerations.epoch,
        }
    }

    /// What is wrong with what is written for a component.
    pub fn problem(&self, component: Component) -> Option<&Problem> {
        match component {
            Component::Kubelet => self.nodes.problem.as_ref(),
            Component::KubeControllerManager => self.grace.problem.as_ref(),
            Component::KubeAPIServer => self.tolerations.problem.as_ref(),
        }
    }

    /// Who does not use what is written, for people.
    pub fn lagging(&self, component: Component) -> String {
        let NodesReading {
            configured, nodes, ..
        } = &self.nodes;
        match component {
            Component::Kubelet => {
                let default = configured.get(&Pool::default());
                let behind = |node: &NodeReading| {
                    !node.silent && node.announced.as_ref() != configured.get(&node.pool).or(default)
                };
                let behind: Vec<&str> = nodes
                    .iter()
                    .filter(|(_, node)| behind(node))
                    .map(|(name, _)| name.as_str())
                    .collect();
                let silent = nodes.values().filter(|node| node.silent).count();
                let skipped = match silent {
                    0 => String::new(),
                    count => format!("; {count} unreachable ones are not waited for"),
                };
                match behind.len() {
                    0 => format!("all nodes announce it{skipped}"),
                    count => format!(
                        "{} of {} nodes announce it, waiting for {}",
                        nodes.len() - count - silent,
                        nodes.len() - silent,
                        list(&behind, &skipped)
                    ),
                }
            }
            Component::KubeControllerManager if self.grace.configured == self.grace.announced => {
                "it is announced".into()
            }
            Component::KubeAPIServer if self.tolerations.configured == self.tolerations.announced => {
                "it is announced".into()
            }
            _ => "it is not announced yet".into(),
        }
    }

    /// Whether the cluster has nodes.
    pub fn has_nodes(&self) -> bool {
        !self.nodes.nodes.is_empty()
    }
}

/// A few names, and how many more.
fn list(names: &[&str], tail: &str) -> String {
    const MOST: usize = 5;
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len().saturating_sub(MOST) {
        0 => format!("{shown}{tail}"),
        more => format!("{shown} and {more} more{tail}"),
    }
}
