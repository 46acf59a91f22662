//! Which loops run?

use std::collections::BTreeSet;
use std::str::FromStr;
use thiserror::Error;

/// A loop that can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loop {
    /// Services and pods to EndpointSlices.
    EndpointSlices,
    /// Endpoints of Services without a selector to EndpointSlices.
    Mirroring,
    /// Services and pods to the classic Endpoints.
    Endpoints,
    /// ReplicaSets to pods.
    ReplicaSets,
    /// Deployments to ReplicaSets.
    Deployments,
    /// DaemonSets to pods.
    DaemonSets,
    /// StatefulSets to pods.
    StatefulSets,
    /// Jobs to pods.
    Jobs,
    /// Pods to what their PodDisruptionBudgets allow.
    Disruption,
    /// Pods to nodes.
    Scheduler,
    /// Removal of pods that nobody else removes.
    PodGarbage,
    /// Pod address ranges to nodes.
    NodeIpam,
    /// Heartbeats to conditions and taints of nodes.
    NodeLifecycle,
    /// Taints to deletion of pods.
    TaintEviction,
    /// Latency profiles to nodes, controllers and the API server.
    LatencyProfile,
}

impl Loop {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::EndpointSlices,
        Self::Mirroring,
        Self::Endpoints,
        Self::ReplicaSets,
        Self::Deployments,
        Self::DaemonSets,
        Self::StatefulSets,
        Self::Jobs,
        Self::Disruption,
        Self::Scheduler,
        Self::PodGarbage,
        Self::NodeIpam,
        Self::NodeLifecycle,
        Self::TaintEviction,
        Self::LatencyProfile,
    ];

    /// The name on the command line: kube-controller-manager's, and first its short form.
    pub fn names(self) -> [&'static str; 2] {
        match self {
            Self::EndpointSlices => ["endpointslice", "endpointslice-controller"],
            Self::Mirroring => ["endpointslicemirroring", "endpointslice-mirroring-controller"],
            Self::Endpoints => ["endpoint", "endpoints-controller"],
            Self::ReplicaSets => ["replicaset", "replicaset-controller"],
            Self::Deployments => ["deployment", "deployment-controller"],
            Self::DaemonSets => ["daemonset", "daemonset-controller"],
            Self::StatefulSets => ["statefulset", "statefulset-controller"],
            Self::Jobs => ["job", "job-controller"],
            Self::Disruption => ["disruption", "disruption-controller"],
            Self::Scheduler => ["scheduler", "pod-scheduler"],
            Self::PodGarbage => ["podgc", "pod-garbage-collector-controller"],
            Self::NodeIpam => ["nodeipam", "node-ipam-controller"],
            Self::NodeLifecycle => ["nodelifecycle", "node-lifecycle-controller"],
            Self::TaintEviction => ["tainteviction", "taint-eviction-controller"],
            Self::LatencyProfile => ["latencyprofile", "latency-profile-operators"],
        }
    }

    /// The name in logs and metrics.
    pub fn name(self) -> &'static str {
        self.names()[0]
    }

    fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.names().contains(&name))
    }
}

/// The loops that run, in `--controllers` syntax: `*` for all, `name` to add one, `-name` to leave one out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loops(BTreeSet<Loop>);

impl Loops {
    pub fn all() -> Self {
        Self(Loop::ALL.into())
    }

    /// Whether a loop runs.
    pub fn runs(&self, which: Loop) -> bool {
        self.0.contains(&which)
    }

    /// The loops that run, in order.
    pub fn iter(&self) -> impl Iterator<Item = Loop> {
        self.0.iter().copied()
    }
}

/// A name that is no loop's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a controller; there are {names}", names = Loop::ALL.map(Loop::name).join(", "))]
pub struct UnknownLoop(String);

impl FromStr for Loops {
    type Err = UnknownLoop;

    fn from_str(text: &str) -> Result<Self, UnknownLoop> {
        let words: Vec<&str> = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        let mut loops = if words.contains(&"*") {
            Self::all().0
        } else {
            BTreeSet::new()
        };
        for word in words.into_iter().filter(|word| *word != "*") {
            let name = word.strip_prefix('-').unwrap_or(word);
            let which = Loop::find(name).ok_or_else(|| UnknownLoop(name.to_owned()))?;
            if word.starts_with('-') {
                loops.remove(&which);
            } else {
                loops.insert(which);
            }
        }
        Ok(Self(loops))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops(text: &str) -> Vec<&'static str> {
        text.parse::<Loops>().unwrap().iter().map(Loop::name).collect()
    }

    #[test]
    fn the_syntax_is_that_of_kube_controller_manager() {
        assert_eq!(loops("*").len(), Loop::ALL.len());
        assert!(!loops("*,-deployment").contains(&"deployment"));
        assert_eq!(loops("-deployment, *").len(), Loop::ALL.len() - 1);
        assert_eq!(
            loops("endpointslice-controller,podgc"),
            ["endpointslice", "podgc"]
        );
        assert_eq!(loops(""), Vec::<&str>::new());
        assert_eq!("*,-cronjob".parse::<Loops>(), Err(UnknownLoop("cronjob".into())));
    }
}
