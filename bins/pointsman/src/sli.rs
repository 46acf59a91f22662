//! `pointsman sli`.

use crate::duration;
use crate::shutdown::stop_signal;
use anyhow::{Context, bail};
use clap::Args;
use pointsman_api_client::Source;
use pointsman_collector::{Config, Listed, start};
use pointsman_http::Credentials;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where the collector finds its data and who may see it.
#[derive(Args)]
pub struct Flags {
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Where the page, its data, metrics and the gate are served. Anything but a loopback address needs
    /// --login-file.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:10270")]
    pub listen: SocketAddr,
    /// Where only the shutdown gate is served, without a login, for nodes to ask.
    #[arg(long, value_name = "ADDR:PORT")]
    pub gate_listen: Option<SocketAddr>,
    /// Who may see the page: lines of `token:SECRET` or `user:NAME:SECRET`.
    #[arg(long, value_name = "FILE")]
    pub login_file: Option<PathBuf>,
    /// A name, besides those of the loopback, under which the page is served without a login, such as that of a
    /// proxy in front of it. Requests for other hosts are refused, since a browser would make them for any site
    /// that lets its name point here. Repeatable.
    #[arg(long = "allowed-host", value_name = "NAME", conflicts_with = "login_file")]
    pub hosts: Vec<String>,
    /// Where cluster-days are kept; without it they end with the process.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A programmer to follow besides those of the Nodes: the URL of its metrics listener. Repeatable.
    #[arg(long = "programmer", value_name = "NAME=URL")]
    pub programmers: Vec<Listed>,
    /// A file with further programmers, one NAME=URL in each line.
    #[arg(long, value_name = "FILE")]
    pub programmers_file: Option<PathBuf>,
    /// The URL of a stream that carries the lines of many programmers. Repeatable.
    #[arg(long = "relay", value_name = "URL")]
    pub relays: Vec<String>,
    /// Whether every Node is asked for its programmer.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub discover: bool,
    /// The port on which programmers of Nodes serve metrics.
    #[arg(long, value_name = "PORT", default_value_t = 10249)]
    pub programmer_port: u16,
    /// A file with a token for programmers that ask for one, best of the audience pointsman.io/metrics. It is sent over
    /// TLS only, and read anew for every connection.
    #[arg(long, value_name = "FILE")]
    pub programmer_token_file: Option<PathBuf>,
    /// A file with a client certificate for programmers that ask who reads; read anew for every connection.
    #[arg(
        long,
        value_name = "FILE",
        requires = "programmer_client_key",
        conflicts_with = "programmer_token_file"
    )]
    pub programmer_client_certificate: Option<PathBuf>,
    /// The file with its key.
    #[arg(long, value_name = "FILE", requires = "programmer_client_certificate")]
    pub programmer_client_key: Option<PathBuf>,
    /// How often each programmer's metrics are read.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub scrape_interval: Duration,
    /// The longest wait of a shutdown gate, unless whoever asks says otherwise.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub gate_bound: Duration,
    /// Where each change is sent as an OpenTelemetry trace: the base URL of an OTLP/HTTP receiver, such as
    /// http://otel-collector:4318. All changes that took longer than the objective are, and --trace-share of the others.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// Which share of the changes that were not slow gets a trace, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, requires = "otlp")]
    pub trace_share: f64,
    /// The objective: 99 % of changes within this time. Without it, it follows the number of programmers.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub objective: Option<Duration>,
}

/// Runs the collector until a signal stops it.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let mut running = start(config(flags)?).await?;
    tokio::select! {
        signal = stop_signal() => signal?,
        () = running.ended() => bail!("a part of the collector ended unexpectedly"),
    }
    running.stop().await;
    Ok(())
}

fn config(mut flags: Flags) -> anyhow::Result<Config> {
    if let Some(path) = &flags.programmers_file {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            flags.programmers.push(line.parse().map_err(anyhow::Error::msg)?);
        }
    }
    if flags.scrape_interval < Duration::from_millis(100) {
        bail!("--scrape-interval must be at least 100ms");
    }
    if !(0.0..=1.0).contains(&flags.trace_share) {
        bail!("--trace-share is a share from 0 to 1, not {}", flags.trace_share);
    }
    let certificate = flags
        .programmer_client_certificate
        .zip(flags.programmer_client_key);
    let certificate = certificate.map(|(certificate, key)| Credentials::Certificate { certificate, key });
    Ok(Config {
        listen: flags.listen,
        gate_listen: flags.gate_listen,
        login_file: flags.login_file,
        hosts: flags.hosts,
        data_dir: flags.data_dir,
        programmers: flags.programmers,
        relays: flags.relays,
        discover: flags.discover,
        programmer_port: flags.programmer_port,
        programmer_credentials: certificate.or(flags.programmer_token_file.map(Credentials::Token)),
        scrape_interval: flags.scrape_interval,
        gate_bound: flags.gate_bound,
        otlp: flags.otlp,
        trace_share: flags.trace_share,
        objective: flags.objective,
        ..Config::new(Source::from_flag(flags.kubeconfig))
    })
}
