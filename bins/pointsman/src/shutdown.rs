//! What ends the program, and how do its roles learn of it?

use tokio::sync::watch;

/// Waits for the signal that asks the program to stop.
pub async fn stop_signal() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
        _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
    }
    Ok(())
}

/// Runs a role until it ends, or until a signal asks it to; it has the time it needs then.
pub async fn run_until_signal<E: Into<anyhow::Error>, F: Future<Output = Result<(), E>>>(
    run: impl FnOnce(watch::Receiver<bool>) -> F,
) -> anyhow::Result<()> {
    let (stop, stopping) = watch::channel(false);
    let running = run(stopping);
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return outcome.map_err(Into::into),
        signal = stop_signal() => signal?,
    }
    stop.send_replace(true);
    running.await.map_err(Into::into)
}
