//! What has to change in a table that is already there?
//!
//! After a restart the kernel holds what the last process left. It is read once and compared; slots are
//! taken as they are found, so that a correct table needs no change at all. The same comparison finds and
//! heals what others changed while we run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use pointsman_dataplane::{PortView, ServiceState};
use pointsman_model::{Address, ServiceName};
use pointsman_netlink::nft::{Data, Element, Name, Op, Rule, Transaction, Value};

use super::{Counts, Planner, PortSlots, Step, free_number, fresh};
use crate::inventory::{Inventory, Records};
use crate::key;
use crate::pool::Pool;
use crate::ruleset::{TABLE, family, timeout_rule, touch};
use crate::set_id::SetId;
use crate::shape::{ListOf, Shape, backend_of};
use crate::slots::Slots;

/// The outcome of comparing the kernel's table with the desired one.
#[derive(Debug)]
pub struct Adoption<A> {
    /// A planner whose state is that of the repaired table.
    pub planner: Planner<A>,
    /// What to write; empty if the table is correct.
    pub repair: Transaction,
    /// Whether the table had to be made anew, because it is missing or of another layout.
    pub rebuilt: bool,
}

impl<A: Address> Planner<A> {
    /// Compares a table with what these Services need, whatever this planner knew about it.
    pub fn adopt<'a>(
        &self,
        services: impl Iterator<Item = (&'a ServiceName, &'a ServiceState<A>)>,
        kernel: &Inventory,
    ) -> Adoption<A> {
        let mut planner = self.without_services();
        let usable = planner.layout_matches(kernel);
        let empty = Inventory::default();
        let found = if usable { kernel } else { &empty };
        let mut desired = Desired::<A>::default();
        let mut slots_of_all = Vec::new();
        for (name, state) in services {
            let slots = planner.find_slots(state, found);
            planner.count_in(
                &Shape::new(state, &slots, planner.settings.shared.node_ip),
                &mut desired,
            );
            if slots != fresh(state) {
                slots_of_all.push((name.clone(), slots.into_boxed_slice()));
            }
        }
        planner.orders.extend(slots_of_all);
        for address in planner.cluster_ips.keys() {
            desired.push(SetId::ClusterIps, &Element::new(key::address(address)));
        }
        for address in planner.hairpins.keys() {
            desired.push(SetId::Hairpin, &Element::new(key::hairpin(address)));
        }
        let mut repair = Transaction::new(family::<A>(), TABLE);
        if usable {
            planner.repair_chains(kernel, &mut repair.ops);
        } else {
            planner.rebuild(kernel, &mut repair.ops);
        }
        planner.repair_elements(found, desired, &mut repair.ops);
        planner.remove_strangers(found, &mut repair.ops);
        Adoption {
            planner,
            repair,
            rebuilt: !usable,
        }
    }

    /// The keys that these Services need in the map of this pool's endpoints, whatever the order of their slots:
    /// which endpoint has which slot, only the table knows.
    pub fn slot_keys<'a>(
        pool: Pool,
        services: impl Iterator<Item = &'a ServiceState<A>>,
    ) -> impl Iterator<Item = Value> {
        let of_port = move |port: PortView<'_, A>| {
            let slots = PortSlots::fresh(&port);
            let lists = Shape::of_port(&port, &slots);
            let plain = lists
                .iter()
                .filter(|list| list.pool == pool && list.affinity.is_none());
            let keys = plain.flat_map(|list| {
                let key = list.key;
                (0..list.slots.len() as u32).map(move |slot| key.with_number(slot))
            });
            keys.collect::<Vec<_>>()
        };
        services.flat_map(move |state| state.ports().flat_map(of_port).collect::<Vec<_>>())
    }

    fn without_services(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            ruleset: Arc::clone(&self.ruleset),
            orders: HashMap::new(),
            cluster_ips: Counts::default(),
            hairpins: Counts::default(),
            timeouts: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Whether the sets and base chains are declared as ours are: they cannot be changed in place.
    fn layout_matches(&self, kernel: &Inventory) -> bool {
        let ruleset = &self.ruleset;
        let sets = ruleset.sets.iter().all(|set| {
            let found = kernel.sets.get(&set.name);
            found.is_none_or(|(found, _)| found == set)
        });
        let chains = ruleset.chains.values().all(|(chain, _)| {
            let found = kernel.chains.get(&chain.name);
            found.is_none_or(|found| found.chain.base == chain.base)
        });
        kernel.exists && sets && chains
    }

    fn rebuild(&self, kernel: &Inventory, ops: &mut Vec<Op>) {
        if kernel.exists {
            ops.push(Op::DeleteTable);
        }
        // The elements come with all others.
        ops.extend(self.ruleset.create_empty().ops);
        for &(pool, seconds) in self.timeouts.keys() {
            ops.push(Op::AddSet(
                SetId::Timeout(pool, seconds).declare::<A>(self.settings.affinity_clients),
            ));
            ops.push(Op::AddRule(timeout_rule::<A>(pool, seconds)));
        }
    }

    /// Puts missing sets, chains and rules back, and removes what is too much.
    fn repair_chains(&mut self, kernel: &Inventory, ops: &mut Vec<Op>) {
        let ruleset = Arc::clone(&self.ruleset);
        let missing_sets = ruleset
            .sets
            .iter()
            .filter(|set| !kernel.sets.contains_key(&set.name));
        ops.extend(missing_sets.cloned().map(Op::AddSet));
        for &(pool, seconds) in self.timeouts.keys() {
            if !kernel.sets.contains_key(&SetId::Timeout(pool, seconds).name()) {
                let set = SetId::Timeout(pool, seconds).declare::<A>(self.settings.affinity_clients);
                ops.push(Op::AddSet(set));
            }
        }
        let missing_chains = ruleset
            .chains
            .values()
            .filter(|(chain, _)| !kernel.chains.contains_key(&chain.name));
        ops.extend(missing_chains.map(|(chain, _)| Op::AddChain(chain.clone())));
        for (name, (_, rules)) in &ruleset.chains {
            let touched = Pool::ALL.into_iter().find(|pool| touch(*pool) == *name);
            let wanted = match touched {
                Some(pool) => self.touch_rules(pool, kernel),
                None => rules.clone(),
            };
            let found = kernel
                .chains
                .get(name)
                .map_or(&[] as &[_], |content| &content.rules);
            if found != wanted {
                if !found.is_empty() {
                    ops.push(Op::FlushChain(name.clone()));
                }
                ops.extend(
                    wanted
                        .into_iter()
                        .map(|exprs| Op::AddRule(Rule::new(name.clone(), exprs))),
                );
            }
        }
    }

    /// The rules for timeouts. Those found are kept in their order, even if idle now.
    fn touch_rules(&mut self, pool: Pool, kernel: &Inventory) -> Vec<Vec<pointsman_netlink::nft::Expr>> {
        let declared = kernel
            .sets
            .keys()
            .filter_map(SetId::timeout_of)
            .filter(|(of, _)| *of == pool);
        let by_rule: HashMap<_, u32> = declared
            .map(|(_, seconds)| (timeout_rule::<A>(pool, seconds).exprs, seconds))
            .collect();
        let found = kernel
            .chains
            .get(&touch(pool))
            .map_or(&[] as &[_], |content| &content.rules);
        let mut order: Vec<u32> = found
            .iter()
            .filter_map(|rule| by_rule.get(rule).copied())
            .collect();
        let mut seen = BTreeSet::new();
        order.retain(|seconds| seen.insert(*seconds));
        for seconds in &order {
            self.timeouts.entry((pool, *seconds)).or_insert(0);
        }
        let used = self
            .timeouts
            .keys()
            .filter(|(of, seconds)| *of == pool && !seen.contains(seconds));
        order.extend(used.map(|(_, seconds)| *seconds));
        order
            .into_iter()
            .map(|seconds| timeout_rule::<A>(pool, seconds).exprs)
            .collect()
    }

    fn repair_elements(&self, kernel: &Inventory, mut desired: Desired<A>, ops: &mut Vec<Op>) {
        for (set, elements) in &self.ruleset.elements {
            elements.iter().for_each(|element| desired.push(*set, element));
        }
        let mut sets = SetId::fixed();
        sets.extend(
            self.timeouts
                .keys()
                .map(|(pool, seconds)| SetId::Timeout(*pool, *seconds)),
        );
        let mut additions = Vec::new();
        for id in sets {
            let mut wanted = desired.take(id);
            wanted.sort();
            let (gone, come) = match kernel.sets.get(&id.name()) {
                Some((_, found)) => found.difference(&wanted),
                None => Desired::<A>::empty(id).difference(&wanted),
            };
            if !gone.is_empty() {
                let set = id.name();
                ops.push(Op::DeleteElements { set, elements: gone });
            }
            if !come.is_empty() {
                let set = id.name();
                additions.push(Op::AddElements { set, elements: come });
            }
        }
        ops.extend(additions);
    }

    /// Chains and sets of the table that are not ours, such as an older version's.
    fn remove_strangers(&self, kernel: &Inventory, ops: &mut Vec<Op>) {
        let ruleset = &self.ruleset;
        let strange: Vec<&Name> = kernel
            .chains
            .keys()
            .filter(|name| !ruleset.chains.contains_key(*name))
            .collect();
        ops.extend(strange.iter().map(|name| Op::FlushChain((*name).clone())));
        ops.extend(strange.iter().map(|name| Op::DeleteChain((*name).clone())));
        let known: BTreeSet<Name> = ruleset
            .sets
            .iter()
            .map(|set| set.name.clone())
            .chain(
                self.timeouts
                    .keys()
                    .map(|(pool, seconds)| SetId::Timeout(*pool, *seconds).name()),
            )
            .collect();
        let strange = kernel.sets.keys().filter(|name| !known.contains(*name));
        ops.extend(strange.map(|name| Op::DeleteSet(name.clone())));
    }

    /// The slots a Service's ports have in the table.
    fn find_slots(&self, state: &ServiceState<A>, kernel: &Inventory) -> Vec<PortSlots<A>> {
        if kernel.sets.is_empty() {
            return fresh(state);
        }
        let mut found = fresh(state);
        for (port, slots) in state.ports().zip(&mut found) {
            let one = std::slice::from_ref(&*slots);
            let shape = Shape::of_port(&port, &one[0]);
            let cluster = shape
                .iter()
                .find(|list| std::ptr::eq(list.slots, &one[0].cluster));
            let local = shape.iter().find(|list| std::ptr::eq(list.slots, &one[0].local));
            let adopt = |list: Option<&ListOf<'_, A>>, fresh: &Slots<A>, other: &Slots<A>| {
                let places = list.map(|list| read_list(list, kernel)).unwrap_or_default();
                Slots::adopt(fresh.0.iter().map(|slot| slot.backend), &places, other)
            };
            let cluster = adopt(cluster, &one[0].cluster, &Slots::NONE);
            let local = adopt(local, &one[0].local, &cluster);
            let used = |number: &u16| self.numbers.contains_key(number);
            let number = match (
                slots.number,
                shape.first().and_then(|list| read_number(list, kernel)),
            ) {
                (0, _) => 0,
                (_, Some(found)) if !used(&found) => found,
                (usual, _) => free_number(usual, used),
            };
            *slots = PortSlots {
                number,
                cluster,
                local,
            };
        }
        found
    }

    fn count_in(&mut self, shape: &Shape<'_, A>, desired: &mut Desired<A>) {
        let base = Counts::default();
        if let Some(address) = shape.cluster_ip {
            self.cluster_ips.step(&base, address, Step::Add);
        }
        for address in &shape.hairpins {
            self.hairpins.step(&base, *address, Step::Add);
        }
        for list in &shape.lists {
            if let Some(affinity) = list.affinity {
                *self.timeouts.entry((list.pool, affinity.seconds)).or_insert(0) += 1;
                *self.numbers.entry(affinity.number).or_insert(0) += 1;
            }
        }
        let lists = shape.lists.iter().flat_map(ListOf::elements);
        for (set, element) in shape.members.iter().cloned().chain(lists) {
            desired.push(set, &element);
        }
    }
}

