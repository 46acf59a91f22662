//! Commands as a container runtime would run them: a real process, forked and executed.

use pointsman_probe_io::{ExecOutcome, ExecRequest, ExecRunner};
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::Stdio;

/// Runs commands on this machine.
pub struct Processes;

impl ExecRunner for Processes {
    fn exec(&self, request: ExecRequest) -> Pin<Box<dyn Future<Output = ExecOutcome> + Send + '_>> {
        Box::pin(async move {
            let mut command = std::process::Command::new(&request.command[0]);
            // Setting the user takes the way of fork and exec, as entering a container does.
            command
                .args(&request.command[1..])
                .uid(rustix::process::getuid().as_raw())
                .process_group(0);
            let mut command = tokio::process::Command::from(command);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true);
            match tokio::time::timeout(request.timeout, command.output()).await {
                Ok(Ok(output)) => ExecOutcome::Exited {
                    code: output.status.code().unwrap_or(-1),
                    output: output.stdout,
                },
                Ok(Err(error)) => ExecOutcome::Failed(error.to_string()),
                Err(_) => ExecOutcome::TimedOut,
            }
        })
    }
}
