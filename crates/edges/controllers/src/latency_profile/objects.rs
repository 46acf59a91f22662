//! Which objects carry settings, and what do we read of them?

use pointsman_latency_profile::rollout::{NodeReading, Problem, Spec, Stored};
use pointsman_latency_profile::state::Pool;
use pointsman_latency_profile::units::{GracePeriod, InvalidValue, ReportPeriod, Tolerations};
use pointsman_protocol::settings::{self, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

pub use pointsman_protocol::settings::{
    API_SERVER as SERVER_MAP, CONTROLLERS as CONTROLLERS_MAP, EPOCH_ANNOTATION as EPOCH,
    LEDGER as LEDGER_MAP, LEDGER_KEY, NAMESPACE, NODE as NODE_MAP,
};

/// The only name that the wish may have.
pub const CONFIG_NODE: &str = "cluster";

/// What an agent really uses, on its Node.
pub const NODE_ANNOUNCED: &str = "pointsman.io/node-status-update-frequency";
/// The pool of a node, as a label.
pub const POOL_LABEL: &str = "pointsman.io/pool";
/// A pool's profile, as an annotation of the wish; the pool's name follows.
pub const POOL_PROFILE: &str = "pointsman.io/worker-latency-profile.";
/// Counts attempts at the same wish, as an annotation of it.
pub const ATTEMPT: &str = "pointsman.io/worker-latency-profile-attempt";
/// Metadata that matters here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Meta,
    pub data: BTreeMap<String, String>,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Meta,
    pub status: NodeStatus,
}

/// Its status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub conditions: Vec<NodeCondition>,
}

/// One of its conditions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    pub r#type: String,
    pub status: String,
}

/// A page of nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodePage {
    pub metadata: PageMeta,
    pub items: Vec<Node>,
}

/// Where the next page begins.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PageMeta {
    pub r#continue: String,
}

