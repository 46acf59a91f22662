//! The cases that both backends have to pass.
//!
//! Addresses used throughout: the node is n1 (192.168.0.2), pods live in 10.0.0.0/8 (10.0.1.0/24 on n1),
//! 198.51.100.9 is a client outside, 172.30.0.0/16 holds cluster addresses.

use super::{Case, CaseFamily};

pub const CASES: &[Case<'static>] = &[
    Case {
        name: "a cluster address sends pods to every ready endpoint and masquerades outsiders",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web:http 172.30.0.1:80
                  endpoint default/web:http 10.0.1.5:8080 node=n1
                  endpoint default/web:http 10.0.2.5:8080 node=n2
                  endpoint default/web:http 10.0.2.6:8080 node=n2 unready
                  endpoint default/web:http 10.0.2.7:8080 node=n2 serving-unready
                  endpoint default/web:http 10.0.2.8:8080 node=n2 terminating",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080
                198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                192.168.0.2 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.9 -> 172.30.0.1:81 => untouched | nftables: rejected
                10.0.1.9 -> 172.30.0.1:80/udp => untouched | nftables: rejected
                10.0.1.9 -> 10.0.2.5:8080 => untouched",
    },
    Case {
        name: "a pod that reaches itself through its Service is masqueraded",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.1.6:8080 node=n1",
        flows: "10.0.1.5 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.1.6:8080
                10.0.1.6 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.1.6:8080 masq",
    },
    Case {
        name: "without a detector nothing sent to a cluster address is masqueraded, hairpins apart",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2
                  service default/web 172.30.0.1:80
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080
                10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080
                192.168.0.2 -> 172.30.0.1:80 => 10.0.1.5:8080
                10.0.1.5 -> 172.30.0.1:80 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "masquerade-all masquerades pods too",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8 masquerade-all
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080 masq
                10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080 masq
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "the three protocols of one port number go their own ways",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/dns:t 172.30.0.10:53/tcp
                  service default/dns:u 172.30.0.10:53/udp
                  service default/dns:s 172.30.0.10:53/sctp
                  endpoint default/dns:t 10.0.1.5:5301/tcp node=n1
                  endpoint default/dns:u 10.0.1.6:5302/udp node=n1
                  endpoint default/dns:s 10.0.1.5:5303/sctp node=n1",
        flows: "10.0.1.9 -> 172.30.0.10:53/tcp => 10.0.1.5:5301
                10.0.1.9 -> 172.30.0.10:53/udp => 10.0.1.6:5302
                10.0.1.9 -> 172.30.0.10:53/sctp => 10.0.1.5:5303",
    },
    Case {
        name: "without any endpoint every way in is rejected",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8
                  endpoint default/web 10.0.1.5:8080 node=n1 unready
                  endpoint default/web 10.0.1.6:8080 node=n1 gone",
        flows: "10.0.1.9 -> 172.30.0.1:80 => rejected
                198.51.100.9 -> 172.30.0.1:80 => rejected
                10.0.1.9 -> 203.0.113.7:80 => rejected
                198.51.100.9 -> 203.0.113.7:80 => rejected
                198.51.100.9 -> 203.0.113.8:80 => rejected
                198.51.100.9 -> 192.168.0.2:30080 => rejected
                10.0.1.9 -> 192.168.0.2:30080 => rejected",
    },
    Case {
        name: "the Cluster policy masquerades everything that comes by an external address",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "198.51.100.9 -> 203.0.113.7:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.9 -> 203.0.113.7:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                192.168.0.2 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                127.0.0.1 -> 127.0.0.1:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq | nftables: untouched
                198.51.100.9 -> 203.0.113.7:81 => untouched",
    },
    Case {
        name: "the Local policy keeps outsiders' addresses and short-circuits pods and the node",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "198.51.100.9 -> 203.0.113.7:80 => 10.0.1.5:8080
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080
                10.0.1.9 -> 203.0.113.7:80 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 203.0.113.8:80 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.1.5:8080, 10.0.2.5:8080
                192.168.0.2 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                192.168.0.2 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                127.0.0.1 -> 127.0.0.1:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq | nftables: untouched
                10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080
                198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.5 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080",
    },
    Case {
        name: "the Local policy without a local endpoint drops outsiders and still serves pods",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "198.51.100.9 -> 203.0.113.7:80 => dropped
                198.51.100.9 -> 203.0.113.8:80 => dropped
                198.51.100.9 -> 192.168.0.2:30080 => dropped
                10.0.1.9 -> 203.0.113.7:80 => 10.0.2.5:8080
                10.0.1.9 -> 203.0.113.8:80 => 10.0.2.5:8080
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.2.5:8080
                192.168.0.2 -> 203.0.113.8:80 => 10.0.2.5:8080 masq
                10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080",
    },
    Case {
        name: "the Local policy without a detector treats pods as outsiders",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2
                  service default/web 172.30.0.1:80 nodeport=30080 lb=203.0.113.8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "10.0.1.9 -> 203.0.113.8:80 => 10.0.1.5:8080
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.1.5:8080
                192.168.0.2 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080",
    },
    Case {
        name: "the internal Local policy narrows the cluster address alone",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 internal=Local
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.1.6:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.1.6:8080
                192.168.0.2 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.1.6:8080 masq
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.1.6:8080 masq, 10.0.2.5:8080 masq",
    },
    Case {
        name: "the internal Local policy drops when only other nodes have endpoints",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 internal=Local
                  endpoint default/web 10.0.2.5:8080 node=n2
                  service default/none 172.30.0.2:80 internal=Local
                  endpoint default/none 10.0.2.5:8080 node=n2 unready",
        flows: "10.0.1.9 -> 172.30.0.1:80 => dropped
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq
                10.0.1.9 -> 172.30.0.2:80 => rejected",
    },
    Case {
        name: "both policies Local with remote endpoints drop, except for the short circuit",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 internal=Local policy=Local
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "10.0.1.9 -> 172.30.0.1:80 => dropped
                198.51.100.9 -> 192.168.0.2:30080 => dropped
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.2.5:8080
                192.168.0.2 -> 192.168.0.2:30080 => 10.0.2.5:8080 masq",
    },
    Case {
        name: "terminating endpoints serve when nothing ready is left",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8
                  endpoint default/web 10.0.1.5:8080 node=n1 terminating
                  endpoint default/web 10.0.2.5:8080 node=n2 terminating
                  endpoint default/web 10.0.2.6:8080 node=n2 gone
                  endpoint default/web 10.0.2.7:8080 node=n2 unready",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq",
    },
    Case {
        name: "under the Local policy a terminating local endpoint is used beside ready remote ones",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.1.5:8080 node=n1 terminating
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080
                10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080
                10.0.1.9 -> 203.0.113.8:80 => 10.0.2.5:8080",
    },
    Case {
        name: "under the Local policy terminating remote endpoints do not help outsiders",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.2.5:8080 node=n2 terminating",
        flows: "198.51.100.9 -> 203.0.113.8:80 => dropped
                10.0.1.9 -> 172.30.0.1:80 => 10.0.2.5:8080",
    },
    Case {
        name: "zone hints keep traffic in the zone when every ready endpoint has them",
        family: CaseFamily::V4,
        cluster: "node n1 zone=z1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80
                  endpoint default/web 10.0.1.5:8080 node=n1 zones=z1
                  endpoint default/web 10.0.2.5:8080 node=n2 zones=z2,z1
                  endpoint default/web 10.0.2.6:8080 node=n2 zones=z2
                  service default/gap 172.30.0.2:80
                  endpoint default/gap 10.0.1.5:8080 node=n1 zones=z1
                  endpoint default/gap 10.0.2.5:8080 node=n2
                  service default/away 172.30.0.3:80
                  endpoint default/away 10.0.2.5:8080 node=n2 zones=z2
                  endpoint default/away 10.0.1.5:8080 node=n1 zones=z1 unready",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 172.30.0.2:80 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 172.30.0.3:80 => 10.0.2.5:8080",
    },
    Case {
        name: "node hints beat zone hints and degrade to them",
        family: CaseFamily::V4,
        cluster: "node n1 zone=z1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/here 172.30.0.1:80
                  endpoint default/here 10.0.1.5:8080 node=n1 zones=z1 nodes=n1
                  endpoint default/here 10.0.3.5:8080 node=n3 zones=z1 nodes=n3
                  service default/near 172.30.0.2:80
                  endpoint default/near 10.0.3.5:8080 node=n3 zones=z1 nodes=n3
                  endpoint default/near 10.0.2.5:8080 node=n2 zones=z2 nodes=n2",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080
                10.0.1.9 -> 172.30.0.2:80 => 10.0.3.5:8080",
    },
    Case {
        name: "source ranges guard load balancer addresses and nothing else",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8,203.0.113.9 ranges=198.51.100.0/28,192.0.2.0/24
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 203.0.113.9:80 => 10.0.1.5:8080 masq
                198.51.100.99 -> 203.0.113.8:80 => dropped
                198.51.100.99 -> 203.0.113.9:80 => dropped
                10.0.1.9 -> 203.0.113.8:80 => dropped
                192.168.0.2 -> 203.0.113.8:80 => dropped
                198.51.100.99 -> 203.0.113.7:80 => 10.0.1.5:8080 masq
                198.51.100.99 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq
                198.51.100.99 -> 203.0.113.8:81 => untouched",
    },
    Case {
        name: "source ranges guard a load balancer address that the Service lists as an external address too",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 external=203.0.113.8,203.0.113.7 lb=203.0.113.8 ranges=198.51.100.0/28
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                198.51.100.99 -> 203.0.113.8:80 => dropped
                10.0.1.9 -> 203.0.113.8:80 => dropped
                198.51.100.99 -> 203.0.113.7:80 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "a range that holds the node's address lets the node use the load balancer address",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8 ranges=192.168.0.0/24
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "192.168.0.2 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                203.0.113.8 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 203.0.113.8:80 => dropped",
    },
    Case {
        name: "source ranges combine with the Local policy",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8 ranges=198.51.100.0/28,10.0.0.0/8 policy=Local healthcheck=31000
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080
                10.0.1.9 -> 203.0.113.8:80 => 10.0.1.5:8080, 10.0.2.5:8080
                198.51.100.99 -> 203.0.113.8:80 => dropped",
    },
    Case {
        name: "a source range for everybody and one of the other family guard nothing",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/open 172.30.0.1:80 lb=203.0.113.8 ranges=198.51.100.0/28,0.0.0.0/0
                  endpoint default/open 10.0.1.5:8080 node=n1
                  service default/six 172.30.0.2:80 lb=203.0.113.9 ranges=fd00::/8
                  endpoint default/six 10.0.1.5:8080 node=n1",
        flows: "192.0.2.1 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                192.0.2.1 -> 203.0.113.9:80 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "source ranges of which none can be read admit nobody",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/shut 172.30.0.1:80 nodeport=30080 external=203.0.113.7 lb=203.0.113.8 ranges=198.51.100.0/82
                  endpoint default/shut 10.0.1.5:8080 node=n1
                  service default/rest 172.30.0.2:80 lb=203.0.113.9 ranges=198.51.100.0/82,192.0.2.0/24
                  endpoint default/rest 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.8:80 => dropped
                10.0.1.9 -> 203.0.113.8:80 => dropped
                192.168.0.2 -> 203.0.113.8:80 => dropped
                10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080
                198.51.100.9 -> 203.0.113.7:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq
                192.0.2.1 -> 203.0.113.9:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 203.0.113.9:80 => dropped",
    },
    Case {
        name: "source ranges without endpoints",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb=203.0.113.8 ranges=198.51.100.0/28",
        flows: "198.51.100.9 -> 203.0.113.8:80 => rejected
                198.51.100.99 -> 203.0.113.8:80 => rejected | nftables: dropped",
    },
    Case {
        name: "load balancer addresses of mode Proxy are left alone",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 lb-proxy=203.0.113.8 lb=203.0.113.9
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.8:80 => untouched
                198.51.100.9 -> 203.0.113.9:80 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "addresses with leading zeros are read as decimal",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.030.000.001:80 external=203.000.113.007 lb=203.0.113.008 ranges=198.051.100.000/28
                  endpoint default/web 010.000.001.005:8080 node=n1",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080
                198.51.100.9 -> 203.0.113.7:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                198.51.100.99 -> 203.0.113.8:80 => dropped",
    },
    Case {
        name: "node ports answer on the selected addresses only",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2,192.168.1.2,192.168.2.2 pods=10.0.0.0/8 nodeports=192.168.0.0/24,192.168.1.0/24
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.1.2:30080 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.2.2:30080 => untouched
                127.0.0.1 -> 127.0.0.1:30080 => untouched",
    },
    Case {
        name: "the primary address is the first one of the Node and no other",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2,192.168.1.2 pods=10.0.0.0/8 nodeports=primary
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.1.2:30080 => untouched",
    },
    Case {
        name: "node port ranges of the other family alone select everything",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2,192.168.1.2 pods=10.0.0.0/8 nodeports=fd00::/8
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.1.2:30080 => 10.0.1.5:8080 masq
                198.51.100.9 -> 192.168.9.9:30080 => untouched",
    },
    Case {
        name: "node ports on localhost can be switched off",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8 no-localhost-nodeports
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "127.0.0.1 -> 127.0.0.1:30080 => untouched
                192.168.0.2 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "a listed localhost is ignored when node ports on localhost are off",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8 nodeports=127.0.0.0/8,192.168.0.0/24 no-localhost-nodeports
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "127.0.0.1 -> 127.0.0.1:30080 => untouched
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "nftables mode refuses on localhost what its listeners cannot carry",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8 nodeports=192.168.0.0/24,127.0.0.0/8 localhost-nodeports-gate
                  service default/web 172.30.0.1:80 nodeport=30080
                  endpoint default/web 10.0.1.5:8080 node=n1
                  service default/dns 172.30.0.2:53/udp nodeport=30053
                  endpoint default/dns 10.0.1.5:5302 node=n1 udp",
        flows: "127.0.0.1 -> 127.0.0.1:30080 => 10.0.1.5:8080 masq | nftables: untouched
                127.0.0.1 -> 127.0.0.1:30053/udp => 10.0.1.5:5302 masq | nftables: rejected
                127.0.0.1 -> 127.0.0.1:30054/udp => untouched
                192.168.0.2 -> 192.168.0.2:30053/udp => 10.0.1.5:5302 masq",
    },
    Case {
        name: "nftables mode refuses node ports on localhost where only all addresses are listed",
        family: CaseFamily::V6,
        cluster: "node n1 ip=fd00::2 pods=fd00:1::/64 nodeports=::/0 localhost-nodeports-gate
                  service default/web [fd00:96::1]:80 nodeport=30080
                  endpoint default/web [fd00:1::5]:8080 node=n1",
        flows: "::1 -> [::1]:30080 => untouched | nftables: rejected
                fd00::2 -> [fd00::2]:30080 => [fd00:1::5]:8080 masq",
    },
    Case {
        name: "pods are told apart by their bridge",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 bridge=cbr0
                  service default/web 172.30.0.1:80 nodeport=30080 policy=Local
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "10.0.1.9 -> 172.30.0.1:80 via cbr0 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 172.30.0.1:80 via cbr01 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                10.0.1.9 -> 192.168.0.2:30080 via cbr0 => 10.0.1.5:8080, 10.0.2.5:8080
                198.51.100.9 -> 192.168.0.2:30080 via eth0 => 10.0.1.5:8080",
    },
    Case {
        name: "pods are told apart by the prefix of their interface",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 prefix=veth
                  service default/web 172.30.0.1:80
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "10.0.1.9 -> 172.30.0.1:80 via veth12ab => 10.0.1.5:8080
                198.51.100.9 -> 172.30.0.1:80 via eth0 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "affinity changes who answers, not who may, and holds for all destinations of a port",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80 nodeport=30080 affinity=10800
                  endpoint default/web 10.0.1.5:8080 node=n1
                  endpoint default/web 10.0.2.5:8080 node=n2",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.2.5:8080
                10.0.1.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.9 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.9 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.99 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                198.51.100.99 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                192.0.2.1 -> 192.168.0.2:30080 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq
                192.0.2.1 -> 172.30.0.1:80 => 10.0.1.5:8080 masq, 10.0.2.5:8080 masq",
    },
    Case {
        name: "overlapping slices give each endpoint once and a running one beats its terminating twin",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web 172.30.0.1:80
                  endpoint default/web 10.0.1.5:8080 node=n1 slice=a terminating
                  endpoint default/web 10.0.1.5:8080 node=n1 slice=b ready
                  endpoint default/web 10.0.1.5:8081 node=n1 slice=b ready
                  endpoint default/web 10.0.1.6:8080 node=n1 slice=c terminating",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080, 10.0.1.5:8081",
    },
    Case {
        name: "endpoints of unknown ports and Services do no harm",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/web:http 172.30.0.1:80
                  endpoint default/web:http 10.0.1.5:8080 node=n1
                  endpoint default/web:other 10.0.1.6:9090 node=n1
                  endpoint default/ghost:http 10.0.1.7:8080 node=n1
                  endpoint other/web:http 10.0.1.8:8080 node=n1",
        flows: "10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080",
    },
    Case {
        name: "an external address belongs to the Service with the lower name, if both are as old",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/b 172.30.0.1:80 external=203.0.113.7
                  endpoint default/b 10.0.1.5:8080 node=n1
                  service default/a 172.30.0.2:80 external=203.0.113.7,172.30.0.1
                  endpoint default/a 10.0.1.6:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.7:80 => 10.0.1.6:8080 masq
                10.0.1.9 -> 172.30.0.1:80 => 10.0.1.5:8080",
    },
    Case {
        name: "an external address belongs to the older Service, whatever the names",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/b 172.30.0.1:80 external=203.0.113.7 created=1000
                  endpoint default/b 10.0.1.5:8080 node=n1
                  service default/a 172.30.0.2:80 external=203.0.113.7,203.0.113.8 created=2000
                  endpoint default/a 10.0.1.6:8080 node=n1
                  service default/0 172.30.0.3:80 external=203.0.113.8
                  endpoint default/0 10.0.1.7:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.7:80 => 10.0.1.5:8080 masq
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.6:8080 masq",
    },
    Case {
        name: "listing a load balancer's address as external takes nothing from it, nor opens it",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8
                  service default/b 172.30.0.1:80 lb=203.0.113.8 external=203.0.113.8 ranges=198.51.100.0/28 created=2000
                  endpoint default/b 10.0.1.5:8080 node=n1
                  service default/a 172.30.0.2:80 external=203.0.113.8 created=1000
                  endpoint default/a 10.0.1.6:8080 node=n1
                  service default/c 172.30.0.3:80 lb=172.30.0.2,203.0.113.9 created=500
                  endpoint default/c 10.0.1.7:8080 node=n1
                  service default/d 172.30.0.4:80 lb=203.0.113.9 created=400
                  endpoint default/d 10.0.1.6:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq
                198.51.100.99 -> 203.0.113.8:80 => dropped
                198.51.100.9 -> 203.0.113.9:80 => 10.0.1.6:8080 masq
                10.0.1.9 -> 172.30.0.2:80 => 10.0.1.6:8080",
    },
    Case {
        name: "external addresses can be refused for the whole cluster",
        family: CaseFamily::V4,
        cluster: "node n1 ip=192.168.0.2 pods=10.0.0.0/8 no-external-ips
                  service default/web 172.30.0.1:80 external=203.0.113.7 lb=203.0.113.8
                  endpoint default/web 10.0.1.5:8080 node=n1",
        flows: "198.51.100.9 -> 203.0.113.7:80 => untouched
                198.51.100.9 -> 203.0.113.8:80 => 10.0.1.5:8080 masq",
    },
    Case {
        name: "IPv6 behaves like IPv4, except that node ports never answer on ::1",
        family: CaseFamily::V6,
        cluster: "node n1 ip=fd00:2::2 pods=fd00:1::/32
                  service default/web fd00:30::1:80 nodeport=30080 lb=2001:db8::8 policy=Local healthcheck=31000
                  endpoint default/web [fd00:1:1::5]:8080 node=n1
                  endpoint default/web [fd00:1:2::5]:8080 node=n2",
        flows: "fd00:1:1::9 -> [fd00:30::1]:80 => [fd00:1:1::5]:8080, [fd00:1:2::5]:8080
                2001:db8:9::9 -> [fd00:30::1]:80 => [fd00:1:1::5]:8080 masq, [fd00:1:2::5]:8080 masq
                2001:db8:9::9 -> [2001:db8::8]:80 => [fd00:1:1::5]:8080
                fd00:1:1::9 -> [2001:db8::8]:80 => [fd00:1:1::5]:8080, [fd00:1:2::5]:8080
                2001:db8:9::9 -> [fd00:2::2]:30080 => [fd00:1:1::5]:8080
                fd00:2::2 -> [fd00:2::2]:30080 => [fd00:1:1::5]:8080 masq, [fd00:1:2::5]:8080 masq
                ::1 -> [::1]:30080 => untouched
                fd00:1:1::5 -> [fd00:30::1]:80 => [fd00:1:1::5]:8080 masq, [fd00:1:2::5]:8080",
    },
    Case {
        name: "IPv6 rejects, drops and guards like IPv4",
        family: CaseFamily::V6,
        cluster: "node n1 ip=fd00:2::2 pods=fd00:1::/32 nodeports=fd00:2::/64
                  service default/none [fd00:30::1]:80 nodeport=30081
                  service default/far [fd00:30::2]:80 internal=Local
                  endpoint default/far [fd00:1:2::5]:8080 node=n2
                  service default/lb [fd00:30::3]:80 nodeport=30083 lb=2001:db8::8 ranges=2001:db8:9::/48
                  endpoint default/lb [fd00:1:2::5]:8080 node=n2",
        flows: "fd00:1:1::9 -> [fd00:30::1]:80 => rejected
                2001:db8:9::9 -> [fd00:2::2]:30081 => rejected
                fd00:1:1::9 -> [fd00:30::2]:80 => dropped
                2001:db8:9::9 -> [2001:db8::8]:80 => [fd00:1:2::5]:8080 masq
                2001:db8:a::9 -> [2001:db8::8]:80 => dropped
                2001:db8:a::9 -> [fd00:2::2]:30083 => [fd00:1:2::5]:8080 masq",
    },
];
