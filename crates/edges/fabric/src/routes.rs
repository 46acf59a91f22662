//! Where do packets go from a namespace?

use crate::error::{FabricError, if_there};
use crate::network::{Network, decode_ip, family, octets};
use crate::prefix::Prefix;
use crate::socket::{CREATE_OR_REPLACE, attributes, message, number};
use pointsman_netlink::netlink::Writer;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attribute types, from linux/rtnetlink.h.
mod attribute {
    pub const DESTINATION: u16 = 1;
    pub const OUT_LINK: u16 = 4;
    pub const GATEWAY: u16 = 5;
    pub const PREFERRED_SOURCE: u16 = 7;
    pub const MULTIPATH: u16 = 9;
    pub const TABLE: u16 = 15;
}

const MAIN: u8 = 254;
const UNICAST: u8 = 1;
/// RTPROT_STATIC: set by an administrator, so that routing daemons leave it alone.
const STATIC: u8 = 4;
/// RTPROT_KERNEL: came with an address.
const KERNEL: u8 = 2;
/// RT_SCOPE_LINK: the other end is on the link.
const ON_LINK_SCOPE: u8 = 253;
/// RTNH_F_ONLINK: believe that the gateway is on the link although no address says so.
const ON_LINK: u32 = 4;

/// A unicast route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which packets: `0.0.0.0/0` or `::/0` for all.
    pub destination: Prefix,
    /// The next hop; `None` if the destination is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The link, by name. May be left out of a route by a gateway that some address makes reachable.
    pub link: Option<String>,
    /// The source address of connections that begin here.
    pub source: Option<IpAddr>,
    /// Whether the kernel made it together with an address. Only set on routes that were listed.
    pub from_address: bool,
}

impl Route {
    /// A route to neighbours on a link.
    pub fn on_link(destination: Prefix, link: &str) -> Self {
        Self {
            destination,
            gateway: None,
            link: Some(link.to_owned()),
            source: None,
            from_address: false,
        }
    }

    /// A route by a next hop.
    pub fn via(destination: Prefix, gateway: impl Into<IpAddr>) -> Self {
        Self {
            destination,
            gateway: Some(gateway.into()),
            link: None,
            source: None,
            from_address: false,
        }
    }

    /// Names the link. A gateway is then believed to be on it, whatever the addresses say.
    pub fn over(mut self, link: &str) -> Self {
        self.link = Some(link.to_owned());
        self
    }

    /// Names the source address of connections that begin here.
    pub fn from(mut self, source: impl Into<IpAddr>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = &self.link {
            write!(f, " over {link}")?;
        }
        Ok(())
    }
}

impl Network {
    /// Adds a route, or replaces the one to the same destination.
    pub fn replace_route(&mut self, route: &Route) -> Result<(), FabricError> {
        self.route_request(message::NEW_ROUTE, CREATE_OR_REPLACE, route)
            .map_err(|error| match error {
                RouteError::Fabric(error) => error,
                RouteError::Kernel(error) => self.error(&format!("adding the route {route}"), error),
            })
    }

    /// Adds a route that spreads connections over several next hops, or replaces the one to the same
    /// destination.
    pub fn replace_shared_route(
        &mut self,
        destination: Prefix,
        gateways: &[IpAddr],
    ) -> Result<(), FabricError> {
        let mut head = [0; 12];
        head[0] = family(destination.address());
        head[1] = destination.length();
        (head[4], head[5], head[7]) = (MAIN, STATIC, UNICAST);
        let hops: Vec<u8> = gateways.iter().flat_map(|gateway| next_hop(*gateway)).collect();
        let sent = self
            .socket
            .change(message::NEW_ROUTE, CREATE_OR_REPLACE, &head, |w| {
                w.bytes_attribute(attribute::DESTINATION, &network_octets(destination));
                w.bytes_attribute(attribute::MULTIPATH, &hops);
            });
        sent.map_err(|error| {
            let hops = gateways.len();
            self.error(
                &format!("adding the route {destination} via {hops} next hops"),
                error,
            )
        })
    }

    /// Lets connections that begin here, to an IPv4 address of one of this namespace's links, have another source than
    /// that address. (IPv6 wants a source of the same link.)
    pub fn prefer_source(
        &mut self,
        link: u32,
        address: Ipv4Addr,
        source: Ipv4Addr,
    ) -> Result<(), FabricError> {
        const LOCAL_TABLE: u8 = 255;
        const LOCAL: u8 = 2;
        const HOST_SCOPE: u8 = 254;
        let mut head = [0; 12];
        (head[0], head[1]) = (family(address.into()), 32);
        (head[4], head[5], head[6], head[7]) = (LOCAL_TABLE, KERNEL, HOST_SCOPE, LOCAL);
        let sent = self
            .socket
            .change(message::NEW_ROUTE, CREATE_OR_REPLACE, &head, |w| {
                w.bytes_attribute(attribute::DESTINATION, &address.octets());
                w.u32_host(attribute::OUT_LINK, link);
                w.bytes_attribute(attribute::PREFERRED_SOURCE, &source.octets());
            });
        sent.map_err(|error| self.error(&format!("choosing {source} as the source to {address}"), error))
    }

