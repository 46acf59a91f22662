//! `pointsman ca`: the certificate authority of an embedded API server, and its replacement.

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use pointsman_api_server::auth::pki::Pki;
use pointsman_api_server::auth::pki::rotation::{self, Rotation};
use pointsman_api_server::auth::{files, kubeconfig};
use std::io::Write;
use std::net::IpAddr;
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
    /// Issue what the agent of a node needs on a machine of its own: a kubeconfig, and the certificate by which the API server
    /// knows it when it asks for logs. Certificates that are still good are kept; the command line that uses them is printed.
    IssueNode(IssueNode),
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
struct IssueNode {
    /// The node's name.
    name: String,
    /// An address of the node, the one of `pointsman node --node-ip` first. Repeatable.
    #[arg(long = "address", value_name = "IP", required = true)]
    addresses: Vec<IpAddr>,
    /// The API server as the node reaches it.
    #[arg(long, value_name = "https://HOST:PORT")]
    server: String,
    /// Where to put the files, to be carried to the node: whoever has them is the node.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    data: Data,
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
        Command::IssueNode(asked) => return issue_node(&asked),
        Command::Rotate { step, data } => {
            rotation::take(&pki(&data.data_dir), step.into(), SystemTime::now())?;
            data
        }
    };
    let text = describe(&rotation::status(&pki(&data.data_dir))?);
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn issue_node(asked: &IssueNode) -> anyhow::Result<()> {
    let (data_dir, now) = (&asked.data.data_dir, SystemTime::now());
    // A wrong directory would get an authority of its own, which nobody trusts.
    rotation::status(&pki(data_dir))?;
    let pki = Pki::open(&pki(data_dir), now)?;
    let kubeconfig = kubeconfig::write_node(&pki, data_dir, &asked.name, &asked.server, pki.ca_pem(), now)?;
    let serving = pki.node_serving(&asked.name, &asked.addresses, now)?;
    files::private_dir(&asked.out).with_context(|| format!("making {}", asked.out.display()))?;
    let mut line = format!(
        "pointsman node --node-name={} --node-ip={}",
        asked.name, asked.addresses[0]
    );
    for (flag, file) in [
        ("kubeconfig", kubeconfig),
        ("tls-cert-file", serving.certificate_path),
        ("tls-private-key-file", serving.key_path),
    ] {
        let to = asked.out.join(file.file_name().unwrap_or_default());
        let text = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        files::replace(&to, &text, files::SECRET).with_context(|| format!("writing {}", to.display()))?;
        line.push_str(&format!(" --{flag}={}", to.display()));
    }
    line.push('\n');
    Ok(std::io::stdout().write_all(line.as_bytes())?)
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
