//! A proxy's lower half with a real kernel, for tests and measurements.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod network;

use std::sync::Arc;

use pointsman_dataplane::{Index, Scope, ServiceState};
use pointsman_netlink::nft::{Element, Op, Transaction};
use pointsman_netlink_io::{Buffers, Client};
use pointsman_nft::{Inventory, KernelTable, Planner, Records, SetId, TABLE, TableSettings, family};
use pointsman_testkit::cluster::Family;

/// Reads the table from the kernel of the calling thread's namespace.
pub fn read_table<A: Family>(client: &mut Client) -> KernelTable {
    let family = family::<A>();
    if !client
        .tables(family)
        .unwrap()
        .iter()
        .any(|table| table.name == TABLE)
    {
        return KernelTable::default();
    }
    let sets = client.sets(family, &TABLE).unwrap();
    let sets: Vec<_> = sets
        .into_iter()
        .map(|set| {
            let mut elements = client.elements(family, &TABLE, &set.name).unwrap();
            // The kernel begins every set of ranges with the end of nothing.
            elements.retain(|element| !is_implicit(element));
            (set, elements)
        })
        .collect();
    let chains = client.chains(family, &TABLE).unwrap();
    let rules = client.rules(family, &TABLE).unwrap();
    KernelTable::from_dump(sets, chains, rules.into_iter().map(|(rule, _)| rule))
}

/// Reads the table for comparison only.
pub fn read_inventory<A: Family>(client: &mut Client) -> Inventory {
    let family = family::<A>();
    let chains = client.chains(family, &TABLE).unwrap();
    let rules = client.rules(family, &TABLE).unwrap();
    let mut inventory = Inventory::new(chains, rules.into_iter().map(|(rule, _)| rule));
    let affinity = SetId::Affinity.name();
    for set in client.sets(family, &TABLE).unwrap() {
        let empty = || Records::new(&set);
        let records = if set.name == affinity {
            empty()
        } else {
            let at = (family, &TABLE, &set.name);
            let push = |records: &mut Records, element: Element| records.push(&element);
            client.collect_elements(at, empty, push).unwrap()
        };
        inventory.add_set(set, records);
    }
    inventory
}

fn is_implicit(element: &Element) -> bool {
    element.interval_end && element.key.as_bytes().iter().all(|byte| *byte == 0)
}

/// An index, a planner, the kernel and a model of it.
pub struct Proxy<A> {
    pub client: Client,
    pub planner: Planner<A>,
    pub model: KernelTable,
}

impl<A: Family> Proxy<A> {
    /// Opens the kernel of the calling thread's namespace; nothing is written yet.
    pub fn new(settings: TableSettings<A>) -> Self {
        Self {
            client: Client::open(Buffers::default()).unwrap(),
            planner: Planner::new(settings),
            model: KernelTable::default(),
        }
    }

    /// Brings what changed in the index to the kernel; returns the number of elements written.
    pub fn sync(&mut self, index: &mut Index<A>) -> usize {
        let batch = index.checkout();
        let written = if batch.scope == Scope::Full {
            let states: Vec<_> = batch
                .changes
                .iter()
                .filter_map(|change| change.after.clone())
                .collect();
            self.adopt(&states)
        } else {
            let planned = self.planner.plan(&batch.changes);
            self.commit(&planned.transaction);
            self.planner.commit(planned.update);
            planned.transaction.element_count()
        };
        let _ = index.commit(batch);
        written
    }

    /// Compares with the kernel and repairs the difference; returns the number of elements written.
    pub fn adopt(&mut self, states: &[Arc<ServiceState<A>>]) -> usize {
        let services = states.iter().map(|state| (&state.service.name, state.as_ref()));
        let kernel = read_table::<A>(&mut self.client);
        let adoption = self.planner.adopt(services, &Inventory::from(&kernel));
        self.model = kernel;
        self.commit(&adoption.repair);
        self.planner = adoption.planner;
        adoption.repair.element_count()
    }

    pub fn commit(&mut self, transaction: &Transaction) {
        if transaction.is_empty() {
            return;
        }
        self.client
            .commit(std::slice::from_ref(transaction), None)
            .unwrap_or_else(|error| panic!("{error}\n{}", short(transaction)));
        self.model
            .apply(transaction)
            .expect("what the kernel takes, the model takes");
    }

    /// The kernel's elements are the model's, in every set that packets do not fill.
    pub fn check_elements(&mut self) {
        let affinity = SetId::Affinity.name();
        for (name, content) in self.model.sets.iter().filter(|(name, _)| **name != affinity) {
            let mut elements = self.client.elements(family::<A>(), &TABLE, name).unwrap();
            elements.retain(|element| !is_implicit(element));
            elements.sort();
            let mut wanted: Vec<Element> = content.elements.values().cloned().collect();
            wanted.sort();
            assert_eq!(elements, wanted, "{name}");
        }
    }

    /// The kernel holds what the model holds: the same chains, rules, sets and elements.
    pub fn check(&mut self) {
        let mut kernel = read_table::<A>(&mut self.client);
        for table in [&mut kernel, &mut self.model] {
            if let Some(affinity) = table.sets.get_mut(&SetId::Affinity.name()) {
                affinity.elements.clear();
            }
        }
        assert!(kernel.chains == self.model.chains, "the chains differ");
        for (name, content) in &self.model.sets {
            assert_eq!(kernel.sets.get(name), Some(content), "{name}");
        }
        assert_eq!(kernel.sets.len(), self.model.sets.len());
    }
}

fn short(transaction: &Transaction) -> String {
    let elements = |op: &&Op| matches!(op, Op::AddElements { .. } | Op::DeleteElements { .. });
    let ops = transaction
        .ops
        .iter()
        .filter(elements)
        .take(20)
        .cloned()
        .collect();
    Transaction {
        ops,
        ..transaction.clone()
    }
    .to_string()
}
