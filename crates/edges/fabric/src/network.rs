//! Which links are in a namespace, and how are they made and connected?

use crate::error::{FabricError, if_there, unless_exists};
use crate::netns::Netns;
use crate::prefix::Prefix;
use crate::socket::{CREATE_NEW, CREATE_OR_REPLACE, RouteSocket, attributes, message, number};
use rustix::io::Errno;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

/// The longest name of a link.
const NAME_MAX: usize = 15;
const UP: u32 = 1;

/// Attribute types, from linux/if_link.h, linux/if_addr.h and linux/veth.h.
mod attribute {
    pub const ADDRESS: u16 = 1;
    pub const NAME: u16 = 3;
    pub const MTU: u16 = 4;
    pub const MASTER: u16 = 10;
    pub const LINK_INFO: u16 = 18;
    pub const NETNS_FD: u16 = 28;
    pub const EXT_MASK: u16 = 29;
    pub const INFO_KIND: u16 = 1;
    pub const INFO_DATA: u16 = 2;
    pub const VETH_PEER: u16 = 1;
    pub const ADDR_ADDRESS: u16 = 1;
    pub const ADDR_LOCAL: u16 = 2;
    pub const ADDR_FLAGS: u16 = 8;
    pub const NEIGHBOUR_ADDRESS: u16 = 1;
    pub const NEIGHBOUR_LINK_ADDRESS: u16 = 2;
}

/// A connection to the routing tables of one namespace.
#[derive(Debug)]
pub struct Network {
    pub(crate) socket: RouteSocket,
    pub(crate) label: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it within the namespace.
    pub index: u32,
    /// Its name within the namespace.
    pub name: String,
    /// Whether it was set up; its cable may still be out.
    pub is_up: bool,
    /// The bridge it is a port of, by number.
    pub master: Option<u32>,
    /// Its hardware address, if it has one.
    pub hardware_address: Option<[u8; 6]>,
}

impl Network {
    /// That of the calling thread. Entering it, as [`Netns::network`](crate::Netns::network) does, would need
    /// CAP_SYS_ADMIN, which a proxy does not have everywhere.
    pub fn here() -> Result<Self, FabricError> {
        Self::open("this namespace")
    }

    /// Connects from the calling thread's namespace.
    pub(crate) fn open(label: &str) -> Result<Self, FabricError> {
        let socket = RouteSocket::open()
            .map_err(|error| FabricError::new(format!("opening a route socket in {label}"), error))?;
        Ok(Self {
            socket,
            label: label.to_owned(),
        })
    }

    /// All links, in the kernel's order.
    pub fn links(&mut self) -> Result<Vec<Link>, FabricError> {
        let mut links = Vec::new();
        let listed = self
            .socket
            .dump(message::GET_LINK, &link_head(0, 0, 0), &mut |payload| {
                links.extend(Link::decode(payload));
            });
        listed.map_err(|error| self.error("listing links", error))?;
        Ok(links)
    }

