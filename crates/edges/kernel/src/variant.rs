//! Which kernel interface do the iptables programs of this machine use?
//!
//! In a container the programs are the image's and the rules are the host's, so the host's rules decide, as they do in the
//! wrapper that images of the field carry: rules of one interface are unseen by programs of the other, and a node with both
//! has two sets of rules that nobody understands.

use std::net::Ipv4Addr;
use std::process::Command;

use pointsman_dataplane::ProgramError;
use pointsman_iptables::plan::{
    LEGACY_RULES_PER_TRANSACTION, NFT_RULES_PER_TRANSACTION, NFT_RULES_THAT_MAKE_WRITING_SLOW,
};
use pointsman_model::IpFamily;

use crate::iptables::{Iptables, RUN_LIMIT, failure, shorten};
use crate::program::Program;

/// Chains by which the kubelet tells which interface it uses.
const KUBELET_CHAINS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// The kernel interface behind the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Whatever `iptables` means on this machine.
    System,
    /// nf_tables.
    Nft,
    /// The older interface, which replaces whole tables.
    Legacy,
}

impl Variant {
    /// The interface that the kubelet uses, or else the one with more rules; where nothing tells, the one behind the program
    /// `iptables`.
    pub fn detect() -> Result<Self, ProgramError> {
        let in_use = Self::in_use(IpFamily::V4);
        if let Some(variant) = in_use.iter().find(|variant| variant.has_kubelets_chains()) {
            return Ok(*variant);
        }
        if in_use.contains(&Self::Legacy) {
            let most = Self::Legacy.rules() > Self::Nft.rules();
            return Ok(if most { Self::Legacy } else { Self::Nft });
        }
        Self::of_program()
    }

    fn has_kubelets_chains(self) -> bool {
        let mut found = false;
        self.each_line("mangle", |line| {
            found |= KUBELET_CHAINS.iter().any(|chain| line.starts_with(chain));
        });
        found
    }

    fn rules(self) -> usize {
        let mut rules = 0;
        for table in ["mangle", "filter", "nat"] {
            self.each_line(table, |line| rules += usize::from(line.starts_with("-A")));
        }
        rules
    }

    /// Where its programs are missing, an interface has no lines for us.
    fn each_line(self, table: &str, each: impl FnMut(&str)) {
        if let Err(error) = Iptables::<Ipv4Addr>::new(self).read_save(table, each) {
            tracing::debug!(%error, table, "rules of this interface cannot be read");
        }
    }

    /// The kernel interface behind `iptables` on this machine, by its own words.
    fn of_program() -> Result<Self, ProgramError> {
        let program = "iptables";
        let mut command = Command::new(program);
        command.arg("--version");
        let mut said = String::new();
        let ended = Program::new(program.to_owned(), command, RUN_LIMIT).read(|line| said.push_str(line))?;
        if !ended.status.success() {
            return Err(failure(program, &ended, ""));
        }
        Self::from_version(&said).ok_or_else(|| ProgramError::Interrupted {
            program: program.to_owned(),
            how: format!("it calls its version {:?}", shorten(&said)),
        })
    }

    /// Programs before 1.8 know the older interface only and do not name it.
    fn from_version(text: &str) -> Option<Self> {
        let version = text.strip_prefix("iptables v")?;
        Some(match version.contains("nf_tables") {
            true => Self::Nft,
            false => Self::Legacy,
        })
    }

    /// The kernel interfaces that may hold rules of a family: nf_tables always, the older one only if it has
    /// tables, because merely asking would create them.
    pub fn in_use(family: IpFamily) -> Vec<Self> {
        let mut variants = vec![Self::Nft];
        if !Self::older_tables(family).is_empty() {
            variants.push(Self::Legacy);
        }
        variants
    }

    /// The tables that the older interface has of a family.
    pub(crate) fn older_tables(family: IpFamily) -> Vec<String> {
        let tables = match family {
            IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
            IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        let names = std::fs::read_to_string(tables).unwrap_or_default();
        names.lines().map(str::to_owned).collect()
    }

    /// How many rules a transaction of a full sync should write.
    pub const fn rules_per_transaction(self) -> usize {
        match self {
            Self::System | Self::Nft => NFT_RULES_PER_TRANSACTION,
            Self::Legacy => LEGACY_RULES_PER_TRANSACTION,
        }
    }

    /// From how many rules on leaving endpoints are taken out ahead; the older interface replaces the whole table for
    /// each transaction.
    pub const fn removes_ahead_from(self) -> Option<u64> {
        match self {
            Self::Nft => Some(NFT_RULES_THAT_MAKE_WRITING_SLOW),
            Self::System | Self::Legacy => None,
        }
    }

    /// The infix in the programs' names.
    pub(crate) const fn infix(self) -> &'static str {
        match self {
            Self::System => "",
            Self::Nft => "-nft",
            Self::Legacy => "-legacy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_the_kernel_interface_and_other_words_do_not() {
        let variant = Variant::from_version;
        assert_eq!(variant("iptables v1.8.9 (nf_tables)"), Some(Variant::Nft));
        assert_eq!(variant("iptables v1.8.9 (legacy)"), Some(Variant::Legacy));
        assert_eq!(variant("iptables v1.6.1"), Some(Variant::Legacy));
        assert_eq!(variant("Segmentation fault"), None);
    }
}
