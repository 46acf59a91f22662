//! Do Services work beside other programs that write rules on a node, and do the others' rules still count?
//!
//! Each neighbour is a minimal set of rules of the shape that the program is known to write, put beside ours in the
//! network of the shared cases. docs/neighbours.md says what follows for operators. Rows that begin with "fault" are
//! neighbours that do something wrong: they show that the flows would notice.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use pointsman_dataplane::Programmer;
use pointsman_kernel::Commits;
use pointsman_kernel::iptables::Variant;
use pointsman_kernel::iptables_backend::IptablesBackend;
use pointsman_kernel::nftables_backend::NftablesBackend;
use pointsman_testkit::cases::{Case, CaseFamily, Mode};
use pointsman_testkit::cluster::Cluster;
use pointsman_testkit::lab::Lab;
use pointsman_testkit::require_netns;

/// A pod of another node, a pod of this one under the policy `Local`, DNS, and a Service without endpoints.
const CLUSTER: &str = "node n1 ip=192.168.0.2 pods=10.0.0.0/16
    service default/web 172.30.0.1:80 nodeport=30080
    endpoint default/web 10.0.2.5:8080 node=n2
    service default/near 172.30.0.2:80 nodeport=30081 policy=Local
    endpoint default/near 10.0.1.5:8080 node=n1
    service default/none 172.30.0.3:80
    service kube-system/dns:u 172.30.0.10:53/udp
    endpoint kube-system/dns:u 10.0.1.6:5302/udp node=n1
    service kube-system/dns:t 172.30.0.10:53/tcp
    endpoint kube-system/dns:t 10.0.1.6:5301/tcp node=n1";

/// Cluster addresses from pods and from the node, a pod that reaches itself, node ports from outside with and without
/// their source, and a refusal. Every answer is a reply that found its way back.
const ALL_IS_WELL: &str = "10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080
    10.0.1.9 -> 172.30.0.2:80 => 10.0.1.5:8080
    10.0.1.9 -> 172.30.0.10:53/udp => 10.0.1.6:5302
    10.0.1.5 -> 172.30.0.2:80 => 10.0.1.5:8080 masq
    192.168.0.2 -> 172.30.0.1:80 => 10.0.2.5:8080
    198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq
    198.51.100.9 -> 192.168.0.2:30081 => 10.0.1.5:8080
    10.0.1.9 -> 172.30.0.3:80 => rejected";

struct Neighbour {
    name: &'static str,
    /// Run on the node once our rules are there.
    rules: &'static [&'static str],
    /// Whether [`ALL_IS_WELL`] holds.
    all_is_well: bool,
    /// What else holds.
    flows: &'static str,
}

/// How Docker leaves the filter table of a node (its own bridge has no packets here).
const DOCKER: &str = "sed 's,^ *,,' <<'END' | iptables-restore --noflush
    *filter
    :FORWARD DROP
    :DOCKER-USER -
    :DOCKER-FORWARD -
    -A FORWARD -j DOCKER-USER
    -A FORWARD -j DOCKER-FORWARD
    -A DOCKER-FORWARD -i docker0 -j ACCEPT
    -A DOCKER-FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    COMMIT
    *nat
    :DOCKER -
    -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
    -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
    -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
    COMMIT\nEND\n";

/// The chains of a firewalld without zones that trust anybody; `ct status dnat` is what lets Services through.
const FIREWALLD: &str = "nft -f - <<'END'
    table inet firewalld {
      chain filter_INPUT { type filter hook input priority 10
        ct state { established, related } accept; ct status dnat accept; iifname lo accept
        ct state invalid drop; tcp dport 22 accept; reject with icmpx admin-prohibited; }
      chain filter_FORWARD { type filter hook forward priority 10
        ct state { established, related } accept; ct status dnat accept; iifname lo accept
        ct state invalid drop; jump filter_FWD_ZONES; reject with icmpx admin-prohibited; }
      chain filter_FWD_ZONES { }
    }\nEND\n";

/// The addresses that are otherwise on an interface `nodelocaldns` of the kind `dummy`, which not every kernel has.
const NODE_LOCAL_DNS: &str = "ip addr add 169.254.20.10/32 dev lo; ip addr add 172.30.0.10/32 dev lo\n";

