//! What else does a node's proxy do, through the whole line?

use std::net::UdpSocket;

use pointsman_api_client::Resource;
use serde_json::{Value, json};

use crate::eventually;
use crate::node::{Answer, Cluster, Network};

/// The ports of slices.
pub fn ports() -> Value {
    json!([{"name": "", "port": 8080, "protocol": "TCP"}])
}

/// A ready endpoint of this node.
pub fn endpoint(address: &str) -> Value {
    json!({"addresses": [address], "nodeName": "n1", "conditions": {"ready": true}})
}

/// A Service `web` with one endpoint; returns its address.
pub fn web(cluster: &Cluster<'_>) -> String {
    let address = cluster.service("web", &json!({"ports": [{"port": 80, "targetPort": 8080}]}));
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
    address
}

pub fn answers(network: &Network, address: &str, with: &str) {
    eventually(&format!("{with} answers"), || {
        network.ask(address, 80) == Answer::Said(with.into())
    });
}

fn both_modes(test: impl Fn(&str)) {
    for mode in ["iptables", "nftables"] {
        test(mode);
    }
}

#[test]
fn a_udp_client_that_keeps_its_port_follows_its_service_to_a_new_endpoint() {
    pointsman_testkit::require_netns!();
    both_modes(|mode| {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.start_proxy(&["--proxy-mode", mode]);
        let spec = json!({"ports": [{"port": 53, "targetPort": 8080, "protocol": "UDP"}]});
        let address = cluster.service("dns", &spec);
        let udp = json!([{"name": "", "port": 8080, "protocol": "UDP"}]);
        cluster.endpoints("dns", &udp, &[endpoint("10.0.1.5")]);
        let client = network.udp_client(&address, 53);
        eventually("the first endpoint answers", || {
            said(&client).as_deref() == Some("10.0.1.5")
        });
        cluster.endpoints("dns", &udp, &[endpoint("10.0.1.6")]);
        eventually("the same client is answered by the new endpoint", || {
            said(&client).as_deref() == Some("10.0.1.6")
        });
        let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        eventually("the flow was deleted and counted", || {
            cluster.metric(deleted) >= 1.0
        });
        cluster.delete(Resource::SERVICES, Some("default"), "dns");
        eventually("nobody answers once the Service is gone", || {
            said(&client).is_none()
        });
    });
}

/// What answers a UDP client, if anybody does.
pub fn said(client: &UdpSocket) -> Option<String> {
    let mut buffer = [0; 64];
    client.send(b"who").ok()?;
    let length = client.recv(&mut buffer).ok()?;
    String::from_utf8(buffer[..length].to_vec()).ok()
}

#[test]
fn a_health_check_node_port_tells_load_balancers_whether_to_come() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    cluster.start_proxy(&["--proxy-mode=nftables", "--nodeport-addresses=all"]);
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "targetPort": 8080}]});
    cluster.service("web", &spec);
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
    let service = cluster.call(async |client| {
        client
            .api(Resource::SERVICES, Some("default"))
            .get::<Value>("web")
            .await
    });
    let port = service.unwrap()["spec"]["healthCheckNodePort"].as_u64().unwrap() as u16;
    eventually("a node with an endpoint wants traffic", || {
        cluster.status(port, "/") == "200"
    });
    assert!(cluster.get(port, "/").contains("\"localEndpoints\":1"));
    let mut far = endpoint("10.0.1.5");
    far["nodeName"] = json!("n2");
    cluster.endpoints("web", &ports(), &[far]);
    eventually("a node without one does not", || {
        cluster.status(port, "/") == "503"
    });
    cluster.delete(Resource::SERVICES, Some("default"), "web");
    eventually("nobody listens when the Service is gone", || {
        cluster.status(port, "/").is_empty()
    });
}

#[test]
fn node_ports_answer_on_the_primary_address_alone_in_nftables_mode() {
    pointsman_testkit::require_netns!();
    let open = ["10.0.1.1", "10.0.2.1"];
    for (arguments, answering) in [
        (&["--proxy-mode=nftables"][..], &open[..1]),
        (
            &["--proxy-mode=nftables", "--nodeport-addresses=0.0.0.0/0,::/0"],
            &open,
        ),
        (&["--proxy-mode=nftables", "--bind-address=10.0.2.1"], &open[1..]),
        (&["--proxy-mode=iptables"], &open),
    ] {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.node_object();
        cluster.start_proxy(arguments);
        let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
            "ports": [{"port": 80, "targetPort": 8080, "nodePort": 30080}]});
        let address = cluster.service("web", &spec);
        cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
        answers(&network, &address, "10.0.1.5");
        eventually("the health check is served", || {
            network.is_open(answering[0], 31000)
        });
        for address in open {
            for port in [30080, 31000] {
                let expected = answering.contains(&address);
                assert_eq!(
                    network.is_open(address, port),
                    expected,
                    "{arguments:?}: {address}:{port}"
                );
            }
        }
    }
}

