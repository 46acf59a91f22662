//! Which settings can change while the server runs, and who changes them?
//!
//! The ConfigMap `kube-system/pointsman-apiserver` overrides flags, so that a latency profile can be
//! rolled out without a restart and by nothing but the Kubernetes API. What is in force can be read at
//! `/metrics` and in annotations of the same ConfigMap ([`crate::background::announce`]).

use crate::cache::object::Object;
use crate::cache::{Fate, Observer};
use parking_lot::RwLock;
use pointsman_protocol::settings::{NOT_READY_TOLERATION, UNREACHABLE_TOLERATION};
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_rules::kinds;
use pointsman_rules::value::str_at;
use pointsman_telemetry::{Definition, Gauge, Registry, Unit};

/// The ConfigMap that overrides flags, as `namespace/name`.
pub const CONFIG_MAP: &str = "kube-system/pointsman-apiserver";

/// Settings in force.
pub struct Settings {
    flags: TolerationSeconds,
    current: RwLock<TolerationSeconds>,
    not_ready: Gauge,
    unreachable: Gauge,
}

impl Settings {
    /// Settings as the flags give them.
    pub fn new(flags: TolerationSeconds, registry: &Registry) -> Self {
        let gauge = |name, help| registry.gauge(Definition::new(name, help).unit(Unit::Seconds));
        let settings = Self {
            flags,
            current: RwLock::new(flags),
            not_ready: gauge(
                "pointsman_apiserver_default_not_ready_toleration_seconds",
                "Toleration for the not-ready taint that new pods get, as in force now.",
            ),
            unreachable: gauge(
                "pointsman_apiserver_default_unreachable_toleration_seconds",
                "Toleration for the unreachable taint that new pods get, as in force now.",
            ),
        };
        settings.put_in_force(flags);
        settings
    }

    /// The tolerations that new pods get.
    pub fn tolerations(&self) -> TolerationSeconds {
        *self.current.read()
    }

    /// The annotations that tell what is in force.
    pub fn announcements(&self) -> [(String, String); 2] {
        let seconds = self.tolerations();
        [
            (NOT_READY_TOLERATION.observed(), seconds.not_ready.to_string()),
            (UNREACHABLE_TOLERATION.observed(), seconds.unreachable.to_string()),
        ]
    }

    fn put_in_force(&self, seconds: TolerationSeconds) {
        *self.current.write() = seconds;
        self.not_ready.set(seconds.not_ready as f64);
        self.unreachable.set(seconds.unreachable as f64);
    }
}

impl Observer for Settings {
    fn observe(&self, object: &Object, fate: Fate) {
        if object.kind != &kinds::CONFIG_MAP || &*object.key != CONFIG_MAP {
            return;
        }
        let data = object.value();
        let read = |key: &str, flag: i64| {
            let text = if fate == Fate::Removed {
                ""
            } else {
                str_at(&data, &["data", key])
            };
            if text.is_empty() {
                return flag;
            }
            match text.parse::<i64>() {
                Ok(seconds) if seconds >= 0 => seconds,
                _ => {
                    tracing::warn!(
                        config_map = CONFIG_MAP,
                        key,
                        text,
                        "not a number of seconds, the flag stays in force"
                    );
                    flag
                }
            }
        };
        let seconds = TolerationSeconds {
            not_ready: read(NOT_READY_TOLERATION.key, self.flags.not_ready),
            unreachable: read(UNREACHABLE_TOLERATION.key, self.flags.unreachable),
        };
        if seconds != self.tolerations() {
            tracing::info!(
                not_ready = seconds.not_ready,
                unreachable = seconds.unreachable,
                "default tolerations changed"
            );
            self.put_in_force(seconds);
        }
    }
}
