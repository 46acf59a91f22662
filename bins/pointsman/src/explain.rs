//! `pointsman explain`.

use crate::proxy;
use clap::{Args, ValueEnum};
use pointsman_model::ServiceName;
use pointsman_proxy::explain::{
    ClientAnswer, Explanation, KernelAnswer, PortAnswer, Question, Way, read, verify,
};
use std::fmt::Write;
use std::path::PathBuf;

/// Rules of one way that are printed; JSON has all of them.
const SHOWN_RULES: usize = 24;

/// Reads the API server as a node's proxy would and says what becomes of packets there. On the node itself,
/// as root, also says whether its kernel agrees.
#[derive(Args)]
pub struct Flags {
    /// An address a client would use, or a Service with or without one of its ports.
    #[arg(value_name = "IP:PORT[/PROTOCOL] | NAMESPACE/SERVICE[:PORT]")]
    question: Question,
    /// How to reach the API server.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The node; by default this machine's.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// How the node's proxy writes rules; by default as the configuration file says, else as the proxy on
    /// this machine answers, else iptables.
    #[arg(long, value_enum)]
    proxy_mode: Option<proxy::ModeFlag>,
    /// The proxy's KubeProxyConfiguration file, if it has one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The ranges of the cluster's pods, as the proxy is configured.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<String>,
    /// How the proxy tells pods from other clients.
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// How to print the answer.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Prints the explanation.
#[expect(clippy::print_stdout, reason = "the answer is what was asked for")]
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let question = flags.question.clone();
    let output = flags.output;
    let config = proxy::config_for_explain(
        flags.config,
        proxy::ExplainFlags {
            kubeconfig: flags.kubeconfig,
            node: flags.node,
            mode: flags.proxy_mode.or_else(proxy::running_mode),
            cluster_cidr: flags.cluster_cidr,
            detect_local_mode: flags.detect_local_mode,
        },
    )?;
    let (cluster, subjects) = read(&config, &question).await?;
    let mut answer = cluster.explain(&config, &question, &subjects);
    let services: Vec<ServiceName> = subjects.into_iter().map(|subject| subject.service).collect();
    let mode = config.mode;
    answer.kernel = tokio::task::spawn_blocking(move || verify(&cluster, mode, &services)).await?;
    match output {
        Output::Text => print!("{}", text(&answer)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
    }
    Ok(())
}

/// Writing to a string cannot fail.
fn text(answer: &Explanation) -> String {
    let mut out = String::new();
    let zone = answer
        .zone
        .as_ref()
        .map(|zone| format!(", zone {zone}"))
        .unwrap_or_default();
    let _ = writeln!(out, "node {}{zone}, {} mode", answer.node, answer.mode);
    for port in &answer.ports {
        port_text(&mut out, port);
    }
    for note in &answer.notes {
        let _ = writeln!(out, "\nnote: {note}");
    }
    kernel_text(&mut out, &answer.kernel);
    out
}

fn port_text(out: &mut String, port: &PortAnswer) {
    let name = match port.port.as_str() {
        "" => String::new(),
        name => format!(":{name}"),
    };
    let affinity = port
        .affinity_seconds
        .map(|seconds| format!(", clients stay for {seconds} s"))
        .unwrap_or_default();
    let _ = writeln!(
        out,
        "\n{}{name} ({}, {}{affinity})",
        port.service, port.protocol, port.family
    );
    for way in &port.ways {
        way_text(out, way);
    }
    if port.endpoints.is_empty() {
        let _ = writeln!(out, "  no endpoints");
        return;
    }
    let _ = writeln!(out, "  endpoints");
    for endpoint in &port.endpoints {
        let node = endpoint.node.as_deref().unwrap_or("no node");
        let _ = writeln!(out, "    {} on {node}", endpoint.address);
        let _ = writeln!(out, "      policy Cluster: {}", endpoint.cluster);
        let _ = writeln!(out, "      policy Local:   {}", endpoint.local);
    }
}

fn way_text(out: &mut String, way: &Way) {
    let _ = writeln!(out, "  {} {}, policy {}", way.kind, way.to, way.policy);
    if let Some(owner) = &way.taken_by {
        let _ = writeln!(out, "    not programmed: {owner} has it");
    }
    for client in &way.clients {
        let _ = writeln!(out, "    from {}: {}", client.client, client_text(client));
    }
    for rule in way.rules.iter().take(SHOWN_RULES) {
        let _ = writeln!(out, "      {rule}");
    }
    if let Some(more) = way.rules.len().checked_sub(SHOWN_RULES).filter(|more| *more > 0) {
        let _ = writeln!(out, "      and {more} more");
    }
}

fn client_text(client: &ClientAnswer) -> String {
    let seen = if client.masqueraded {
        "which sees the node's address"
    } else {
        "which sees the client's address"
    };
    match client.endpoints.as_slice() {
        [] => client.fate.to_owned(),
        [one] => format!("to {one}, {seen}"),
        many => format!("to one of {} endpoints, {seen}", many.len()),
    }
}

fn kernel_text(out: &mut String, kernel: &KernelAnswer) {
    let _ = match (kernel.agrees, &kernel.not_asked) {
        (Some(true), _) => writeln!(out, "\nkernel: agrees"),
        (Some(false), _) => writeln!(out, "\nkernel: does not agree"),
        (None, Some(reason)) => writeln!(out, "\nkernel: not asked, {reason}"),
        (None, None) => Ok(()),
    };
    for missing in &kernel.missing {
        let _ = writeln!(out, "  missing: {missing}");
    }
    for unexpected in &kernel.unexpected {
        let _ = writeln!(out, "  unexpected: {unexpected}");
    }
}