/// Elements as they should be.
#[derive(Debug)]
struct Desired<A> {
    by_set: BTreeMap<SetId, Records>,
    family: PhantomData<A>,
}

impl<A> Default for Desired<A> {
    fn default() -> Self {
        Self {
            by_set: BTreeMap::new(),
            family: PhantomData,
        }
    }
}

impl<A: Address> Desired<A> {
    fn push(&mut self, set: SetId, element: &Element) {
        self.by_set
            .entry(set)
            .or_insert_with(|| Self::empty(set))
            .push(element);
    }

    fn take(&mut self, set: SetId) -> Records {
        self.by_set.remove(&set).unwrap_or_else(|| Self::empty(set))
    }

    fn empty(set: SetId) -> Records {
        // The size of dynamic sets has no influence on their elements.
        Records::new(&set.declare::<A>(1))
    }
}

/// The number that the table has for the list's port.
fn read_number<A: Address>(list: &ListOf<'_, A>, kernel: &Inventory) -> Option<u16> {
    let (_, sticky) = kernel.sets.get(&SetId::Sticky(list.pool).name())?;
    let Data::Value(value) = sticky.data_of(&list.key.value())? else {
        return None;
    };
    let number = u32::from_ne_bytes(*value.as_bytes().first_chunk::<4>()?);
    u16::try_from(number >> 16).ok().filter(|number| *number != 0)
}

