//! `pointsman ca`: the certificate authority of an embedded API server, and its replacement.

use clap::{Args, Subcommand, ValueEnum};
use pointsman_api_server::auth::pki::rotation::{self, Rotation};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show which authorities are trusted, until when, and what is next.
    Status(Data),
    /// Take one step from the present authority to a new one, while the API server runs or while it does not.
    ///
    /// trust: a new authority is made and trusted beside the present one.
    /// issue: certificates are issued by the new one from now on.
    /// drop: the old one is no longer trusted, and who still shows its certificates is refused.
    ///
    /// Between two steps restart every role that has a kubeconfig of this server, and give new kubeconfigs to clients
    /// elsewhere: files are rewritten within seconds, but roles read them when they start. The API server itself needs no
    /// restart. A step that was interrupted can be taken again.
    Rotate {
        /// Which step; only the next one is accepted.
        step: Step,
        #[command(flatten)]
        data: Data,
    },
}

#[derive(Args)]
struct Data {
    /// The API server's data directory (of `pointsman up`: its data directory).
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    Trust,
    Issue,
    Drop,
}

impl From<Step> for rotation::Step {
    fn from(step: Step) -> Self {
        match step {
            Step::Trust => Self::Trust,
            Step::Issue => Self::Issue,
            Step::Drop => Self::Drop,
        }
    }
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    let data = match flags.command {
        Command::Status(data) => data,
        Command::Rotate { step, data } => {
            rotation::take(&pki(&data.data_dir), step.into(), SystemTime::now())?;
            data
        }
    };
    let text = describe(&rotation::status(&pki(&data.data_dir))?);
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn pki(data_dir: &Path) -> PathBuf {
    data_dir.join("pki")
}

fn describe(rotation: &Rotation) -> String {
    let mut text = String::new();
    for authority in &rotation.trusted {
        let signs = if authority.signs {
            ", issues certificates"
        } else {
            ""
        };
        text.push_str(&format!(
            "{} is trusted until {}{signs}\n",
            authority.name, authority.until
        ));
    }
    text.push_str(match rotation.next {
        rotation::Step::Trust => "to replace it: pointsman ca rotate trust\n",
        rotation::Step::Issue => {
            "next: restart every role and give new kubeconfigs to other clients, so that they trust both; \
             then: pointsman ca rotate issue\n"
        }
        rotation::Step::Drop => {
            "next: restart every role and give new kubeconfigs to other clients, so that they have certificates of the new \
             authority; then: pointsman ca rotate drop\n"
        }
    });
    text
}
