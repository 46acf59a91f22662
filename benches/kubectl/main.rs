//! How long does kubectl alone take to apply many pods?
//!
//! ```sh
//! cargo bench -p pointsman-benches --bench kubectl -- PROGRAM [--quick] [--pods 1000] [--kubectl kubectl]
//! ```
//!
//! kubectl talks to a server of this program's own that answers at once: it has no pod, and every new one is created. Documents of
//! discovery and OpenAPI are those of a real API server, recorded when kubectl asks for them for the first time. What is left is
//! kubectl's own time, below which no cluster can get. The same is then done with the real API server, without loops and
//! nodes.

#![expect(clippy::print_stdout, reason = "its output is the product")]

mod answers;

use answers::Answers;
use clap::Parser;
use pointsman_benches::kubeconfig;
use pointsman_benches::process::{load_average, usage};
use pointsman_benches::server::Server;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;
use tokio::process::Command;

/// Measures kubectl.
#[derive(Parser)]
struct Flags {
    /// The program whose API server is recorded.
    #[arg(value_name = "POINTSMAN")]
    program: String,
    /// A tenth of the pods.
    #[arg(long)]
    quick: bool,
    #[arg(long, value_name = "N")]
    pods: Option<usize>,
    #[arg(long, value_name = "FILE", default_value = "kubectl")]
    kubectl: PathBuf,
}

/// A kubectl, and where it finds its server.
struct Kubectl<'a> {
    program: &'a Path,
    server: Vec<String>,
    /// Where it keeps discovery between runs.
    cache: PathBuf,
}

/// What one run took.
struct Took {
    seconds: f64,
    cpu_seconds: f64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = pointsman_benches::arguments();
    let flags = Flags::parse_from(std::iter::once("kubectl".to_owned()).chain(arguments));
    let pods = flags.pods.unwrap_or(if flags.quick { 100 } else { 1_000 });
    println!("load average before: {}\n", load_average());
    let server = Server::start(&flags.program).await;
    let answers = Answers::start(kubeconfig::read(&server.kubeconfig())?).await?;
    let [warm, one, many] = ["warm", "one", "many"].map(|name| server.file(&format!("{name}.yaml")));
    std::fs::write(&warm, manifest("warm", 1))?;
    std::fs::write(&one, manifest("one", 1))?;
    std::fs::write(&many, manifest("many", pods))?;

    let alone = Kubectl {
        program: &flags.kubectl,
        server: vec![
            format!("--server=http://{}", answers.address),
            "--kubeconfig=/dev/null".into(),
        ],
        cache: server.file("cache-alone"),
    };
    // The documents are recorded, and kubectl keeps what it keeps.
    alone.apply(&warm).await?;
    let first = alone.apply(&one).await?;
    let before = answers.counts();
    let all = alone.apply(&many).await?;
    let after = answers.counts();

    let real = Kubectl {
        program: &flags.kubectl,
        server: vec![format!("--kubeconfig={}", server.kubeconfig().display())],
        cache: server.file("cache-real"),
    };
    real.apply(&warm).await?;
    let real_first = real.apply(&one).await?;
    let real_all = real.apply(&many).await?;

    println!("| kubectl apply, one manifest | a server that answers at once | API server |\n|---|--:|--:|");
    for (what, alone, real) in [
        ("1 pod".to_owned(), &first, &real_first),
        (format!("{pods} pods"), &all, &real_all),
    ] {
        println!("| {what} | {:.2} s | {:.2} s |", alone.seconds, real.seconds);
        println!(
            "| {what}: CPU of kubectl | {:.2} s | {:.2} s |",
            alone.cpu_seconds, real.cpu_seconds
        );
    }
    println!(
        "| {pods} pods: requests | {} | |",
        after.requests - before.requests
    );
    let answering = (after.answering - before.answering).as_secs_f64() * 1e3;
    println!("| {pods} pods: until they were answered, together | {answering:.1} ms | |");
    println!("\nload average after: {}", load_average());
    Ok(())
}

impl Kubectl<'_> {
    async fn apply(&self, manifest: &Path) -> anyhow::Result<Took> {
        let (began, before) = (Instant::now(), usage(std::process::id())?.children_seconds);
        let mut command = Command::new(self.program);
        command
            .env_remove("KUBECONFIG")
            .args(&self.server)
            .arg(format!("--cache-dir={}", self.cache.display()))
            .args(["apply", "--filename"])
            .arg(manifest);
        let ended = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await?;
        anyhow::ensure!(ended.success(), "kubectl apply: {ended}");
        Ok(Took {
            seconds: began.elapsed().as_secs_f64(),
            cpu_seconds: usage(std::process::id())?.children_seconds - before,
        })
    }
}

/// Pods of about the size that Deployments make.
fn manifest(prefix: &str, count: usize) -> String {
    let mut text = String::new();
    for number in 0..count {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("{prefix}-{number}"), "namespace": "default", "labels": { "app": "web" } },
            "spec": { "containers": [{
                "name": "web", "image": "registry.example/team/app:1.2.3", "ports": [{ "name": "http", "containerPort": 8080 }],
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
            }] },
        });
        let _ = writeln!(text, "---\n{pod}");
    }
    text
}
