//! What `iptables-save` prints.

use pointsman_iptables::name::{Builtin, ChainName, Table};
use pointsman_iptables::saved::{Inventory, InventoryReader, meaning};
use pointsman_iptables::top;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let inventory = Inventory::parse(&text);
    let mut reader = InventoryReader::default();
    text.lines().for_each(|line| reader.line(line));
    if let Ok(whole) = reader.try_finish() {
        assert_eq!(whole, inventory, "a whole listing is what it says");
    }
    // A listing that goes on says nothing else about what it said before.
    let mut longer = InventoryReader::default();
    text.lines().chain([""]).for_each(|line| longer.line(line));
    assert_eq!(longer.finish(), inventory);
    for line in text.lines() {
        let words = meaning(line);
        assert!(
            words.iter().map(String::len).sum::<usize>() <= 2 * line.len() + 16,
            "{words:?}"
        );
    }
    for (table, from, rule) in top::jumps::<Ipv4Addr>() {
        let chain = ChainName::Builtin(from);
        let positions = inventory.positions(table, chain, &[&rule]);
        let occurrences = inventory.occurrences(table, chain, &rule);
        assert!(
            occurrences == 0 || positions[0].is_some(),
            "a rule that occurs has a position"
        );
    }
    for (table, from, rule) in top::jumps::<Ipv6Addr>() {
        let _ = inventory.holds(table, ChainName::Builtin(from), &[rule]);
    }
    for table in [Table::Nat, Table::Filter] {
        let (idle, _) = inventory.idle_buckets(table);
        assert!(idle.iter().all(|bucket| inventory.contains(table, *bucket)));
        assert!(
            inventory
                .transient(table)
                .all(|chain| inventory.contains(table, chain))
        );
        let _ = (
            inventory.is_flat(table),
            inventory.contains(table, ChainName::Builtin(Builtin::Prerouting)),
        );
    }
}
