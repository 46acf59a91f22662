//! For whom is output written?

use clap::ValueEnum;
use pointsman_cluster::progress;

/// For whom output is written.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For scripts: one JSON object per line.
    Json,
}

impl From<Output> for progress::Output {
    fn from(output: Output) -> Self {
        match output {
            Output::Text => Self::Text,
            Output::Json => Self::Json,
        }
    }
}
