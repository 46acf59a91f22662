//! Does the real kubectl work?
//!
//! Whatever `kubectl` is on the path is run as people run it; its exit code, its output and what the
//! server holds afterwards are checked.

mod cluster;
mod custom;
mod delete;
mod kinds;
mod read;
mod write;

use pointsman_harness::Server;
use serde_json::Value;
use std::ffi::OsStr;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;

/// A server, and a kubectl that knows it.
struct Kubectl {
    server: Server,
}

impl Kubectl {
    async fn new() -> Self {
        Self {
            server: Server::start(&[]).await,
        }
    }

    async fn output<S: AsRef<OsStr>>(&self, arguments: &[S], input: &str) -> Output {
        let mut command = self.server.kubectl_command();
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl is installed");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        child.wait_with_output().await.unwrap()
    }

    /// Runs a command line, split at spaces, that has to succeed; gives its standard output.
    async fn run(&self, line: &str) -> String {
        self.run_with(line, "").await
    }

    /// The same with standard input.
    async fn run_with(&self, line: &str, input: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        self.run_args(&arguments, input).await
    }

    /// The same with arguments that contain spaces.
    async fn run_args(&self, arguments: &[&str], input: &str) -> String {
        let output = self.output(arguments, input).await;
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success(),
            "kubectl {arguments:?} failed\n{stdout}\n{stderr}"
        );
        stdout
    }

    /// Runs a command line that has to fail; gives its standard error.
    async fn fails(&self, line: &str, input: &str) -> String {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = self.output(&arguments, input).await;
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(!output.status.success(), "kubectl {line} should fail\n{stdout}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The output of `-o json`.
    async fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(&format!("{line} -o json")).await).unwrap()
    }

    /// The output of `-o jsonpath={path}`.
    async fn path(&self, line: &str, path: &str) -> String {
        let output = format!("jsonpath={path}");
        let mut arguments: Vec<&str> = line.split_whitespace().collect();
        arguments.extend(["-o", &output]);
        self.run_args(&arguments, "").await
    }
}

/// The header and the rows of a table, split where kubectl puts three spaces or more.
fn table(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.split("   ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(String::from)
            .collect()
    };
    text.lines().map(cells).collect()
}
