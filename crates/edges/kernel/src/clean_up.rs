//! How do the rules of a mode, or of a whole proxy, go away?

use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::{ProgramError, Settings};
use pointsman_iptables::plan::Holder;
use pointsman_model::Address;

use crate::commits::Commits;
use crate::iptables::Variant;
use crate::iptables_backend::IptablesBackend;
use crate::nftables_backend::NftablesBackend;

/// Removes the rules of both modes, ours and kube-proxy's, of one family.
pub fn clean_up<A: Address>() -> Result<(), ProgramError> {
    let iptables = clean_up_iptables::<A>();
    clean_up_nftables::<A>()?;
    iptables
}

/// What became of an attempt to remove what only we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRules {
    Removed,
    /// kube-proxy has not taken over yet, so they are still needed.
    Kept,
}

/// Removes what only we make, once kube-proxy has taken over in whichever mode.
pub fn clean_up_own() -> Result<OwnRules, ProgramError> {
    let [four, six] = [Holders::read::<Ipv4Addr>()?, Holders::read::<Ipv6Addr>()?];
    if (four.ours || six.ours) && !(four.others || six.others) {
        return Ok(OwnRules::Kept);
    }
    clean_up_own_of::<Ipv4Addr>()?;
    clean_up_own_of::<Ipv6Addr>()?;
    Ok(OwnRules::Removed)
}

/// Whether rules of ours and rules of kube-proxy's are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    pub ours: bool,
    pub others: bool,
}

impl Holders {
    fn read<A: Address>() -> Result<Self, ProgramError> {
        let mut found = nftables::<A>()?.holders()?;
        for_each_variant::<A>(|iptables| {
            let holder = iptables.holder()?;
            found.ours |= holder == Holder::Ourselves;
            found.others |= holder == Holder::Another;
            Ok(())
        })?;
        Ok(found)
    }
}

fn clean_up_own_of<A: Address>() -> Result<(), ProgramError> {
    for_each_variant::<A>(IptablesBackend::clean_up_own)?;
    nftables::<A>()?.clean_up_own()
}

/// Cleans both kernel interfaces, as nobody knows which one a predecessor used.
pub(crate) fn clean_up_iptables<A: Address>() -> Result<(), ProgramError> {
    for_each_variant::<A>(IptablesBackend::clean_up)
}

pub(crate) fn clean_up_nftables<A: Address>() -> Result<(), ProgramError> {
    nftables::<A>()?.clean_up()
}

fn nftables<A: Address>() -> Result<NftablesBackend<A>, ProgramError> {
    NftablesBackend::open(Settings::default(), Commits::default())
}

/// Does something to each kernel interface, also after a failure, which is what the caller gets. Where the programs
/// are missing, there is nothing of theirs.
fn for_each_variant<A: Address>(
    mut work: impl FnMut(&mut IptablesBackend<A>) -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    let mut outcome = Ok(());
    for variant in Variant::in_use(A::FAMILY) {
        match work(&mut IptablesBackend::new(Settings::default(), variant)) {
            Ok(()) | Err(ProgramError::Missing { .. }) => {}
            failed => outcome = failed,
        }
    }
    outcome
}
