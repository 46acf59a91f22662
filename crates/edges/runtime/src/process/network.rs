//! How does a pod reach the world, and the world the pod?
//!
//! ```text
//! pod's namespace                              node's namespace
//! eth0  10.244.1.7/32  --------- veth -------  podXXXXXXXXXXXX   (no address)
//! default via 169.254.1.1 over eth0            10.244.1.7 over podXXXXXXXXXXXX
//! 169.254.1.1 is at the other end's hardware   10.244.1.7 is at eth0's hardware
//! ```
//!
//! The node routes; there is no bridge. Both ends know each other's hardware address for good, so that
//! nobody has to ask by ARP or neighbour discovery and no connection waits for an answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pointsman_fabric::{FabricError, Netns, Prefix, Route};

use crate::RuntimeError;

/// What a pod sees as its next hop. Nobody has these addresses; packets only need the hardware address.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// What a pod's interface is called.
const POD_LINK: &str = "eth0";

/// A pod's connection to its node.
#[derive(Debug)]
pub struct Cable<'a> {
    /// The node's namespace.
    pub node: &'a Netns,
    /// The name of the node's end.
    pub node_link: &'a str,
    /// The name of the pod's namespace.
    pub pod: &'a str,
    /// The pod's addresses.
    pub addresses: &'a [IpAddr],
    /// The node's own addresses, which it speaks to pods from.
    pub node_addresses: &'a [IpAddr],
    /// The largest packet.
    pub mtu: Option<u32>,
}

impl Cable<'_> {
    /// Makes whatever of it is missing.
    pub fn plug(&self) -> Result<(), FabricError> {
        let pod = match Netns::named(self.pod) {
            Ok(pod) => pod,
            // A crash may have left the name without a namespace.
            Err(error) if error.is_missing() => Netns::create(self.pod)?,
            Err(error) => return Err(error),
        };
        let (mut outside, mut inside) = (self.node.network()?, pod.network()?);
        if outside.find(self.node_link)?.is_none() || inside.find(POD_LINK)?.is_none() {
            outside.delete_link(self.node_link)?;
            outside.add_veth(self.node_link, &pod, POD_LINK)?;
        }
        if let Some(mtu) = self.mtu {
            outside.set_mtu(self.node_link, mtu)?;
            inside.set_mtu(POD_LINK, mtu)?;
        }
        outside.set_up(self.node_link)?;
        inside.set_up(POD_LINK)?;
        let node_end = outside.link(self.node_link)?.hardware_address.unwrap_or_default();
        let pod_end = inside.link(POD_LINK)?.hardware_address.unwrap_or_default();
        for &address in self.addresses {
            let (gateway, everything) = gateway(address);
            inside.add_address(POD_LINK, Prefix::host(address))?;
            inside.replace_neighbour(POD_LINK, gateway, node_end)?;
            inside.replace_route(&Route::via(everything, gateway).over(POD_LINK))?;
            outside.replace_neighbour(self.node_link, address, pod_end)?;
            outside.replace_route(&self.route_to_pod(address))?;
        }
        self.forward()
    }

    fn route_to_pod(&self, address: IpAddr) -> Route {
        let route = Route::on_link(Prefix::host(address), self.node_link);
        let own = self
            .node_addresses
            .iter()
            .find(|own| own.is_ipv4() == address.is_ipv4());
        match own {
            Some(own) => route.from(*own),
            None => route,
        }
    }

    fn forward(&self) -> Result<(), FabricError> {
        for address in self.addresses {
            let path = if address.is_ipv4() {
                "ipv4/ip_forward"
            } else {
                "ipv6/conf/all/forwarding"
            };
            if self.node.sysctl(path)? != "1" {
                self.node.set_sysctl(path, "1")?;
            }
        }
        // A pod that speaks to itself through a Service comes in and goes out by one link, which is no
        // reason to announce a shorter way.
        let redirects = format!("ipv4/conf/{}/send_redirects", self.node_link);
        self.node.set_sysctl(&redirects, "0")
    }

    /// Removes it, with the pod's namespace. What is missing is fine.
    pub fn unplug(node: &Netns, node_link: &str, pod: &str) -> Result<(), FabricError> {
        node.network()?.delete_link(node_link)?;
        match Netns::delete(pod) {
            // Nothing of the pod can be reached by it any more.
            Err(error @ FabricError::Shadowed { .. }) => {
                tracing::warn!(%error, "the name of a pod's network stays");
                Ok(())
            }
            deleted => deleted.map(drop),
        }
    }
}

fn gateway(address: IpAddr) -> (IpAddr, Prefix) {
    if address.is_ipv4() {
        (GATEWAY_V4.into(), Prefix::new(Ipv4Addr::UNSPECIFIED, 0))
    } else {
        (GATEWAY_V6.into(), Prefix::new(Ipv6Addr::UNSPECIFIED, 0))
    }
}

/// A failure of the fabric as the agent sees it.
pub fn system(error: FabricError) -> RuntimeError {
    RuntimeError::system("set up the pod's network", io::Error::other(error))
}
