//! What may be in force right now?
//!
//! While a change spreads, a component has more than one value: what was written and what instances
//! still use. A [`State`] holds the span of both, and its verdict is the worst that any node can meet.

use crate::units::{GracePeriod, ReportPeriod, Tolerations, Values};
use crate::verdict::{LeaseTerms, Verdict};
use std::collections::BTreeMap;
use std::fmt;

/// A component that one owner changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The agents on nodes.
    Kubelet,
    /// The controller manager.
    KubeControllerManager,
    /// The API server.
    KubeAPIServer,
}

/// Who changes a component and reports about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Nodes' report periods.
    MachineConfigOperator,
    /// The grace period.
    KubeControllerManagerOperator,
    KubeAPIServerOperator,
}

impl Component {
    /// All, in the order of the specification's tables.
    pub const ALL: [Self; 3] = [Self::Kubelet, Self::KubeControllerManager, Self::KubeAPIServer];

    /// Who changes it.
    pub fn owner(self) -> Owner {
        match self {
            Self::Kubelet => Owner::MachineConfigOperator,
            Self::KubeControllerManager => Owner::KubeControllerManagerOperator,
            Self::KubeAPIServer => Owner::KubeAPIServerOperator,
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "Kubelet",
            Self::KubeControllerManager => "Kube Controller Manager",
            Self::KubeAPIServer => "Kube API Server",
        }
    }

    /// The setting that profiles change, by its best known name.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Kubelet => "node-status-update-frequency",
            Self::KubeControllerManager => "node-monitor-grace-period",
            Self::KubeAPIServer => "default-not-ready/unreachable-toleration-seconds",
        }
    }
}

impl Owner {
    /// All, in the order of their components.
    pub const ALL: [Self; 3] = [
        Self::MachineConfigOperator,
        Self::KubeControllerManagerOperator,
        Self::KubeAPIServerOperator,
    ];

    /// What it changes.
    pub fn component(self) -> Component {
        match self {
            Self::MachineConfigOperator => Component::Kubelet,
            Self::KubeControllerManagerOperator => Component::KubeControllerManager,
            Self::KubeAPIServerOperator => Component::KubeAPIServer,
        }
    }

    /// As in the status.
    pub fn name(self) -> &'static str {
        match self {
            Self::MachineConfigOperator => "MachineConfigOperator",
            Self::KubeControllerManagerOperator => "KubeControllerManagerOperator",
            Self::KubeAPIServerOperator => "KubeAPIServerOperator",
        }
    }

    /// The reverse of [`Owner::name`].
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|owner| owner.name() == name)
    }
}

/// A group of nodes that has a report period of its own; the default one has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool(String);

impl Pool {
    /// By its label's value.
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Its name, empty for the default pool.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether it is the pool of all nodes without one.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

/// The least and the most of the values that may be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span<T> {
    pub least: T,
    pub most: T,
}

impl<T: Copy + Ord> Span<T> {
    /// One value and nothing else.
    pub fn exactly(value: T) -> Self {
        Self {
            least: value,
            most: value,
        }
    }

    /// The span of several values, if there are any.
    pub fn of(values: impl IntoIterator<Item = T>) -> Option<Self> {
        values.into_iter().fold(None, |span, value| {
            Some(span.map_or(Self::exactly(value), |span: Self| span.and(value)))
        })
    }

    /// The same span, and this value.
    pub fn and(self, value: T) -> Self {
        Self {
            least: self.least.min(value),
            most: self.most.max(value),
        }
    }

    /// Whether this value and no other is in force.
    pub fn is(self, value: T) -> bool {
        self.least == value && self.most == value
    }

    /// The value, if there is but one.
    pub fn exact(self) -> Option<T> {
        (self.least == self.most).then_some(self.least)
    }
}

impl<T: Copy + Ord + fmt::Display> fmt::Display for Span<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exact() {
            Some(value) => f.pad(&value.to_string()),
            None => f.pad(&format!("{}..{}", self.least, self.most)),
        }
    }
}

/// Everything that may be in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// Of the nodes of each pool, including what a node that joins would use.
    pub reports: BTreeMap<Pool, Span<ReportPeriod>>,
    /// Of the controller manager.
    pub grace: Span<GracePeriod>,
    /// Of the API server.
    pub tolerations: Span<Tolerations>,
}

impl State {
    /// The longest report period that any node may use; none if there are no nodes.
    pub fn slowest(&self) -> Option<ReportPeriod> {
        self.reports.values().map(|span| span.most).max()
    }

    /// The worst that any node can meet.
    pub fn verdict(&self) -> Verdict {
        match self.slowest() {
            Some(report) => Verdict::of(report, self.grace.least),
            None => Verdict::NoMajorImpact { chances: u64::MAX },
        }
    }

    /// The same, for nodes that renew leases.
    pub fn verdict_with_leases(&self, terms: LeaseTerms) -> Verdict {
        match self.slowest() {
            Some(report) => Verdict::with_leases(report, self.grace.least, terms),
            None => Verdict::NoMajorImpact { chances: u64::MAX },
        }
    }

    /// The single values, if nothing spreads and all pools agree.
    pub fn values(&self) -> Option<Values> {
        let reports = Span::of(self.reports.values().flat_map(|span| [span.least, span.most]));
        Some(Values {
            report: reports?.exact()?,
            grace: self.grace.exact()?,
            tolerations: self.tolerations.exact()?,
        })
    }
}

impl From<Values> for State {
    fn from(values: Values) -> Self {
        Self {
            reports: BTreeMap::from([(Pool::default(), Span::exactly(values.report))]),
            grace: Span::exactly(values.grace),
            tolerations: Span::exactly(values.tolerations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_pair_decides() {
        let mut state = State::from(Values::new(10, 120, 60));
        assert!(state.verdict().is_safe());
        state
            .reports
            .insert(Pool::named("edge"), Span::exactly(ReportPeriod::seconds(30)));
        assert!(state.verdict().is_safe());
        state.grace = state.grace.and(GracePeriod::seconds(40));
        assert_eq!(state.verdict(), Verdict::FewChances { chances: 1 });
        assert_eq!(state.grace.to_string(), "40s..2m");
        assert_eq!(state.values(), None);
    }

    #[test]
    fn owners_and_components_belong_together() {
        for owner in Owner::ALL {
            assert_eq!(owner.component().owner(), owner);
            assert_eq!(Owner::parse(owner.name()), Some(owner));
        }
    }
}