/// The wish.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigNode {
    pub metadata: Meta,
    spec: ConfigSpec,
    status: ConfigStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConfigSpec {
    worker_latency_profile: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConfigStatus {
    worker_latency_profile_status: ProfileStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ProfileStatus {
    conditions: Vec<Stored>,
}

impl ConfigNode {
    /// What is asked for.
    pub fn wish(&self) -> Spec {
        let pools = self.metadata.annotations.iter().filter_map(|(key, profile)| {
            let pool = key.strip_prefix(POOL_PROFILE)?;
            Some((Pool::named(pool), profile.clone()))
        });
        let attempt = self.metadata.annotations.get(ATTEMPT);
        let attempt: i64 = attempt.and_then(|text| text.parse().ok()).unwrap_or(0);
        Spec {
            // The same profile once more is a wish of its own, but changes no field that is counted.
            generation: self.metadata.generation.wrapping_add(attempt << 32),
            profile: self.spec.worker_latency_profile.clone(),
            pools: pools.collect(),
        }
    }

    /// What is said about it.
    pub fn conditions(&self) -> Vec<Stored> {
        self.status.worker_latency_profile_status.conditions.clone()
    }
}

impl Node {
    /// What a node tells.
    pub fn reading(&self) -> NodeReading {
        let ready = self.status.conditions.iter().find(|it| it.r#type == "Ready");
        let announced = self.metadata.annotations.get(NODE_ANNOUNCED);
        NodeReading {
            pool: Pool::named(self.metadata.labels.get(POOL_LABEL).map_or("", String::as_str)),
            announced: announced.and_then(|text| ReportPeriod::parse(text).ok()),
            silent: ready.is_none_or(|ready| ready.status == "Unknown"),
        }
    }
}

impl ConfigMap {
    /// Epoch of the last claim that wrote it.
    pub fn epoch(&self) -> Option<u64> {
        self.metadata.annotations.get(EPOCH)?.parse().ok()
    }

    /// Report periods by pool, and what cannot be read.
    pub fn reports(&self) -> (BTreeMap<Pool, ReportPeriod>, Option<Problem>) {
        let mut reports = BTreeMap::new();
        let mut problem = None;
        for (pool, period) in settings::REPORT_PERIOD.pools(&self.data) {
            let key = settings::REPORT_PERIOD.pool_key(pool);
            let period = period.map_err(unreadable);
            match period
                .and_then(|period| ReportPeriod::try_new(period).map_err(|error| invalid(&key, &error)))
            {
                Ok(period) => drop(reports.insert(Pool::named(pool), period)),
                Err(error) => problem = Some(error),
            }
        }
        (reports, problem)
    }

    /// The grace period that is written.
    pub fn grace(&self) -> (Option<GracePeriod>, Option<Problem>) {
        let (period, problem) = self.written(&settings::GRACE_PERIOD);
        (period.map(GracePeriod), problem)
    }

    /// The grace period that is announced.
    pub fn announced_grace(&self) -> Option<GracePeriod> {
        self.announced(&settings::GRACE_PERIOD).map(GracePeriod)
    }

    /// The tolerations that are written, if both are.
    pub fn tolerations(&self) -> (Option<Tolerations>, Option<Problem>) {
        let (not_ready, first) = self.written(&settings::NOT_READY_TOLERATION);
        let (unreachable, second) = self.written(&settings::UNREACHABLE_TOLERATION);
        let both = not_ready
            .zip(unreachable)
            .map(|(not_ready, unreachable)| Tolerations {
                not_ready,
                unreachable,
            });
        (both, first.or(second))
    }

    /// The tolerations that are announced.
    pub fn announced_tolerations(&self) -> Option<Tolerations> {
        Some(Tolerations {
            not_ready: self.announced(&settings::NOT_READY_TOLERATION)?,
            unreachable: self.announced(&settings::UNREACHABLE_TOLERATION)?,
        })
    }

    /// How long a step may take, if that is written.
    pub fn step_timeout(&self) -> (Option<Duration>, Option<Problem>) {
        match self.written(&settings::STEP_TIMEOUT) {
            (Some(Duration::ZERO), _) => {
                let key = settings::STEP_TIMEOUT.key;
                (
                    None,
                    Some(Problem::Invalid(format!("{key}: a step needs some time"))),
                )
            }
            written => written,
        }
    }

    fn written<T: settings::Value>(&self, setting: &Setting<T>) -> (Option<T>, Option<Problem>) {
        match setting.read(&self.data) {
            Ok(value) => (value, None),
            Err(error) => (None, Some(unreadable(error))),
        }
    }

    fn announced<T: settings::Value>(&self, setting: &Setting<T>) -> Option<T> {
        T::decode(self.metadata.annotations.get(&setting.observed())?)
    }
}

fn unreadable(error: settings::BadSetting) -> Problem {
    Problem::Invalid(error.to_string())
}

fn invalid(key: &str, error: &InvalidValue) -> Problem {
    Problem::Invalid(format!("{key}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data: &[(&str, &str)]) -> ConfigMap {
        ConfigMap {
            data: data
                .iter()
                .map(|(key, text)| ((*key).into(), (*text).into()))
                .collect(),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn pools_have_keys_of_their_own() {
        let (reports, problem) = map(&[
            ("nodeStatusUpdateFrequency", "10s"),
            ("nodeStatusUpdateFrequency.edge", "1m"),
            ("nodeStatusUpdateFrequencyOther", "1m"),
        ])
        .reports();
        assert_eq!(problem, None);
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[&Pool::named("edge")], ReportPeriod::seconds(60));
    }

    #[test]
    fn text_that_is_no_value_is_told_and_counts_as_not_written() {
        let (grace, problem) = map(&[("nodeMonitorGracePeriod", "soon")]).grace();
        assert_eq!(grace, None);
        assert_eq!(
            problem.unwrap().to_string(),
            "nodeMonitorGracePeriod: \"soon\" is not a duration such as 10s or 2m"
        );
    }

    #[test]
    fn a_step_may_take_longer_than_nothing() {
        let of = |text| map(&[("latencyProfileStepTimeout", text)]).step_timeout();
        assert_eq!(of("1m30s"), (Some(Duration::from_secs(90)), None));
        for bad in ["0s", "soon", ""] {
            let (limit, problem) = of(bad);
            assert!(limit.is_none() && problem.is_some(), "{bad:?}");
        }
        assert_eq!(map(&[]).step_timeout(), (None, None));
    }

    #[test]
    fn wishes_for_pools_are_annotations() {
        let text = r#"{"metadata": {"generation": 3, "annotations": {"pointsman.io/worker-latency-profile.edge": "LowUpdateSlowReaction"}},
            "spec": {"workerLatencyProfile": "Default"}}"#;
        let wish = serde_json::from_str::<ConfigNode>(text).unwrap().wish();
        assert_eq!((wish.generation, wish.profile.as_str()), (3, "Default"));
        assert_eq!(wish.pools[&Pool::named("edge")], "LowUpdateSlowReaction");
    }
}
