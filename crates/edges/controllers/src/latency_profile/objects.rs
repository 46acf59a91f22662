//! Which objects carry settings, and what do we read of them?

use super::wire::RawStored;
use pointsman_latency_profile::rollout::{NodeReading, Problem, Spec, Stored};
use pointsman_latency_profile::state::Pool;
use pointsman_latency_profile::units::{GracePeriod, InvalidValue, ReportPeriod, Tolerations};
use pointsman_objects::metadata::{All, Metadata};
use pointsman_objects::names::REPORT_PERIOD_ANNOTATION;
use pointsman_objects::{ConditionStatus, ConfigMap, Node};
use pointsman_protocol::settings::{self, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

pub use pointsman_protocol::settings::{
    API_SERVER as SERVER_MAP, CONTROLLERS as CONTROLLERS_MAP, EPOCH_ANNOTATION as EPOCH,
    LEDGER as LEDGER_MAP, LEDGER_KEY, NAMESPACE, NODE as NODE_MAP,
};

/// The only name that the request may have.
pub const CONFIG_NODE: &str = "cluster";

/// A pool's profile, as an annotation of the request; the pool's name follows.
pub const POOL_PROFILE: &str = "pointsman.io/worker-latency-profile.";
/// Counts attempts at the same request, as an annotation of it.
pub const ATTEMPT: &str = "pointsman.io/worker-latency-profile-attempt";

/// The object that asks for a profile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigNode {
    pub metadata: Metadata<All>,
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
    conditions: Vec<RawStored>,
}

impl ConfigNode {
    /// What is asked for.
    pub fn wanted(&self) -> Spec {
        let pools = self.metadata.annotations.iter().filter_map(|(key, profile)| {
            let pool = key.strip_prefix(POOL_PROFILE)?;
            Some((Pool::named(pool), profile.to_owned()))
        });
        let attempt = self.metadata.annotations.get(ATTEMPT);
        let attempt: i64 = attempt.and_then(|text| text.parse().ok()).unwrap_or(0);
        Spec {
            // The same profile once more is a request of its own, but changes no field that is counted.
            generation: self.metadata.generation.wrapping_add(attempt << 32),
            profile: self.spec.worker_latency_profile.clone(),
            pools: pools.collect(),
        }
    }

    /// What is said about it.
    pub fn conditions(&self) -> Vec<Stored> {
        let conditions = &self.status.worker_latency_profile_status.conditions;
        conditions.iter().map(|condition| condition.0.clone()).collect()
    }
}

/// What a node says of itself.
pub fn reading(node: &Node) -> NodeReading {
    let announced = node.metadata.annotations.get(REPORT_PERIOD_ANNOTATION);
    NodeReading {
        pool: Pool::named(node.pool()),
        announced: announced.and_then(|text| ReportPeriod::parse(text).ok()),
        silent: node.ready().is_none_or(|ready| ready == ConditionStatus::Unknown),
    }
}

/// What a ConfigMap with settings says.
pub struct Settings<'a>(pub &'a ConfigMap);

impl Settings<'_> {
    /// Epoch of the last claim that wrote it.
    pub fn epoch(&self) -> Option<u64> {
        self.0.metadata.annotations.get(EPOCH)?.parse().ok()
    }

    /// Report periods by pool, and what cannot be read.
    pub fn reports(&self) -> (BTreeMap<Pool, ReportPeriod>, Option<Problem>) {
        let mut reports = BTreeMap::new();
        let mut problem = None;
        for (pool, period) in settings::REPORT_PERIOD.pools(&self.0.data) {
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
        match setting.read(&self.0.data) {
            Ok(value) => (value, None),
            Err(error) => (None, Some(unreadable(error))),
        }
    }

    fn announced<T: settings::Value>(&self, setting: &Setting<T>) -> Option<T> {
        T::decode(self.0.metadata.annotations.get(&setting.observed())?)
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
        let map = map(&[
            ("nodeStatusUpdateFrequency", "10s"),
            ("nodeStatusUpdateFrequency.edge", "1m"),
            ("nodeStatusUpdateFrequencyOther", "1m"),
        ]);
        let (reports, problem) = Settings(&map).reports();
        assert_eq!(problem, None);
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[&Pool::named("edge")], ReportPeriod::seconds(60));
    }

    #[test]
    fn text_that_is_no_value_is_told_and_counts_as_not_written() {
        let (grace, problem) = Settings(&map(&[("nodeMonitorGracePeriod", "soon")])).grace();
        assert_eq!(grace, None);
        assert_eq!(
            problem.unwrap().to_string(),
            "nodeMonitorGracePeriod: \"soon\" is not a duration such as 10s or 2m"
        );
    }

    #[test]
    fn a_step_may_take_longer_than_nothing() {
        let of = |text| Settings(&map(&[("latencyProfileStepTimeout", text)])).step_timeout();
        assert_eq!(of("1m30s"), (Some(Duration::from_secs(90)), None));
        for bad in ["0s", "soon", ""] {
            let (limit, problem) = of(bad);
            assert!(limit.is_none() && problem.is_some(), "{bad:?}");
        }
        assert_eq!(Settings(&map(&[])).step_timeout(), (None, None));
    }

    #[test]
    fn requests_for_pools_are_annotations() {
        let text = r#"{"metadata": {"generation": 3, "annotations": {"pointsman.io/worker-latency-profile.edge": "LowUpdateSlowReaction"}},
            "spec": {"workerLatencyProfile": "Default"}}"#;
        let wanted = serde_json::from_str::<ConfigNode>(text).unwrap().wanted();
        assert_eq!((wanted.generation, wanted.profile.as_str()), (3, "Default"));
        assert_eq!(wanted.pools[&Pool::named("edge")], "LowUpdateSlowReaction");
    }
}
