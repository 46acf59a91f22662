//! Where do log lines go, and which of them?

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Flags of every role.
#[derive(Args)]
pub struct Flags {
    /// What to log: a level, or directives such as `info,pointsman_store=debug`.
    #[arg(
        long,
        global = true,
        env = "POINTSMAN_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: String,
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
    /// Starts logging to standard error.
    pub fn install(&self) {
        let filter = EnvFilter::try_new(&self.log).unwrap_or_else(|error| {
            eprintln!(
                "warning: --log {:?} is not understood ({error}), logging at info",
                self.log
            );
            EnvFilter::new("info")
        });
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => builder.init(),
            Format::Json => builder.json().init(),
        }
    }
}
