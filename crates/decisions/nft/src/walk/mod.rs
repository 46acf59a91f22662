//! What becomes of a packet?
//!
//! Runs the rules of a [`KernelTable`] over the first packet of a connection as the kernel would: the very
//! instructions that are sent to it, register by register. So a test can say "this packet, that fate" without
//! root, and a ruleset that a walk accepts is the ruleset the kernel gets.

mod frame;
mod machine;

use std::collections::BTreeMap;
use std::net::IpAddr;

use pointsman_dataplane::packet::{Fate, Host, Packet, SeenAs};
use pointsman_model::{Address, Backend, Port};
use pointsman_netlink::nft::{Element, Hook, Name, Value};

use self::frame::Frame;
use self::machine::{Machine, Outcome};
use crate::kernel_table::KernelTable;

/// What packets have put into dynamic sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(pub(crate) BTreeMap<(Name, Value), Element>);

impl Memory {
    /// The number of elements, expired ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a single walk needs besides the table and the packet.
pub struct World<'a, A> {
    pub host: &'a Host<A>,
    /// Draws a number below the given one.
    pub random: &'a mut dyn FnMut(u32) -> u32,
    /// What earlier packets left behind.
    pub memory: &'a mut Memory,
    /// Milliseconds since any fixed moment; remembered clients expire by it.
    pub now_ms: u64,
}

/// What became of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Journey<A> {
    /// No rule took it.
    Untouched,
    /// It goes to an endpoint.
    Sent(Backend<A>, SeenAs),
    /// Its sender is told that nobody listens.
    Rejected,
    Dropped,
}

/// The table's rules do something the walk does not know, or that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in chain {chain}: {what}")]
pub struct Lost {
    pub chain: String,
    pub what: String,
}

/// Sends the first packet of a connection through the table.
pub fn walk<A: Address>(
    table: &KernelTable,
    packet: &Packet<A>,
    world: &mut World<'_, A>,
) -> Result<Journey<A>, Lost> {
    let entry = if world.host.sends(packet) {
        Hook::Output
    } else {
        Hook::Prerouting
    };
    let mut machine = Machine::new(table, Frame::new(packet), world);
    let mut sent = None;
    for chain in machine.base_chains(entry) {
        match machine.run(&chain)? {
            Outcome::Accepted => {}
            Outcome::Dropped => return Ok(Journey::Dropped),
            Outcome::Refused => return Ok(Journey::Rejected),
            Outcome::Translated { to, port } => {
                machine.translate(to, port);
                sent = backend(to, port);
                break;
            }
            Outcome::Masqueraded => return Err(machine.lost(&chain, "masquerading before routing")),
        }
    }
    let mut seen_as = SeenAs::Client;
    for chain in machine.base_chains(Hook::Postrouting) {
        match machine.run(&chain)? {
            Outcome::Accepted => {}
            Outcome::Masqueraded => {
                seen_as = SeenAs::Node;
                break;
            }
            Outcome::Dropped => return Ok(Journey::Dropped),
            Outcome::Refused | Outcome::Translated { .. } => {
                return Err(machine.lost(&chain, "a verdict that makes no sense after routing"));
            }
        }
    }
    Ok(sent.map_or(Journey::Untouched, |backend| Journey::Sent(backend, seen_as)))
}

/// Everything that may become of a new client's packet, over all draws of numbers below `draws`, which must
/// be at least the number of endpoints.
pub fn explore<A: Address>(
    table: &KernelTable,
    packet: &Packet<A>,
    host: &Host<A>,
    draws: u32,
) -> Result<Fate<A>, Lost> {
    let mut fates = Vec::new();
    for number in 0..draws.max(1) {
        let mut random = |modulus: u32| number % modulus;
        let mut memory = Memory::default();
        let mut world = World {
            host,
            random: &mut random,
            memory: &mut memory,
            now_ms: 0,
        };
        fates.push(walk(table, packet, &mut world)?);
    }
    fates.sort_unstable();
    fates.dedup();
    Ok(match fates.as_slice() {
        [Journey::Untouched] => Fate::Untouched,
        [Journey::Rejected] => Fate::Rejected,
        [Journey::Dropped] => Fate::Dropped,
        several => {
            let mut endpoints = BTreeMap::new();
            for journey in several {
                let Journey::Sent(backend, seen_as) = journey else {
                    return Err(Lost {
                        chain: "all".to_owned(),
                        what: format!("chance decides between {several:?}"),
                    });
                };
                endpoints.insert(*backend, *seen_as);
            }
            Fate::Delivered(endpoints)
        }
    })
}

fn backend<A: Address>(to: IpAddr, port: u16) -> Option<Backend<A>> {
    Some(Backend {
        address: A::narrow(to)?,
        port: Port::new(port)?,
    })
}
