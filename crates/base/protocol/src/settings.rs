//! How do settings reach roles that are running?
//!
//! By ConfigMaps in [`NAMESPACE`], one for each role. `data` says what is wanted. What a role really uses
//! it writes back: agents as an annotation of their Node, the others as annotations of the ConfigMap. A
//! latency profile is rolled out by nothing else, so a rollout can wait for what is in force instead of
//! hoping for it.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use pointsman_model::duration;
use thiserror::Error;

/// Where all these ConfigMaps are.
pub const NAMESPACE: &str = "kube-system";
/// Agents on nodes follow it: [`REPORT_PERIOD`], for all nodes or for a pool.
pub const NODE: &str = "pointsman-node";
/// The controllers follow it: [`GRACE_PERIOD`], [`STEP_TIMEOUT`] and the other settings of node health.
pub const CONTROLLERS: &str = "pointsman-controllers";
/// The API server follows it: [`NOT_READY_TOLERATION`] and [`UNREACHABLE_TOLERATION`].
pub const API_SERVER: &str = "pointsman-apiserver";
/// What the owners of a latency profile have agreed on, under [`LEDGER_KEY`].
pub const LEDGER: &str = "pointsman-latency-profile";
pub const LEDGER_KEY: &str = "ledger";
pub const ALL: [&str; 4] = [NODE, CONTROLLERS, API_SERVER, LEDGER];

/// Annotation: the epoch of the last owner of the profile that wrote the ConfigMap.
pub const EPOCH_ANNOTATION: &str = "pointsman.io/profile-epoch";
/// What annotations with values in force begin with; the name of the flag follows.
pub const OBSERVED_PREFIX: &str = "pointsman.io/observed-";

/// The `data` of a ConfigMap.
pub type Data = BTreeMap<String, String>;

/// How often agents report. Nodes of a pool may have a key of their own.
pub const REPORT_PERIOD: Setting<Duration> =
    Setting::new("nodeStatusUpdateFrequency", "node-status-update-frequency");
/// How long a node may stay silent.
pub const GRACE_PERIOD: Setting<Duration> =
    Setting::new("nodeMonitorGracePeriod", "node-monitor-grace-period");
/// How long a step of a rollout may take.
pub const STEP_TIMEOUT: Setting<Duration> =
    Setting::new("latencyProfileStepTimeout", "latency-profile-step-timeout");
/// How many seconds new pods tolerate a node that is not ready.
pub const NOT_READY_TOLERATION: Setting<u64> = Setting::new(
    "default-not-ready-toleration-seconds",
    "default-not-ready-toleration-seconds",
);
/// How many seconds new pods tolerate a node that is unreachable.
pub const UNREACHABLE_TOLERATION: Setting<u64> = Setting::new(
    "default-unreachable-toleration-seconds",
    "default-unreachable-toleration-seconds",
);

/// One setting: its key in `data`, and the flag that it overrides.
#[derive(Debug)]
pub struct Setting<T> {
    pub key: &'static str,
    pub flag: &'static str,
    value: PhantomData<fn() -> T>,
}

/// A value that cannot be read. It counts as not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {text:?} is not {expected}")]
pub struct BadSetting {
    pub key: String,
    pub text: String,
    pub expected: &'static str,
}

/// A value as text.
pub trait Value: Sized {
    const EXPECTED: &'static str;
    fn decode(text: &str) -> Option<Self>;
    fn encode(&self) -> String;
}

impl Value for Duration {
    const EXPECTED: &'static str = "a duration such as 10s or 2m";

    fn decode(text: &str) -> Option<Self> {
        duration::parse(text.trim())
    }

    fn encode(&self) -> String {
        duration::short(*self)
    }
}

impl Value for u64 {
    const EXPECTED: &'static str = "a number of seconds";

    fn decode(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }

    fn encode(&self) -> String {
        self.to_string()
    }
}

impl<T: Value> Setting<T> {
    const fn new(key: &'static str, flag: &'static str) -> Self {
        Self {
            key,
            flag,
            value: PhantomData,
        }
    }

    /// What is written, if anything is.
    pub fn read(&self, data: &Data) -> Result<Option<T>, BadSetting> {
        read(self.key, data)
    }

