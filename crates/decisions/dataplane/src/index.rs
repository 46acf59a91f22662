//! What changed since the kernel was last written?
//!
//! The index owns the Services and slices of one IP family, what the kernel is known to hold, and the
//! set of Services for which the two may differ. A sync costs what changed:
//!
//! 1. [`Index::checkout`] resolves the dirty Services and returns those that really differ as a
//!    [`Batch`]. Events may go on being folded while the batch is on its way to the kernel.
//! 2. [`Index::commit`] records that the kernel has the batch and hands out what may now be published: the
//!    trigger times and the watermark.
//! 3. [`Index::abort`] takes everything back instead. Nothing is lost; if the kernel's state is unknown,
//!    the next batch is full.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pointsman_model::{
    Address, Began, Dated, Endpoint, Moment, NodeName, Revision, Service, ServiceName, ServicePortName,
    Slice, SliceEndpoint, SliceName, Zone,
};

pub use pointsman_protocol::watermark::{Progress, Watermark};

use crate::claims::Claims;
use crate::programmer::Recovery;
use crate::select::{Judgement, Needs, Viewpoint, judge};
use crate::state::{ExternalIps, ServiceState, SliceView, merge};
use crate::sync::Resource;
use crate::trigger::{Cause, Trigger};

mod records;
mod totals;

use records::{Entry, PortPool, SliceKey, SliceKeys, SliceRecord};

pub use totals::Totals;

/// Folds changes of one IP family and yields batches. See the module's documentation.
#[derive(Debug)]
pub struct Index<A> {
    viewpoint: Viewpoint,
    external_ips: ExternalIps,
    /// Trigger times up to this moment belong to changes that other programs have already seen.
    started: Moment,
    entries: BTreeMap<ServiceName, Entry<A>>,
    slices: HashMap<SliceKey, Box<SliceRecord<A>>>,
    keys: SliceKeys,
    pool: PortPool,
    claims: Claims<A>,
    dirty: BTreeSet<ServiceName>,
    full: bool,
    triggers: Vec<Trigger>,
    received: Watermark,
    /// Resources whose list is under way: versions come in any order, so they say nothing yet.
    listing: Listing,
    planned: Watermark,
    committed: Watermark,
    totals: Totals,
}

/// Which lists are under way.
#[derive(Clone, Copy, Debug, Default)]
struct Listing {
    services: bool,
    slices: bool,
}

/// How much of the kernel's state a batch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only what the batch names.
    Partial,
    /// Everything: what the batch does not name must go.
    Full,
}

/// One Service whose kernel state is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<A> {
    pub name: ServiceName,
    /// What the kernel has; meaningless in a full batch.
    pub before: Option<Arc<ServiceState<A>>>,
    /// What it should have.
    pub after: Option<Arc<ServiceState<A>>>,
}

/// Changes on their way to the kernel. Give it back through `commit` or `abort`.
#[derive(Debug)]
#[must_use = "a batch that is neither committed nor aborted loses its changes"]
pub struct Batch<A> {
    /// How much is replaced.
    pub scope: Scope,
    /// The changes, ordered by name. A full batch names every Service.
    pub changes: Vec<Change<A>>,
    /// The totals once the batch is in the kernel.
    pub totals: Totals,
    checked: BTreeSet<ServiceName>,
    triggers: Vec<Trigger>,
    watermark: Watermark,
}

impl<A> Batch<A> {
    /// Whether there is nothing to write. Such a batch is still committed, for its watermark and times.
    pub fn is_empty(&self) -> bool {
        self.scope == Scope::Partial && self.changes.is_empty()
    }
}

/// What may be published once a batch is in the kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Committed {
    /// One sample for each update of a slice or Service that is now in effect.
    pub triggers: Vec<Trigger>,
    /// Everything up to here is in the kernel.
    pub watermark: Watermark,
    /// Sums over the programmed state.
    pub totals: Totals,
}

impl<A: Address> Index<A> {
    /// An empty index. The first batch is full: the kernel may hold leftovers.
    pub fn new(node: NodeName, external_ips: ExternalIps, started: Moment) -> Self {
        Self {
            viewpoint: Viewpoint { node, zone: None },
            external_ips,
            started,
            entries: BTreeMap::new(),
            slices: HashMap::new(),
            keys: SliceKeys::default(),
            pool: PortPool::default(),
            claims: Claims::default(),
            dirty: BTreeSet::new(),
            full: true,
            triggers: Vec::new(),
            received: Watermark::default(),
            listing: Listing::default(),
            planned: Watermark::default(),
            committed: Watermark::default(),
            totals: Totals::default(),
        }
    }

