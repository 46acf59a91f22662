//! Whatever happened before, the table is what a fresh one would be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Recovery, Scope, ServiceState, Settings};
use pointsman_model::{Moment, NodeName};
use pointsman_netlink::nft::{Data, Name, Value};
use pointsman_nft::{Class, Inventory, KernelTable, Planner, Pool, SetId, TableSettings};
use pointsman_testkit::cluster::Family;
use pointsman_testkit::history::{self, Random};
use proptest::prelude::*;

/// A proxy with a kernel in memory.
struct Proxy<A> {
    index: Index<A>,
    planner: Planner<A>,
    kernel: KernelTable,
    revision: u64,
}

fn settings<A: Family>() -> TableSettings<A> {
    let range = if A::BITS == 32 {
        "10.1.0.0/16"
    } else {
        "fd00:1::/32"
    };
    TableSettings::new(Settings {
        local: LocalDetector::from_ranges([range]),
        ..Settings::default()
    })
}

impl<A: Family> Proxy<A> {
    fn new() -> Self {
        Self {
            index: Index::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0)),
            planner: Planner::new(settings()),
            kernel: KernelTable::default(),
            revision: 0,
        }
    }

    /// Lives through one number: mostly a change, sometimes a sync, and trouble once in `calm` chances.
    fn live(&mut self, number: u64, calm: u64) {
        let mut random = Random(number);
        match random.below(20) {
            0..13 => {
                self.revision += 1;
                let event = history::event(random.draw(), A::FAMILY);
                history::fold(&mut self.index, &event, self.revision);
            }
            13 => self.fail(),
            14 if random.one_in(calm) => self.tamper(&mut random),
            15 if random.one_in(calm) => self.restart(),
            _ => self.sync(),
        }
    }

    fn sync(&mut self) {
        let batch = self.index.checkout();
        if batch.scope == Scope::Full {
            let states: Vec<_> = batch
                .changes
                .iter()
                .filter_map(|change| change.after.clone())
                .collect();
            self.adopt(&states);
        } else {
            let planned = self.planner.plan(&batch.changes);
            self.kernel
                .apply(&planned.transaction)
                .unwrap_or_else(|refused| panic!("{refused}\n{}", planned.transaction));
            self.planner.commit(planned.update);
        }
        let _ = self.index.commit(batch);
    }

    fn adopt(&mut self, states: &[Arc<ServiceState<A>>]) {
        let services = states.iter().map(|state| (&state.service.name, state.as_ref()));
        let adoption = self
            .planner
            .adopt(services.clone(), &Inventory::from(&self.kernel));
        self.kernel
            .apply(&adoption.repair)
            .unwrap_or_else(|refused| panic!("{refused}\n{}", adoption.repair));
        let again = self.planner.adopt(services, &Inventory::from(&self.kernel));
        assert!(
            again.repair.is_empty(),
            "a repaired table needs no repair:\n{}",
            again.repair
        );
        self.planner = adoption.planner;
    }

    /// The kernel refuses a transaction: it and the planner stay as they were.
    fn fail(&mut self) {
        let batch = self.index.checkout();
        let _ = self.planner.plan(&batch.changes);
        self.index.abort(batch, Recovery::Retry);
    }

    /// Someone else deletes something of ours.
    fn tamper(&mut self, random: &mut Random) {
        if random.one_in(3) {
            self.kernel = KernelTable::default();
        } else if random.one_in(2) {
            self.kernel.chains.remove(&Name::fixed("pick"));
        } else {
            for content in self.kernel.sets.values_mut() {
                content.elements.retain(|_, _| random.one_in(2));
            }
        }
        self.index.force_full();
    }

    /// A new process finds what the last one left, and writes nothing.
    fn restart(&mut self) {
        if self.index.has_changes() {
            self.sync();
        }
        let states: Vec<_> = self.index.programmed().map(|(_, state)| state.clone()).collect();
        let services = states.iter().map(|state| (&state.service.name, state.as_ref()));
        let adoption = self.planner.adopt(services, &Inventory::from(&self.kernel));
        assert!(
            adoption.repair.is_empty(),
            "a restart writes nothing:\n{}",
            adoption.repair
        );
        self.planner = adoption.planner;
    }

    /// The kernel holds what a fresh planner would write, but for the order of slots and idle timeouts.
    fn check(&self) {
        let states: Vec<_> = self.index.programmed().map(|(_, state)| state.clone()).collect();
        let services = states.iter().map(|state| (&state.service.name, state.as_ref()));
        let mut fresh = KernelTable::default();
        let adoption = self.planner.adopt(services, &Inventory::default());
        assert!(adoption.rebuilt);
        fresh.apply(&adoption.repair).expect("a full plan is sound");
        assert_eq!(normalise(&self.kernel), normalise(&fresh));
    }
}

