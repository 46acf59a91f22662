//! Which transaction follows from a batch of changes?
//!
//! The planner keeps only what cannot be derived from the Services themselves: the order of slots where
//! history made it differ from the order of the list, and how many Services share an element.
//!
//! Laws: planning no change gives an empty transaction; the table after any history of changes equals the
//! one a fresh planner makes for the same Services, but for the order of slots; and a transaction's size
//! follows the change, whatever the number of Services.

mod adopt;
mod counts;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pointsman_dataplane::{Change, PortView, ServiceState};
use pointsman_model::{Address, ServiceName};
use pointsman_netlink::nft::{Element, Op, Transaction};

pub use self::adopt::Adoption;
use self::counts::{Counts, Step};
use crate::delta::Delta;
use crate::key;
use crate::pool::Pool;
use crate::ruleset::{Ruleset, TABLE, TableSettings, family, timeout_rule, touch};
use crate::set_id::{SetId, timeout_name};
use crate::shape::{ListOf, PortSlots, Remembered, Shape};

/// Timeouts that no Service uses any more are removed once there are more than this many.
const IDLE_TIMEOUTS: usize = 16;

type ServiceSlots<A> = Box<[PortSlots<A>]>;
/// A Service and the slots of its ports.
type Placed<'a, A> = (&'a ServiceState<A>, Cow<'a, [PortSlots<A>]>);

/// Plans the changes of one family's table. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Planner<A> {
    settings: TableSettings<A>,
    ruleset: Arc<Ruleset>,
    /// Slots of Services whose order is not that of a fresh list.
    orders: HashMap<ServiceName, ServiceSlots<A>>,
    cluster_ips: Counts<A>,
    hairpins: Counts<A>,
    /// Destinations for each timeout. A timeout without any still has its set and rule in the table.
    timeouts: BTreeMap<(Pool, u32), u32>,
    /// Destinations for each number of a Service port with affinity.
    numbers: BTreeMap<u16, u32>,
}

/// A transaction, and what to tell the planner once the kernel has it.
#[derive(Clone, Debug)]
#[must_use = "commit the update once the kernel has the transaction, or drop both"]
pub struct Planned<A> {
    /// What to write.
    pub transaction: Transaction,
    /// What the planner must know afterwards.
    pub update: Update<A>,
}

/// What the planner must know once a transaction is in the kernel.
#[derive(Clone, Debug)]
pub struct Update<A> {
    orders: Vec<(ServiceName, Option<ServiceSlots<A>>)>,
    cluster_ips: Counts<A>,
    hairpins: Counts<A>,
    timeouts: BTreeMap<(Pool, u32), Option<u32>>,
    numbers: BTreeMap<u16, u32>,
}

impl<A: Address> Planner<A> {
    /// A planner for a table without Services, which [`Planner::ruleset`] describes.
    pub fn new(settings: TableSettings<A>) -> Self {
        Self {
            ruleset: Arc::new(Ruleset::new(&settings)),
            settings,
            orders: HashMap::new(),
            cluster_ips: Counts::default(),
            hairpins: Counts::default(),
            timeouts: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// What shapes the table besides Services.
    pub fn settings(&self) -> &TableSettings<A> {
        &self.settings
    }

    /// The fixed part of the table.
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Plans one transaction for these changes, whose `before` must be what the table holds.
    ///
    /// A long list may be planned and committed in parts only if no destination moves from one Service to
    /// another within it, as when a table is filled for the first time.
    pub fn plan(&self, changes: &[Change<A>]) -> Planned<A> {
        let mut plan = Plan::new(self);
        for change in changes {
            plan.change(change);
        }
        plan.finish()
    }

    /// Notes that the kernel has a transaction.
    pub fn commit(&mut self, update: Update<A>) {
        for (name, slots) in update.orders {
            match slots {
                Some(slots) => self.orders.insert(name, slots),
                None => self.orders.remove(&name),
            };
        }
        self.cluster_ips.replace(update.cluster_ips);
        self.hairpins.replace(update.hairpins);
        for (timeout, uses) in update.timeouts {
            match uses {
                Some(uses) => self.timeouts.insert(timeout, uses),
                None => self.timeouts.remove(&timeout),
            };
        }
        self.numbers.extend(update.numbers);
        self.numbers.retain(|_, uses| *uses > 0);
    }

    fn slots_of(&self, name: &ServiceName, state: &ServiceState<A>) -> Cow<'_, [PortSlots<A>]> {
        match self.orders.get(name) {
            Some(slots) => Cow::Borrowed(slots),
            None => Cow::Owned(fresh(state)),
        }
    }
}

/// A transaction under construction.
struct Plan<'a, A> {
    planner: &'a Planner<A>,
    delta: Delta,
    update: Update<A>,
}

