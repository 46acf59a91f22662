//! `pointsman up`: everything on this machine.

use crate::{apiserver, stop_signal};
use clap::{Args, Parser};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

/// What a newcomer needs and nothing else.
#[derive(Args)]
pub struct Flags {
    /// Where the cluster's data lives; a later start finds it again.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data_dir: PathBuf,
    /// Address and port of the API server; port 0 picks a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
}

/// Lets the API server's own flags supply their defaults.
#[derive(Parser)]
struct ApiServer {
    #[command(flatten)]
    flags: apiserver::Flags,
}

/// Starts everything, says how to use it, and stops it on a signal.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut out = std::io::stdout();
    write!(out, "API server ... ")?;
    out.flush()?;
    let listen = flags.listen.to_string();
    let arguments = [
        "up".as_ref(),
        "--data-dir".as_ref(),
        flags.data_dir.as_os_str(),
        "--listen".as_ref(),
        listen.as_ref(),
    ];
    let running = apiserver::launch(ApiServer::try_parse_from(arguments)?.flags).await?;
    writeln!(
        out,
        "ready in {} ms ({} objects found)",
        started.elapsed().as_millis(),
        running.objects
    )?;
    let kubeconfig = running
        .kubeconfig
        .canonicalize()
        .unwrap_or_else(|_| running.kubeconfig.clone());
    writeln!(
        out,
        "\nserving   https://{}\n\nTry, in another terminal:\n  \
         export KUBECONFIG={}\n  \
         kubectl get namespaces\n  \
         kubectl create deployment web --image=host --replicas=3 && kubectl get deployments -o wide\n  \
         kubectl get endpointslices --all-namespaces --watch\n\n\
         Ctrl-C stops it; the next start finds its data in {}.\nready",
        running.address,
        kubeconfig.display(),
        flags.data_dir.display(),
    )?;
    out.flush()?;
    stop_signal().await?;
    running.stop().await;
    Ok(())
}
