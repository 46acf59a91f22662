//! `pointsman apiserver`.

mod backup;

use crate::duration;
use crate::shutdown::stop_signal;
use anyhow::{Context, bail};
use clap::Args;
use pointsman_api_server::audit::LogSettings;
use pointsman_api_server::auth::accounts::AccountSettings;
use pointsman_api_server::{Config, Running, StoreChoice, start};
use pointsman_model::FeatureGates;
use pointsman_rules::admission::plugins::Plugins;
use pointsman_rules::admission::tolerations::TolerationSeconds;
use pointsman_rules::net::valid_cidr;
use pointsman_rules::strategy::{ClusterSettings, IpRange};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// What to do about an API server: run it, unless told otherwise.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Command {
    #[command(subcommand)]
    action: Option<backup::Action>,
    #[command(flatten)]
    flags: Option<Flags>,
}

/// Flags that kube-apiserver also has keep its names and formats.
#[derive(Args)]
pub struct Flags {
    /// Where keys, kubeconfigs and the embedded store live. `admin.kubeconfig` is written here before
    /// the server says that it is ready.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Address and port to serve HTTPS on; port 0 picks a free one. Further ones may follow; kubeconfigs name
    /// the first.
    #[arg(
        long,
        value_name = "ADDR:PORT[,...]",
        default_value = "127.0.0.1:6443",
        value_delimiter = ','
    )]
    pub listen: Vec<SocketAddr>,
    /// Address at which pods reach this server; becomes the endpoint of Service default/kubernetes.
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Where objects are kept: `embedded`, or `etcd=URL[,URL...]`.
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub store: String,
    /// What all keys in etcd start with.
    #[arg(long, value_name = "PREFIX", default_value = "/pointsman")]
    pub etcd_prefix: String,
    /// Authority of etcd's certificate.
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Client key for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// How much history is kept for watches and paged lists.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = duration::parse)]
    pub etcd_compaction_interval: Duration,
    /// CSV file of bearer tokens: token,user,uid,"group1,group2".
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Who issues tokens of service accounts. Repeatable: the first issues, all are believed.
    #[arg(long, value_name = "URL", default_value = "https://kubernetes.default.svc")]
    pub service_account_issuer: Vec<String>,
    /// Further keys (PEM, public or private) that tokens of service accounts may be signed with, as those of
    /// kube-controller-manager. Repeatable.
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// The private key (PEM) that signs tokens of service accounts, instead of pki/sa.key in the data directory.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// The longest that a token may be good for; longer ones are shortened with a warning. 0 is no limit.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::parse)]
    pub service_account_max_token_expiration: Duration,
    /// Where clients outside find the keys of tokens, if not at this server.
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
    /// Who tokens for this server have to be for; the issuers by default.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Whether every namespace gets the ConfigMap kube-root-ca.crt. Set to false where kube-controller-manager publishes
    /// another one (--root-ca-file).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub publish_root_ca: bool,
    /// Optional behaviours: EndpointSliceTerminatingCondition, SubSecondProbes (both on by default).
    #[arg(long, value_name = "A=true,B=false", default_value = "", value_parser = FeatureGates::parse)]
    pub feature_gates: FeatureGates,
    /// Admission that is off by default: DenyServiceExternalIPs (nobody adds externalIPs to a Service; those that are
    /// there may stay).
    #[arg(long, value_name = "A,B", default_value = "", value_parser = Plugins::parse)]
    pub enable_admission_plugins: Plugins,
    /// Ranges for Service addresses; a second one of the other family makes the cluster dual-stack.
    #[arg(
        long,
        value_name = "CIDR[,CIDR]",
        default_value = "10.96.0.0/16,fd00:96::/112"
    )]
    pub service_cluster_ip_range: String,
    /// Range for node ports.
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub service_node_port_range: String,
    /// Toleration of the not-ready taint that pods get unless they have one. The ConfigMap
    /// kube-system/pointsman-apiserver can change it while the server runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub default_not_ready_toleration_seconds: i64,
    /// Toleration of the unreachable taint that pods get unless they have one; changeable likewise.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub default_unreachable_toleration_seconds: i64,
    /// Whether requests without a credential reach authorization (by default they may read health and
    /// version, and nothing else).
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Further names and addresses in the generated serving certificate.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub tls_san: Vec<String>,
    /// Serving certificate to use instead of a generated one.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// A further authority whose client certificates are believed (CN is the user, O the groups).
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Authority of the certificates that node agents show; by default the cluster's own.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// At most so many reads at once; more wait briefly, then get 429.
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// At most so many writes at once; more wait briefly, then get 429.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Record every request in this file, one JSON line each (audit.k8s.io/v1, level Metadata); `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// Begin another file when the audit log has so many megabytes.
    #[arg(long, value_name = "MB", default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Keep so many old files of the audit log; 0 keeps all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub audit_log_maxbackup: usize,
    /// Keep old files of the audit log for so many days; 0 keeps them without a limit.
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    pub audit_log_maxage: u32,
    /// How long events are kept.
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s", value_parser = duration::parse)]
    pub event_ttl: Duration,
}