    /// The entry of `data` that says it.
    pub fn entry(&self, value: T) -> (String, String) {
        (self.key.to_owned(), value.encode())
    }

    /// The annotation with the value in force.
    pub fn observed(&self) -> String {
        format!("{OBSERVED_PREFIX}{}", self.flag)
    }

    /// The key for the nodes of a pool; nodes without a pool of their own are in the pool "".
    pub fn pool_key(&self, pool: &str) -> String {
        match pool {
            "" => self.key.to_owned(),
            pool => format!("{}.{pool}", self.key),
        }
    }

    /// What is written for a node: for its pool if there is such a key, else for all nodes.
    pub fn read_for(&self, pool: &str, data: &Data) -> Result<Option<T>, BadSetting> {
        match read(&self.pool_key(pool), data)? {
            Some(value) => Ok(Some(value)),
            None => self.read(data),
        }
    }

    /// What is written, by pool.
    pub fn pools<'a>(&self, data: &'a Data) -> impl Iterator<Item = (&'a str, Result<T, BadSetting>)> {
        let key = self.key;
        data.iter().filter_map(move |(name, text)| {
            let pool = match name.strip_prefix(key)? {
                "" => "",
                rest => rest.strip_prefix('.')?,
            };
            Some((pool, decode(name, text)))
        })
    }
}

fn read<T: Value>(key: &str, data: &Data) -> Result<Option<T>, BadSetting> {
    data.get(key).map(|text| decode(key, text)).transpose()
}

fn decode<T: Value>(key: &str, text: &str) -> Result<T, BadSetting> {
    T::decode(text).ok_or_else(|| BadSetting {
        key: key.to_owned(),
        text: text.to_owned(),
        expected: T::EXPECTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(pairs: &[(&str, &str)]) -> Data {
        let owned = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
        pairs.iter().map(owned).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(nanos in any::<u64>(), seconds in any::<u64>()) {
            let period = Duration::from_nanos(nanos);
            let written = Data::from([GRACE_PERIOD.entry(period), NOT_READY_TOLERATION.entry(seconds)]);
            prop_assert_eq!(GRACE_PERIOD.read(&written), Ok(Some(period)));
            prop_assert_eq!(NOT_READY_TOLERATION.read(&written), Ok(Some(seconds)));
        }

        #[test]
        fn every_pool_has_a_key_of_its_own(pool in "[a-z0-9.-]{0,20}", millis in 1u64..1_000_000) {
            let period = Duration::from_millis(millis);
            let written = Data::from([(REPORT_PERIOD.pool_key(&pool), period.encode())]);
            let read: Vec<_> = REPORT_PERIOD.pools(&written).collect();
            prop_assert_eq!(read, [(pool.as_str(), Ok(period))]);
            prop_assert_eq!(REPORT_PERIOD.read_for(&pool, &written), Ok(Some(period)));
        }

        #[test]
        fn any_text_is_a_value_or_refused(text in any::<String>()) {
            let written = data(&[(GRACE_PERIOD.key, &text), (NOT_READY_TOLERATION.key, &text)]);
            let _ = (GRACE_PERIOD.read(&written), NOT_READY_TOLERATION.read(&written));
        }
    }

    #[test]
    fn a_pools_own_key_wins_over_the_one_for_all() {
        let both = data(&[
            ("nodeStatusUpdateFrequency", "20s"),
            ("nodeStatusUpdateFrequency.edge", "1m"),
            ("nodeStatusUpdateFrequencyOther", "1h"),
        ]);
        let seconds = |pool| REPORT_PERIOD.read_for(pool, &both).unwrap().unwrap().as_secs();
        assert_eq!((seconds("edge"), seconds("core"), seconds("")), (60, 20, 20));
        assert_eq!(REPORT_PERIOD.pools(&both).count(), 2);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = GRACE_PERIOD.read(&data(&[("nodeMonitorGracePeriod", "soon")]));
        assert_eq!(
            error.unwrap_err().to_string(),
            "nodeMonitorGracePeriod: \"soon\" is not a duration such as 10s or 2m"
        );
        assert_eq!(
            GRACE_PERIOD.observed(),
            "pointsman.io/observed-node-monitor-grace-period"
        );
    }
}
