//! What should our condition of one pod say?

use crate::view::{Condition, View};
use jiff::Timestamp;
use pointsman_model::Revision;
use pointsman_probe_io::Verdict;
use std::collections::BTreeMap;

/// A pod that waits for our condition, with what its probes say.
#[derive(Clone, Debug)]
pub(crate) struct Tracked {
    pub view: View,
    /// What each probe last said.
    pub verdicts: BTreeMap<String, (Verdict, String)>,
    /// When a verdict last changed.
    pub changed: Option<Timestamp>,
    /// A patch is under way.
    pub writing: bool,
    /// The version that our last patch made; what is older says nothing about our condition.
    pub written: Revision,
    /// How often in a row writing failed.
    pub failures: u32,
}

impl Tracked {
    pub fn new(view: View) -> Self {
        // What was ready before we came is ready until its probes say otherwise.
        let ready = view.condition.as_ref().is_some_and(|condition| condition.met);
        let mut verdicts = BTreeMap::new();
        if let (true, Ok(target)) = (ready, &view.target) {
            for container in &target.containers {
                if view.running.contains_key(&*container.name) {
                    verdicts.insert(container.name.to_string(), (Verdict::Success, String::new()));
                }
            }
        }
        Self {
            view,
            verdicts,
            changed: None,
            writing: false,
            written: Revision::default(),
            failures: 0,
        }
    }

    /// Takes the pod as it is now.
    pub fn see(&mut self, mut view: View) {
        // An event from before our own write does not know of it yet.
        if view.version < self.written {
            view.condition.clone_from(&self.view.condition);
        }
        self.verdicts
            .retain(|container, _| view.running.contains_key(container));
        self.view = view;
    }

    /// What our condition should say.
    pub fn desired(&self) -> Condition {
        let unmet = |reason: &str, message: String| Condition {
            met: false,
            reason: reason.to_owned(),
            message,
        };
        let target = match &self.view.target {
            Ok(target) => target,
            Err(error) => return unmet("InvalidAnnotation", error.to_string()),
        };
        let names = || target.containers.iter().map(|container| &*container.name);
        if let Some(name) = names().find(|name| !self.view.running.contains_key(*name)) {
            let what = if name.is_empty() {
                "the pod".to_owned()
            } else {
                format!("container {name}")
            };
            return unmet("NotRunning", format!("{what} does not run yet"));
        }
        for name in names() {
            match self.verdicts.get(name) {
                Some((Verdict::Success, _)) => {}
                Some((_, message)) if !message.is_empty() => return unmet("ProbeFailed", message.clone()),
                _ => return unmet("NoSuccessYet", "no check has succeeded yet".to_owned()),
            }
        }
        Condition {
            met: true,
            reason: "ProbeSucceeded".to_owned(),
            message: String::new(),
        }
    }

    /// What to write now, if anything.
    pub fn to_write(&self) -> Option<Condition> {
        let desired = self.desired();
        let there = self
            .view
            .condition
            .as_ref()
            .is_some_and(|there| there.says_the_same(&desired));
        (!there && !self.writing).then_some(desired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::GATE;
    use pointsman_probe_io::Reading;
    use serde_json::{Value, json};

    fn pod(condition: Option<&str>, running: bool, version: u64) -> View {
        let state = if running {
            json!({"running": {"startedAt": "2026-01-01T00:00:05Z"}})
        } else {
            json!({})
        };
        let conditions: Vec<Value> = condition
            .map(|status| json!({"type": GATE, "status": status, "reason": if status == "True" { "ProbeSucceeded" } else { "NoSuccessYet" }}))
            .into_iter()
            .collect();
        let pod = json!({
            "metadata": {"uid": "u", "name": "p", "namespace": "n", "resourceVersion": version.to_string(),
                "annotations": {crate::ANNOTATION: "tcpSocket: {port: 80}"}},
            "spec": {"readinessGates": [{"conditionType": GATE}], "containers": [{"name": "web"}]},
            "status": {"podIP": "10.0.0.1", "conditions": conditions,
                "containerStatuses": [{"name": "web", "containerID": "1", "state": state}]},
        });
        View::of(&serde_json::from_value(pod).expect("a pod"), &Reading::default()).expect("ours")
    }

    fn says(tracked: &Tracked) -> (bool, String) {
        let desired = tracked.desired();
        (desired.met, desired.reason)
    }

    #[test]
    fn a_new_pod_is_not_ready_until_its_probe_succeeds() {
        let mut tracked = Tracked::new(pod(None, false, 1));
        assert_eq!(says(&tracked), (false, "NotRunning".to_owned()));
        tracked.see(pod(None, true, 2));
        assert_eq!(says(&tracked), (false, "NoSuccessYet".to_owned()));
        tracked
            .verdicts
            .insert(String::new(), (Verdict::Success, String::new()));
        assert_eq!(says(&tracked), (true, "ProbeSucceeded".to_owned()));
        tracked
            .verdicts
            .insert(String::new(), (Verdict::Failure, "refused".to_owned()));
        assert_eq!(says(&tracked), (false, "ProbeFailed".to_owned()));
        tracked.see(pod(None, false, 3));
        tracked.see(pod(None, true, 4));
        assert_eq!(
            says(&tracked),
            (false, "NoSuccessYet".to_owned()),
            "another run, another verdict"
        );
    }

    #[test]
    fn a_pod_that_was_ready_before_we_came_needs_no_write() {
        assert_eq!(Tracked::new(pod(Some("True"), true, 1)).to_write(), None);
        assert_eq!(Tracked::new(pod(Some("False"), true, 1)).to_write(), None);
        assert!(Tracked::new(pod(None, true, 1)).to_write().is_some());
        // Unless it no longer runs.
        assert_eq!(
            Tracked::new(pod(Some("True"), false, 1))
                .to_write()
                .map(|condition| condition.met),
            Some(false)
        );
    }

    #[test]
    fn somebody_elses_change_of_our_condition_is_put_right_and_an_old_event_is_not_mistaken_for_one() {
        let mut tracked = Tracked::new(pod(Some("True"), true, 1));
        tracked.see(pod(Some("False"), true, 5));
        assert_eq!(tracked.to_write().map(|condition| condition.met), Some(true));
        tracked.view.condition = Some(tracked.desired());
        tracked.written = Revision(9);
        tracked.see(pod(Some("False"), true, 8));
        assert_eq!(tracked.to_write(), None);
        tracked.see(pod(None, true, 10));
        assert!(tracked.to_write().is_some());
    }
}