    /// The link of this name, if there is one. The kernel is asked for this one only: a node has as many
    /// links as pods, and making a pod asks a dozen times.
    pub fn find(&mut self, name: &str) -> Result<Option<Link>, FabricError> {
        /// RTEXT_FILTER_SKIP_STATS, from linux/rtnetlink.h: counters are summed over all processors.
        const WITHOUT_STATISTICS: u32 = 8;
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Ok(None);
        }
        let mut found = None;
        let asked = self.socket.get(
            message::GET_LINK,
            &link_head(0, 0, 0),
            |w| {
                w.text(attribute::NAME, name);
                w.u32_host(attribute::EXT_MASK, WITHOUT_STATISTICS);
            },
            &mut |payload| found = Link::decode(payload),
        );
        match asked {
            Ok(()) => Ok(found),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(self.error(&format!("looking for the link {name}"), error)),
        }
    }

    /// The link of this name.
    pub fn link(&mut self, name: &str) -> Result<Link, FabricError> {
        self.find(name)?.ok_or_else(|| FabricError::Missing {
            doing: format!("looking for the link {name} in {}", self.label),
        })
    }

    /// Makes two connected links: `name` here and `peer_name` in the other namespace. Both are down.
    pub fn add_veth(&mut self, name: &str, peer: &Netns, peer_name: &str) -> Result<(), FabricError> {
        check_names(&[name, peer_name])?;
        let peer_fd = descriptor(peer);
        let made = self
            .socket
            .change(message::NEW_LINK, CREATE_NEW, &link_head(0, 0, 0), |w| {
                w.text(attribute::NAME, name);
                w.nest(attribute::LINK_INFO, |info| {
                    info.text(attribute::INFO_KIND, "veth");
                    info.nest(attribute::INFO_DATA, |data| {
                        // The peer's attribute holds a link's fixed part before its attributes. The
                        // writer knows attributes only, so the peer is written apart.
                        data.bytes_attribute(attribute::VETH_PEER, &veth_peer(peer_name, peer_fd));
                    });
                });
            });
        made.map_err(|error| {
            let peer = peer.label();
            self.error(&format!("connecting {name} to {peer_name} of {peer}"), error)
        })
    }

    /// Makes a bridge, down and without ports.
    pub fn add_bridge(&mut self, name: &str) -> Result<(), FabricError> {
        check_names(&[name])?;
        let made = self
            .socket
            .change(message::NEW_LINK, CREATE_NEW, &link_head(0, 0, 0), |w| {
                w.text(attribute::NAME, name);
                w.nest(attribute::LINK_INFO, |info| {
                    info.text(attribute::INFO_KIND, "bridge");
                });
            });
        made.map_err(|error| self.error(&format!("adding the bridge {name}"), error))
    }

    /// Makes a link a port of a bridge.
    pub fn set_master(&mut self, name: &str, bridge: &str) -> Result<(), FabricError> {
        let (port, bridge_index) = (self.link(name)?.index, self.link(bridge)?.index);
        let set = self
            .socket
            .change(message::NEW_LINK, 0, &link_head(port, 0, 0), |w| {
                w.u32_host(attribute::MASTER, bridge_index);
            });
        set.map_err(|error| self.error(&format!("plugging {name} into {bridge}"), error))
    }

    /// Sets a link up.
    pub fn set_up(&mut self, name: &str) -> Result<(), FabricError> {
        self.set_flags(name, UP, "up")
    }

    /// Sets a link down: nothing passes, and the routes over it go.
    pub fn set_down(&mut self, name: &str) -> Result<(), FabricError> {
        self.set_flags(name, 0, "down")
    }

    /// Sets the largest packet of a link.
    pub fn set_mtu(&mut self, name: &str, mtu: u32) -> Result<(), FabricError> {
        let index = self.link(name)?.index;
        let set = self
            .socket
            .change(message::NEW_LINK, 0, &link_head(index, 0, 0), |w| {
                w.u32_host(attribute::MTU, mtu);
            });
        set.map_err(|error| self.error(&format!("setting the MTU of {name} to {mtu}"), error))
    }

    /// Deletes a link, and with it its peer. Says whether there was one.
    pub fn delete_link(&mut self, name: &str) -> Result<bool, FabricError> {
        let Some(link) = self.find(name)? else {
            return Ok(false);
        };
        let deleted = self
            .socket
            .change(message::DELETE_LINK, 0, &link_head(link.index, 0, 0), |_| {});
        if_there(deleted.map_err(|error| self.error(&format!("deleting the link {name}"), error)))
    }

    /// Gives a link an address; one that it has already is fine.
    pub fn add_address(&mut self, name: &str, address: Prefix) -> Result<(), FabricError> {
        /// IFA_F_NODAD: usable at once, without a second of looking for a duplicate.
        const NO_DAD: u32 = 2;
        let index = self.link(name)?.index;
        let octets = octets(address.address());
        let mut head = vec![family(address.address()), address.length(), 0, 0];
        head.extend_from_slice(&index.to_ne_bytes());
        let added = self.socket.change(message::NEW_ADDRESS, CREATE_NEW, &head, |w| {
            w.bytes_attribute(attribute::ADDR_LOCAL, &octets);
            w.bytes_attribute(attribute::ADDR_ADDRESS, &octets);
            if address.address().is_ipv6() {
                w.u32_host(attribute::ADDR_FLAGS, NO_DAD);
            }
        });
        unless_exists(added.map_err(|error| self.error(&format!("adding {address} to {name}"), error)))
    }

    /// All addresses with the number of their link.
    pub fn addresses(&mut self) -> Result<Vec<(u32, Prefix)>, FabricError> {
        let mut found = Vec::new();
        let listed = self.socket.dump(message::GET_ADDRESS, &[0; 8], &mut |payload| {
            found.extend(decode_address(payload));
        });
        listed.map_err(|error| self.error("listing addresses", error))?;
        Ok(found)
    }

    /// Writes down for good which hardware address an address on a link has, so that nobody has to ask.
    pub fn replace_neighbour(
        &mut self,
        name: &str,
        address: IpAddr,
        hardware_address: [u8; 6],
    ) -> Result<(), FabricError> {
        const PERMANENT: u16 = 0x80;
        let index = self.link(name)?.index;
        let mut head = vec![family(address), 0, 0, 0];
        head.extend_from_slice(&index.to_ne_bytes());
        head.extend_from_slice(&PERMANENT.to_ne_bytes());
        head.extend_from_slice(&[0, 0]);
        let set = self
            .socket
            .change(message::NEW_NEIGHBOUR, CREATE_OR_REPLACE, &head, |w| {
                w.bytes_attribute(attribute::NEIGHBOUR_ADDRESS, &octets(address));
                w.bytes_attribute(attribute::NEIGHBOUR_LINK_ADDRESS, &hardware_address);
            });
        set.map_err(|error| self.error(&format!("adding the neighbour {address} on {name}"), error))
    }

    pub(crate) fn error(&self, doing: &str, error: io::Error) -> FabricError {
        FabricError::new(format!("{doing} in {}", self.label), error)
    }

    fn set_flags(&mut self, name: &str, state: u32, word: &str) -> Result<(), FabricError> {
        let index = self.link(name)?.index;
        let set = self
            .socket
            .change(message::NEW_LINK, 0, &link_head(index, state, UP), |_| {});
        set.map_err(|error| self.error(&format!("setting {name} {word}"), error))
    }
}

