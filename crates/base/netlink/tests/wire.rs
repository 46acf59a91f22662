//! Does decoding undo encoding, and does it survive any bytes?

use pointsman_netlink::conntrack::Flow;
use pointsman_netlink::netlink::{ErrorReply, Messages, kind};
use pointsman_netlink::nft::{
    BaseChain, Batch, BatchError, Chain, ChainKind, CmpOp, CtDirection, CtKey, Data, DataSpec, DynsetOp,
    Element, ElementList, Expr, Family, FibFlags, FibResult, Field, Generation, Hook, LookupTarget, MetaKey,
    Name, NatKind, Op, PayloadBase, Policy, RangeOp, Register, RejectKind, Rule, Set, SetFlags, Table,
    Transaction, UserData, Value, Verdict,
};
use proptest::prelude::*;
use proptest::sample::select;

fn name() -> impl Strategy<Value = Name> {
    prop::collection::vec(select(b"abcdefgh-0123456789".to_vec()), 1..40)
        .prop_map(|bytes| Name::try_new(String::from_utf8(bytes).unwrap()).unwrap())
}

fn value() -> impl Strategy<Value = Value> {
    prop::collection::vec(any::<u8>(), 1..=64).prop_map(|bytes| Value::try_new(&bytes).unwrap())
}

fn register() -> impl Strategy<Value = Register> {
    (0u8..16).prop_map(|index| Register::new(index).unwrap())
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Drop),
        Just(Verdict::Accept),
        Just(Verdict::Continue),
        Just(Verdict::Return),
        name().prop_map(Verdict::Jump),
        name().prop_map(Verdict::Goto),
    ]
}

fn target() -> impl Strategy<Value = LookupTarget> {
    prop_oneof![
        Just(LookupTarget::Membership),
        Just(LookupTarget::Verdict),
        register().prop_map(LookupTarget::Data),
    ]
}

