//! Does the kernel agree with our bytes?
//!
//! Each test runs on a thread of its own in a fresh network namespace, which ends with the thread. Without
//! the privilege to make one, the tests say so and pass.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use pointsman_netlink::conntrack::{Flow, Tuple};
use pointsman_netlink::netlink::Errno;
use pointsman_netlink::nft::{
    BaseChain, Chain, ChainKind, CmpOp, CtKey, DynsetOp, Element, Expr, Family, FibFlags, FibResult, Field,
    Generation, Hook, LookupTarget, MetaKey, Name, NatKind, Op, PayloadBase, Policy, Register, RejectKind,
    Rule, Set, Table, Transaction, UserData, Value, Verdict,
};
use pointsman_netlink_io::{Buffers, Client, CommitError, Conntrack, RequestError};
use pointsman_testkit::skip::skip;

const TABLE: Name = Name::fixed("pointsman-test");

fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        if let Err(error) = unshare_network() {
            return skip(&format!("a network namespace cannot be made here: {error}"));
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[expect(
    unsafe_code,
    reason = "leaving the process's network namespace affects only this thread"
)]
fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: only the network namespace is unshared; no memory or descriptor is affected.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
}

fn client() -> Client {
    Client::open(Buffers::default()).unwrap()
}

fn transaction(ops: Vec<Op>) -> Transaction {
    Transaction {
        family: Family::Ip,
        table: TABLE,
        ops,
    }
}

fn commit(client: &mut Client, ops: Vec<Op>) -> Result<(), CommitError> {
    client.commit(&[transaction(ops)], None)
}

fn r(index: u8) -> Register {
    Register::fixed(index)
}

fn field(bytes: &[&[u8]]) -> Value {
    let mut value = Value::EMPTY;
    for part in bytes {
        value.push_field(part).unwrap();
    }
    value
}

fn service(number: u32, port: u16) -> Value {
    field(&[&(0x0a00_0000 + number).to_be_bytes(), &[6], &port.to_be_bytes()])
}

fn add_table() -> Op {
    Op::AddTable(Table {
        userdata: UserData::comment("a test"),
        ..Table::new(Family::Ip, TABLE)
    })
}

fn destination(first: u8) -> Vec<Expr> {
    vec![
        Expr::Payload {
            dreg: r(first),
            base: PayloadBase::Network,
            offset: 16,
            len: 4,
        },
        Expr::Meta {
            dreg: r(first + 1),
            key: MetaKey::L4Proto,
        },
        Expr::Payload {
            dreg: r(first + 2),
            base: PayloadBase::Transport,
            offset: 2,
            len: 2,
        },
    ]
}

fn sets() -> Vec<Set> {
    let key = [Field::IpDaddr, Field::L4Proto, Field::ThDport];
    let slot = [
        Field::IpDaddr,
        Field::L4Proto,
        Field::ThDport,
        Field::Random { modulus: 8 },
    ];
    let client = [Field::IpSaddr, Field::IpDaddr, Field::L4Proto, Field::ThDport];
    vec![
        Set::new(Name::fixed("services"), &key, "what we serve"),
        Set::map(
            Name::fixed("backends"),
            &slot,
            &[Field::IpDaddr, Field::ThDport],
            "",
        ),
        Set::dynamic_map(
            Name::fixed("affinity"),
            &client,
            &[Field::Priority],
            1 << 16,
            10_800_000,
            "",
        ),
        Set::interval(Name::fixed("ranges"), &[Field::IpDaddr], ""),
        Set::interval(
            Name::fixed("sources"),
            &[Field::IpDaddr, Field::L4Proto, Field::ThDport, Field::IpSaddr],
            "",
        ),
    ]
}

