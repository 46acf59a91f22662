//! Profiles of a kubeadm control plane, by its files.

use crate::{print, print_check};
use anyhow::{Context as _, bail};
use pointsman_controllers::latency_profile::{Desk, Directories, Next, Operator};
use pointsman_latency_profile::Catalog;
use pointsman_latency_profile::rollout::{Notice, Policy, Readings, Spec};
use pointsman_latency_profile::state::Owner;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(300);

/// Which files make a control plane.
pub struct Files {
    /// The directory with `manifests/kube-apiserver.yaml` and `manifests/kube-controller-manager.yaml`.
    pub root: PathBuf,
    /// Configuration files of the kubelets within reach.
    pub kubelets: Vec<PathBuf>,
    /// Where processes are observed; without it, a step is done when the files have it.
    pub observe: Option<PathBuf>,
    /// How long one step may take before Default is restored.
    pub step_timeout: Duration,
}

impl Files {
    fn open(&self, profile: &str) -> anyhow::Result<Directories> {
        // Each run is a request of its own, so that a failure of an earlier one does not count.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let spec = Spec {
            generation: since.map_or(0, |since| since.as_millis() as i64),
            profile: profile.to_owned(),
            ..Spec::default()
        };
        let files = Directories::open(&self.root, &self.kubelets, spec, print_notice)
            .context("cannot work on the files of this control plane")?;
        Ok(match &self.observe {
            Some(root) => files.observing(root),
            None => files,
        })
    }
}

/// Carries out a whole rollout, as the loops do in a cluster.
pub async fn apply(files: &Files, profile: &str, timeout: Duration) -> anyhow::Result<()> {
    let catalog = Catalog::with_fast();
    let profile = catalog.find(profile)?;
    let directories = files.open(profile.name)?;
    let policy = Policy {
        catalog,
        step_timeout: files.step_timeout,
        // The lock keeps other runs out: whoever held a claim is gone.
        patience: Duration::ZERO,
    };
    let identity = std::process::id().to_string();
    let desk = std::sync::Arc::new(directories.clone());
    let mut operators = Owner::ALL.map(|owner| {
        Operator::new(
            owner,
            &identity,
            directories.drivers(),
            desk.clone(),
            policy.clone(),
        )
    });
    let deadline = Instant::now() + timeout;
    loop {
        let mut acted = false;
        for operator in &mut operators {
            acted |= operator.round().await? == Next::Again;
        }
        if acted {
            continue;
        }
        let conditions = directories.conditions();
        let count = |kind: &str, status: &str| {
            let all = conditions
                .iter()
                .filter(|it| it.kind == kind && it.status == status);
            all.count()
        };
        if count("Complete", "True") == Owner::ALL.len() {
            return print(&format!("{} is in force\n", profile.name));
        }
        let (ledger, _) = directories.ledger().await?;
        let mut degraded = conditions
            .iter()
            .filter(|it| it.kind == "Degraded" && it.status == "True");
        let settled = ledger.failure.is_none() || count("Progressing", "True") == 0;
        if let Some(degraded) = degraded.next().filter(|_| settled) {
            bail!("{}: {}", degraded.owner, degraded.message);
        }
        if Instant::now() >= deadline {
            bail!("it took longer than --timeout; the next `apply` goes on where this one stopped");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Says what the files, and processes if they are observed, have.
pub async fn check(files: &Files) -> anyhow::Result<()> {
    let directories = files.open("")?;
    let mut readings = Readings::default();
    for driver in directories.drivers() {
        driver.read().await?.part.put_into(&mut readings);
    }
    for owner in Owner::ALL {
        if let Some(problem) = readings.problem(owner.component()) {
            bail!("{}: {problem}", owner.component().name());
        }
    }
    print_check(&readings.state()?)
}

/// Puts the originals back.
pub fn restore(root: &Path, kubelets: &[PathBuf]) -> anyhow::Result<()> {
    let directories = Directories::open(root, kubelets, Spec::default(), print_notice).context(
        "cannot work on the files of this control plane; of a cluster with an API, `pointsman profile apply Default` is the \
         way back",
    )?;
    let restored = directories.restore()?;
    if restored.is_empty() {
        return print("nothing was changed, so there is nothing to restore\n");
    }
    let list: Vec<String> = restored.iter().map(|path: &PathBuf| show(path)).collect();
    print(&format!("restored {}\n", list.join(", ")))
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

fn print_notice(notice: &Notice) {
    let word = if notice.warning { "warning: " } else { "" };
    // Whoever reads the output may be gone; the rollout goes on.
    let _ = print(&format!("{word}{}\n", notice.message));
}
