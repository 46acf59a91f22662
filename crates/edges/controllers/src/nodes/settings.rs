//! Which node health settings are in force, and who changes them?
//!
//! The ConfigMap `kube-system/pointsman-controllers` overrides flags while the loops run, so that a
//! latency profile can be rolled out without a restart. Values that make no sense change nothing: what
//! was last good stays in force. So it does when the ConfigMap is deleted, since a grace period that
//! silently falls back to a shorter one would punish nodes that report as seldom as they were asked to;
//! the ConfigMap is made again with the values in force.
//!
//! What is in force is written back as annotations of the same ConfigMap. They say the worse value first: a
//! longer grace period is used before it is announced, a shorter one is announced before it is used. So
//! nobody who reads them ever finds the loops less patient than they say, even if what is wanted changes
//! again before anything could be announced.

use pointsman_model::duration;
use pointsman_node_health::Settings;
use std::collections::BTreeMap;

pub use pointsman_protocol::settings::{CONTROLLERS as NAME, NAMESPACE};

/// Annotation with what is wrong with the ConfigMap's values; absent when nothing is.
pub const ERROR_ANNOTATION: &str = "pointsman.io/node-health-settings-error";

use pointsman_protocol::settings::OBSERVED_PREFIX as OBSERVED;

/// The annotation with the grace period.
const ANNOUNCED_GRACE: &str = "pointsman.io/observed-node-monitor-grace-period";

/// A setting: its key in the ConfigMap, its flag, and how it is read and written.
struct Setting {
    key: &'static str,
    flag: &'static str,
    read: fn(&mut Settings, &str) -> Option<()>,
    write: fn(&Settings) -> String,
}

macro_rules! setting {
    ($key:literal, $flag:literal, $field:ident, $read:expr, $write:expr) => {
        Setting {
            key: $key,
            flag: $flag,
            read: |settings, text| {
                settings.$field = $read(text)?;
                Some(())
            },
            write: |settings| $write(settings.$field),
        }
    };
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

fn whole(text: &str) -> Option<usize> {
    text.trim().parse().ok()
}

fn period(text: &str) -> Option<std::time::Duration> {
    duration::parse(text.trim())
}

/// Every setting that can change at run time.
const ALL: [Setting; 10] = [
    setting!(
        "nodeMonitorPeriod",
        "node-monitor-period",
        monitor_period,
        period,
        duration::short
    ),
    setting!(
        "nodeMonitorGracePeriod",
        "node-monitor-grace-period",
        grace_period,
        period,
        duration::short
    ),
    setting!(
        "nodeStartupGracePeriod",
        "node-startup-grace-period",
        startup_grace_period,
        period,
        duration::short
    ),
    setting!(
        "nodeEvictionRate",
        "node-eviction-rate",
        eviction_rate,
        number,
        |it: f64| it.to_string()
    ),
    setting!(
        "secondaryNodeEvictionRate",
        "secondary-node-eviction-rate",
        secondary_eviction_rate,
        number,
        |it: f64| it.to_string()
    ),
    setting!(
        "largeClusterSizeThreshold",
        "large-cluster-size-threshold",
        large_zone_threshold,
        whole,
        |it: usize| it.to_string()
    ),
    setting!(
        "unhealthyZoneThreshold",
        "unhealthy-zone-threshold",
        unhealthy_threshold,
        number,
        |it: f64| it.to_string()
    ),
    setting!(
        "nodeMarkingRate",
        "node-marking-rate",
        marking_rate,
        number,
        |it: f64| it.to_string()
    ),
    setting!(
        "nodeMarkingBurst",
        "node-marking-burst",
        marking_burst,
        number,
        |it: f64| it.to_string()
    ),
    setting!(
        "disruptedNodeMarkingRate",
        "disrupted-node-marking-rate",
        disrupted_marking_rate,
        number,
        |it: f64| it.to_string()
    ),
];

/// Reads settings: the flags', overridden by what `data` names. All or nothing; keys of others are left
/// alone.
pub fn read(data: &BTreeMap<String, String>, flags: &Settings) -> Result<Settings, String> {
    let mut settings = *flags;
    let mut faults = Vec::new();
    for setting in &ALL {
        let Some(text) = data.get(setting.key) else {
            continue;
        };
        if (setting.read)(&mut settings, text).is_none() {
            faults.push(format!("{}: {text:?} cannot be read", setting.key));
        }
    }
    if faults.is_empty()
        && let Err(error) = settings.validate()
    {
        faults.push(error.to_string());
    }
    if faults.is_empty() {
        Ok(settings)
    } else {
        Err(faults.join("; "))
    }
}

/// The annotations that tell what is in force.
pub fn observed(settings: &Settings) -> BTreeMap<String, String> {
    ALL.iter()
        .map(|setting| (format!("{OBSERVED}{}", setting.flag), (setting.write)(settings)))
        .collect()
}

/// Settings in force, and what the ConfigMap has to say.
#[derive(Debug)]
pub(super) struct LiveSettings {
    flags: Settings,
    /// What the ConfigMap last said that made sense.
    wanted: Settings,
    /// `wanted`, but for a shorter grace period that is not announced yet.
    current: Settings,
    /// The data that `wanted` was read from.
    good: BTreeMap<String, String>,
    error: Option<String>,
    /// The ConfigMap as it is, if there is one.
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    annotations: BTreeMap<String, String>,
}

/// What a sight of the ConfigMap changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sight {
    Same,
    /// These settings come into force.
    Changed(Settings),
    /// The values make no sense, for this reason; reported once for each reason.
    Refused(String),
}

