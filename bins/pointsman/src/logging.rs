//! Where do log lines go, and which of them?

use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Flags of every role.
#[derive(Args)]
pub struct Flags {
    /// What to log: a level, or directives such as `info,pointsman_store=debug`. By default `warn` for
    /// commands that people watch, such as `up`, and `info` for the others.
    #[arg(long, global = true, env = "POINTSMAN_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How log lines look on standard error.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Flags {
    /// Starts logging to standard error; `usual` is the filter if nobody asks for another.
    pub fn install(&self, usual: &str) {
        let wanted = self.log.as_deref().unwrap_or(usual);
        let filter = EnvFilter::try_new(wanted).unwrap_or_else(|error| {
            eprintln!("warning: --log {wanted:?} is not understood ({error}), logging at {usual}");
            EnvFilter::new(usual)
        });
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            // Telling on standard error that it cannot be written to would panic, as on a full disk.
            .log_internal_errors(false)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => builder.init(),
            Format::Json => builder.json().init(),
        }
    }
}