/// Runs the server until a signal stops it, or does what else was asked.
pub async fn run(command: Command) -> anyhow::Result<()> {
    if let Some(action) = command.action {
        return backup::run(action).await;
    }
    let flags = command.flags.context("--data-dir is needed")?;
    let running = launch(flags).await?;
    tracing::info!(address = %running.address, kubeconfig = %running.kubeconfig.display(), objects = running.objects, "ready");
    let ended = tokio::select! {
        signal = stop_signal() => signal,
        why = running.ended() => Err(why.into()),
    };
    running.stop().await;
    ended
}

/// Starts the server; returns once it is ready.
pub async fn launch(flags: Flags) -> anyhow::Result<Running> {
    let running = start(config(flags)?).await?;
    // Reading a large store takes more than what stays.
    pointsman_kernel::memory::return_unused();
    Ok(running)
}

fn config(flags: Flags) -> anyhow::Result<Config> {
    let store = store(&flags)?;
    let (listen, also_listen) = flags
        .listen
        .split_first()
        .context("--listen needs an address and port")?;
    let cluster = ClusterSettings {
        service_ranges: service_ranges(&flags.service_cluster_ip_range)?,
        node_ports: node_ports(&flags.service_node_port_range)?,
    };
    let audit = flags.audit_log_path.map(|path| LogSettings {
        path,
        max_bytes: match flags.audit_log_maxsize {
            // As upstream's.
            0 => 100 << 20,
            megabytes => megabytes << 20,
        },
        max_backups: flags.audit_log_maxbackup,
        max_age_days: flags.audit_log_maxage,
    });
    Ok(Config {
        data_dir: flags.data_dir,
        listen: *listen,
        also_listen: also_listen.to_vec(),
        advertise: flags.advertise_address,
        store,
        gates: flags.feature_gates,
        plugins: flags.enable_admission_plugins,
        cluster,
        tolerations: TolerationSeconds {
            not_ready: flags.default_not_ready_toleration_seconds,
            unreachable: flags.default_unreachable_toleration_seconds,
        },
        token_file: flags.token_auth_file,
        accounts: AccountSettings {
            issuers: flags.service_account_issuer,
            audiences: flags.api_audiences,
            signing_key_file: flags.service_account_signing_key_file,
            key_files: flags.service_account_key_file,
            max_expiration: Some(flags.service_account_max_token_expiration)
                .filter(|longest| !longest.is_zero()),
            jwks_uri: flags.service_account_jwks_uri,
        },
        publish_root_ca: flags.publish_root_ca,
        anonymous: flags.anonymous_auth,
        extra_sans: flags.tls_san,
        tls_files: flags.tls_cert_file.zip(flags.tls_private_key_file),
        client_ca_file: flags.client_ca_file,
        kubelet_certificate_authority: flags.kubelet_certificate_authority,
        max_requests_inflight: flags.max_requests_inflight,
        max_mutating_requests_inflight: flags.max_mutating_requests_inflight,
        event_ttl: flags.event_ttl,
        compaction_interval: flags.etcd_compaction_interval,
        audit,
    })
}

fn store(flags: &Flags) -> anyhow::Result<StoreChoice> {
    if flags.store == "embedded" {
        return Ok(StoreChoice::Embedded);
    }
    let Some(urls) = flags.store.strip_prefix("etcd=").filter(|urls| !urls.is_empty()) else {
        bail!("--store {:?}: use `embedded` or `etcd=URL[,URL...]`", flags.store);
    };
    Ok(StoreChoice::Etcd {
        endpoints: urls.split(',').map(str::to_owned).collect(),
        prefix: flags.etcd_prefix.clone(),
        ca_file: flags.etcd_cafile.clone(),
        cert_file: flags.etcd_certfile.clone(),
        key_file: flags.etcd_keyfile.clone(),
    })
}

fn service_ranges(text: &str) -> anyhow::Result<Vec<IpRange>> {
    let flag = "--service-cluster-ip-range";
    let mut ranges: Vec<IpRange> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (network, prefix) =
            valid_cidr(flag, part).map_err(|error| anyhow::anyhow!("{flag}: {}", error.message()))?;
        if ranges
            .iter()
            .any(|range| range.network.is_ipv4() == network.is_ipv4())
        {
            bail!("{flag} {text:?}: two ranges of the same family");
        }
        ranges.push(IpRange { network, prefix });
    }
    if ranges.is_empty() {
        bail!("{flag} needs at least one range");
    }
    Ok(ranges)
}

fn node_ports(text: &str) -> anyhow::Result<(u16, u16)> {
    let parse = || -> Option<(u16, u16)> {
        let (first, last) = text.split_once('-')?;
        let range = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (range.0 > 0 && range.0 <= range.1).then_some(range)
    };
    parse().with_context(|| format!("--service-node-port-range {text:?} is not FIRST-LAST"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_bad_ones_named() {
        assert_eq!(node_ports("30000-32767").unwrap(), (30000, 32767));
        for bad in ["", "30000", "5-4", "0-9", "1-70000"] {
            assert!(node_ports(bad).is_err(), "{bad}");
        }
        assert_eq!(service_ranges("10.96.0.0/16,fd00::/112").unwrap().len(), 2);
        for bad in ["", "10.96.0.0", "10.0.0.0/8,10.96.0.0/16"] {
            assert!(service_ranges(bad).is_err(), "{bad}");
        }
    }
}