/// A write that tells what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// There is no ConfigMap: one with this data and these annotations.
    Create {
        data: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    },
    /// Annotations to set, and with `None` to remove.
    Annotate(BTreeMap<String, Option<String>>),
}

impl LiveSettings {
    pub fn new(flags: Settings) -> Self {
        Self {
            flags,
            wanted: flags,
            current: flags,
            good: BTreeMap::new(),
            error: None,
            seen: None,
        }
    }

    #[cfg(test)]
    pub fn current(&self) -> &Settings {
        &self.current
    }

    /// Takes in the ConfigMap as it is now.
    pub fn see(&mut self, data: BTreeMap<String, String>, annotations: BTreeMap<String, String>) -> Sight {
        self.seen = Some(Seen { annotations });
        match read(&data, &self.flags) {
            Ok(settings) => {
                (self.wanted, self.good, self.error) = (settings, data, None);
                let next = self.usable();
                if std::mem::replace(&mut self.current, next) == next {
                    Sight::Same
                } else {
                    Sight::Changed(next)
                }
            }
            Err(error) if self.error.as_ref() == Some(&error) => Sight::Same,
            Err(error) => {
                self.error = Some(error.clone());
                Sight::Refused(error)
            }
        }
    }

    /// What is wanted, with the grace period that is announced if that is longer.
    fn usable(&self) -> Settings {
        let annotations = self.seen.as_ref().map(|seen| &seen.annotations);
        let announced = annotations.and_then(|annotations| period(annotations.get(ANNOUNCED_GRACE)?));
        Settings {
            grace_period: self.wanted.grace_period.max(announced.unwrap_or_default()),
            ..self.wanted
        }
    }

    /// The ConfigMap is gone; what is in force stays.
    pub fn gone(&mut self) {
        self.seen = None;
        self.error = None;
    }

