//! How do the host, the fabric and the nodes get connected?

use super::plan::{Block, Plan};
use pointsman_fabric::{FabricError, Netns, Network, Prefix, Route};
use std::net::IpAddr;

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
    fabric.set_sysctl("ipv4/ip_forward", "1")?;
    // Connections to a cluster address go to any node, and not to one that does not answer.
    fabric.set_sysctl("ipv4/fib_multipath_hash_policy", "1")?;
    fabric.set_sysctl("ipv4/fib_multipath_use_neigh", "1")?;
    let mut switch = fabric.network()?;
    switch.add_bridge(BRIDGE)?;
    switch.set_up(BRIDGE)?;
    switch.add_address(BRIDGE, plan.gateway())?;
    for node in plan.nodes() {
        build_node(
            plan,
            &mut switch,
            &node.namespace,
            &node.port,
            node.address.into(),
        )?;
    }
    let nodes: Vec<IpAddr> = plan.nodes().iter().map(|node| node.address.into()).collect();
    switch.replace_shared_route(plan.service_range(), &nodes)?;
    connect_host(plan, &fabric, &mut switch)
}

fn build_node(
    plan: &Plan,
    switch: &mut Network,
    namespace: &str,
    port: &str,
    address: IpAddr,
) -> Result<(), FabricError> {
    let node = Netns::create(namespace)?;
    node.set_sysctl("ipv4/ip_forward", "1")?;
    switch.add_veth(port, &node, TO_FABRIC)?;
    switch.set_master(port, BRIDGE)?;
    switch.set_up(port)?;
    let mut network = node.network()?;
    network.set_up(TO_FABRIC)?;
    network.add_address(TO_FABRIC, Prefix::new(address, plan.gateway().length()))?;
    network.replace_route(&Route::via(everywhere(), plan.gateway().address()))
}

/// One cable and one route: all the host gets.
fn connect_host(plan: &Plan, fabric: &Netns, switch: &mut Network) -> Result<(), FabricError> {
    let mut host = Network::here()?;
    let link = plan.host_link();
    host.add_veth(&link, fabric, TO_HOST)?;
    switch.set_up(TO_HOST)?;
    switch.add_address(TO_HOST, plan.fabric_address())?;
    host.set_up(&link)?;
    host.add_address(&link, plan.host_address())?;
    let route = Route::via(plan.block.range(), plan.fabric_address().address());
    host.replace_route(&route.from(plan.host_address().address()))
}

/// Makes the fabric lead each pod range to its node, and no other pod range anywhere.
pub fn route_pods(plan: &Plan, wanted: &[(Prefix, IpAddr)]) -> Result<(), FabricError> {
    let mut switch = Netns::named(&plan.fabric_namespace())?.network()?;
    for route in switch.routes()? {
        let is_pods = plan.pod_range().contains(route.destination.address());
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
pub fn choose_block(plan_name: &str, remembered: Option<Block>) -> anyhow::Result<Block> {
    let in_use = in_use()?;
    match remembered {
        Some(block) => match block.conflict(&in_use) {
            None => Ok(block),
            Some(other) => anyhow::bail!(
                "the addresses of this cluster, {}, are in use on this machine by {other}; Services keep their \
                 addresses, so free the range, or start with another --data-dir",
                block.range()
            ),
        },
        None => Block::choose(plan_name, &in_use).ok_or_else(|| {
            anyhow::anyhow!("no free range of addresses: 10.128.0.0/9 is in use on this machine")
        }),
    }
}

fn everywhere() -> Prefix {
    Prefix::new(std::net::Ipv4Addr::UNSPECIFIED, 0)
}
