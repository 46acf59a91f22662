//! `pointsman gate`.

use crate::duration;
use anyhow::bail;
use clap::Args;
use pointsman_node_agent::gate::{Gate, WaitOutcome};
use serde_json::json;
use std::time::Duration;

/// Which pod, and where to ask.
#[derive(Args)]
pub struct Flags {
    /// Where the gate is served, such as http://10.96.0.77:10271.
    #[arg(long, value_name = "URL", env = "POINTSMAN_GATE_URL")]
    url: http::Uri,
    /// The pod's namespace.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    namespace: String,
    /// The pod's name.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod: String,
    /// The pod's uid, so that nobody mistakes it for another one of its name.
    #[arg(long, value_name = "UID", env = "POD_UID", default_value = "")]
    uid: String,
    /// The longest wait, up to 60s; shorter than the pod's grace period.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    bound: Duration,
}

/// Waits at the gate and prints what came of it.
#[expect(clippy::print_stdout, reason = "the answer is what was asked for")]
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let gate = Gate {
        url: flags.url,
        bound: flags.bound,
    };
    let waited = gate.ask(&flags.namespace, &flags.pod, &flags.uid).await;
    let outcome = waited.outcome.as_str();
    let seconds = waited.waited.as_secs_f64();
    println!(
        "{}",
        json!({ "outcome": outcome, "waitedSeconds": seconds, "behind": waited.behind })
    );
    if waited.outcome == WaitOutcome::Unreachable {
        bail!("the gate did not answer within {:?}", gate.bound);
    }
    Ok(())
}
