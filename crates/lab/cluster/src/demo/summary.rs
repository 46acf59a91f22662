//! The table at the end.

use super::latency::Programming;
use super::scenes::Scene;
use crate::load::Tally;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How all scenes went.
#[derive(Default)]
pub struct Summary {
    rows: Vec<Row>,
}

struct Row {
    scene: Scene,
    tally: Tally,
    programming: Programming,
    seen: Result<String, String>,
}

impl Summary {
    /// Adds a scene and returns a line about it.
    pub fn add(
        &mut self,
        scene: Scene,
        played: anyhow::Result<String>,
        tallies: BTreeMap<String, Tally>,
        programming: Programming,
    ) -> String {
        let mut tally = Tally::default();
        for (node, counted) in &tallies {
            if scene.excluded() != Some(node.as_str()) {
                tally.merge(counted);
            }
        }
        let row = Row {
            scene,
            tally,
            programming,
            seen: played.map_err(|error| format!("{error:#}")),
        };
        let line = row.line();
        self.rows.push(row);
        line
    }

    pub fn render(&self) -> String {
        let mut text = format!(
            "{:<20} {:>9} {:>5} {:>9}  {:>22}  seen\n",
            "scene", "requests", "lost", "slowest", "rules p50/p99/max ms"
        );
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        for row in self.rows.iter().filter(|row| row.tally.lost() > 0) {
            let reasons: Vec<String> = row
                .tally
                .failed
                .iter()
                .map(|(why, count)| format!("{count} {why}"))
                .collect();
            let _ = writeln!(text, "lost in {:?}: {}", row.scene.name(), reasons.join(", "));
        }
        text.push_str(
            "\"rules\" is the time from a change of a pod to the rules of each node, over all nodes. When a node is\n\
             cut off, requests that were sent to its pods are lost until the cluster calls it unreachable; those\n\
             of the cut-off node itself are not counted.",
        );
        text
    }

    pub fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "scene": row.scene.name(),
                "requests": row.tally.ok + row.tally.lost(),
                "lost": row.tally.lost(),
                "reasons": row.tally.failed,
                "slowestMilliseconds": row.tally.slowest_ms,
                "changes": row.programming.count(),
                "rulesP50Milliseconds": finite(row.programming.quantile_ms(0.5)),
                "rulesP99Milliseconds": finite(row.programming.quantile_ms(0.99)),
                "seen": row.seen.as_ref().ok(),
                "error": row.seen.as_ref().err(),
            })
        };
        Value::Array(self.rows.iter().map(row).collect())
    }
}

impl Row {
    fn line(&self) -> String {
        let programming = match self.programming.count() {
            0 => "-".to_owned(),
            _ => {
                let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| self.programming.quantile_ms(share));
                format!("{p50:.1} / {p99:.1} / {max:.1}")
            }
        };
        let seen = match &self.seen {
            Ok(seen) => seen.clone(),
            Err(why) => format!("FAILED: {why}"),
        };
        format!(
            "{:<20} {:>9} {:>5} {:>6.0} ms  {programming:>22}  {seen}",
            self.scene.name(),
            self.tally.ok + self.tally.lost(),
            self.tally.lost(),
            self.tally.slowest_ms,
        )
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_off_node_does_not_count_and_losses_are_explained() {
        let tally = |ok, lost| Tally {
            ok,
            failed: BTreeMap::from([("timeout".to_owned(), lost)]),
            ..Tally::default()
        };
        let tallies = BTreeMap::from([("n1".to_owned(), tally(10, 2)), ("n3".to_owned(), tally(1, 50))]);
        let mut summary = Summary::default();
        summary.add(
            Scene::LostNode,
            Ok("seen".into()),
            tallies.clone(),
            Programming::default(),
        );
        summary.add(
            Scene::UnreadyPod,
            Err(anyhow::anyhow!("no pod")),
            tallies,
            Programming::default(),
        );
        let rows = summary.to_json();
        assert_eq!((&rows[0]["requests"], &rows[0]["lost"]), (&json!(12), &json!(2)));
        assert_eq!(
            (&rows[1]["lost"], &rows[1]["error"]),
            (&json!(52), &json!("no pod"))
        );
        let text = summary.render();
        assert!(
            text.contains("lost in \"a node is cut off\": 2 timeout"),
            "{text}"
        );
        assert!(text.contains("FAILED: no pod"), "{text}");
    }
}