    /// Folds a Service as a watch delivered it, with when that change began. What a first list shows is no change.
    pub fn fold_service_change(
        &mut self,
        name: &ServiceName,
        service: Option<Service<A>>,
        revision: Option<Revision>,
        began: Began,
    ) {
        let listed = self.received.services.is_some();
        if self.replace_service(name, service, revision) && listed {
            self.triggers.push(Trigger {
                cause: Cause::Service,
                service: name.clone(),
                began,
            });
        }
    }

    /// Folds an added or changed Service, or with `None` one that is gone or no longer concerns us.
    pub fn fold_service(
        &mut self,
        name: &ServiceName,
        service: Option<Service<A>>,
        revision: Option<Revision>,
    ) {
        self.replace_service(name, service, revision);
    }

    /// Returns whether the Service is another than before.
    fn replace_service(
        &mut self,
        name: &ServiceName,
        service: Option<Service<A>>,
        revision: Option<Revision>,
    ) -> bool {
        self.saw_service(revision);
        let known = self.entries.get(name).and_then(|entry| entry.service.as_deref());
        if known == service.as_ref() {
            return false;
        }
        // Equal names share their bytes, so that of the map is used.
        let name = self.known_name(name);
        let service = service.map(|service| {
            Arc::new(Service {
                name: name.clone(),
                ports: self.pool.service_ports(service.ports),
                ..service
            })
        });
        let entry = self.entries.entry(name.clone()).or_default();
        let before = std::mem::replace(&mut entry.service, service.clone());
        for other in self.claims.replace(before.as_deref(), service.as_deref()) {
            self.mark(&other);
        }
        self.mark(&name);
        if service.is_none() {
            self.forget_if_empty(&name);
        }
        true
    }

    /// Folds an added or changed slice and its trigger time. An unchanged one gives no sample.
    pub fn fold_slice(&mut self, slice: Slice<A>, revision: Option<Revision>, trigger: Option<Moment>) {
        self.saw_slice(revision);
        let key = self.keys.of(&slice.name);
        let known = self.slices.get(&key);
        let same_content = known.is_some_and(|known| known.holds(&slice));
        let same_object = same_content && known.is_some_and(|known| known.is_of(revision));
        if same_object {
            return;
        }
        // An update that keeps the annotation was not made by what the annotation speaks of.
        let reported = |at: Moment| known.is_some_and(|known| known.carried(at));
        let fresh = trigger.filter(|at| *at > self.started && !reported(*at));
        if let Some(at) = fresh {
            let dated = Dated::of(Some(at));
            self.triggers.push(Trigger {
                cause: Cause::Slice(slice.name.clone()),
                service: slice.service.clone(),
                began: Began { at, dated },
            });
        }
        let moved_from = known
            .map(|known| &known.service)
            .filter(|service| **service != slice.service);
        if let Some(old) = moved_from.cloned() {
            self.detach(key, &old);
        }
        // The name as the index holds it already, so that equal names share their bytes.
        let service = match self.entries.get_mut(&slice.service) {
            Some(entry) => {
                entry.slices.add(key);
                let known = entry.service.as_ref().map(|service| &service.name);
                known.unwrap_or(&slice.service).clone()
            }
            None => {
                let entry = self.entries.entry(slice.service.clone()).or_default();
                entry.slices.add(key);
                slice.service
            }
        };
        if !same_content {
            self.mark(&service);
        }
        let ports = self.pool.slice_ports(slice.ports);
        let record = SliceRecord::new(service, ports, slice.endpoints, revision, trigger);
        self.slices.insert(key, Box::new(record));
    }

    /// Folds the deletion of a slice, which also discards the trigger times it still had to report.
    pub fn remove_slice(&mut self, name: &SliceName, revision: Option<Revision>) {
        self.saw_slice(revision);
        if self.slices.is_empty() {
            return;
        }
        let key = self.keys.of(name);
        if let Some(gone) = self.slices.remove(&key) {
            self.triggers
                .retain(|trigger| !matches!(&trigger.cause, Cause::Slice(slice) if slice == name));
            self.detach(key, &gone.service);
        }
    }

    /// A list begins. Until [`Index::advance`] ends it, the versions of its objects say nothing about
    /// the objects that have not arrived yet.
    pub fn list_begins(&mut self, resource: Resource) {
        match resource {
            Resource::Services => self.listing.services = true,
            Resource::Slices => self.listing.slices = true,
        }
    }

    /// Notes that everything up to these versions has been folded (a bookmark or a finished list).
    pub fn advance(&mut self, seen: Watermark) {
        self.listing.services &= seen.services.is_none();
        self.listing.slices &= seen.slices.is_none();
        self.received.services = self.received.services.max(seen.services);
        self.received.slices = self.received.slices.max(seen.slices);
    }