#[test]
fn what_listens_on_all_addresses_answers_over_both_families_where_there_are_two() {
    pointsman_testkit::require_netns!();
    for (hosts, without_ipv6) in [(&["127.0.0.1", "[::1]"][..], "0"), (&["127.0.0.1"], "1")] {
        let network = Network::new();
        for of in ["all", "lo"] {
            network
                .node
                .sysctl(&format!("ipv6/conf/{of}/disable_ipv6"), without_ipv6);
        }
        let mut cluster = network.start_server();
        cluster.node_object();
        cluster.start_proxy(&[
            "--proxy-mode=nftables",
            "--nodeport-addresses=0.0.0.0/0,::/0",
            "--healthz-bind-address=0.0.0.0:10256",
            "--metrics-bind-address=0.0.0.0:10249",
        ]);
        let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999,
            "ipFamilies": ["IPv4"], "ports": [{"port": 80, "targetPort": 8080}]});
        cluster.service("web", &spec);
        cluster.endpoints("web", &ports(), &[endpoint("10.0.1.5")]);
        for host in hosts {
            for (url, code) in [
                (format!("http://{host}:10256/healthz"), "200"),
                // Nobody gets metrics without a token, but everybody an answer.
                (format!("https://{host}:10249/metrics"), "401"),
                (format!("http://{host}:30999/"), "200"),
            ] {
                eventually(&format!("{url} answers {code}"), || {
                    let answer = ["-sk", "-o", "/dev/null", "-w", "%{http_code}", &url];
                    cluster.node.command("curl", &answer).unwrap().stdout == code.as_bytes()
                });
            }
        }
    }
}

#[test]
fn an_ipv6_service_works_in_both_modes() {
    pointsman_testkit::require_netns!();
    both_modes(|mode| {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.start_proxy(&["--proxy-mode", mode]);
        let spec = json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80, "targetPort": 8080}]});
        let address = format!("[{}]", cluster.service("six", &spec));
        cluster.endpoints("six", &ports(), &[endpoint("fd00:1::5")]);
        answers(&network, &address, "fd00:1::5");
        cluster.endpoints("six", &ports(), &[endpoint("fd00:1::6")]);
        answers(&network, &address, "fd00:1::6");
    });
}

#[test]
fn the_older_iptables_interface_works_as_well() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    let programs = cluster.directory().join("programs");
    std::fs::create_dir(&programs).unwrap();
    for family in ["iptables", "ip6tables"] {
        for name in ["", "-save", "-restore"] {
            let path = programs.join(format!("{family}{name}"));
            std::os::unix::fs::symlink("/usr/sbin/xtables-legacy-multi", path).unwrap();
        }
    }
    cluster.programs = Some(programs);
    cluster.start_proxy(&["--proxy-mode=iptables"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.6")]);
    answers(&network, &address, "10.0.1.6");
    assert!(
        network
            .node
            .sh("iptables-legacy-save -t nat")
            .contains("KUBE-SVC-")
    );
    assert!(!network.node.sh("nft list ruleset").contains("KUBE-SVC-"));
}

#[test]
fn explain_agrees_with_the_kernel_until_somebody_changes_it() {
    pointsman_testkit::require_netns!();
    for (mode, tamper) in [
        ("nftables", "nft flush map ip pointsman backends"),
        (
            "iptables",
            "chain=$(iptables-save -t nat | grep -o 'KUBE-SVC-[A-Z0-9]*' | head -1); iptables -t nat -F $chain",
        ),
    ] {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.node_object();
        cluster.start_proxy(&["--proxy-mode", mode]);
        let address = web(&cluster);
        answers(&network, &address, "10.0.1.5");
        let (code, said) = explain(&cluster, &format!("{address}:80"), mode);
        assert_eq!(
            (code, &said["kernel"]["agrees"]),
            (Some(0), &json!(true)),
            "{said:#}"
        );
        let way = &said["ports"][0]["ways"][0];
        assert_eq!(way["clients"][2]["endpoints"][0], "10.0.1.5:8080", "{said:#}");
        cluster.kill("proxy");
        network.node.sh(tamper);
        let (code, said) = explain(&cluster, "default/web", mode);
        assert_eq!(
            (code, &said["kernel"]["agrees"]),
            (Some(3), &json!(false)),
            "{said:#}"
        );
        assert_ne!(said["kernel"]["missing"], json!([]), "{said:#}");
    }
}

fn explain(cluster: &Cluster<'_>, question: &str, mode: &str) -> (Option<i32>, Value) {
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let output = cluster.run(&[
        "explain",
        question,
        "--kubeconfig",
        &kubeconfig,
        "--node=n1",
        "--proxy-mode",
        mode,
        "--cluster-cidr=10.0.0.0/16",
        "--output=json",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    (output.status.code(), said)
}

#[test]
fn a_removal_is_in_the_watermark_that_follows_it() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    let version = cluster.endpoints("web", &ports(), &[endpoint("10.0.1.6")]);
    answers(&network, &address, "10.0.1.6");
    cluster.delete(Resource::ENDPOINT_SLICES, Some("default"), "web-x");
    eventually("the watermark passes the deletion", || {
        let line: Value = serde_json::from_str(&cluster.first_line(10249, "/watermark")).unwrap();
        line["endpointSlices"].as_u64() > Some(version)
    });
    assert_eq!(
        network.ask(&address, 80),
        Answer::Refused,
        "the deletion was in the kernel before"
    );
}