const NEIGHBOURS: &[Neighbour] = &[
    Neighbour {
        name: "flannel",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *filter
                :FORWARD DROP
                :FLANNEL-FWD -
                -A FORWARD -j FLANNEL-FWD
                -A FLANNEL-FWD -s 10.0.0.0/16 -j ACCEPT
                -A FLANNEL-FWD -d 10.0.0.0/16 -j ACCEPT
                COMMIT
                *nat
                :FLANNEL-POSTRTG -
                -A POSTROUTING -j FLANNEL-POSTRTG
                -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
                -A FLANNEL-POSTRTG -s 10.0.0.0/16 -d 10.0.0.0/16 -j RETURN
                -A FLANNEL-POSTRTG -s 10.0.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
                -A FLANNEL-POSTRTG ! -s 10.0.0.0/16 -d 10.0.1.0/24 -j RETURN
                -A FLANNEL-POSTRTG ! -s 10.0.0.0/16 -d 10.0.0.0/16 -j MASQUERADE
                COMMIT\nEND\n"],
        all_is_well: true,
        flows: "10.0.1.9 -> 10.0.2.5:8080 => 10.0.2.5:8080",
    },
    Neighbour {
        name: "Calico: policy of a pod, policy before translation, outgoing masquerade",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *filter
                :cali-FORWARD -
                :cali-tw-a -
                -I FORWARD 1 -j cali-FORWARD
                -A cali-FORWARD -o veth0 -j cali-tw-a
                -A cali-tw-a -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
                -A cali-tw-a -m conntrack --ctstate INVALID -j DROP
                -A cali-tw-a -j MARK --set-xmark 0x0/0x10000
                -A cali-tw-a -s 10.0.1.9 -j MARK --set-xmark 0x10000/0x10000
                -A cali-tw-a -s 10.0.1.5 -j MARK --set-xmark 0x10000/0x10000
                -A cali-tw-a -s 198.51.100.0/24 -j MARK --set-xmark 0x10000/0x10000
                -A cali-tw-a -m mark --mark 0x10000/0x10000 -j RETURN
                -A cali-tw-a -j DROP
                -A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
                COMMIT
                *mangle
                :cali-PREROUTING -
                -I PREROUTING 1 -j cali-PREROUTING
                -A cali-PREROUTING -s 192.0.2.1 -p tcp --dport 30081 -j DROP
                COMMIT
                *nat
                :cali-nat-outgoing -
                -I POSTROUTING 1 -j cali-nat-outgoing
                -A cali-nat-outgoing -s 10.0.0.0/16 ! -d 10.0.0.0/16 -j MASQUERADE
                COMMIT\nEND\n"],
        all_is_well: true,
        flows: "10.0.1.6 -> 172.30.0.2:80 => dropped
            192.0.2.1 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq
            192.0.2.1 -> 192.168.0.2:30081 => dropped",
    },
    Neighbour {
        name: "kube-router: policy of a pod",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *filter
                :KUBE-ROUTER-INPUT -
                :KUBE-ROUTER-FORWARD -
                :KUBE-POD-FW-A -
                -I INPUT 1 -j KUBE-ROUTER-INPUT
                -A KUBE-ROUTER-INPUT -d 172.30.0.0/16 -j RETURN
                -A KUBE-ROUTER-INPUT -p tcp -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN
                -I FORWARD 1 -j KUBE-ROUTER-FORWARD
                -A KUBE-ROUTER-FORWARD -d 10.0.1.5 -j KUBE-POD-FW-A
                -A KUBE-POD-FW-A -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
                -A KUBE-POD-FW-A -m addrtype --src-type LOCAL -j ACCEPT
                -A KUBE-POD-FW-A -s 10.0.1.9 -j MARK --set-xmark 0x10000/0x10000
                -A KUBE-POD-FW-A -s 10.0.1.5 -j MARK --set-xmark 0x10000/0x10000
                -A KUBE-POD-FW-A -s 198.51.100.0/24 -j MARK --set-xmark 0x10000/0x10000
                -A KUBE-POD-FW-A -m mark ! --mark 0x10000/0x10000 -j REJECT
                -A KUBE-POD-FW-A -j MARK --set-xmark 0x0/0x10000
                -A KUBE-POD-FW-A -j MARK --set-xmark 0x20000/0x20000
                -A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
                COMMIT\nEND\n"],
        all_is_well: true,
        flows: "10.0.1.6 -> 172.30.0.2:80 => rejected",
    },
    Neighbour {
        name: "Cilium, chained: its bits of the mark come through",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *filter
                :CILIUM_FORWARD -
                -I FORWARD 1 -j CILIUM_FORWARD
                -A CILIUM_FORWARD -i veth+ -j ACCEPT
                -A CILIUM_FORWARD -o veth+ -j ACCEPT
                COMMIT
                *mangle
                -A PREROUTING -i veth+ -j MARK --set-xmark 0x12340f00/0xffff0f00
                COMMIT\nEND\nnft -f - <<'END'
            table inet seen { chain last { type filter hook postrouting priority 150
              iifname \"veth*\" meta mark & 0xffff4f00 != 0x12340f00 drop; }; }\nEND\n"],
        all_is_well: false,
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080
                10.0.1.9 -> 172.30.0.10:53/udp => 10.0.1.6:5302
                10.0.1.5 -> 172.30.0.2:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq
                198.51.100.9 -> 192.168.0.2:30081 => 10.0.1.5:8080
                10.0.1.9 -> 172.30.0.3:80 => dropped | nftables: rejected",
    },
    Neighbour {
        name: "node-local-dns: untracked packets are left to the node's own DNS server",
        rules: &[NODE_LOCAL_DNS, "sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *raw
                -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j CT --notrack
                -A PREROUTING -d 172.30.0.10 -p tcp --dport 53 -j CT --notrack
                -A OUTPUT -d 172.30.0.10 -p udp --dport 53 -j CT --notrack
                -A OUTPUT -s 172.30.0.10 -p udp --sport 53 -j CT --notrack
                -A OUTPUT -d 172.30.0.10 -p tcp --dport 53 -j CT --notrack
                -A OUTPUT -s 172.30.0.10 -p tcp --sport 53 -j CT --notrack
                COMMIT
                *filter
                -A INPUT -d 172.30.0.10 -p udp --dport 53 -j ACCEPT
                -A INPUT -d 172.30.0.10 -p tcp --dport 53 -j ACCEPT
                COMMIT\nEND\n"],
        all_is_well: false,
        flows: "10.0.1.9 -> 172.30.0.10:53/udp => 172.30.0.10:53
            10.0.1.9 -> 172.30.0.10:53 => 172.30.0.10:53
            192.168.0.2 -> 172.30.0.10:53 => 172.30.0.10:53
            10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080
            198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq",
    },
    Neighbour {
        name: "fault: node-local-dns with its address and without its rules",
        rules: &[NODE_LOCAL_DNS],
        all_is_well: true,
        flows: "10.0.1.9 -> 172.30.0.10:53 => 10.0.1.6:5301",
    },
    Neighbour {
        name: "firewalld: translated packets pass, others between pods do not",
        rules: &[FIREWALLD],
        all_is_well: true,
        flows: "10.0.1.9 -> 10.0.2.5:8080 => dropped",
    },
    Neighbour {
        name: "firewalld that trusts the pods' interfaces",
        rules: &[FIREWALLD, "nft add rule inet firewalld filter_FWD_ZONES iifname '\"veth*\"' accept"],
        all_is_well: true,
        flows: "10.0.1.9 -> 10.0.2.5:8080 => 10.0.2.5:8080",
    },
    Neighbour {
        name: "Docker: nothing is forwarded but what somebody accepts",
        rules: &[DOCKER],
        all_is_well: false,
        flows: "10.0.1.9 -> 172.30.0.1:80 => dropped
            192.168.0.2 -> 172.30.0.1:80 => 10.0.2.5:8080
            198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq | nftables: dropped
            198.51.100.9 -> 192.168.0.2:30081 => dropped",
    },
    Neighbour {
        name: "Docker with pods accepted in DOCKER-USER",
        rules: &[DOCKER, "sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *filter
                -A DOCKER-USER -s 10.0.0.0/16 -j ACCEPT
                -A DOCKER-USER -d 10.0.0.0/16 -j ACCEPT
                COMMIT\nEND\n"],
        all_is_well: true,
        flows: "",
    },
    Neighbour {
        name: "fault: the whole mark is cleared before we masquerade",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *mangle
                -A FORWARD -j MARK --set-mark 0
                COMMIT\nEND\n"],
        all_is_well: false,
        flows: "198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080",
    },
    Neighbour {
        name: "fault: our bit of the mark is used for something else",
        rules: &["sed 's,^ *,,' <<'END' | iptables-restore --noflush
                *mangle
                -A PREROUTING -i veth+ -j MARK --set-mark 0x4000
                COMMIT\nEND\n"],
        all_is_well: false,
        flows: "10.0.1.9 -> 10.0.2.5:8080 => 10.0.2.5:8080 masq",
    },
    Neighbour {
        name: "fault: sources are translated before our chains see the packet",
        rules: &["nft -f - <<'END'
            table ip early {
              chain post { type nat hook postrouting priority 90; ip saddr 198.51.100.0/24 masquerade; }
              chain pre { type nat hook prerouting priority -110; tcp dport 30080 dnat to 10.0.1.6:8080; }; }\nEND\n"],
        all_is_well: false,
        flows: "198.51.100.9 -> 192.168.0.2:30081 => 10.0.1.5:8080 masq
            198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.6:8080 masq",
    },
    Neighbour {
        name: "fault: forwarded packets are dropped early",
        rules: &["nft -f - <<'END'
            table ip early { chain passing { type filter hook forward priority -1; ip daddr 10.0.2.5 drop; }; }\nEND\n"],
        all_is_well: false,
        flows: "10.0.1.9 -> 172.30.0.1:80 => dropped
            192.168.0.2 -> 172.30.0.1:80 => 10.0.2.5:8080",
    },
];

/// Writes our rules into a node without any.
fn program(lab: &Lab, mode: Mode) {
    lab.node().sh("nft flush ruleset
        for address in 169.254.20.10 172.30.0.10; do ip addr del $address/32 dev lo 2>/dev/null || true; done");
    lab.node().run(move || {
        let cluster = Cluster::parse(CLUSTER);
        let mut index = cluster.index::<Ipv4Addr>();
        let settings = cluster.settings::<Ipv4Addr>();
        let mut backend: Box<dyn Programmer<Ipv4Addr>> = match mode {
            Mode::Iptables => Box::new(IptablesBackend::new(settings, Variant::Nft)),
            Mode::Nftables => Box::new(NftablesBackend::open(settings, Commits::default()).unwrap()),
        };
        let batch = index.checkout();
        backend.sync(&batch).expect("the kernel takes the rules");
        let _ = index.commit(batch);
    });
}

/// A DNS server of the node, at the cluster address: says who it is and who asked, as the pods of the lab do.
fn serve_dns(lab: &Lab) {
    lab.node().sysctl("ipv4/ip_nonlocal_bind", "1");
    let at: SocketAddr = "172.30.0.10:53".parse().unwrap();
    let (tcp, udp) = lab
        .node()
        .run(move || (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap()));
    // Both end with the process: nothing else is in the namespace when the lab goes.
    std::thread::spawn(move || {
        while let Ok((mut stream, peer)) = tcp.accept() {
            let _ = stream.write_all(format!("{at} {}", peer.ip()).as_bytes());
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(format!("{at} {}", peer.ip()).as_bytes(), peer);
        }
    });
}

fn check(mode: Mode) {
    let lab = Lab::new().expect("a network");
    serve_dns(&lab);
    let mut failures = Vec::new();
    for neighbour in NEIGHBOURS {
        program(&lab, mode);
        lab.node().sh(&neighbour.rules.concat());
        let usual = if neighbour.all_is_well { ALL_IS_WELL } else { "" };
        let case = Case {
            name: neighbour.name,
            family: CaseFamily::V4,
            cluster: "",
            flows: &format!("{usual}\n{}", neighbour.flows),
        };
        failures.extend(lab.check::<Ipv4Addr>(&case, mode));
    }
    assert!(
        failures.is_empty(),
        "{} flows went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn services_and_their_neighbours_rules_both_hold_in_iptables_mode() {
    require_netns!();
    check(Mode::Iptables);
}

#[test]
fn services_and_their_neighbours_rules_both_hold_in_nftables_mode() {
    require_netns!();
    check(Mode::Nftables);
}