impl<'a, A: Address> Plan<'a, A> {
    fn new(planner: &'a Planner<A>) -> Self {
        Self {
            planner,
            delta: Delta::default(),
            update: Update {
                orders: Vec::new(),
                cluster_ips: Counts::default(),
                hairpins: Counts::default(),
                timeouts: BTreeMap::new(),
                numbers: BTreeMap::new(),
            },
        }
    }

    fn change(&mut self, change: &Change<A>) {
        let node_ip = self.planner.settings.shared.node_ip;
        let before = change
            .before
            .as_deref()
            .map(|state| (state, self.planner.slots_of(&change.name, state)));
        let after = change.after.as_deref().map(|state| {
            (
                state,
                self.numbered(before.as_ref(), evolve(before.as_ref(), state)),
            )
        });
        let before_shape = before
            .as_ref()
            .map(|(state, slots)| Shape::new(state, slots, node_ip));
        let after_shape = after
            .as_ref()
            .map(|(state, slots)| Shape::new(state, slots, node_ip));
        self.diff(before_shape.as_ref(), after_shape.as_ref());
        let order =
            after.and_then(|(state, slots)| (slots != fresh(state)).then(|| slots.into_boxed_slice()));
        if order.is_some() || self.planner.orders.contains_key(&change.name) {
            self.update.orders.push((change.name.clone(), order));
        }
    }

    /// Gives ports that begin to remember clients a number of their own.
    fn numbered(&self, before: Option<&Placed<'_, A>>, mut slots: Vec<PortSlots<A>>) -> Vec<PortSlots<A>> {
        let before = before.iter().flat_map(|(_, slots)| slots.iter());
        let known: BTreeSet<u16> = before.map(|port| port.number).collect();
        let mut given = BTreeSet::new();
        for port in slots.iter_mut().filter(|port| port.number != 0) {
            if !(known.contains(&port.number) && given.insert(port.number)) {
                let uses = |number: &u16| {
                    self.update
                        .numbers
                        .get(number)
                        .or(self.planner.numbers.get(number))
                };
                port.number = free_number(port.number, |number| {
                    uses(number).is_some_and(|uses| *uses > 0) || given.contains(number)
                });
                given.insert(port.number);
            }
        }
        slots
    }

    fn diff(&mut self, before: Option<&Shape<'_, A>>, after: Option<&Shape<'_, A>>) {
        if let Some(shape) = before {
            for (set, element) in &shape.members {
                self.delta.remove(*set, element.clone());
            }
            self.count(shape, Step::Remove);
        }
        if let Some(shape) = after {
            for (set, element) in &shape.members {
                self.delta.add(*set, element.clone());
            }
            self.count(shape, Step::Add);
        }
        let old = before.map_or(&[] as &[_], |shape| &shape.lists);
        let new = after.map_or(&[] as &[_], |shape| &shape.lists);
        let same =
            |one: &ListOf<'_, A>, other: &ListOf<'_, A>| one.pool == other.pool && one.key == other.key;
        for list in old {
            match new.iter().find(|other| same(list, other)) {
                Some(other) => self.diff_lists(list, other),
                None => list
                    .elements()
                    .for_each(|(set, element)| self.delta.remove(set, element)),
            }
        }
        for list in new
            .iter()
            .filter(|list| !old.iter().any(|other| same(list, other)))
        {
            list.elements()
                .for_each(|(set, element)| self.delta.add(set, element));
        }
    }

    fn diff_lists(&mut self, old: &ListOf<'_, A>, new: &ListOf<'_, A>) {
        for (set, element) in old.head() {
            self.delta.remove(set, element);
        }
        for (set, element) in new.head() {
            self.delta.add(set, element);
        }
        let same_kind = old.affinity.is_some() == new.affinity.is_some();
        for index in 0..old.slots.len().max(new.slots.len()) {
            if same_kind && old.slots.0.get(index) == new.slots.0.get(index) {
                continue;
            }
            old.slot(index)
                .for_each(|(set, element)| self.delta.remove(set, element));
            new.slot(index)
                .for_each(|(set, element)| self.delta.add(set, element));
        }
    }

    /// Counts the elements that Services may share.
    fn count(&mut self, shape: &Shape<'_, A>, by: Step) {
        let Update {
            cluster_ips,
            hairpins,
            timeouts,
            numbers,
            ..
        } = &mut self.update;
        if let Some(address) = shape.cluster_ip {
            cluster_ips.step(&self.planner.cluster_ips, address, by);
        }
        for address in &shape.hairpins {
            hairpins.step(&self.planner.hairpins, *address, by);
        }
        for list in &shape.lists {
            let Some(Remembered { seconds, number }) = list.affinity else {
                continue;
            };
            let known = self.planner.numbers.get(&number).copied().unwrap_or(0);
            let uses = numbers.entry(number).or_insert(known);
            *uses = by.from(*uses);
            let known = self.planner.timeouts.get(&(list.pool, seconds)).copied();
            let uses = timeouts.entry((list.pool, seconds)).or_insert(known);
            let count = uses.unwrap_or(0);
            *uses = Some(by.from(count));
        }
    }

