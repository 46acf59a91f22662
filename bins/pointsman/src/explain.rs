//! `pointsman explain`.

use crate::proxy;
use clap::{Args, ValueEnum};
use pointsman_api_client::Source;
use pointsman_api_client::connect::usual_kubeconfig;
use pointsman_cluster::place::{self, Place};
use pointsman_cluster::rootless;
use pointsman_model::ServiceName;
use pointsman_proxy::explain::{
    ClientAnswer, Explanation, KernelAnswer, Outcome, PortAnswer, Question, Way, read, verify, withdrawn,
};
use pointsman_proxy::{Config, LocalMode};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Rules of one way that are printed; JSON has all of them.
const SHOWN_RULES: usize = 24;

/// Reads the API server as a node's proxy would and says what becomes of packets there. On the node itself,
/// as root, also says whether its kernel agrees.
///
/// On clusters of `up` everything is found out: the node is the one whose network it runs in (`pointsman exec n2
/// -- pointsman explain web`), or else the one with the address, or else the first; its kernel is asked in any case.
#[derive(Args)]
#[command(after_help = "\
Exit codes:
  0  explained; the kernel agrees or could not be asked
  1  it could not be found out
  2  wrong usage
  3  explained, but the node's kernel has other rules
  4  no Service that a proxy forwards for has this name or address
  5  the Service has no such port
  6  there is no such Node")]
pub struct Flags {
    /// An address a client would use, or a Service with or without one of its ports.
    #[arg(value_name = "IP:PORT[/PROTOCOL] | NAMESPACE/SERVICE[:PORT]")]
    question: Question,
    /// How to reach the API server; by default that of the cluster that `up` runs on this machine, else ~/.kube/config.
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
    /// The ranges of the cluster's pods; by default as the proxy on this machine answers.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<String>,
    /// How the proxy tells pods from other clients; by default as the proxy on this machine answers.
    #[arg(long, value_name = "MODE")]
    detect_local_mode: Option<String>,
    /// How to print the answer.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// This process was started in the network of its node.
    #[arg(long, hide = true)]
    entered: bool,
    /// Nobody named the node.
    #[arg(long, hide = true)]
    assumed: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Prints the explanation; the exit code says what came of it.
#[expect(clippy::print_stdout, reason = "the answer is what was asked for")]
pub async fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    let place = find_place(&flags)?;
    if let Some(place) = place.as_ref().filter(|place| !place.here && !flags.entered) {
        return enter(place, &flags);
    }
    let (question, output, insist) = (flags.question.clone(), flags.output, flags.node.is_some());
    let reader = reader(&flags, place.as_ref());
    let (config, notes) = configure(flags, place)?;
    let (cluster, subjects) = read(&config, &question, insist).await?;
    let mut answer = cluster.explain(&config, &question, &subjects);
    answer.notes.extend(notes);
    let reader = reader.unwrap_or_else(|| config.source.clone());
    answer.notes.extend(withdrawn(&reader, &answer).await);
    let services: Vec<ServiceName> = subjects.into_iter().map(|subject| subject.service).collect();
    let mode = config.mode;
    answer.kernel = tokio::task::spawn_blocking(move || verify(&cluster, mode, &services)).await?;
    match output {
        Output::Text => print!("{}", text(&answer)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
    }
    Ok(ExitCode::from(code(&answer)))
}

fn code(answer: &Explanation) -> u8 {
    match answer.outcome {
        Outcome::Explained if answer.kernel.agrees == Some(false) => 3,
        Outcome::Explained => 0,
        Outcome::NoService => 4,
        Outcome::NoPort => 5,
        Outcome::NoNode => 6,
    }
}

/// The node of `up` that is meant. Whoever has a configuration file has a proxy of their own.
fn find_place(flags: &Flags) -> anyhow::Result<Option<Place>> {
    if flags.config.is_some() {
        return Ok(None);
    }
    place::find(place::Hints {
        kubeconfig: flags.kubeconfig.as_deref(),
        node: flags.node.as_deref(),
        address: match flags.question {
            Question::Address { ip, .. } => Some(ip),
            Question::Service { .. } => None,
        },
    })
}

/// Who reads what a proxy may not, on clusters of `up`: whoever asks.
fn reader(flags: &Flags, place: Option<&Place>) -> Option<Source> {
    let own = &place?.cluster.kubeconfig;
    Some(Source::Kubeconfig(
        flags.kubeconfig.as_ref().unwrap_or(own).clone(),
    ))
}

/// Explains from where the node's kernel can be asked.
fn enter(place: &Place, flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut more = vec![OsString::from("--entered")];
    if flags.node.is_none() {
        more.extend(["--node".into(), place.node.name.clone().into()]);
    }
    if place.assumed {
        more.push("--assumed".into());
    }
    Ok(rootless::exit_code(place.enter(more)?.status()?))
}

/// What the node's proxy is configured like, and what of it is a guess.
fn configure(flags: Flags, place: Option<Place>) -> anyhow::Result<(Config, Vec<String>)> {
    let mut notes = Vec::new();
    if flags.assumed {
        notes.push("no node was named, and this machine is none: --node names another".to_owned());
    }
    let has_file = flags.config.is_some();
    let mut known = proxy::ExplainFlags {
        kubeconfig: flags.kubeconfig,
        node: flags.node,
        mode: flags.proxy_mode,
        cluster_cidr: flags.cluster_cidr,
        detect_local_mode: flags.detect_local_mode,
        node_ports: None,
    };
    match place {
        Some(place) => {
            known.kubeconfig = Some(place.kubeconfig());
            known.node.get_or_insert(place.node.name.clone());
            known.mode = known.mode.or(proxy::mode_named(&place.cluster.proxy_mode));
            known.cluster_cidr.get_or_insert(place.cluster.pod_range);
        }
        None => {
            known.kubeconfig = known
                .kubeconfig
                .or_else(|| usual_kubeconfig().filter(|_| !has_file));
            let running = proxy::RunningProxy::ask();
            if running.is_none() && known.mode.is_none() && !has_file {
                notes.push(
                    "no proxy answers on 127.0.0.1:10249: that the node's writes its rules by iptables is a guess; \
                     --proxy-mode says better"
                        .to_owned(),
                );
            }
            known.fill(running.unwrap_or_default());
        }
    }
    let config = proxy::config_for_explain(flags.config, known)?;
    if matches!(&config.local, LocalMode::ClusterCidr(ranges) if ranges.is_empty()) {
        notes.push(
            "the ranges of pods are not known, so that no client is taken for one from outside; --cluster-cidr says \
             better"
                .to_owned(),
        );
    }
    Ok((config, notes))
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
