//! How do checks run commands in containers?
//!
//! The container runtime is behind [`ExecRunner`]. However many exec probes are due, only so many
//! run at a time; the others wait in the order they came.

use crate::finding::Finding;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// As much of a command's output as is kept, as upstream.
pub const MAX_OUTPUT: usize = 10 << 10;
/// How much longer than its timeout a runner may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// A command to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The pod's UID.
    pub pod_uid: Arc<str>,
    /// The container's name.
    pub container: Arc<str>,
    /// The command and its arguments.
    pub command: Arc<[String]>,
    /// After this time the command is to be killed and reported as timed out.
    pub timeout: Duration,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutcome {
    Exited {
        /// Its exit code.
        code: i32,
        /// What it wrote, cut off at [`MAX_OUTPUT`].
        output: Vec<u8>,
    },
    /// It did not end in time and was killed.
    TimedOut,
    /// It could not be run; this says nothing about the container's health.
    Failed(String),
}

/// Runs commands in containers.
pub trait ExecRunner: Send + Sync + 'static {
    /// Runs one command to its end. Dropping the future gives the command up.
    fn exec(&self, request: ExecRequest) -> Pin<Box<dyn Future<Output = ExecOutcome> + Send + '_>>;
}

/// A runner for a node without containers to run commands in.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoExec;

impl ExecRunner for NoExec {
    fn exec(&self, _: ExecRequest) -> Pin<Box<dyn Future<Output = ExecOutcome> + Send + '_>> {
        Box::pin(async { ExecOutcome::Failed("exec probes are not available here".to_owned()) })
    }
}

/// Runs requests as they come, at most `concurrency` at a time, until their sender is gone.
pub(crate) async fn serve<T: Send + 'static>(
    runner: Arc<dyn ExecRunner>,
    mut requests: mpsc::UnboundedReceiver<(T, ExecRequest)>,
    concurrency: usize,
    answer: impl Fn(T, Finding) + Send + Sync + 'static,
) {
    let permits = Arc::new(Semaphore::new(concurrency.max(1)));
    let answer = Arc::new(answer);
    while let Some((ticket, request)) = requests.recv().await {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let (runner, answer) = (runner.clone(), answer.clone());
        tokio::spawn(async move {
            let timeout = request.timeout;
            let ended = tokio::time::timeout(timeout + PATIENCE, runner.exec(request)).await;
            drop(permit);
            answer(ticket, finding(ended.unwrap_or(ExecOutcome::TimedOut), timeout));
        });
    }
}

fn finding(outcome: ExecOutcome, timeout: Duration) -> Finding {
    match outcome {
        ExecOutcome::Exited { code: 0, .. } => Finding::Good,
        ExecOutcome::Exited { code, mut output } => {
            output.truncate(MAX_OUTPUT);
            let output = String::from_utf8_lossy(&output).trim_end().to_owned();
            Finding::Exited { code, output }
        }
        ExecOutcome::TimedOut => Finding::TimedOut(timeout),
        ExecOutcome::Failed(reason) => Finding::Impossible(reason.into()),
    }
}
