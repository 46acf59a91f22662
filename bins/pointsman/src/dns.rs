//! `pointsman dns`.

use crate::metrics_access;
use crate::shutdown::run_until_signal;
use anyhow::{Context, bail};
use clap::Args;
use pointsman_api_client::Source;
use pointsman_dns::{Config, Upstream, run as run_role};
use pointsman_telemetry::Registry;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tokio::sync::watch;

#[derive(Args)]
#[command(after_help = "\
Names, by version 1.1.0 of the Kubernetes DNS specification:
  SERVICE.NAMESPACE.svc.DOMAIN                 A, AAAA: the cluster addresses, or those of a headless Service's endpoints
  HOST.SERVICE.NAMESPACE.svc.DOMAIN            A, AAAA: one endpoint of a headless Service
  _PORT._PROTOCOL.SERVICE.NAMESPACE.svc.DOMAIN SRV
  1-2-3-4.NAMESPACE.pod.DOMAIN                 A, AAAA: the address that the name says
  4.3.2.1.in-addr.arpa                         PTR: of cluster addresses and endpoints of headless Services

Examples:
  pointsman dns --kubeconfig=dns.kubeconfig
  pointsman dns --bind-address=10.0.0.1:10053 --upstream=9.9.9.9,149.112.112.112
  dig @10.0.0.1 -p 10053 kubernetes.default.svc.cluster.local

It needs to list and watch Services and EndpointSlices, and nothing else. docs/dns.md says more.")]
pub struct Flags {
    /// How to reach the API server; without it, the pod's own service account is used.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Where questions come in, over UDP and TCP. A wildcard takes those of both IP families; on a machine with
    /// several addresses name the one that is asked, so that answers come from it.
    #[arg(
        long,
        value_name = "ADDR[:PORT],...",
        value_delimiter = ',',
        default_value = "0.0.0.0:53"
    )]
    pub bind_address: Vec<String>,
    /// The domain of the cluster's names, as the --cluster-domain of its kubelets.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = domain)]
    pub cluster_domain: String,
    /// Who is asked about everything else: addresses of name servers, or a file like /etc/resolv.conf, which is read
    /// again when it changes; `none` asks nobody.
    #[arg(
        long,
        value_name = "ADDR[:PORT],...|FILE|none",
        default_value = "/etc/resolv.conf"
    )]
    pub upstream: String,
    /// Where /healthz, /readyz and /metrics are served; `off` serves nothing.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9153")]
    pub metrics_listen: String,
    #[command(flatten)]
    pub metrics_access: metrics_access::MetricsAccess,
}

/// Runs until a signal stops it.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    run_until_signal(|stopping| run_until(flags, stopping)).await
}

/// Runs until `stopping` turns true.
pub async fn run_until(flags: Flags, stopping: watch::Receiver<bool>) -> anyhow::Result<()> {
    Ok(run_role(config(flags)?, Registry::new(), stopping).await?)
}

fn config(flags: Flags) -> anyhow::Result<Config> {
    let metrics_listen = match flags.metrics_listen.as_str() {
        "off" => None,
        text => Some(
            text.parse()
                .with_context(|| format!("--metrics-listen {text:?} is neither ADDR:PORT nor `off`"))?,
        ),
    };
    let listen = flags.bind_address.iter().map(|text| address(text));
    Ok(Config {
        source: Source::from_flag(flags.kubeconfig),
        listen: listen.collect::<anyhow::Result<_>>().context("--bind-address")?,
        domain: flags.cluster_domain,
        upstream: upstream(&flags.upstream).context("--upstream")?,
        metrics_listen,
        guard: flags.metrics_access.settings()?,
    })
}

/// An address, with the usual port unless it says another.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let text = text.trim();
    match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(ip)) => Ok(SocketAddr::new(ip, 53)),
        _ => bail!("{text:?} is neither ADDR nor ADDR:PORT"),
    }
}

fn upstream(text: &str) -> anyhow::Result<Upstream> {
    Ok(match text {
        "none" => Upstream::Servers(Vec::new()),
        path if path.contains('/') => Upstream::File(path.into()),
        list => Upstream::Servers(list.split(',').map(address).collect::<anyhow::Result<_>>()?),
    })
}

/// A domain: labels of small letters, digits and inner dashes.
pub fn domain(text: &str) -> Result<String, String> {
    let domain = text.trim_end_matches('.').to_ascii_lowercase();
    let fits = |label: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_known)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    match domain.len() <= 180 && domain.split('.').all(fits) {
        true => Ok(domain),
        false => Err("not a domain such as cluster.local".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_a_list_a_file_or_nobody() {
        assert_eq!(upstream("none").unwrap(), Upstream::Servers(Vec::new()));
        assert_eq!(upstream("/etc/x").unwrap(), Upstream::File("/etc/x".into()));
        let list = ["10.0.0.1:53", "[fd00::1]:53", "10.0.0.2:5353"].map(|it| it.parse().unwrap());
        let text = "10.0.0.1,fd00::1,10.0.0.2:5353";
        assert_eq!(upstream(text).unwrap(), Upstream::Servers(list.into()));
        assert!(upstream("dns.example.org").is_err());
    }

    #[test]
    fn domains_are_checked() {
        assert_eq!(domain("Cluster.Local."), Ok("cluster.local".to_owned()));
        for bad in ["", ".", "a..b", "-a.b", "a_b", &"x".repeat(64)] {
            assert!(domain(bad).is_err(), "{bad:?}");
        }
    }
}
