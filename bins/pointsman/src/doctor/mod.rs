//! `pointsman doctor`.

mod checks;
mod machine;

use crate::output::Output;
use checks::{Cluster, Finding, Verdict};
use clap::Args;
use futures::future::join_all;
use pointsman_api_client::connect::usual_kubeconfig;
use pointsman_api_client::{Client, Resource, Source, connect};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long the API server may take for all of its answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the proxy has to be allowed, as deploy/proxy/rbac.yaml allows it.
const NEEDED: [(&str, &str, &str); 6] = [
    ("list", "", "services"),
    ("watch", "", "services"),
    ("list", "discovery.k8s.io", "endpointslices"),
    ("watch", "discovery.k8s.io", "endpointslices"),
    ("get", "", "nodes"),
    ("list", "networking.k8s.io", "servicecidrs"),
];

/// Looks at the node it runs on, and at the cluster if it can be reached, before or after a proxy is moved: one line for
/// each thing, and what to do about it. It changes nothing.
#[derive(Args)]
#[command(after_help = "\
Exit codes:
  0  nothing stands in the way (there may be warnings)
  1  something does, and its line says what to do")]
pub struct Flags {
    /// How to reach the API server; by default ~/.kube/config. Without either only the machine is looked at.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// How to print the answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Prints a line for each finding.
pub async fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    let found = tokio::task::spawn_blocking(machine::look).await?;
    let mut findings = checks::machine(&found);
    if let Some(kubeconfig) = flags.kubeconfig.or_else(usual_kubeconfig) {
        let asked = tokio::time::timeout(PATIENCE, ask(Source::Kubeconfig(kubeconfig))).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
        findings.extend(checks::cluster(&asked));
    }
    for finding in &findings {
        print(finding, flags.output)?;
    }
    let fails = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(ExitCode::from(u8::from(fails)))
}

#[expect(clippy::print_stdout, reason = "the answer is what was asked for")]
fn print(finding: &Finding, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string(finding)?),
        Output::Text => {
            let verdict = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            println!("{verdict}  {:<12} {}", finding.about, finding.found);
            if let Some(advice) = finding.advice {
                println!("      {:<12} -> {advice}", "");
            }
        }
    }
    Ok(())
}

async fn ask(source: Source) -> Result<Cluster, String> {
    let client = connect::connect(&source, "doctor")
        .await
        .map_err(|error| format!("{error:#}"))?;
    let version: Value = client
        .get_path("/version")
        .await
        .map_err(|error| error.to_string())?;
    let reviews = join_all(NEEDED.map(|needed| lacks(&client, needed))).await;
    Ok(Cluster {
        version: version["gitVersion"].as_str().unwrap_or_default().to_owned(),
        kubelets: kubelets(&client).await,
        ahead: ahead(&client).await,
        missing: reviews.into_iter().flatten().collect(),
    })
}

/// A right that this identity has not.
async fn lacks(client: &Client, (verb, group, resource): (&str, &str, &str)) -> Option<String> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": verb, "group": group, "resource": resource } },
    });
    let reviews = Resource::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");
    let answer = client
        .api(reviews, None)
        .create::<Value>(review.to_string())
        .await;
    match answer {
        Ok(answer) if answer["status"]["allowed"] == true => None,
        Ok(_) => Some(format!("{verb} {resource}")),
        Err(error) => Some(format!("{verb} {resource} ({error})")),
    }
}

#[derive(Deserialize)]
struct List {
    items: Vec<Value>,
}

async fn kubelets(client: &Client) -> Vec<(String, String)> {
    let nodes = client
        .get_path::<List>("/api/v1/nodes")
        .await
        .map(|list| list.items);
    let read = |node: Value| {
        let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str()?.to_owned();
        Some((node["metadata"]["name"].as_str()?.to_owned(), version))
    };
    nodes.unwrap_or_default().into_iter().filter_map(read).collect()
}

/// How far the latest heartbeat is ahead of our clock, in seconds.
async fn ahead(client: &Client) -> Option<f64> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let leases = client.get_path::<List>(path).await.ok()?.items;
    let times = leases
        .iter()
        .filter_map(|lease| lease["spec"]["renewTime"].as_str()?.parse().ok());
    let latest: jiff::Timestamp = times.max()?;
    Some(latest.duration_since(jiff::Timestamp::now()).as_secs_f64())
}
