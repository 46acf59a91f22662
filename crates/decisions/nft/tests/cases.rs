//! Do packets meet the fate that the table of shared cases names?

use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::packet::{Fate, Host, Packet};
use pointsman_dataplane::{Index, Settings};
use pointsman_nft::walk::{Journey, Memory, World, explore, walk};
use pointsman_nft::{KernelTable, Planner, TableSettings};
use pointsman_testkit::cases::{self, CaseFamily, Mode, Walk};
use pointsman_testkit::cluster::{Cluster, Family, parse_packet};

struct Programmed<A> {
    table: KernelTable,
    host: Host<A>,
}

fn program<A: Family>(mut index: Index<A>, settings: Settings<A>, host: Host<A>) -> Programmed<A> {
    let mut planner = Planner::new(TableSettings::new(settings));
    let mut table = KernelTable::default();
    table
        .apply(&planner.ruleset().create())
        .expect("the ruleset is sound");
    let batch = index.checkout();
    let planned = planner.plan(&batch.changes);
    table.apply(&planned.transaction).expect("the plan is sound");
    planner.commit(planned.update);
    let _ = index.commit(batch);
    Programmed { table, host }
}

impl<A: Family> Walk<A> for Programmed<A> {
    fn walk(&self, packet: &Packet<A>) -> Fate<A> {
        explore(&self.table, packet, &self.host, 16).unwrap_or_else(|lost| panic!("{lost}"))
    }
}

#[test]
fn all_shared_cases_hold_for_ipv4() {
    cases::check_all::<Ipv4Addr, _>(Mode::Nftables, CaseFamily::V4, program);
}

#[test]
fn all_shared_cases_hold_for_ipv6() {
    cases::check_all::<Ipv6Addr, _>(Mode::Nftables, CaseFamily::V6, program);
}

#[test]
fn an_unused_address_of_a_service_range_is_dropped() {
    let cluster = Cluster::parse(
        "node n1 ip=192.168.0.2
         service default/web 172.30.0.1:80
         endpoint default/web 10.0.1.5:8080",
    );
    let mut settings = TableSettings::new(cluster.settings::<Ipv4Addr>());
    settings.shared.service_cidrs = ["172.30.0.0/16", "172.30.4.0/24", "172.31.0.0/16"]
        .map(|range| pointsman_model::Cidr::parse(range).unwrap().unwrap())
        .into();
    let mut table = KernelTable::default();
    let planner = Planner::new(settings);
    table.apply(&planner.ruleset().create()).unwrap();
    table
        .apply(&planner.plan(&cluster.index().checkout().changes).transaction)
        .unwrap();
    let fate = |packet: &str| explore::<Ipv4Addr>(&table, &parse_packet(packet), &cluster.host(), 4).unwrap();
    assert_eq!(fate("10.0.1.9 -> 172.30.0.2:80"), Fate::Dropped);
    assert_eq!(fate("10.0.1.9 -> 172.31.255.255:80"), Fate::Dropped);
    assert_eq!(fate("10.0.1.9 -> 172.32.0.0:80"), Fate::Untouched);
    assert_eq!(fate("10.0.1.9 -> 172.30.0.1:81"), Fate::Rejected);
}

/// One client's connections to one packet's destination.
struct Client<'a> {
    programmed: &'a Programmed<Ipv4Addr>,
    memory: Memory,
    packet: Packet<Ipv4Addr>,
}

impl Client<'_> {
    fn connect(&mut self, drawn: u32, now_ms: u64) -> String {
        let mut random = |modulus: u32| drawn % modulus;
        let Self {
            programmed,
            memory,
            packet,
        } = self;
        let mut world = World {
            host: &programmed.host,
            random: &mut random,
            memory,
            now_ms,
        };
        match walk(&programmed.table, packet, &mut world).unwrap() {
            Journey::Sent(backend, _) => backend.to_string(),
            other => format!("{other:?}"),
        }
    }
}

const STICKY: &str = "node n1 ip=192.168.0.2 pods=10.0.0.0/8
     service default/web 172.30.0.1:80 affinity=10 nodeport=30080 policy=Local
     endpoint default/web 10.0.1.1:80 node=n1
     endpoint default/web 10.0.1.2:80 node=n1
     endpoint default/web 10.0.1.3:80 node=n1";

