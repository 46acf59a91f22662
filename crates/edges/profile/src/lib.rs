//! How does an operator ask for a latency profile, follow its rollout and check what is in force?
//!
//! [`cluster`] asks a cluster's API, where the loops of `pointsman controllers` carry it out; [`kubeadm`] carries it
//! out itself, on the files of a control plane.

pub mod cluster;
pub mod kubeadm;

use anyhow::{Context as _, bail};
use pointsman_latency_profile::{Catalog, LeaseTerms, State, render};
use std::io::Write;

/// Prints what is in force; an unsafe state is a failure.
fn print_check(state: &State) -> anyhow::Result<()> {
    print(&render::check(
        state,
        &Catalog::with_fast(),
        LeaseTerms::default(),
    ))?;
    if !state.verdict().is_safe() {
        bail!(
            "nodes are not safe with these values; `pointsman profile apply PROFILE` goes to a safe profile, the \
             least bad step first"
        );
    }
    Ok(())
}

/// Prints to standard output at once.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot print")
}
