//! What the kernel answers over netlink: dumps of nf_tables, tracked flows, counters, virtual servers and error replies; and
//! tables of the older iptables interface.

use pointsman_netlink::accounting::packets;
use pointsman_netlink::conntrack::Flow;
use pointsman_netlink::ipvs::VirtualServer;
use pointsman_netlink::netlink::{ErrorReply, Header, Message, Messages, Writer};
use pointsman_netlink::nft::{
    Batch, Chain, Element, ElementList, Family, Name, Notice, Op, Rule, Set, Table, Transaction, Value,
};
use pointsman_netlink::xtables::{Entries, Info};

pub(crate) fn run(input: &[u8]) {
    tables(input);
    for message in Messages::new(input).map_while(Result::ok) {
        if let Ok(reply) = ErrorReply::decode(&message)
            && let Some(fault) = asked().fault(&reply)
        {
            let _ = fault.to_string();
        }
        let _ = Flow::decode(&message);
        let _ = packets(&message);
        let _ = Notice::decode(&message);
        if let Ok(Some(server)) = VirtualServer::decode(&message) {
            let mut written = Writer::new();
            written.message(header(), |w| server.encode(w));
            let again = Messages::new(written.bytes()).next();
            let again = again.and_then(Result::ok).expect("one message was written");
            assert_eq!(VirtualServer::decode(&again), Ok(Some(server)));
        }
        decode(&message);
    }
}

/// Entries follow each other without a gap, whatever they say.
fn tables(input: &[u8]) {
    let _ = Info::decode(input);
    for is_v4 in [true, false] {
        let mut ends = 0;
        for entry in Entries::new(is_v4, input).map_while(Result::ok) {
            assert!(entry.offset == ends && entry.ends > ends && entry.ends <= input.len());
            ends = entry.ends;
            let _ = (entry.destination(), entry.protocol(), entry.is_narrowed());
            let _ = (entry.target(), entry.matches().count());
        }
    }
}

const fn header() -> Header {
    Header {
        kind: 32,
        flags: 0,
        sequence: 1,
        family: 0,
        version: 1,
        resource: 0,
    }
}

/// Reads a message as everything that it could be. What was read can be written, and is then read as the same.
fn decode(message: &Message<'_>) {
    if let Ok(Some(table)) = Table::decode(message) {
        let (name, family) = (table.name.clone(), table.family);
        assert_same(family, name, Op::AddTable(table.clone()), |written| {
            Table::decode(written).is_ok_and(|read| read.as_ref() == Some(&table))
        });
    }
    if let Ok((table, chain)) = Chain::decode(message) {
        assert_same(
            Family::Ip,
            table.clone(),
            Op::AddChain(chain.clone()),
            |written| Chain::decode(written).is_ok_and(|read| read == (table, chain)),
        );
    }
    if let Ok((table, set)) = Set::decode(message) {
        assert_same(Family::Ip, table.clone(), Op::AddSet(set.clone()), |written| {
            Set::decode(written).is_ok_and(|read| read == (table, set))
        });
    }
    if let Ok((table, rule, _)) = Rule::decode(message) {
        assert_same(Family::Ip, table.clone(), Op::AddRule(rule.clone()), |written| {
            Rule::decode(written).is_ok_and(|(name, read, _)| (name, read) == (table, rule))
        });
    }
    if let Ok(mut list) = ElementList::decode(message)
        && !list.elements.is_empty()
    {
        for element in &mut list.elements {
            let _ = element.to_string();
            // The kernel says when an element expires; nobody tells it.
            element.expires_ms = None;
        }
        let (set, elements) = (list.set.clone(), list.elements.clone());
        assert_same(
            Family::Ip,
            list.table.clone(),
            Op::AddElements { set, elements },
            |written| ElementList::decode(written).is_ok_and(|read| read == list),
        );
    }
}

/// Writes one change and hands the message to `is_same`. Changes that do not fit into one message are left alone.
fn assert_same(family: Family, table: Name, op: Op, is_same: impl FnOnce(&Message<'_>) -> bool) {
    let shown = format!("{op:?}");
    let mut transaction = Transaction::new(family, table);
    transaction.ops.push(op);
    let Ok(batch) = Batch::encode(&[transaction], None, 1) else {
        return;
    };
    let messages: Result<Vec<Message<'_>>, _> = Messages::new(batch.bytes()).collect();
    let messages = messages.expect("a batch is well-formed");
    // The change stands between the beginning and the end.
    if let [_, written, _] = messages.as_slice() {
        assert!(
            is_same(written),
            "written and read again it is something else: {shown}"
        );
    }
}

/// A batch that a reply may be about.
fn asked() -> Batch {
    let mut transaction = Transaction::new(Family::Ip, Name::fixed("pointsman"));
    transaction
        .ops
        .push(Op::AddChain(Chain::regular(Name::fixed("services"))));
    transaction.ops.push(Op::AddElements {
        set: Name::fixed("endpoints"),
        elements: (0..3)
            .map(|number| Element::new(Value::host_u32(number)))
            .collect(),
    });
    Batch::encode(&[transaction], None, 1).expect("a few elements fit")
}