fn rules() -> Vec<Rule> {
    let lookup = |set: &'static str, target| Expr::Lookup {
        set: Name::fixed(set),
        sreg: r(0),
        target,
        invert: false,
    };
    let mut balance = destination(0);
    balance.extend([
        Expr::Numgen {
            dreg: r(3),
            modulus: 8,
            random: true,
            offset: 0,
        },
        lookup("backends", LookupTarget::Data(r(0))),
        Expr::Nat {
            kind: NatKind::Destination,
            family: Family::Ip,
            address: Some(r(0)),
            port: Some(r(1)),
            flags: 0,
        },
    ]);
    let mut remember = vec![Expr::Payload {
        dreg: r(0),
        base: PayloadBase::Network,
        offset: 12,
        len: 4,
    }];
    remember.extend(destination(1));
    remember.extend([
        Expr::Meta {
            dreg: r(4),
            key: MetaKey::Priority,
        },
        Expr::Dynset {
            set: Name::fixed("affinity"),
            op: DynsetOp::Update,
            key: r(0),
            data: Some(r(4)),
            timeout_ms: Some(60_000),
        },
    ]);
    let mut refuse = destination(0);
    refuse.extend([
        lookup("services", LookupTarget::Membership),
        Expr::Counter { packets: 0, bytes: 0 },
        Expr::Reject {
            kind: RejectKind::Icmp,
            code: 3,
        },
    ]);
    let masquerade = vec![
        Expr::Meta {
            dreg: r(0),
            key: MetaKey::Mark,
        },
        Expr::Bitwise {
            sreg: r(0),
            dreg: r(0),
            mask: Value::host_u32(0x4000),
            xor: Value::host_u32(0),
        },
        Expr::Cmp {
            sreg: r(0),
            op: CmpOp::Neq,
            value: Value::host_u32(0),
        },
        Expr::Ct {
            dreg: r(0),
            key: CtKey::Status,
            direction: None,
        },
        Expr::Fib {
            dreg: r(4),
            result: FibResult::AddressType,
            flags: FibFlags::SADDR,
        },
        Expr::Masquerade {
            flags: Expr::NAT_FULLY_RANDOM,
        },
    ];
    vec![
        Rule::new(Name::fixed("pre"), refuse),
        Rule::new(Name::fixed("pre"), remember),
        Rule {
            userdata: UserData::comment("to the balancer"),
            ..Rule::new(
                Name::fixed("pre"),
                vec![Expr::Verdict(Verdict::Jump(Name::fixed("lb")))],
            )
        },
        Rule::new(Name::fixed("lb"), balance),
        Rule::new(Name::fixed("post"), masquerade),
    ]
}

fn chains() -> Vec<Chain> {
    let base = |name, hook, priority| Chain {
        base: Some(BaseChain {
            kind: ChainKind::Nat,
            hook,
            priority,
            policy: Policy::Accept,
        }),
        ..Chain::regular(Name::fixed(name))
    };
    vec![
        base("pre", Hook::Prerouting, -100),
        base("post", Hook::Postrouting, 100),
        Chain::regular(Name::fixed("lb")),
    ]
}

fn setup(client: &mut Client) {
    let mut ops = vec![add_table()];
    ops.extend(sets().into_iter().map(Op::AddSet));
    ops.extend(chains().into_iter().map(Op::AddChain));
    ops.extend(rules().into_iter().map(Op::AddRule));
    commit(client, ops).unwrap();
}

#[test]
fn everything_that_is_written_is_listed_as_it_was_written() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let tables = client.tables(Family::Ip).unwrap();
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].userdata.comment_text(), Some("a test"));
        assert_eq!(client.sets(Family::Ip, &TABLE).unwrap(), sets());
        let mut listed = client.chains(Family::Ip, &TABLE).unwrap();
        listed.sort();
        let mut wanted = chains();
        wanted.sort();
        assert_eq!(listed, wanted);
        let mut listed: Vec<Rule> = client
            .rules(Family::Ip, &TABLE)
            .unwrap()
            .into_iter()
            .map(|(rule, _)| rule)
            .collect();
        listed.sort();
        let mut wanted = rules();
        wanted.sort();
        assert_eq!(listed, wanted);
    });
}