    fn finish(mut self) -> Planned<A> {
        let mut transaction = Transaction::new(family::<A>(), TABLE);
        self.new_timeouts(&mut transaction.ops);
        for (address, before, after) in self.update.cluster_ips.changes(&self.planner.cluster_ips) {
            let element = Element::new(key::address(address));
            match (before > 0, after > 0) {
                (false, true) => self.delta.add(SetId::ClusterIps, element),
                (true, false) => self.delta.remove(SetId::ClusterIps, element),
                _ => {}
            }
        }
        for (address, before, after) in self.update.hairpins.changes(&self.planner.hairpins) {
            let element = Element::new(key::hairpin(address));
            match (before > 0, after > 0) {
                (false, true) => self.delta.add(SetId::Hairpin, element),
                (true, false) => self.delta.remove(SetId::Hairpin, element),
                _ => {}
            }
        }
        let delta = std::mem::take(&mut self.delta);
        transaction.ops.extend(delta.into_ops());
        self.idle_timeouts(&mut transaction.ops);
        Planned {
            transaction,
            update: self.update,
        }
    }

    /// Sets and rules for timeouts that are used for the first time.
    fn new_timeouts(&self, ops: &mut Vec<Op>) {
        for (&(pool, seconds), uses) in &self.update.timeouts {
            let known = self.planner.timeouts.contains_key(&(pool, seconds));
            if !known && uses.is_some_and(|uses| uses > 0) {
                let set = SetId::Timeout(pool, seconds).declare::<A>(self.planner.settings.affinity_clients);
                ops.push(Op::AddSet(set));
                ops.push(Op::AddRule(timeout_rule::<A>(pool, seconds)));
            }
        }
    }

    /// Removes the rules of timeouts that nobody uses, if there are many: each costs sticky connections a
    /// lookup. Rules have no name to delete them by, so the chain is written again.
    fn idle_timeouts(&mut self, ops: &mut Vec<Op>) {
        // A timeout that came and went within this batch never was in the table.
        let known = &self.planner.timeouts;
        self.update
            .timeouts
            .retain(|timeout, uses| known.contains_key(timeout) || uses.is_some_and(|uses| uses > 0));
        for pool in Pool::ALL {
            let mut merged: BTreeMap<u32, u32> = BTreeMap::new();
            let changed = self
                .update
                .timeouts
                .iter()
                .filter_map(|(at, uses)| uses.map(|uses| (*at, uses)));
            let all = self
                .planner
                .timeouts
                .iter()
                .map(|(at, uses)| (*at, *uses))
                .chain(changed);
            merged.extend(
                all.filter(|((of, _), _)| *of == pool)
                    .map(|((_, seconds), uses)| (seconds, uses)),
            );
            let idle: Vec<u32> = merged
                .iter()
                .filter(|(_, uses)| **uses == 0)
                .map(|(at, _)| *at)
                .collect();
            if idle.len() <= IDLE_TIMEOUTS {
                continue;
            }
            ops.push(Op::FlushChain(touch(pool)));
            let used = merged.iter().filter(|(_, uses)| **uses > 0);
            ops.extend(used.map(|(seconds, _)| Op::AddRule(timeout_rule::<A>(pool, *seconds))));
            for seconds in idle {
                ops.push(Op::DeleteSet(timeout_name(pool, seconds)));
                self.update.timeouts.insert((pool, seconds), None);
            }
        }
    }
}

/// The first number from this one on that is not taken; zero, for no affinity, if all are.
fn free_number(usual: u16, taken: impl Fn(&u16) -> bool) -> u16 {
    let following = (usual..=u16::MAX).chain(1..usual);
    following.into_iter().find(|number| !taken(number)).unwrap_or(0)
}

/// The slots of a Service that never had other endpoints.
fn fresh<A: Address>(state: &ServiceState<A>) -> Vec<PortSlots<A>> {
    state.ports().map(|port| PortSlots::fresh(&port)).collect()
}

/// The slots after a change: ports keep theirs as far as their endpoints stay.
fn evolve<A: Address>(before: Option<&Placed<'_, A>>, after: &ServiceState<A>) -> Vec<PortSlots<A>> {
    let Some((before, slots)) = before else {
        return fresh(after);
    };
    let known = |port: &PortView<'_, A>| {
        let same = |other: &PortView<'_, A>| {
            other.port.name == port.port.name && other.port.protocol == port.port.protocol
        };
        before
            .ports()
            .position(|other| same(&other))
            .and_then(|index| slots.get(index))
    };
    after
        .ports()
        .map(|port| match known(&port) {
            Some(slots) => slots.change(&port),
            None => PortSlots::fresh(&port),
        })
        .collect()
}
