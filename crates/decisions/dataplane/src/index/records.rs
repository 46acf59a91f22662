//! How are Services and slices kept so that 45,000 of them stay small?

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pointsman_model::{
    Few, Moment, Revision, Service, ServiceName, ServicePort, Slice, SliceEndpoint, SliceName, SlicePort,
};

use crate::state::ServiceState;

/// Everything about one Service name.
#[derive(Debug)]
pub struct Entry<A> {
    /// The Service, if there is one to program.
    pub service: Option<Arc<Service<A>>>,
    /// The slices that name it.
    pub slices: SliceList,
    /// What the kernel is known to hold for it.
    pub programmed: Option<Arc<ServiceState<A>>>,
}

impl<A> Default for Entry<A> {
    fn default() -> Self {
        Self {
            service: None,
            slices: SliceList::None,
            programmed: None,
        }
    }
}

impl<A> Entry<A> {
    /// Whether nothing is left to remember.
    pub fn is_empty(&self) -> bool {
        self.service.is_none() && matches!(self.slices, SliceList::None) && self.programmed.is_none()
    }
}

/// A slice's name, condensed to 128 bits under keys of this process.
///
/// The names themselves would be a tenth of the index, and nothing asks for them again. That two names of
/// a cluster meet in one key is less likely than a memory error by many orders of magnitude, and the keys
/// are random, so nobody can search for such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey(u64, u64);

#[derive(Debug, Default)]
pub struct SliceKeys(RandomState, RandomState);

impl SliceKeys {
    /// The key of a name.
    pub fn of(&self, name: &SliceName) -> SliceKey {
        SliceKey(self.0.hash_one(name.as_str()), self.1.hash_one(name.as_str()))
    }
}

/// The slices of a Service: nearly always one.
#[derive(Debug)]
pub enum SliceList {
    None,
    One(SliceKey),
    Many(Vec<SliceKey>),
}

impl SliceList {
    /// Adds a slice, unless it is there already.
    pub fn add(&mut self, key: SliceKey) {
        match self {
            Self::None => *self = Self::One(key),
            Self::One(known) if *known != key => *self = Self::Many(vec![*known, key]),
            Self::One(_) => {}
            Self::Many(keys) if !keys.contains(&key) => keys.push(key),
            Self::Many(_) => {}
        }
    }

    pub fn remove(&mut self, key: SliceKey) {
        match self {
            Self::One(known) if *known == key => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(keys) => {
                keys.retain(|known| *known != key);
                match keys.as_slice() {
                    [] => *self = Self::None,
                    [last] => *self = Self::One(*last),
                    _ => {}
                }
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &SliceKey> + Clone {
        let keys: &[SliceKey] = match self {
            Self::None => &[],
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        };
        keys.iter()
    }
}

/// One slice; it is kept under its key.
#[derive(Debug)]
pub struct SliceRecord<A> {
    /// The Service it names.
    pub service: ServiceName,
    pub ports: Arc<[SlicePort]>,
    pub endpoints: Few<SliceEndpoint<A>>,
    /// Its version; zero, which no object has, for none.
    revision: u64,
    /// The trigger time it carried; the earliest possible one for none.
    trigger: i64,
}

impl<A: PartialEq> SliceRecord<A> {
    /// A record of a slice and what came with it.
    pub fn new(
        service: ServiceName,
        ports: Arc<[SlicePort]>,
        endpoints: Box<[SliceEndpoint<A>]>,
        revision: Option<Revision>,
        trigger: Option<Moment>,
    ) -> Self {
        let revision = revision.map_or(0, |revision| revision.0);
        Self {
            service,
            ports,
            endpoints: endpoints.into(),
            revision,
            trigger: trigger.map_or(i64::MIN, |time| time.0),
        }
    }

    /// Whether the record is of this version.
    pub fn is_of(&self, revision: Option<Revision>) -> bool {
        self.revision == revision.map_or(0, |revision| revision.0)
    }

    /// Whether the slice carried this trigger time.
    pub fn carried(&self, trigger: Moment) -> bool {
        self.trigger == trigger.0
    }

    /// Whether the slice says what is recorded.
    pub fn holds(&self, slice: &Slice<A>) -> bool {
        self.service == slice.service && self.ports == slice.ports && *self.endpoints == *slice.endpoints
    }
}

/// Makes equal lists of ports share their bytes.
#[derive(Debug, Default)]
pub struct PortPool {
    service: BTreeSet<Arc<[ServicePort]>>,
    slice: BTreeSet<Arc<[SlicePort]>>,
}

impl PortPool {
    /// The shared copy of a Service's ports.
    pub fn service_ports(&mut self, ports: Arc<[ServicePort]>) -> Arc<[ServicePort]> {
        share(&mut self.service, ports)
    }

    /// The shared copy of a slice's ports.
    pub fn slice_ports(&mut self, ports: Arc<[SlicePort]>) -> Arc<[SlicePort]> {
        share(&mut self.slice, ports)
    }

    /// Forgets lists that nobody else uses.
    pub fn forget_unused(&mut self) {
        self.service.retain(|ports| Arc::strong_count(ports) > 1);
        self.slice.retain(|ports| Arc::strong_count(ports) > 1);
    }
}

fn share<T: Ord>(pool: &mut BTreeSet<Arc<[T]>>, ports: Arc<[T]>) -> Arc<[T]> {
    if let Some(known) = pool.get(&ports) {
        return Arc::clone(known);
    }
    pool.insert(Arc::clone(&ports));
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_kept_once_however_they_come_and_go() {
        let keys = SliceKeys::default();
        let key = |number: u32| keys.of(&SliceName::new("ns", &number.to_string()).unwrap());
        let mut list = SliceList::None;
        for number in [1, 1, 2, 3, 2] {
            list.add(key(number));
        }
        assert_eq!(list.iter().count(), 3);
        for number in [9, 1, 3] {
            list.remove(key(number));
        }
        assert!(matches!(list, SliceList::One(last) if last == key(2)));
        list.remove(key(2));
        assert!(matches!(list, SliceList::None));
    }
}
