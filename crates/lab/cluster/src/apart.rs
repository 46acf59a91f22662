//! How do API server, controllers and collector run in processes of their own?
//!
//! As in a real cluster, each can then die alone. That is what fault runs need; for everybody else one process
//! for all of them takes less memory.

use super::dns;
use super::nodes::PROXY_METRICS_PORT;
use super::parts;
use super::plan::Plan;
use super::progress::Progress;
use super::supervise::{Spec, Supervisor};
use crate::plain_http;
use crate::up::{Config, absolute};
use anyhow::{Context, bail};
use pointsman_api_client::{Client, Source, connect};
use pointsman_http::{Target, unverified};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a part may take before the start is called failed.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);

/// Where the parts serve.
pub struct Served {
    /// The API server.
    pub server: SocketAddr,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The collector's page.
    pub page: SocketAddr,
    /// The shutdown gate.
    pub gate: SocketAddr,
}

/// Starts all three and returns once all serve.
pub async fn start(
    config: &Config,
    plan: &Plan,
    progress: &Progress,
    supervisor: &mut Supervisor,
) -> anyhow::Result<Served> {
    let data_dir = absolute(&config.data_dir);
    let served = Served {
        server: SocketAddr::new(plan.host_address().address(), 6443),
        kubeconfig: data_dir.join("admin.kubeconfig"),
        // Every cluster has a loopback address of its own.
        page: SocketAddr::from((Ipv4Addr::new(127, 1, plan.block.number(), 1), 10270)),
        gate: SocketAddr::new(plan.host_address().address(), 10270),
    };
    std::fs::create_dir_all(data_dir.join("logs")).context("making the directory of logs")?;
    let started = Instant::now();
    keep(
        config,
        supervisor,
        "apiserver",
        parts::server_arguments(config, Some(plan)),
    )?;
    wait_for_server(&served).await?;
    progress.ready("API server", started, format_args!("https://{}", served.server));
    let started = Instant::now();
    let loops = parts::controller_arguments(config, Some(plan));
    keep(config, supervisor, "controllers", loops)?;
    keep(
        config,
        supervisor,
        "sli",
        collector_arguments(&data_dir, plan, &served),
    )?;
    keep(config, supervisor, "dns", dns::arguments(config, plan))?;
    let controllers = Target::secure(parts::controllers_address(plan), unverified());
    wait_for(&controllers, "/readyz").await?;
    progress.ready("controllers", started, "in a process of their own");
    wait_for(&Target::at(served.page), "/healthz").await?;
    progress.ready("collector", started, format_args!("http://{}/", served.page));
    wait_for_dns(plan).await?;
    progress.ready("DNS", started, "in a process of its own");
    Ok(served)
}

fn keep(
    config: &Config,
    supervisor: &mut Supervisor,
    role: &'static str,
    arguments: Vec<OsString>,
) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("finding our own program")?;
    supervisor.keep(Spec {
        label: role.to_owned(),
        command: Box::new(move || {
            let mut command = Command::new(&program);
            command.arg(role).args(&arguments);
            command
        }),
        log: absolute(&config.data_dir).join(format!("logs/{role}.log")),
    });
    Ok(())
}

fn collector_arguments(data_dir: &std::path::Path, plan: &Plan, served: &Served) -> Vec<OsString> {
    let dns = dns::programmer(plan);
    vec![
        "--kubeconfig".into(),
        data_dir.join("kubeconfigs/sli.kubeconfig").into(),
        format!("--programmer={}={}", dns.name, dns.url).into(),
        format!("--listen={}", served.page).into(),
        format!("--gate-listen={}", served.gate).into(),
        "--data-dir".into(),
        data_dir.join("sli").into(),
        format!("--programmer-port={PROXY_METRICS_PORT}").into(),
        "--programmer-client-certificate".into(),
        data_dir.join("pki/sli.crt").into(),
        "--programmer-client-key".into(),
        data_dir.join("pki/sli.key").into(),
    ]
}

/// The server writes the kubeconfig before it serves; one of an earlier run may be there already.
async fn wait_for_server(served: &Served) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let why = match ask_server(served).await {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        if started.elapsed() > PATIENCE {
            return Err(why.context("the API server does not serve"));
        }
        tokio::time::sleep(STEP).await;
    }
}

async fn ask_server(served: &Served) -> anyhow::Result<()> {
    let source = Source::Kubeconfig(served.kubeconfig.clone());
    let client: Client = connect::connect(&source, "pointsman-up").await?;
    let asked = client.get_path::<serde_json::Value>("/version");
    tokio::time::timeout(Duration::from_secs(2), asked).await??;
    Ok(())
}

/// It serves once it knows all names.
pub async fn wait_for_dns(plan: &Plan) -> anyhow::Result<()> {
    let target = Target::secure(dns::health_address(plan), unverified());
    wait_for(&target, "/readyz").await
}

async fn wait_for(target: &Target, path: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let answer = plain_http::ask(target, path, Duration::from_secs(1)).await;
        if matches!(answer, Ok((200, _))) {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            bail!("{target:?}{path} does not get well: {answer:?}");
        }
        tokio::time::sleep(STEP).await;
    }
}
