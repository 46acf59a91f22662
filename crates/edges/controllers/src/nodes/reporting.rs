//! How do settings come into force while the loops run, and how does everybody see that they did?

use super::Edge;
use super::pods::subject;
use super::settings::{LiveSettings, NAME, NAMESPACE, Report, Sight};
use crate::writer::Writers;
use pointsman_api_client::events::Severity;
use pointsman_api_client::{ApiError, Patch, Resource};
use pointsman_node_health::Settings;
use pointsman_objects::ConfigMap;
use serde::de::IgnoredAny;
use serde_json::json;
use std::time::Duration;

/// Wait after a report that failed, and between a report and the next look at its effect.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) const CONFIG_MAPS: Resource = Resource::core("configmaps");

/// The state of run-time settings.
pub(super) struct Reporting {
    edge: Edge,
    live: LiveSettings,
    /// What the ConfigMap has to say; kept, because loops ask after every event.
    open: Option<Report>,
    pub writers: Writers<Option<ApiError>>,
    /// No report before this tick: the watch has still to show the last one.
    not_before: Duration,
}

impl Reporting {
    pub fn new(edge: Edge, flags: Settings) -> Self {
        let live = LiveSettings::new(flags);
        Self {
            edge,
            open: live.report(),
            live,
            writers: Writers::new(1),
            not_before: Duration::ZERO,
        }
    }

    /// Takes in the ConfigMap; returns settings that come into force.
    pub fn observe(&mut self, map: &ConfigMap) -> Option<Settings> {
        self.not_before = Duration::ZERO;
        let annotations = map.metadata.annotations.iter();
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let sight = self.live.see(map.data.clone(), annotations.collect());
        self.open = self.live.report();
        match sight {
            Sight::Same => None,
            Sight::Changed(settings) => {
                tracing::info!(?settings, "node health settings changed");
                Some(settings)
            }
            Sight::Refused(reason) => {
                tracing::warn!(
                    config_map = NAME,
                    reason,
                    "settings refused, the last good ones stay"
                );
                let message = format!("{reason}; the last good settings stay in force");
                let subject = subject("ConfigMap", NAMESPACE, NAME, &map.metadata.uid);
                self.edge
                    .tell(&subject, Severity::Warning, "InvalidSettings", message);
                None
            }
        }
    }

    /// The ConfigMap is gone.
    pub fn gone(&mut self) {
        tracing::warn!(
            config_map = NAME,
            "deleted; its settings stay in force and it is made again"
        );
        let subject = subject("ConfigMap", NAMESPACE, NAME, "");
        let message = "Settings stay in force; remove keys to go back to flags".to_owned();
        self.edge
            .tell(&subject, Severity::Warning, "SettingsRestored", message);
        self.live.gone();
        self.open = self.live.report();
        self.not_before = Duration::ZERO;
    }

    /// When a report is due, if one is.
    pub fn wake_at(&self) -> Option<Duration> {
        let due = self.writers.has_room() && self.open.is_some();
        due.then_some(self.not_before)
    }

    /// Reports what is in force, if the ConfigMap does not say it.
    pub fn start(&mut self, now: Duration) {
        if !self.writers.has_room() || now < self.not_before {
            return;
        }
        if let Some(report) = self.open.clone() {
            self.writers.start(send(self.edge.clone(), report));
        }
    }

    /// Takes back a report.
    pub fn finish(&mut self, failure: Option<ApiError>, now: Duration) {
        if let Some(error) = failure {
            tracing::warn!(config_map = NAME, %error, "settings in force could not be reported");
        }
        self.not_before = now + AGAIN;
    }
}

async fn send(edge: Edge, report: Report) -> Option<ApiError> {
    let api = edge.client.api(CONFIG_MAPS, Some(NAMESPACE));
    let outcome = match report {
        Report::Create { data, annotations } => {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": { "name": NAME, "namespace": NAMESPACE, "annotations": annotations },
            });
            api.create::<IgnoredAny>(map.to_string().into_bytes()).await
        }
        Report::Annotate(changes) => {
            let patch = json!({ "metadata": { "annotations": changes } });
            let patch = Patch::Merge(patch.to_string().into_bytes());
            api.patch::<IgnoredAny>(NAME, patch).await
        }
    };
    match outcome {
        // Somebody was faster; the watch shows it.
        Err(ApiError::AlreadyExists(_) | ApiError::NotFound(_)) => None,
        outcome => outcome.err(),
    }
}