fn loads() -> impl Strategy<Value = Expr> {
    let meta = select(vec![
        MetaKey::Priority,
        MetaKey::Mark,
        MetaKey::InputName,
        MetaKey::L4Proto,
    ]);
    let ct = select(vec![CtKey::State, CtKey::Status, CtKey::DstIp, CtKey::ProtoDst]);
    let base = select(vec![
        PayloadBase::Link,
        PayloadBase::Network,
        PayloadBase::Transport,
    ]);
    prop_oneof![
        (register(), base, any::<u32>(), any::<u32>()).prop_map(|(dreg, base, offset, len)| Expr::Payload {
            dreg,
            base,
            offset,
            len
        }),
        (register(), meta.clone()).prop_map(|(dreg, key)| Expr::Meta { dreg, key }),
        (register(), meta).prop_map(|(sreg, key)| Expr::MetaSet { sreg, key }),
        (
            register(),
            ct,
            prop::option::of(select(vec![CtDirection::Original, CtDirection::Reply]))
        )
            .prop_map(|(dreg, key, direction)| Expr::Ct { dreg, key, direction }),
        (register(), value()).prop_map(|(dreg, value)| Expr::Load { dreg, value }),
        (register(), any::<u32>(), any::<bool>(), any::<u32>()).prop_map(
            |(dreg, modulus, random, offset)| Expr::Numgen {
                dreg,
                modulus,
                random,
                offset
            }
        ),
        (register(), any::<u32>()).prop_map(|(dreg, flags)| Expr::Fib {
            dreg,
            result: FibResult::AddressType,
            flags: FibFlags(flags)
        }),
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    let cmp = select(vec![CmpOp::Eq, CmpOp::Neq, CmpOp::Lt, CmpOp::Gte]);
    prop_oneof![
        loads(),
        (register(), cmp, value()).prop_map(|(sreg, op, value)| Expr::Cmp { sreg, op, value }),
        (
            register(),
            select(vec![RangeOp::Within, RangeOp::Outside]),
            value(),
            value()
        )
            .prop_map(|(sreg, op, from, to)| Expr::Range { sreg, op, from, to }),
        (register(), register(), value()).prop_map(|(sreg, dreg, mask)| Expr::Bitwise {
            sreg,
            dreg,
            mask,
            xor: mask
        }),
        (name(), register(), target(), any::<bool>()).prop_map(|(set, sreg, target, invert)| Expr::Lookup {
            set,
            sreg,
            target,
            invert
        }),
        verdict().prop_map(Expr::Verdict),
        (
            prop::option::of(register()),
            prop::option::of(register()),
            select(vec![0u32, 4, 0x10])
        )
            .prop_map(|(address, port, flags)| Expr::Nat {
                kind: NatKind::Destination,
                family: Family::Ip6,
                address,
                port,
                flags
            }),
        any::<u32>().prop_map(|flags| Expr::Masquerade { flags }),
        (any::<u64>(), any::<u64>()).prop_map(|(packets, bytes)| Expr::Counter { packets, bytes }),
        (select(vec![RejectKind::Icmp, RejectKind::TcpReset]), any::<u8>())
            .prop_map(|(kind, code)| Expr::Reject { kind, code }),
        (
            name(),
            register(),
            prop::option::of(register()),
            prop::option::of(1..u64::MAX)
        )
            .prop_map(|(set, key, data, timeout_ms)| Expr::Dynset {
                set,
                op: DynsetOp::Update,
                key,
                data,
                timeout_ms
            }),
    ]
}

fn userdata() -> impl Strategy<Value = UserData> {
    prop_oneof![
        Just(UserData::default()),
        ".{0,40}".prop_map(|text| UserData::comment(&text))
    ]
}

fn element() -> impl Strategy<Value = Element> {
    let data = prop_oneof![
        Just(Data::None),
        value().prop_map(Data::Value),
        verdict().prop_map(Data::Verdict)
    ];
    (
        value(),
        prop::option::of(value()),
        data,
        any::<bool>(),
        prop::option::of(any::<u64>()),
        userdata(),
    )
        .prop_map(|(key, end, data, interval_end, timeout_ms, userdata)| Element {
            key,
            key_end: end.map(Box::new),
            data,
            interval_end,
            timeout_ms,
            expires_ms: None,
            userdata,
        })
}

fn set() -> impl Strategy<Value = Set> {
    let fields = || {
        prop::collection::vec(
            select(vec![
                Field::IpDaddr,
                Field::Ip6Saddr,
                Field::L4Proto,
                Field::ThDport,
                Field::Priority,
                Field::Random { modulus: 7 },
            ]),
            1..4,
        )
    };
    prop_oneof![
        (name(), fields()).prop_map(|(name, key)| Set::new(name, &key, "a comment")),
        (name(), fields()).prop_map(|(name, key)| Set::interval(name, &key, "")),
        (name(), fields(), fields()).prop_map(|(name, key, data)| Set::map(name, &key, &data, "")),
        (name(), fields(), fields()).prop_map(|(name, key, data)| {
            Set::dynamic_map(name, &key, &data, 1 << 16, 60_000, "sticky clients")
        }),
        (name(), fields()).prop_map(|(name, key)| Set {
            flags: SetFlags::MAP,
            data: DataSpec::Verdict,
            ..Set::new(name, &key, "")
        }),
    ]
}

fn chain() -> impl Strategy<Value = Chain> {
    let base = (
        select(vec![ChainKind::Filter, ChainKind::Nat, ChainKind::Route]),
        select(vec![
            Hook::Prerouting,
            Hook::Forward,
            Hook::Output,
            Hook::Postrouting,
        ]),
        any::<i32>(),
        select(vec![Policy::Accept, Policy::Drop]),
    )
        .prop_map(|(kind, hook, priority, policy)| BaseChain {
            kind,
            hook,
            priority,
            policy,
        });
    (name(), prop::option::of(base), userdata()).prop_map(|(name, base, userdata)| Chain {
        name,
        base,
        userdata,
    })
}

fn transaction(ops: Vec<Op>) -> Transaction {
    Transaction {
        family: Family::Ip,
        table: Name::fixed("t"),
        ops,
    }
}

/// Encodes one change and returns the messages between the batch's begin and end.
fn encode(op: Op) -> Vec<u8> {
    let batch = Batch::encode(&[transaction(vec![op])], Some(Generation(7)), 100).unwrap();
    let bytes = batch.bytes();
    let first = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes[first..bytes.len() - 20].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_rule_comes_back(chain in name(), exprs in prop::collection::vec(expr(), 0..12), userdata in userdata()) {
        let rule = Rule { chain, exprs, userdata };
        let bytes = encode(Op::AddRule(rule.clone()));
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        prop_assert_eq!(Rule::decode(&message).unwrap().1, rule);
    }

    #[test]
    fn a_chain_a_set_and_a_table_come_back(chain in chain(), set in set(), table in name(), userdata in userdata()) {
        let bytes = encode(Op::AddChain(chain.clone()));
        prop_assert_eq!(Chain::decode(&Messages::new(&bytes).next().unwrap().unwrap()).unwrap().1, chain);
        let bytes = encode(Op::AddSet(set.clone()));
        prop_assert_eq!(Set::decode(&Messages::new(&bytes).next().unwrap().unwrap()).unwrap().1, set);
        let table = Table { family: Family::Ip, name: table, userdata };
        let bytes = encode(Op::AddTable(table.clone()));
        prop_assert_eq!(Table::decode(&Messages::new(&bytes).next().unwrap().unwrap()).unwrap(), Some(table));
    }

    #[test]
    fn elements_come_back_however_many(elements in prop::collection::vec(element(), 1..20), times in select(vec![1usize, 3, 150])) {
        let all: Vec<Element> = elements.iter().cycle().take(elements.len() * times).cloned().collect();
        let bytes = encode(Op::AddElements { set: Name::fixed("s"), elements: all.clone() });
        let mut found = Vec::new();
        for message in Messages::new(&bytes) {
            found.extend(ElementList::decode(&message.unwrap()).unwrap().elements);
        }
        prop_assert_eq!(found, all);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
    }

    #[test]
    fn no_damage_to_a_message_makes_a_decoder_panic(
        exprs in prop::collection::vec(expr(), 1..6),
        element in element(),
        set in set(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        for op in [
            Op::AddRule(Rule::new(Name::fixed("c"), exprs.clone())),
            Op::AddElements { set: Name::fixed("s"), elements: vec![element.clone()] },
            Op::AddSet(set.clone()),
        ] {
            let mut bytes = encode(op);
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            decode_everything(&bytes);
        }
    }
}

fn decode_everything(bytes: &[u8]) {
    for message in Messages::new(bytes).map_while(Result::ok) {
        let _ = Table::decode(&message);
        let _ = Chain::decode(&message);
        let _ = Rule::decode(&message);
        let _ = Set::decode(&message);
        let _ = ElementList::decode(&message);
        let _ = Flow::decode(&message);
        let _ = ErrorReply::decode(&message);
    }
}

#[test]
fn a_list_of_elements_is_split_before_its_length_overflows() {
    let elements: Vec<Element> = (0..50_000u32)
        .map(|number| Element::mapping(Value::host_u32(number), Value::host_u32(!number)))
        .collect();
    let batch = Batch::encode(
        &[transaction(vec![Op::AddElements {
            set: Name::fixed("s"),
            elements,
        }])],
        None,
        1,
    )
    .unwrap();
    let lengths: Vec<usize> = Messages::new(batch.bytes())
        .map(|message| message.unwrap().payload.len())
        .collect();
    assert!(
        lengths.len() > 20 && lengths.iter().all(|length| *length < 65_536),
        "{lengths:?}"
    );
}

#[test]
fn a_rule_that_cannot_be_written_is_refused_and_named() {
    let load = Expr::Load {
        dreg: Register::fixed(0),
        value: Value::try_new(&[1; 64]).unwrap(),
    };
    let rule = Rule::new(Name::fixed("c"), vec![load; 2000]);
    let ops = vec![Op::AddChain(Chain::regular(Name::fixed("c"))), Op::AddRule(rule)];
    assert_eq!(
        Batch::encode(&[transaction(ops)], None, 1).unwrap_err(),
        BatchError::TooLong {
            transaction: 0,
            op: 1
        }
    );
}

#[test]
fn an_error_is_mapped_back_to_the_change_the_element_and_the_attribute() {
    let elements: Vec<Element> = (0..3)
        .map(|number| Element::new(Value::host_u32(number)))
        .collect();
    let ops = vec![
        Op::AddChain(Chain::regular(Name::fixed("c"))),
        Op::AddElements {
            set: Name::fixed("s"),
            elements,
        },
    ];
    let batch = Batch::encode(&[transaction(ops)], None, 40).unwrap();
    let message = Messages::new(batch.bytes()).nth(2).unwrap().unwrap();
    // The third element's key: after both headers, the two names (8 bytes each), the list and two elements.
    let offset = 16 + 4 + 8 + 8 + 4 + 2 * 16 + 4;
    let reply = ErrorReply {
        sequence: message.sequence,
        error: Some(pointsman_netlink::netlink::Errno::EXIST),
        message: None,
        offset: Some(offset),
    };
    let fault = batch.fault(&reply).unwrap();
    assert_eq!((fault.op, fault.element), (Some((0, 1)), Some(2)));
    assert_eq!(fault.attribute.as_deref(), Some("ELEMENTS/[2]/KEY"));
    assert!(!batch.owns(39) && batch.owns(40) && batch.owns(43) && !batch.owns(44));
    assert_eq!(
        Messages::new(batch.bytes()).last().unwrap().unwrap().kind,
        kind::BATCH_END
    );
}