impl Link {
    fn decode(payload: &[u8]) -> Option<Self> {
        let mut link = Self {
            index: number(payload.get(4..8)?)?,
            name: String::new(),
            is_up: number(payload.get(8..12)?)? & UP != 0,
            master: None,
            hardware_address: None,
        };
        for (kind, value) in attributes(payload, 16) {
            match kind {
                attribute::NAME => {
                    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                    link.name = String::from_utf8_lossy(&value[..end]).into_owned();
                }
                attribute::MASTER => link.master = number(value),
                attribute::ADDRESS => link.hardware_address = value.try_into().ok(),
                _ => {}
            }
        }
        Some(link)
    }
}

/// AF_INET or AF_INET6.
pub(crate) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 2 } else { 10 }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(crate) fn decode_ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

fn decode_address(payload: &[u8]) -> Option<(u32, Prefix)> {
    let index = number(payload.get(4..8)?)?;
    let length = *payload.get(1)?;
    let mut address = None;
    for (kind, value) in attributes(payload, 8) {
        match kind {
            // Of an IPv4 address the local one counts; IPv6 has only the other.
            attribute::ADDR_LOCAL => address = decode_ip(value),
            attribute::ADDR_ADDRESS => address = address.or(decode_ip(value)),
            _ => {}
        }
    }
    Some((index, Prefix::new(address?, length)))
}

/// The fixed part of a message about a link.
fn link_head(index: u32, state: u32, change: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&state.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

fn veth_peer(name: &str, netns: u32) -> Vec<u8> {
    let mut attributes = pointsman_netlink::netlink::Writer::new();
    attributes.text(attribute::NAME, name);
    attributes.u32_host(attribute::NETNS_FD, netns);
    let mut bytes = link_head(0, 0, 0).to_vec();
    bytes.extend_from_slice(attributes.bytes());
    bytes
}

fn descriptor(netns: &Netns) -> u32 {
    // A descriptor is never negative.
    netns.as_fd().as_raw_fd().unsigned_abs()
}

/// The kernel would cut or refuse such names with a less telling error.
fn check_names(names: &[&str]) -> Result<(), FabricError> {
    for name in names {
        let fits = (1..=NAME_MAX).contains(&name.len());
        if !fits || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
            return Err(FabricError::Failed {
                doing: format!("using {name:?} as the name of a link (at most {NAME_MAX} bytes)"),
                source: io::ErrorKind::InvalidInput.into(),
            });
        }
    }
    Ok(())
}