#[test]
fn elements_of_every_kind_are_listed_as_they_were_written() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let slot = |number, slot: u32| {
            let mut key = service(number, 80);
            key.push_field(&slot.to_ne_bytes()).unwrap();
            Element::mapping(key, field(&[&[10, 244, 0, slot as u8], &8080u16.to_be_bytes()]))
        };
        let range = |from: [u8; 4], to: [u8; 4]| {
            let end = Element {
                interval_end: true,
                ..Element::new(Value::try_new(&to).unwrap())
            };
            vec![Element::new(Value::try_new(&from).unwrap()), end]
        };
        let sources = Element {
            key_end: Some(Box::new(field(&[
                &[10, 0, 0, 1],
                &[6],
                &80u16.to_be_bytes(),
                &[192, 168, 255, 255],
            ]))),
            ..Element::new(field(&[
                &[10, 0, 0, 1],
                &[6],
                &80u16.to_be_bytes(),
                &[192, 168, 0, 0],
            ]))
        };
        let named = Element {
            userdata: UserData::comment("default/web"),
            ..Element::new(service(2, 80))
        };
        let wanted: Vec<(&'static str, Vec<Element>)> = vec![
            ("services", vec![Element::new(service(1, 80)), named]),
            (
                "backends",
                (0..5000).map(|number| slot(number / 5, number % 5)).collect(),
            ),
            ("sources", vec![sources]),
            ("ranges", range([10, 96, 0, 0], [10, 112, 0, 0])),
        ];
        let add = wanted.iter().map(|(set, elements)| Op::AddElements {
            set: Name::fixed(set),
            elements: elements.clone(),
        });
        commit(&mut client, add.collect()).unwrap();
        for (set, mut wanted) in wanted {
            let mut listed = client.elements(Family::Ip, &TABLE, &Name::fixed(set)).unwrap();
            // The kernel keeps a range as two ends, and begins the address space with one.
            listed.retain(|element| !(element.interval_end && element.key.as_bytes() == [0; 4]));
            listed.sort();
            wanted.sort();
            assert_eq!(listed, wanted, "{set}");
        }
        assert!(matches!(
            client.elements(Family::Ip, &TABLE, &Name::fixed("nothing")),
            Err(RequestError::NotFound)
        ));
    });
}

#[test]
fn elements_are_counted_and_looked_up_by_their_keys() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let set = Name::fixed("backends");
        let slot = |number, slot: u32| {
            let mut key = service(number, 80);
            key.push_field(&slot.to_ne_bytes()).unwrap();
            Element::mapping(key, field(&[&[10, 244, 0, slot as u8], &8080u16.to_be_bytes()]))
        };
        let add = |elements: Vec<Element>| Op::AddElements {
            set: set.clone(),
            elements,
        };
        let there: Vec<Element> = (0..5000).map(|number| slot(number / 5, number % 5)).collect();
        commit(&mut client, vec![add(there.clone())]).unwrap();
        // What is refused is not counted.
        let refused = vec![add(vec![slot(9000, 0)]), Op::DeleteSet(Name::fixed("missing"))];
        assert!(commit(&mut client, refused).is_err());
        let count = client.element_count(Family::Ip, &TABLE, &set).unwrap();
        // Kernels before 6.17 say nothing.
        assert!(matches!(count, None | Some(5000)), "{count:?}");
        let absent = |at: &usize| at.is_multiple_of(7) || (2000..2600).contains(at);
        let key = |at: usize| {
            if absent(&at) {
                slot(9000, at as u32).key
            } else {
                there[at].key
            }
        };
        let mut found = Vec::new();
        let keys = (0..there.len()).map(key);
        let of_set = (Family::Ip, &TABLE, &set);
        client
            .visit_elements(of_set, keys, |element| found.push(element))
            .unwrap();
        let wanted: Vec<Element> = (0..there.len())
            .filter(|at| !absent(at))
            .map(|at| there[at].clone())
            .collect();
        assert_eq!(found, wanted);
        let missing = client.element_count(Family::Ip, &TABLE, &Name::fixed("missing"));
        assert!(matches!(missing, Err(RequestError::NotFound)), "{missing:?}");
    });
}

#[test]
fn a_refused_batch_names_its_change_and_leaves_nothing_behind() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let services = || Name::fixed("services");
        let error = commit(
            &mut client,
            vec![
                Op::AddElements {
                    set: services(),
                    elements: vec![Element::new(service(1, 80))],
                },
                Op::DeleteElements {
                    set: services(),
                    elements: vec![Element::new(service(1, 80)), Element::new(service(9, 80))],
                },
                Op::AddElements {
                    set: services(),
                    elements: vec![Element::new(service(3, 80))],
                },
            ],
        )
        .unwrap_err();
        let CommitError::Refused(faults) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            (faults[0].errno, faults[0].op, faults[0].element),
            (Errno::NOENT, Some((0, 1)), Some(1))
        );
        assert_eq!(client.elements(Family::Ip, &TABLE, &services()).unwrap(), []);
    });
}