    /// Deletes the route to this destination, with this gateway and link if they are named. Says whether
    /// there was one.
    pub fn delete_route(&mut self, route: &Route) -> Result<bool, FabricError> {
        let deleted = self
            .route_request(message::DELETE_ROUTE, 0, route)
            .map_err(|error| match error {
                RouteError::Fabric(error) => error,
                RouteError::Kernel(error) => self.error(&format!("deleting the route {route}"), error),
            });
        if_there(deleted)
    }

    /// The unicast routes of the main table, of both families.
    pub fn routes(&mut self) -> Result<Vec<Route>, FabricError> {
        let names: Vec<(u32, String)> = self
            .links()?
            .into_iter()
            .map(|link| (link.index, link.name))
            .collect();
        let mut routes = Vec::new();
        for family in [2, 10] {
            let mut head = [0; 12];
            head[0] = family;
            let listed = self.socket.dump(message::GET_ROUTE, &head, &mut |payload| {
                routes.extend(decode(payload, &names));
            });
            listed.map_err(|error| self.error("listing routes", error))?;
        }
        Ok(routes)
    }

    fn route_request(&mut self, kind: u16, flags: u16, route: &Route) -> Result<(), RouteError> {
        let index = match &route.link {
            Some(link) => Some(self.link(link).map_err(RouteError::Fabric)?.index),
            None => None,
        };
        let adding = kind == message::NEW_ROUTE;
        let mut head = [0; 12];
        head[0] = family(route.destination.address());
        head[1] = route.destination.length();
        head[4] = MAIN;
        head[7] = UNICAST;
        if adding {
            head[5] = STATIC;
        }
        // A deletion with scope "nowhere" means any scope.
        head[6] = match (adding, route.gateway) {
            (false, _) => 255,
            (true, None) if route.destination.address().is_ipv4() => ON_LINK_SCOPE,
            (true, _) => 0,
        };
        if adding && index.is_some() && route.gateway.is_some() {
            head[8..12].copy_from_slice(&ON_LINK.to_ne_bytes());
        }
        let sent = self.socket.change(kind, flags, &head, |w| {
            let destination = network_octets(route.destination);
            w.bytes_attribute(attribute::DESTINATION, &destination);
            if let Some(gateway) = route.gateway {
                w.bytes_attribute(attribute::GATEWAY, &octets(gateway));
            }
            if let Some(index) = index {
                w.u32_host(attribute::OUT_LINK, index);
            }
            if let Some(source) = route.source {
                w.bytes_attribute(attribute::PREFERRED_SOURCE, &octets(source));
            }
        });
        sent.map_err(RouteError::Kernel)
    }
}

enum RouteError {
    Fabric(FabricError),
    Kernel(std::io::Error),
}

/// One of several next hops: length, flags, weight less one, link (the kernel finds it), gateway.
fn next_hop(gateway: IpAddr) -> Vec<u8> {
    let mut attributes = Writer::new();
    attributes.bytes_attribute(attribute::GATEWAY, &octets(gateway));
    let length = u16::try_from(8 + attributes.len()).expect("an address is short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(attributes.bytes());
    bytes
}

/// The address with its host bits zero, as routes want it.
fn network_octets(prefix: Prefix) -> Vec<u8> {
    let mut bytes = octets(prefix.address());
    for (at, byte) in bytes.iter_mut().enumerate() {
        let kept = usize::from(prefix.length()).saturating_sub(at * 8).min(8);
        *byte &= !(0xff_u16 >> kept) as u8;
    }
    bytes
}

fn decode(payload: &[u8], names: &[(u32, String)]) -> Option<Route> {
    let head = payload.get(..12)?;
    let mut table = u32::from(head[4]);
    let mut route = Route {
        destination: match head[0] {
            2 => Prefix::new(Ipv4Addr::UNSPECIFIED, head[1]),
            10 => Prefix::new(Ipv6Addr::UNSPECIFIED, head[1]),
            _ => return None,
        },
        gateway: None,
        link: None,
        source: None,
        from_address: head[5] == KERNEL,
    };
    for (kind, value) in attributes(payload, 12) {
        match kind {
            attribute::DESTINATION => route.destination = Prefix::new(decode_ip(value)?, head[1]),
            attribute::GATEWAY => route.gateway = decode_ip(value),
            attribute::PREFERRED_SOURCE => route.source = decode_ip(value),
            attribute::OUT_LINK => {
                let index = number(value)?;
                let named = names.iter().find(|(known, _)| *known == index);
                route.link = named.map(|(_, name)| name.clone());
            }
            attribute::TABLE => table = number(value)?,
            _ => {}
        }
    }
    (table == u32::from(MAIN) && head[7] == UNICAST).then_some(route)
}