    /// Notes the node's zone; a different one asks for a full batch.
    pub fn set_zone(&mut self, zone: Option<Zone>) {
        let zone = zone.filter(|zone| !zone.as_str().is_empty());
        if self.viewpoint.zone != zone {
            self.viewpoint.zone = zone;
            self.full = true;
        }
    }

    /// Makes the next batch a full one: the kernel lost our rules, or it is time for a check.
    pub fn force_full(&mut self) {
        self.full = true;
    }

    /// Whether a batch would have something to say.
    pub fn has_changes(&self) -> bool {
        self.full || !self.dirty.is_empty() || !self.triggers.is_empty() || self.received != self.committed
    }

    /// Takes out everything that has to reach the kernel.
    pub fn checkout(&mut self) -> Batch<A> {
        let scope = if std::mem::take(&mut self.full) {
            Scope::Full
        } else {
            Scope::Partial
        };
        let mut checked = std::mem::take(&mut self.dirty);
        if scope == Scope::Full {
            checked.extend(self.entries.keys().cloned());
        }
        let mut totals = self.totals;
        let mut changes = Vec::with_capacity(checked.len());
        for name in &checked {
            let before = self.entries.get(name).and_then(|entry| entry.programmed.clone());
            let after = self.resolve(name, before.as_ref());
            if before.is_none() && after.is_none() {
                continue;
            }
            if before == after && scope == Scope::Partial {
                continue;
            }
            totals.replace(before.as_deref(), after.as_deref());
            changes.push(Change {
                name: name.clone(),
                before,
                after,
            });
        }
        let mut triggers = std::mem::take(&mut self.triggers);
        triggers.retain(|trigger| trigger.cause != Cause::Service || alters(&changes, &trigger.service));
        self.planned = self.received;
        Batch {
            scope,
            changes,
            totals,
            checked,
            triggers,
            watermark: self.received,
        }
    }

    /// Records that the kernel has the batch.
    pub fn commit(&mut self, batch: Batch<A>) -> Committed {
        for change in batch.changes {
            self.entries.entry(change.name.clone()).or_default().programmed = change.after;
            self.forget_if_empty(&change.name);
        }
        if batch.scope == Scope::Full {
            self.compact();
        }
        self.totals = batch.totals;
        self.committed = batch.watermark;
        Committed {
            triggers: batch.triggers,
            watermark: self.committed,
            totals: self.totals,
        }
    }

    /// Takes back a batch that did not reach the kernel, or perhaps only in part.
    pub fn abort(&mut self, batch: Batch<A>, recovery: Recovery) {
        self.full |= batch.scope == Scope::Full || recovery == Recovery::FullResync;
        self.dirty.extend(batch.checked);
        // A slice deleted meanwhile has lost its claim to be measured.
        let alive = batch.triggers.into_iter().filter(|trigger| match &trigger.cause {
            Cause::Slice(name) => self.slices.contains_key(&self.keys.of(name)),
            Cause::Service => true,
        });
        let newer = std::mem::take(&mut self.triggers);
        self.triggers = alive.chain(newer).collect();
    }

    /// The state the kernel is known to hold, by name.
    pub fn programmed(&self) -> impl Iterator<Item = (&ServiceName, &Arc<ServiceState<A>>)> {
        self.entries
            .iter()
            .filter_map(|(name, entry)| Some((name, entry.programmed.as_ref()?)))
    }

