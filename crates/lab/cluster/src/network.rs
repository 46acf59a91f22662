//! How do the host, the fabric and the nodes get connected?

use super::plan::{Block, IpFamily, NodePlan, Plan, joined};
use pointsman_fabric::{FabricError, Netns, Network, Prefix, Route};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bridge in the fabric.
const BRIDGE: &str = "br0";
/// The fabric's end of the cable to the host.
const TO_HOST: &str = "host";
/// A node's only link to the others.
const TO_FABRIC: &str = "eth0";

/// Ranges that the host has addresses in or routes to.
pub fn in_use() -> Result<Vec<Prefix>, FabricError> {
    let mut host = Network::here()?;
    let mut ranges: Vec<Prefix> = host.routes()?.iter().map(|route| route.destination).collect();
    ranges.extend(host.addresses()?.iter().map(|(_, address)| *address));
    Ok(ranges)
}

/// Makes all namespaces, links and routes of the plan. Nothing of an earlier run may be left.
pub fn build(plan: &Plan) -> Result<(), FabricError> {
    let fabric = Netns::create(&plan.fabric_namespace())?;
    forward(&fabric, plan.family)?;
    // Connections to a cluster address go to any node, and not to one that does not answer.
    fabric.set_sysctl("ipv4/fib_multipath_hash_policy", "1")?;
    fabric.set_sysctl("ipv4/fib_multipath_use_neigh", "1")?;
    if plan.family == IpFamily::Dual {
        fabric.set_sysctl("ipv6/fib_multipath_hash_policy", "1")?;
    }
    let mut switch = fabric.network()?;
    switch.add_bridge(BRIDGE)?;
    switch.set_up(BRIDGE)?;
    for gateway in plan.gateways() {
        switch.add_address(BRIDGE, gateway)?;
    }
    for node in plan.nodes() {
        build_node(plan, &mut switch, &node)?;
    }
    for range in plan.service_ranges() {
        let addresses = plan.nodes().into_iter().flat_map(|node| node.addresses());
        let nodes: Vec<IpAddr> = addresses.filter(|address| is_same(*address, range)).collect();
        switch.replace_shared_route(range, &nodes)?;
    }
    connect_host(plan, &fabric, &mut switch)
}

fn is_same(address: IpAddr, range: Prefix) -> bool {
    address.is_ipv4() == range.address().is_ipv4()
}

/// Lets a namespace without links pass on packets.
fn forward(namespace: &Netns, family: IpFamily) -> Result<(), FabricError> {
    namespace.set_sysctl("ipv4/ip_forward", "1")?;
    if family == IpFamily::Ipv4 {
        return Ok(());
    }
    namespace.set_sysctl("ipv6/conf/all/forwarding", "1")?;
    // Nobody else is on these links. While a link looks for a duplicate of its own address, which takes a second, it asks
    // for nobody's hardware address on behalf of others.
    namespace.set_sysctl("ipv6/conf/all/accept_dad", "0")?;
    namespace.set_sysctl("ipv6/conf/default/accept_dad", "0")
}

fn build_node(plan: &Plan, switch: &mut Network, node: &NodePlan) -> Result<(), FabricError> {
    let namespace = Netns::create(&node.namespace)?;
    forward(&namespace, plan.family)?;
    switch.add_veth(&node.port, &namespace, TO_FABRIC)?;
    switch.set_master(&node.port, BRIDGE)?;
    switch.set_up(&node.port)?;
    let mut network = namespace.network()?;
    network.set_up(TO_FABRIC)?;
    for (address, gateway) in node.addresses().into_iter().zip(plan.gateways()) {
        network.add_address(TO_FABRIC, Prefix::new(address, gateway.length()))?;
        network.replace_route(&Route::via(everywhere(gateway), gateway.address()))?;
    }
    Ok(())
}

/// One cable and one route: all the host gets.
fn connect_host(plan: &Plan, fabric: &Netns, switch: &mut Network) -> Result<(), FabricError> {
    let mut host = Network::here()?;
    let link = plan.host_link();
    host.add_veth(&link, fabric, TO_HOST)?;
    switch.set_up(TO_HOST)?;
    host.set_up(&link)?;
    let ranges = plan.block.ranges(plan.family).into_iter();
    for ((range, there), here) in ranges.zip(plan.fabric_addresses()).zip(plan.host_addresses()) {
        switch.add_address(TO_HOST, there)?;
        host.add_address(&link, here)?;
        host.replace_route(&Route::via(range, there.address()).from(here.address()))?;
    }
    Ok(())
}

/// Makes the fabric lead each pod range to its node, and no other pod range anywhere.
pub fn route_pods(plan: &Plan, wanted: &[(Prefix, IpAddr)]) -> Result<(), FabricError> {
    let mut switch = Netns::named(&plan.fabric_namespace())?.network()?;
    for route in switch.routes()? {
        let ranges = plan.pod_ranges();
        let is_pods = ranges
            .iter()
            .any(|range| range.contains(route.destination.address()));
        if is_pods && !wanted.iter().any(|(range, _)| *range == route.destination) {
            switch.delete_route(&route)?;
        }
    }
    for (range, node) in wanted {
        switch.replace_route(&Route::via(*range, *node))?;
    }
    Ok(())
}

/// Cuts or repairs the cable of a node.
pub fn set_cable(plan: &Plan, port: &str, connected: bool) -> Result<(), FabricError> {
    let mut switch = Netns::named(&plan.fabric_namespace())?.network()?;
    if connected {
        switch.set_up(port)
    } else {
        switch.set_down(port)
    }
}

/// The block that a data directory was given, or a new one.
pub fn choose_block(plan_name: &str, family: IpFamily, remembered: Option<Block>) -> anyhow::Result<Block> {
    let in_use = in_use()?;
    match remembered {
        Some(block) => match block.conflict(family, &in_use) {
            None => Ok(block),
            Some(other) => anyhow::bail!(
                "the addresses of this cluster, {}, are in use on this machine by {other}; Services keep their \
                 addresses, so free the range, or start with another --data-dir",
                joined(&block.ranges(family))
            ),
        },
        None => Block::choose(plan_name, family, &in_use).ok_or_else(|| {
            anyhow::anyhow!("no free range of addresses: 10.128.0.0/9 is in use on this machine")
        }),
    }
}

/// All addresses of the family.
fn everywhere(family: Prefix) -> Prefix {
    match family.address() {
        IpAddr::V4(_) => Prefix::new(Ipv4Addr::UNSPECIFIED, 0),
        IpAddr::V6(_) => Prefix::new(Ipv6Addr::UNSPECIFIED, 0),
    }
}
