//! Who may read the metrics of a role?

use anyhow::Context;
use clap::{Args, ValueEnum};
use pointsman_guard::{Authentication, Settings};
use std::path::PathBuf;

#[derive(Args, Default)]
pub struct MetricsAccess {
    /// How readers of metrics prove who they are at an address other than loopback. `delegated`: over HTTPS, by a
    /// token or client certificate, and the API server says whether they may `get` the path; health stays open.
    /// `none`: plain HTTP for everybody who can connect, as with kube-proxy.
    #[arg(long, value_name = "HOW", default_value = "delegated")]
    metrics_authentication: How,
    /// Authority of client certificates that readers of metrics may show; without it they need a token.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum How {
    #[default]
    Delegated,
    None,
}

impl MetricsAccess {
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let read =
            |path: &PathBuf| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
        Ok(Settings {
            authentication: match self.metrics_authentication {
                How::Delegated => Authentication::Delegated,
                How::None => Authentication::None,
            },
            client_ca: self.client_ca_file.as_ref().map(read).transpose()?,
        })
    }
}