    /// The state the kernel should hold now, freshly resolved.
    pub fn desired(&self) -> impl Iterator<Item = Arc<ServiceState<A>>> + '_ {
        self.entries
            .iter()
            .filter_map(|(name, entry)| self.resolve(name, entry.programmed.as_ref()))
    }

    /// The desired state of one Service.
    pub fn desired_service(&self, name: &ServiceName) -> Option<Arc<ServiceState<A>>> {
        self.resolve(name, None)
    }

    /// All endpoints of a Service port, used or not.
    pub fn endpoints(&self, name: &ServicePortName) -> Vec<Endpoint<A>> {
        let Some(entry) = self.entries.get(&name.service) else {
            return Vec::new();
        };
        let Some(service) = &entry.service else {
            return Vec::new();
        };
        let port = service
            .ports
            .iter()
            .find(|port| port.name == name.port && port.protocol == name.protocol);
        port.map(|port| merge(port, self.slices_of(entry)))
            .unwrap_or_default()
    }

    /// All endpoints of a Service port with what this node thinks of each.
    pub fn judged(&self, name: &ServicePortName) -> Vec<(Endpoint<A>, Judgement)> {
        let service = self
            .entries
            .get(&name.service)
            .and_then(|entry| entry.service.as_deref());
        let port = service.and_then(|service| {
            let mut ports = service.ports.iter();
            ports.find(|port| port.name == name.port && port.protocol == name.protocol)
        });
        let (Some(service), Some(port)) = (service, port) else {
            return Vec::new();
        };
        let endpoints = self.endpoints(name);
        let judgements = judge(&endpoints, Needs::of(service, port), &self.viewpoint);
        endpoints.into_iter().zip(judgements).collect()
    }

    /// The addresses of all endpoints on these nodes, ready or not, and on no others.
    pub fn addresses_on(&self, is_one: impl Fn(&NodeName) -> bool) -> BTreeSet<A> {
        let endpoints = || self.slices.values().flat_map(|slice| slice.endpoints.iter());
        let is_there = |endpoint: &SliceEndpoint<A>| endpoint.node.as_ref().is_some_and(&is_one);
        let here = endpoints().filter(|endpoint| is_there(endpoint));
        let mut addresses: BTreeSet<A> = here.map(|endpoint| endpoint.address).collect();
        for elsewhere in endpoints().filter(|endpoint| !is_there(endpoint)) {
            addresses.remove(&elsewhere.address);
        }
        addresses
    }

    /// Where this node looks from.
    pub fn viewpoint(&self) -> &Viewpoint {
        &self.viewpoint
    }

    /// The destinations and their owners.
    pub fn claims(&self) -> &Claims<A> {
        &self.claims
    }

    /// Everything up to here is in the kernel.
    pub fn watermark(&self) -> Watermark {
        self.committed
    }

    /// How far changes have come.
    pub fn progress(&self) -> Progress {
        Progress {
            received: self.received,
            planned: self.planned,
            committed: self.committed,
        }
    }

    /// Sums over the programmed state.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn saw_service(&mut self, revision: Option<Revision>) {
        if !self.listing.services {
            self.received.services = self.received.services.max(revision);
        }
    }

    fn saw_slice(&mut self, revision: Option<Revision>) {
        if !self.listing.slices {
            self.received.slices = self.received.slices.max(revision);
        }
    }

    fn slices_of<'a>(&'a self, entry: &'a Entry<A>) -> impl Iterator<Item = SliceView<'a, A>> + Clone {
        let records = entry.slices.iter().filter_map(|name| self.slices.get(name));
        records.map(|record| SliceView {
            ports: &record.ports,
            endpoints: &record.endpoints,
        })
    }

    /// The name as the index already holds it, so that equal names share their bytes.
    fn known_name(&self, name: &ServiceName) -> ServiceName {
        self.entries
            .get_key_value(name)
            .map_or(name, |(known, _)| known)
            .clone()
    }

    /// Packs the map: filled in ascending order, as lists arrive, its nodes are half empty.
    fn compact(&mut self) {
        self.entries = std::mem::take(&mut self.entries).into_iter().collect();
        self.pool.forget_unused();
    }

    /// The desired state, sharing the known one's memory if they are equal.
    fn resolve(
        &self,
        name: &ServiceName,
        known: Option<&Arc<ServiceState<A>>>,
    ) -> Option<Arc<ServiceState<A>>> {
        let entry = self.entries.get(name)?;
        let service = entry.service.as_ref()?;
        let slices = self.slices_of(entry);
        let state = ServiceState::resolve(service, slices, &self.claims, &self.viewpoint, self.external_ips);
        Some(match known {
            Some(known) if **known == state => Arc::clone(known),
            _ => Arc::new(state),
        })
    }

    /// Notes that a Service may differ from what the kernel has. A full batch looks at all of them anyway.
    fn mark(&mut self, name: &ServiceName) {
        if !self.full {
            self.dirty.insert(name.clone());
        }
    }

    fn detach(&mut self, slice: SliceKey, service: &ServiceName) {
        if let Some(entry) = self.entries.get_mut(service) {
            entry.slices.remove(slice);
        }
        self.mark(service);
        self.forget_if_empty(service);
    }

    fn forget_if_empty(&mut self, name: &ServiceName) {
        if self.entries.get(name).is_some_and(Entry::is_empty) {
            self.entries.remove(name);
        }
    }
}

/// Whether the changes, which are ordered by name, alter anything about a Service. A full batch names them all.
fn alters<A: Address>(changes: &[Change<A>], service: &ServiceName) -> bool {
    let found = changes.binary_search_by(|change| change.name.cmp(service));
    found.is_ok_and(|at| changes[at].before != changes[at].after)
}

#[cfg(test)]
mod tests;
