//! Do namespaces, links and routes behave as the crate says, on the kernel of this machine?

use pointsman_fabric::{FabricError, Netns, Prefix, Route};
use pointsman_testkit::require_netns;
use std::net::{IpAddr, TcpListener, TcpStream};

/// Unique for each test process and each call, so that tests can run side by side.
fn unique(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("fabric-test-{what}-{}-{count}", std::process::id())
}

/// Deletes the name also when the test fails.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        // A test that deleted it itself has nothing left here.
        let _ = Netns::delete(&self.0);
    }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_name_keeps_a_namespace_until_it_is_deleted() {
    require_netns!();
    let name = Named(unique("name"));
    let made = Netns::create(&name.0).unwrap();
    assert!(Netns::names().unwrap().contains(&name.0));
    assert!(Netns::named(&name.0).unwrap().is_same(&made));
    assert!(Netns::create(&name.0).unwrap_err().is_exists());

    assert!(Netns::delete(&name.0).unwrap());
    assert!(!Netns::delete(&name.0).unwrap());
    assert!(Netns::named(&name.0).unwrap_err().is_missing());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&name.0), "{mounts}");
    // The value outlives the name.
    assert_eq!(made.network().unwrap().links().unwrap().len(), 1);
}

#[test]
fn a_name_without_a_namespace_is_missing_and_can_be_deleted() {
    require_netns!();
    let name = Named(unique("empty"));
    std::fs::create_dir_all(pointsman_fabric::RUN_DIR).unwrap();
    std::fs::write(Netns::path_of(&name.0), "").unwrap();
    assert!(Netns::named(&name.0).unwrap_err().is_missing());
    assert!(Netns::delete(&name.0).unwrap());
    for bad in ["", "..", "a/b"] {
        assert!(Netns::create(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn closures_and_commands_run_inside_and_the_caller_stays_outside() {
    require_netns!();
    let outside = Netns::current().unwrap();
    let inside = Netns::anonymous().unwrap();
    let seen = inside.run(|| Netns::current().unwrap()).unwrap();
    assert!(seen.is_same(&inside));
    let output = inside
        .command("readlink")
        .arg("/proc/self/ns/net")
        .output()
        .unwrap();
    let there = String::from_utf8(output.stdout).unwrap();
    let here = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert!(there.starts_with("net:[") && there.trim() != here.to_str().unwrap());
    assert!(Netns::current().unwrap().is_same(&outside));

    let panic = std::panic::catch_unwind(|| inside.run(|| panic!("inside")));
    assert!(panic.is_err());
}

#[test]
fn sysctls_are_those_of_the_namespace() {
    require_netns!();
    let (one, two) = (Netns::anonymous().unwrap(), Netns::anonymous().unwrap());
    one.set_sysctl("ipv4/ip_forward", "1").unwrap();
    two.set_sysctl("ipv4/ip_forward", "0").unwrap();
    assert_eq!(one.sysctl("ipv4/ip_forward").unwrap(), "1");
    assert_eq!(two.sysctl("ipv4/ip_forward").unwrap(), "0");
    let error = one.set_sysctl("ipv4/no_such", "1").unwrap_err();
    assert!(error.to_string().contains("ipv4/no_such"), "{error}");
}

#[test]
fn two_namespaces_talk_over_a_veth_pair_in_both_families() {
    require_netns!();
    let (left, right) = (Netns::anonymous().unwrap(), Netns::anonymous().unwrap());
    let mut at_left = left.network().unwrap();
    at_left.add_veth("eth0", &right, "eth7").unwrap();
    let again = at_left.add_veth("eth0", &right, "eth8").unwrap_err();
    assert!(matches!(again, FabricError::Exists { .. }), "{again:?}");
    let mut at_right = right.network().unwrap();
    for (network, link, four, six) in [
        (&mut at_left, "eth0", "10.9.0.1/24", "fd09::1/64"),
        (&mut at_right, "eth7", "10.9.0.2/24", "fd09::2/64"),
    ] {
        network.set_up(link).unwrap();
        for address in [four, six, four, six] {
            network.add_address(link, prefix(address)).unwrap();
        }
        let index = network.link(link).unwrap().index;
        let addresses = network.addresses().unwrap();
        assert!(addresses.contains(&(index, prefix(four))), "{addresses:?}");
        assert!(addresses.contains(&(index, prefix(six))), "{addresses:?}");
    }
    for address in ["10.9.0.2", "fd09::2"] {
        let listener = right
            .run(|| TcpListener::bind((ip(address), 80)))
            .unwrap()
            .unwrap();
        left.run(|| TcpStream::connect((ip(address), 80)))
            .unwrap()
            .unwrap();
        listener.accept().unwrap();
    }
    assert!(at_left.delete_link("eth0").unwrap());
    assert!(!at_left.delete_link("eth0").unwrap());
    assert_eq!(at_right.find("eth7").unwrap(), None, "a pair goes together");
}

#[test]
fn a_bridge_joins_namespaces_and_routes_cross_a_node() {
    require_netns!();
    let (fabric, node, pod) = (
        Netns::anonymous().unwrap(),
        Netns::anonymous().unwrap(),
        Netns::anonymous().unwrap(),
    );
    let mut switch = fabric.network().unwrap();
    switch.add_bridge("br0").unwrap();
    switch.set_up("br0").unwrap();
    switch.add_address("br0", prefix("10.9.0.1/24")).unwrap();
    switch.add_veth("n1", &node, "eth0").unwrap();
    switch.set_master("n1", "br0").unwrap();
    switch.set_up("n1").unwrap();
    assert_eq!(
        switch.link("n1").unwrap().master,
        Some(switch.link("br0").unwrap().index)
    );

    let mut router = node.network().unwrap();
    router.set_up("eth0").unwrap();
    router.add_address("eth0", prefix("10.9.0.11/24")).unwrap();
    node.set_sysctl("ipv4/ip_forward", "1").unwrap();
    router.add_veth("pod1", &pod, "eth0").unwrap();
    router.set_up("pod1").unwrap();
    let to_pod = Route::on_link(prefix("10.244.1.5/32"), "pod1");
    router.replace_route(&to_pod).unwrap();
    router.replace_route(&to_pod).unwrap();

    let mut inside = pod.network().unwrap();
    inside.set_up("eth0").unwrap();
    inside.add_address("eth0", prefix("10.244.1.5/32")).unwrap();
    let gateway = ip("169.254.1.1");
    let hardware = router.link("pod1").unwrap().hardware_address.unwrap();
    inside.replace_neighbour("eth0", gateway, hardware).unwrap();
    let default = Route::via(prefix("0.0.0.0/0"), gateway).over("eth0");
    inside.replace_route(&default).unwrap();
    assert!(inside.routes().unwrap().contains(&default));

    let subnet = Route::via(prefix("10.244.1.0/24"), ip("10.9.0.11"));
    switch.replace_route(&subnet).unwrap();
    let listener = pod.run(|| TcpListener::bind("10.244.1.5:80")).unwrap().unwrap();
    fabric
        .run(|| TcpStream::connect("10.244.1.5:80"))
        .unwrap()
        .unwrap();
    listener.accept().unwrap();

    let listed = switch.routes().unwrap();
    assert!(listed.contains(&subnet.clone().over("br0")), "{listed:?}");
    assert!(switch.delete_route(&subnet).unwrap());
    assert!(!switch.delete_route(&subnet).unwrap());
}

#[test]
fn a_shared_route_uses_every_next_hop() {
    require_netns!();
    let client = Netns::anonymous().unwrap();
    let mut network = client.network().unwrap();
    client.set_sysctl("ipv4/fib_multipath_hash_policy", "1").unwrap();
    let mut listeners = Vec::new();
    for at in 1..=2 {
        let server = Netns::anonymous().unwrap();
        let link = format!("eth{at}");
        network.add_veth(&link, &server, "eth0").unwrap();
        network.set_up(&link).unwrap();
        let ours = prefix(&format!("10.9.{at}.1/24"));
        network.add_address(&link, ours).unwrap();
        let mut there = server.network().unwrap();
        there.set_up("eth0").unwrap();
        there
            .add_address("eth0", prefix(&format!("10.9.{at}.2/24")))
            .unwrap();
        there.add_address("lo", prefix("10.9.99.9/32")).unwrap();
        there
            .replace_route(&Route::via(prefix("0.0.0.0/0"), ours.address()))
            .unwrap();
        let listener = server.run(|| TcpListener::bind("10.9.99.9:80")).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        listeners.push(listener);
    }
    let hops = [ip("10.9.1.2"), ip("10.9.2.2")];
    network
        .replace_shared_route(prefix("10.9.99.0/24"), &hops)
        .unwrap();
    network
        .replace_shared_route(prefix("10.9.99.0/24"), &hops)
        .unwrap();
    let opened = client
        .run(|| {
            (0..64)
                .filter(|_| TcpStream::connect("10.9.99.9:80").is_ok())
                .count()
        })
        .unwrap();
    assert_eq!(opened, 64);
    let accepted = |listener: &TcpListener| std::iter::from_fn(|| listener.accept().ok()).count();
    let counts: Vec<usize> = listeners.iter().map(accepted).collect();
    assert!(
        counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == 64,
        "{counts:?}"
    );
}

#[test]
fn processes_are_found_by_their_namespace() {
    require_netns!();
    let (one, two) = (Netns::anonymous().unwrap(), Netns::anonymous().unwrap());
    let mut child = one.command("sleep").arg("60").spawn().unwrap();
    assert_eq!(
        Netns::processes(std::slice::from_ref(&one)).unwrap(),
        [child.id()]
    );
    assert!(Netns::processes(&[two]).unwrap().is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Netns::processes(&[one]).unwrap().is_empty());
}

#[test]
fn errors_say_what_was_tried() {
    require_netns!();
    let namespace = Netns::anonymous().unwrap();
    let mut network = namespace.network().unwrap();
    let error = network.set_up("eth9").unwrap_err();
    assert!(
        error.is_missing() && error.to_string().contains("eth9"),
        "{error}"
    );
    let error = network
        .add_bridge("a-name-that-is-too-long")
        .unwrap_err()
        .to_string();
    assert!(error.contains("a-name-that-is-too-long"), "{error}");
    let unreachable = Route::via(prefix("10.0.0.0/8"), ip("192.0.2.1"));
    let error = network.replace_route(&unreachable).unwrap_err().to_string();
    assert!(
        error.contains("adding the route 10.0.0.0/8 via 192.0.2.1"),
        "{error}"
    );
}