/// The sets by name, with slots and tokens replaced by the endpoints they lead to.
fn normalise(table: &KernelTable) -> BTreeMap<Name, BTreeSet<(Value, String)>> {
    let mut sets = BTreeMap::new();
    let hidden: Vec<Name> = Pool::ALL
        .into_iter()
        .flat_map(|pool| [SetId::StickyBackends(pool).name(), SetId::Sticky(pool).name()])
        .collect();
    for (name, content) in &table.sets {
        let elements = content.elements.values().map(|element| (element.key, element));
        let slots_of = Pool::ALL
            .into_iter()
            .find(|pool| SetId::Backends(*pool).name() == *name || SetId::StickySlots(*pool).name() == *name);
        let elements: BTreeSet<(Value, String)> = match slots_of {
            Some(pool) => elements
                .map(|(key, element)| endpoint(table, pool, key, &element.data))
                .collect(),
            None => elements
                .map(|(key, element)| (key, element.to_string()))
                .collect(),
        };
        let idle = SetId::timeout_of(name).is_some() && elements.is_empty();
        if !idle && !hidden.contains(name) {
            sets.insert(name.clone(), elements);
        }
    }
    sets
}

/// A slot's destination and the endpoint it leads to. Checks that slots are dense on the way.
fn endpoint(table: &KernelTable, pool: Pool, key: Value, data: &Data) -> (Value, String) {
    let Data::Value(value) = data else {
        panic!("a slot leads nowhere")
    };
    let bytes = key.as_bytes();
    let (destination, slot) = bytes.split_at(bytes.len() - 4);
    let destination = Value::try_new(destination).unwrap();
    let slot = u32::from_ne_bytes(slot.try_into().unwrap());
    let class = Class::all()
        .find(|class| {
            table
                .element(&SetId::Size(pool, *class).name(), &destination)
                .is_some()
        })
        .expect("a destination with slots has a class");
    assert!(slot < class.range());
    let at = |slot: u32, set: SetId| {
        let mut key = destination;
        key.push_field(&slot.to_ne_bytes()).unwrap();
        table.element(&set.name(), &key)
    };
    let filled = |slot| {
        at(slot, SetId::Backends(pool))
            .or(at(slot, SetId::StickySlots(pool)))
            .is_some()
    };
    assert!(slot == 0 || filled(slot - 1), "slots are dense");
    let endpoint = if value.len() == 4 {
        let token = u32::from_ne_bytes(value.as_bytes().try_into().unwrap());
        let leads_to = at(token, SetId::StickyBackends(pool)).expect("a token leads to an endpoint");
        format!("sticky {:?}", leads_to.data)
    } else {
        format!("{value}")
    };
    (destination, endpoint)
}

fn run<A: Family>(numbers: impl Iterator<Item = u64>, check_every: usize, calm: u64) {
    let mut proxy = Proxy::<A>::new();
    for (index, number) in numbers.enumerate() {
        proxy.live(number, calm);
        if index % check_every == 0 && !proxy.index.has_changes() {
            proxy.check();
        }
    }
    proxy.sync();
    proxy.check();
    let planned = proxy.planner.plan(&proxy.index.checkout().changes);
    assert!(
        planned.transaction.is_empty(),
        "nothing changed:\n{}",
        planned.transaction
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn any_history_leaves_the_table_a_fresh_start_would(numbers in prop::collection::vec(any::<u64>(), 1..150)) {
        run::<Ipv4Addr>(numbers.iter().copied(), 10, 1);
        run::<Ipv6Addr>(numbers.into_iter(), 10, 1);
    }
}

#[test]
fn a_long_history_does_too() {
    // POINTSMAN_HISTORY=1000000 in a release build is the long version.
    let length = std::env::var("POINTSMAN_HISTORY")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(600);
    let mut random = Random(7);
    // Reading everything again takes far longer than a change, so a long life has less of it.
    let calm = if length > 10_000 { 100 } else { 1 };
    run::<Ipv4Addr>((0..length).map(|_| random.draw()), (length / 30).max(1), calm);
}
