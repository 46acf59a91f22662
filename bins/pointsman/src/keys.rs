//! `pointsman keys`: the keys that sign tokens of service accounts and encrypt Secrets, and their replacement.

use clap::{Args, Subcommand, ValueEnum};
use pointsman_api_server::auth::keyring::{self, Ring};
use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how many keys there are, and what is next.
    Status(Data),
    /// Take one step from the present key to a new one, while the API server runs or while it does not.
    ///
    /// trust: a new key is made and believed beside the present one.
    /// use: the new one is used from now on; a running server writes Secrets anew with it.
    /// drop: the old one is no longer believed.
    ///
    /// A running server takes up each step within seconds. A step that was interrupted can be taken again. Backups of
    /// before need the old key: keep a copy of pki/encryption.key with them.
    Rotate {
        /// Which keys.
        keys: Keys,
        /// Which step; only the next one is accepted.
        step: Step,
        #[command(flatten)]
        data: Data,
        /// Take `drop` though tokens that the old key has signed may still be in use.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args)]
struct Data {
    /// The API server's data directory (of `pointsman up`: its data directory).
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Keys {
    /// pki/sa.key, which signs tokens of service accounts.
    Tokens,
    /// pki/encryption.key, which encrypts Secrets in the store.
    Encryption,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    Trust,
    Use,
    Drop,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    let data = match flags.command {
        Command::Status(data) => data,
        Command::Rotate {
            keys,
            step,
            data,
            force,
        } => {
            let ring = match keys {
                Keys::Tokens => Ring::Tokens,
                Keys::Encryption => Ring::Encryption,
            };
            let step = match step {
                Step::Trust => keyring::Step::Trust,
                Step::Use => keyring::Step::Use,
                Step::Drop => keyring::Step::Drop,
            };
            ring.take(&data.data_dir.join("pki"), step, SystemTime::now(), force)?;
            data
        }
    };
    let mut text = String::new();
    for (name, ring) in [("tokens", Ring::Tokens), ("encryption", Ring::Encryption)] {
        let (count, next) = ring.status(&data.data_dir.join("pki"))?;
        let keys = if count == 1 {
            "one key"
        } else {
            "an old and a new key"
        };
        text.push_str(&format!(
            "{name}: {keys}; next: pointsman keys rotate {name} {next}\n"
        ));
    }
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
