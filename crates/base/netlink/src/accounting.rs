//! What does a counter that rules name say?

use crate::netlink::{Malformed, Message};

/// Numbers from `linux/netfilter/nfnetlink_acct.h` and `nf_tables_compat.h`.
pub mod wire {
    pub const SUBSYSTEM: u16 = 7;
    pub const NEW: u16 = 0;
    pub const GET: u16 = 1;
    pub const NAME: u16 = 1;
    pub const PACKETS: u16 = 2;
    /// Asks for the matches that rules may use.
    pub const COMPAT_SUBSYSTEM: u16 = 11;
    pub const COMPAT_GET: u16 = 0;
    pub const COMPAT_NAME: u16 = 1;
    pub const COMPAT_REVISION: u16 = 2;
    pub const COMPAT_KIND: u16 = 3;
}

/// Reads how many packets an answer says were counted.
pub fn packets(message: &Message<'_>) -> Result<u64, Malformed> {
    for attribute in message.attributes()? {
        let attribute = attribute?;
        if attribute.kind == wire::PACKETS {
            return attribute.u64_be();
        }
    }
    Err(Malformed("a counter without a number"))
}
