use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use pointsman_fabric::Netns;
use pointsman_runtime::{Network, Runtime, Sandbox};
use pointsman_testkit::require_netns;

use crate::harness::*;

/// Answers one connection in a pod's namespace with the address it came from.
fn greet_once(pod: &Sandbox, address: IpAddr) -> std::thread::JoinHandle<()> {
    let netns = Netns::open(pod.netns.as_ref().unwrap()).unwrap();
    let listener = netns
        .run(|| TcpListener::bind(SocketAddr::new(address, 80)))
        .unwrap()
        .unwrap();
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        write!(stream, "{}", peer.ip()).unwrap();
    })
}

#[tokio::test]
async fn pods_of_a_node_talk_to_each_other_and_to_the_node_in_both_families() {
    require_netns!();
    let node = Node::new().await;
    let server = node.open("server").await;
    assert_eq!(server.addresses.len(), 2);
    let client = node.run("client", "exec sleep 76001").await;
    let own = &node.runtime.list().await.unwrap()[0]
        .sandbox
        .clone()
        .unwrap()
        .addresses;
    for (address, mine) in server.addresses.iter().zip(own) {
        let greeter = greet_once(&server, *address);
        let script = format!("bash -c 'exec 3<>/dev/tcp/{address}/80; cat <&3'");
        assert_eq!(node.says(&client, &script).await, mine.to_string());
        greeter.join().unwrap();
        // From the node itself, which has no address of its own on the pod's link.
        let node_address = if address.is_ipv4() {
            "192.0.2.1/32"
        } else {
            "2001:db8::1/128"
        };
        node.netns
            .network()
            .unwrap()
            .add_address("lo", node_address.parse().unwrap())
            .unwrap();
        let greeter = greet_once(&server, *address);
        let target = SocketAddr::new(*address, 80);
        let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(5));
        let mut stream = node.netns.run(connect).unwrap().unwrap();
        let mut seen = String::new();
        stream.read_to_string(&mut seen).unwrap();
        assert_eq!(node_address.split('/').next().unwrap(), seen);
        greeter.join().unwrap();
    }
    node.remove("server").await;
    node.remove("client").await;
}

#[tokio::test]
async fn a_pod_on_the_nodes_network_has_no_address_of_its_own() {
    require_netns!();
    let node = Node::new().await;
    node.netns
        .network()
        .unwrap()
        .add_address("lo", "192.0.2.9/32".parse().unwrap())
        .unwrap();
    let mut spec = sandbox("a");
    spec.network = Network::Host;
    let opened = node.runtime.open_sandbox(spec).await.unwrap();
    assert_eq!((opened.addresses, opened.netns), (Vec::new(), None));
    let id = node
        .start(shell("a", "main", "exec sleep 76002"))
        .await
        .unwrap()
        .id;
    assert!(node.says(&id, "ip address show lo").await.contains("192.0.2.9"));
    node.remove("a").await;
    assert_eq!(node.netns.network().unwrap().links().unwrap().len(), 1);
}

#[tokio::test]
async fn an_address_is_free_again_when_its_pod_has_gone_and_two_pods_never_share_one() {
    require_netns!();
    let node = Node::new().await;
    node.runtime.set_pod_ranges(&["10.244.9.0/30".parse().unwrap()]);
    let first = node.open("a").await;
    assert_eq!(node.open("a").await.addresses, first.addresses);
    let second = node.open("b").await;
    assert_ne!(first.addresses, second.addresses);
    let full = node.runtime.open_sandbox(sandbox("c")).await;
    assert!(matches!(
        full,
        Err(pointsman_runtime::RuntimeError::NoAddress { .. })
    ));
    node.remove("a").await;
    assert_eq!(node.open("c").await.addresses, first.addresses);
    for uid in ["b", "c"] {
        node.remove(uid).await;
    }
}
