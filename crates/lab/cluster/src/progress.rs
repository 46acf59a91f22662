//! What does somebody see while a cluster starts?

use serde_json::{Value, json};
use std::fmt::Display;
use std::io::Write;
use std::time::Instant;

/// For whom output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Text,
    /// For scripts: one JSON object per line.
    Json,
}

/// Tells how far the start is, a line for each part.
pub struct Progress {
    output: Output,
    started: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn new(output: Output) -> Self {
        Self {
            output,
            started: Instant::now(),
        }
    }

    /// A part serves.
    pub fn ready(&self, part: &str, since: Instant, detail: impl Display) {
        let millis = since.elapsed().as_millis();
        match self.output {
            Output::Text => line(format_args!("{part:<18} ready in {millis:>4} ms   {detail}")),
            Output::Json => line(json!({
                "part": part, "state": "ready", "milliseconds": millis, "detail": detail.to_string(),
            })),
        }
    }

    /// A part does not serve.
    pub fn failed(&self, part: &str, why: impl Display) {
        match self.output {
            Output::Text => line(format_args!("{part:<18} not ready: {why}")),
            Output::Json => line(json!({"part": part, "state": "failed", "detail": why.to_string()})),
        }
    }

    /// Something worth knowing.
    pub fn note(&self, what: impl Display) {
        match self.output {
            Output::Text => line(what),
            Output::Json => line(json!({"note": what.to_string()})),
        }
    }

    /// What a demonstration showed.
    pub fn summary(&self, text: &str, facts: &Value) {
        match self.output {
            Output::Text => line(format_args!("\n{text}")),
            Output::Json => line(json!({"summary": facts})),
        }
    }

    /// Everything serves: how to use it, and `ready`.
    pub fn all_ready(&self, text: &str, mut facts: Value) {
        let seconds = self.started.elapsed().as_secs_f64();
        match self.output {
            Output::Text => line(format_args!("\n{text}\nready in {seconds:.1} s\nready")),
            Output::Json => {
                facts["state"] = "ready".into();
                facts["seconds"] = ((seconds * 1000.0).round() / 1000.0).into();
                line(facts);
            }
        }
    }
}

fn line(what: impl Display) {
    let mut out = std::io::stdout().lock();
    // Nobody may be reading any more; the cluster runs on.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}
