//! What is a node here?

use crate::events::Millis;
use crate::link::Link;
use pointsman_latency_profile::{ReportPeriod, Values};
use pointsman_model::{Labels, Moment, Text};
use pointsman_node_health::Renewal;
use pointsman_objects::names::{NOT_READY_TAINT, UNREACHABLE_TAINT, ZONE_LABEL};
use pointsman_objects::node::{ConditionKind, NodeCondition};
use pointsman_objects::pod::Common;
use pointsman_objects::taint::{Effect, Toleration, TolerationOperator};
use pointsman_objects::{Condition, ConditionStatus, Metadata, Node, Pod};
use std::sync::Arc;

/// A node, its link, and what the API server has of it.
#[derive(Debug)]
pub(super) struct SimNode {
    pub link: Link,
    pub alive: bool,
    pub period: ReportPeriod,
    /// As its last report said.
    pub seen_period: ReportPeriod,
    /// When the last report is, or will be, at the API server.
    pub report_arrives: Millis,
    /// Whether the controller has seen it.
    pub report_shown: bool,
    /// When the last renewal is, or will be, at the API server.
    pub lease_arrives: Millis,
    /// Version of the lease after it.
    pub revision: u64,
    /// When the controller last saw a sign of life.
    pub heard: Millis,
    pub object: Node,
    /// The one pod on it.
    pub pod: Pod,
    beats: [Text; 2],
}

impl SimNode {
    pub fn new(number: usize, zone: usize, values: Values, link: Link) -> Self {
        let name: Text = format!("n{number}").into();
        let beats: [Text; 2] = ["tick".into(), "tock".into()];
        let ready = NodeCondition {
            kind: ConditionKind::Ready,
            status: ConditionStatus::True,
            heartbeat: beats[0].clone(),
            changed: None,
            by_controller: false,
        };
        let object = Node {
            metadata: Metadata {
                name: name.clone(),
                labels: Labels::new([(ZONE_LABEL, format!("z{zone}"))]),
                ..Metadata::default()
            },
            conditions: [ready].into(),
            ..Node::default()
        };
        let pod = Pod {
            metadata: Metadata {
                namespace: "default".into(),
                name: format!("p{number}").into(),
                uid: "first".into(),
                ..Metadata::default()
            },
            node_name: Some(name),
            common: with_tolerations(values),
            ready_condition: Some(Condition {
                status: ConditionStatus::True,
                changed: None,
            }),
            ..Pod::default()
        };
        Self {
            link,
            alive: true,
            period: values.report,
            seen_period: values.report,
            report_arrives: 0,
            report_shown: true,
            lease_arrives: 0,
            revision: 0,
            heard: 0,
            object,
            pod,
            beats,
        }
    }

    /// The object as the node's own report leaves it.
    pub fn beat(&mut self) {
        let ready = &mut self.object.conditions[0];
        let next = usize::from(ready.heartbeat == self.beats[0]);
        ready.heartbeat = self.beats[next].clone();
        ready.status = ConditionStatus::True;
        ready.by_controller = false;
    }

    /// The object as the controller's verdict leaves it.
    pub fn mark_unknown(&mut self) {
        let ready = &mut self.object.conditions[0];
        ready.status = ConditionStatus::Unknown;
        ready.by_controller = true;
    }

    /// The lease in its newest version.
    pub fn lease(&self) -> Renewal {
        Renewal {
            node: self.object.metadata.name.clone(),
            revision: self.revision,
            renewed: Some(Moment::from_seconds((self.revision % 2) as i64)),
        }
    }

    /// The version of the lease that the API server has now.
    pub fn live_revision(&self, now: Millis) -> u64 {
        if self.lease_arrives <= now {
            self.revision
        } else {
            self.revision.saturating_sub(1)
        }
    }

    /// A new pod, with the tolerations that new pods get.
    pub fn replace_pod(&mut self, values: Values) {
        self.pod.metadata.uid = "second".into();
        self.pod.common = with_tolerations(values);
    }
}

fn with_tolerations(values: Values) -> Arc<Common> {
    let toleration = |key: &str, seconds: u64| Toleration {
        key: key.into(),
        operator: TolerationOperator::Exists,
        effect: Some(Effect::NoExecute),
        toleration_seconds: i64::try_from(seconds).ok(),
        ..Toleration::default()
    };
    Arc::new(Common {
        tolerations: [
            toleration(NOT_READY_TAINT, values.tolerations.not_ready),
            toleration(UNREACHABLE_TAINT, values.tolerations.unreachable),
        ]
        .into(),
        ..Common::default()
    })
}