    /// What has to be written so that the ConfigMap tells the truth.
    pub fn report(&self) -> Option<Report> {
        let mut annotations = observed(&self.wanted);
        if let Some(error) = &self.error {
            annotations.insert(ERROR_ANNOTATION.into(), error.clone());
        }
        let Some(seen) = &self.seen else {
            return Some(Report::Create {
                data: self.good.clone(),
                annotations,
            });
        };
        let stale = seen
            .annotations
            .contains_key(ERROR_ANNOTATION)
            .then(|| (ERROR_ANNOTATION.to_owned(), None));
        let mut changes: BTreeMap<String, Option<String>> = stale
            .filter(|(key, _)| !annotations.contains_key(key))
            .into_iter()
            .collect();
        for (key, value) in annotations {
            if seen.annotations.get(&key) != Some(&value) {
                changes.insert(key, Some(value));
            }
        }
        (!changes.is_empty()).then_some(Report::Annotate(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    const GRACE: &str = ANNOUNCED_GRACE;

    #[test]
    fn what_is_reported_reads_back_as_the_same_settings() {
        let settings = Settings {
            grace_period: Duration::from_millis(1500),
            monitor_period: Duration::from_millis(250),
            eviction_rate: 0.25,
            large_zone_threshold: 7,
            ..Settings::default()
        };
        let reported = observed(&settings);
        let again: BTreeMap<String, String> = ALL
            .iter()
            .map(|setting| {
                (
                    setting.key.to_owned(),
                    reported[&format!("{OBSERVED}{}", setting.flag)].clone(),
                )
            })
            .collect();
        assert_eq!(read(&again, &Settings::default()), Ok(settings));
        assert_eq!(reported[GRACE], "1s500ms");
    }

    #[test]
    fn bad_values_change_nothing_and_are_told_once() {
        let mut live = LiveSettings::new(Settings::default());
        let good = data(&[("nodeMonitorGracePeriod", "2m"), ("somebody", "else's")]);
        assert!(matches!(
            live.see(good.clone(), BTreeMap::new()),
            Sight::Changed(_)
        ));
        for bad in [
            ("nodeMonitorGracePeriod", "soon"),
            ("nodeMonitorGracePeriod", "1s"),
            ("nodeEvictionRate", "NaN"),
            ("nodeMonitorPeriod", "0s"),
            ("largeClusterSizeThreshold", "-1"),
        ] {
            let refused = live.see(data(&[bad]), BTreeMap::new());
            assert!(matches!(refused, Sight::Refused(_)), "{bad:?}");
            assert_eq!(live.see(data(&[bad]), BTreeMap::new()), Sight::Same);
            assert_eq!(live.current().grace_period, Duration::from_secs(120));
            let Some(Report::Annotate(changes)) = live.report() else {
                panic!("the fault is reported");
            };
            assert!(changes[ERROR_ANNOTATION].is_some());
            assert_eq!(changes[GRACE].as_deref(), Some("2m"));
        }
        assert_eq!(
            live.see(good, data(&[(ERROR_ANNOTATION, "old")])),
            Sight::Same,
            "the same values as before the faults"
        );
        let Some(Report::Annotate(changes)) = live.report() else {
            panic!("the fault is taken back");
        };
        assert_eq!(changes[ERROR_ANNOTATION], None);
    }

    #[test]
    fn a_deleted_config_map_is_made_again_with_what_is_in_force() {
        let mut live = LiveSettings::new(Settings::default());
        assert!(matches!(live.report(), Some(Report::Create { data, .. }) if data.is_empty()));
        let slow = data(&[("nodeMonitorGracePeriod", "5m")]);
        live.see(slow.clone(), BTreeMap::new());
        live.gone();
        assert_eq!(live.current().grace_period, Duration::from_secs(300));
        let Some(Report::Create { data, annotations }) = live.report() else {
            panic!("it is made again");
        };
        assert_eq!((&data, annotations[GRACE].as_str()), (&slow, "5m"));
        assert_eq!(live.see(data, annotations), Sight::Same);
        assert_eq!(live.report(), None);
    }

    #[test]
    fn a_shorter_grace_period_is_announced_before_it_is_used() {
        let mut live = LiveSettings::new(Settings::default());
        let (slow, quick) = (
            data(&[("nodeMonitorGracePeriod", "2m")]),
            data(&[("nodeMonitorGracePeriod", "30s")]),
        );
        let grace = |live: &LiveSettings| live.current().grace_period.as_secs();
        live.see(slow.clone(), data(&[(GRACE, "40s")]));
        assert_eq!(grace(&live), 120, "longer: at once");
        let announced = data(&[(GRACE, "2m")]);
        live.see(quick.clone(), announced.clone());
        assert_eq!(grace(&live), 120, "shorter: not yet");
        let Some(Report::Annotate(changes)) = live.report() else {
            panic!("it is announced");
        };
        assert_eq!(changes[GRACE].as_deref(), Some("30s"));

        // Somebody changes his mind before that arrives: the announcement was true all the time.
        assert_eq!(live.see(slow, announced), Sight::Same);
        live.see(quick, data(&[(GRACE, "30s")]));
        assert_eq!(grace(&live), 30);
    }

    #[test]
    fn a_key_that_is_taken_away_gives_way_to_the_flag() {
        let mut live = LiveSettings::new(Settings::default());
        live.see(data(&[("nodeMonitorGracePeriod", "5m")]), BTreeMap::new());
        let back = live.see(BTreeMap::new(), BTreeMap::new());
        assert_eq!(back, Sight::Changed(Settings::default()));
    }
}