#[test]
fn a_client_stays_with_its_endpoint_until_it_is_away_for_the_timeout() {
    for to in ["172.30.0.1:80", "192.168.0.2:30080"] {
        let cluster = Cluster::parse(STICKY);
        let programmed = program(cluster.index(), cluster.settings(), cluster.host());
        let packet = parse_packet(&format!("198.51.100.9 -> {to}"));
        let mut client = Client {
            programmed: &programmed,
            memory: Memory::default(),
            packet,
        };
        assert_eq!(client.connect(1, 0), "10.0.1.2:80");
        // Every connection starts the time anew.
        assert_eq!(client.connect(2, 9_000), "10.0.1.2:80");
        assert_eq!(client.connect(0, 18_000), "10.0.1.2:80");
        assert_eq!(client.connect(2, 28_001), "10.0.1.3:80");
        client.packet = parse_packet(&format!("198.51.100.10 -> {to}"));
        assert_eq!(client.connect(0, 28_002), "10.0.1.1:80");
    }
}

#[test]
fn a_client_keeps_its_endpoint_through_whichever_destination_of_a_port_and_not_of_another() {
    let cluster = Cluster::parse(
        "node n1 ip=192.168.0.2 pods=10.0.0.0/8
         service default/web:a 172.30.0.1:80 affinity=10 nodeport=30080 lb=203.0.113.8 policy=Local
         service default/web:b 172.30.0.1:81 nodeport=30081
         endpoint default/web:a 10.0.1.1:80 node=n1
         endpoint default/web:a 10.0.1.2:80 node=n2
         endpoint default/web:a 10.0.1.3:80 node=n1
         endpoint default/web:b 10.0.1.1:81 node=n1
         endpoint default/web:b 10.0.1.3:81 node=n1",
    );
    let programmed = program(cluster.index(), cluster.settings(), cluster.host());
    let mut client = Client {
        programmed: &programmed,
        memory: Memory::default(),
        packet: parse_packet("198.51.100.9 -> 172.30.0.1:80"),
    };
    let mut connect = |to: &str, draw| {
        client.packet = parse_packet(&format!("198.51.100.9 -> {to}"));
        client.connect(draw, 0)
    };
    assert_eq!(connect("172.30.0.1:80", 2), "10.0.1.3:80");
    assert_eq!(connect("192.168.0.2:30080", 0), "10.0.1.3:80");
    assert_eq!(connect("203.0.113.8:80", 0), "10.0.1.3:80");
    assert_eq!(
        connect("172.30.0.1:81", 0),
        "10.0.1.1:81",
        "another port has its own"
    );
    assert_eq!(connect("192.168.0.2:30081", 1), "10.0.1.1:81");
    assert_eq!(connect("172.30.0.1:80", 0), "10.0.1.3:80");
}

#[test]
fn a_client_of_an_endpoint_that_left_gets_another_at_once_and_others_keep_theirs() {
    let cluster = Cluster::parse(STICKY);
    let mut index = cluster.index::<Ipv4Addr>();
    let mut planner = Planner::new(TableSettings::new(cluster.settings()));
    let mut programmed = Programmed {
        table: KernelTable::default(),
        host: cluster.host(),
    };
    programmed.table.apply(&planner.ruleset().create()).unwrap();
    let mut sync = |index: &mut Index<Ipv4Addr>, table: &mut KernelTable| {
        let batch = index.checkout();
        let planned = planner.plan(&batch.changes);
        table.apply(&planned.transaction).unwrap();
        planner.commit(planned.update);
        let _ = index.commit(batch);
    };
    sync(&mut index, &mut programmed.table);
    let mut memory = Memory::default();
    let mut connect = |programmed: &Programmed<Ipv4Addr>, source: &str, drawn| {
        let packet = parse_packet(&format!("{source} -> 172.30.0.1:80"));
        let mut client = Client {
            programmed,
            memory: std::mem::take(&mut memory),
            packet,
        };
        let to = client.connect(drawn, 0);
        memory = client.memory;
        to
    };
    assert_eq!(connect(&programmed, "10.0.2.1", 0), "10.0.1.1:80");
    assert_eq!(connect(&programmed, "10.0.2.2", 1), "10.0.1.2:80");
    assert_eq!(connect(&programmed, "10.0.2.3", 2), "10.0.1.3:80");
    // The first endpoint leaves, so the third moves into its slot.
    let mut smaller = Cluster::parse(STICKY);
    for slice in smaller.slices.values_mut() {
        slice
            .endpoints
            .retain(|endpoint| endpoint.addresses != ["10.0.1.1"]);
    }
    smaller.fold_into(&mut index);
    sync(&mut index, &mut programmed.table);
    assert_eq!(connect(&programmed, "10.0.2.3", 1), "10.0.1.3:80");
    assert_eq!(connect(&programmed, "10.0.2.2", 0), "10.0.1.2:80");
    assert_eq!(connect(&programmed, "10.0.2.1", 1), "10.0.1.2:80");
    // And stays with the new one.
    assert_eq!(connect(&programmed, "10.0.2.1", 0), "10.0.1.2:80");
}