/// Endpoints with the slots they have in the table, and the tokens where clients are remembered.
fn read_list<A: Address>(
    list: &ListOf<'_, A>,
    kernel: &Inventory,
) -> HashMap<pointsman_model::Backend<A>, (u32, Option<u32>)> {
    let records = |set: SetId| kernel.sets.get(&set.name()).map(|(_, records)| records);
    let (plain, tokens, backends) = (
        records(SetId::Backends(list.pool)),
        records(SetId::StickySlots(list.pool)),
        records(SetId::StickyBackends(list.pool)),
    );
    let value_of =
        |set: Option<&Records>, number: u32| set.and_then(|set| set.data_of(&list.key.with_number(number)));
    let mut places = HashMap::new();
    for slot in 0..list.slots.len() as u32 {
        let (token, data) = if list.affinity.is_none() {
            (None, value_of(plain, slot))
        } else {
            let Some(Data::Value(token)) = value_of(tokens, slot) else {
                continue;
            };
            let Some(token) = token.as_bytes().first_chunk::<4>() else {
                continue;
            };
            let token = u32::from_ne_bytes(*token);
            (Some(token & 0xffff), value_of(backends, token))
        };
        if let Some(backend) = data.as_ref().and_then(backend_of) {
            places.insert(backend, (slot, token));
        }
    }
    places
}
