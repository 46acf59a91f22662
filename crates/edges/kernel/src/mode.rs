//! In which of the two ways are rules written?

use pointsman_dataplane::{NoRules, ProgramError, Programmer, Restores, Settings};
use pointsman_model::{Address, IpFamily};

use crate::commits::Commits;
use crate::interfaces;
use crate::iptables::Variant;
use crate::iptables_backend::{IptablesBackend, allow_localhost_node_ports};
use crate::nftables_backend::NftablesBackend;

/// How rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By the iptables programs.
    Iptables,
    /// By netlink, into an nf_tables table of our own.
    Nftables,
}

impl Mode {
    /// The name in flags and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// A programmer for the network namespace of the calling thread; nothing is written yet. All of a process
    /// share `commits`.
    pub fn open<A: Address>(
        self,
        settings: Settings<A>,
        commits: Commits,
        restores: Restores,
    ) -> Result<Box<dyn Programmer<A>>, ProgramError> {
        if !interfaces::has_family(A::FAMILY) {
            tracing::info!(family = %A::FAMILY, "this machine has no addresses of the family, no rules are written");
            return Ok(Box::new(NoRules));
        }
        Ok(match self {
            Self::Iptables => {
                if A::FAMILY == IpFamily::V4
                    && settings.localhost_node_ports
                    && let Err(error) = allow_localhost_node_ports()
                {
                    tracing::warn!(%error, "node ports will not answer on 127.0.0.1: route_localnet cannot be set");
                }
                let variant = Variant::detect()?;
                let backend = IptablesBackend::new(settings, variant).with_restores(restores);
                Box::new(backend.watching(variant, commits))
            }
            Self::Nftables => Box::new(NftablesBackend::open(settings, commits)?),
        })
    }
}
