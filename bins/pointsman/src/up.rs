//! `pointsman up`: everything on this machine.

use crate::{apiserver, controllers, stop_signal};
use clap::{Args, Parser};
use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;
use tokio::sync::watch;

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

/// Lets a role's own flags supply their defaults.
#[derive(Parser)]
struct Role<F: Args> {
    #[command(flatten)]
    flags: F,
}

fn role<F: Args>(arguments: &[&OsStr]) -> anyhow::Result<F> {
    let all = std::iter::once(OsStr::new("up")).chain(arguments.iter().copied());
    Ok(Role::try_parse_from(all)?.flags)
}

/// Starts everything, says how to use it, and stops it on a signal.
pub async fn run(flags: Flags) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut out = std::io::stdout();
    write!(out, "API server ... ")?;
    out.flush()?;
    let listen = flags.listen.to_string();
    let data_dir = flags.data_dir.as_os_str();
    let server = role(&[
        "--data-dir".as_ref(),
        data_dir,
        "--listen".as_ref(),
        listen.as_ref(),
    ])?;
    let server = apiserver::launch(server).await?;
    writeln!(
        out,
        "ready in {} ms ({} objects found)",
        started.elapsed().as_millis(),
        server.objects
    )?;

    let kubeconfig = flags.data_dir.join("kubeconfigs/controllers.kubeconfig");
    // One process leads by itself, and a second cluster on this machine must find its ports free.
    let flags_of_loops = role(&[
        "--kubeconfig".as_ref(),
        kubeconfig.as_os_str(),
        "--leader-elect=false".as_ref(),
        "--metrics-listen".as_ref(),
        "off".as_ref(),
        "--allocate-node-cidrs".as_ref(),
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56".as_ref(),
    ])?;
    let (stop, stopping) = watch::channel(false);
    let mut loops = tokio::spawn(controllers::run_until(flags_of_loops, stopping));
    writeln!(out, "controllers ... started")?;
    say_how_to_use(&mut out, &server, &flags)?;
    tokio::select! {
        signal = stop_signal() => signal?,
        ended = &mut loops => ended??,
    }
    stop.send_replace(true);
    if !loops.is_finished() {
        loops.await??;
    }
    server.stop().await;
    Ok(())
}

fn say_how_to_use(
    out: &mut impl Write,
    server: &pointsman_api_server::Running,
    flags: &Flags,
) -> std::io::Result<()> {
    let kubeconfig = server
        .kubeconfig
        .canonicalize()
        .unwrap_or_else(|_| server.kubeconfig.clone());
    writeln!(
        out,
        "\nserving   https://{}\n\nTry, in another terminal:\n  \
         export KUBECONFIG={}\n  \
         kubectl create deployment web --image=host --replicas=3 && kubectl get deployments,pods -o wide\n  \
         kubectl expose deployment web --port=80 && kubectl get services,endpointslices\n  \
         kubectl get pods --watch\n\n\
         Ctrl-C stops it; the next start finds its data in {}.\nready",
        server.address,
        kubeconfig.display(),
        flags.data_dir.display(),
    )?;
    out.flush()
}