#[test]
fn a_batch_for_an_older_generation_is_not_carried_out() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let Generation(before) = client.generation().unwrap();
        let op = || {
            vec![Op::AddElements {
                set: Name::fixed("services"),
                elements: vec![Element::new(service(1, 80))],
            }]
        };
        client
            .commit(&[transaction(op())], Some(Generation(before)))
            .unwrap();
        let stale = client.commit(&[transaction(op())], Some(Generation(before)));
        assert!(matches!(stale, Err(CommitError::GenerationChanged)), "{stale:?}");
    });
}

#[test]
fn an_element_is_replaced_and_a_conflicting_one_is_refused() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let element = |backend: u8| {
            let mut key = service(1, 80);
            key.push_field(&0u32.to_ne_bytes()).unwrap();
            Element::mapping(key, field(&[&[10, 244, 0, backend], &8080u16.to_be_bytes()]))
        };
        let backends = || Name::fixed("backends");
        let add = |backend| Op::AddElements {
            set: backends(),
            elements: vec![element(backend)],
        };
        commit(&mut client, vec![add(1)]).unwrap();
        commit(&mut client, vec![add(1)]).unwrap();
        let conflict = commit(&mut client, vec![add(2)]);
        let Err(CommitError::Refused(faults)) = conflict else {
            panic!("{conflict:?}")
        };
        assert!(
            matches!(faults[0].errno, Errno::BUSY | Errno::EXIST),
            "{faults:?}"
        );
        let delete = Op::DeleteElements {
            set: backends(),
            elements: vec![element(1)],
        };
        commit(&mut client, vec![delete, add(2)]).unwrap();
        assert_eq!(
            client.elements(Family::Ip, &TABLE, &backends()).unwrap(),
            [element(2)]
        );
    });
}

#[test]
fn fifty_thousand_elements_fit_into_one_commit() {
    in_namespace(|| {
        let mut client = client();
        setup(&mut client);
        let elements = (0..50_000)
            .map(|number| Element::new(service(number, 80)))
            .collect();
        commit(
            &mut client,
            vec![Op::AddElements {
                set: Name::fixed("services"),
                elements,
            }],
        )
        .unwrap();
        assert_eq!(
            client
                .elements(Family::Ip, &TABLE, &Name::fixed("services"))
                .unwrap()
                .len(),
            50_000
        );
    });
}

#[test]
fn udp_flows_are_listed_with_both_directions_and_deleted_one_by_one() {
    in_namespace(|| {
        let up = std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        if !up.is_ok_and(|status| status.success()) {
            return skip("no ip program to bring the loopback interface up");
        }
        // A rule that looks at connections makes the kernel track them.
        let mut client = client();
        setup(&mut client);
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (port, other_port) = (
            server.local_addr().unwrap().port(),
            other.local_addr().unwrap().port(),
        );
        let talk = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.send_to(b"x", ("127.0.0.1", port)).unwrap();
            socket.send_to(b"x", ("127.0.0.1", other_port)).unwrap();
        };
        let localhost = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let to_destination = |flow: &Flow| {
            (flow.original.destination, flow.original.destination_port) == (localhost, Some(port))
        };
        let to_backend = |flow: &Flow| (flow.reply.source, flow.reply.source_port) == (localhost, Some(port));
        let mut conntrack = Conntrack::open(Buffers::default()).unwrap();
        let list = |conntrack: &mut Conntrack| {
            let mut flows = Vec::new();
            conntrack
                .visit(2, &Tuple::default(), &mut |flow| flows.push(flow))
                .unwrap();
            flows
        };
        for meant in [&to_destination as &dyn Fn(&Flow) -> bool, &to_backend] {
            talk();
            let flows = list(&mut conntrack);
            let stale: Vec<&Flow> = flows.iter().filter(|flow| meant(flow)).collect();
            assert!(!stale.is_empty() && flows.len() > stale.len());
            for flow in &stale {
                assert_eq!(flow.original.protocol, 17);
                assert!(conntrack.delete(2, flow).unwrap());
                assert!(!conntrack.delete(2, flow).expect("one that is gone is fine"));
            }
            let left = list(&mut conntrack);
            assert_eq!(left.len(), flows.len() - stale.len());
            assert!(!left.iter().any(meant));
        }
    });
}
