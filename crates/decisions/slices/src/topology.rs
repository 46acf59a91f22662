//! How many endpoints should each zone get, by its share of the CPUs, and which ones?
//!
//! The rules and numbers are those of upstream's topology-aware routing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::hints::{Hint, hints_before};
use crate::node::NodeFacts;
use crate::pack::Draft;
use crate::plan::SlicePlan;
use crate::service::ServiceKey;
use pointsman_model::Text;
use pointsman_objects::endpoint_slice::AddressType;

/// How far above its fair share a zone's endpoints may be loaded (upstream's 20 %).
const OVERLOAD_THRESHOLD: f64 = 0.2;

/// Each zone's share of the cluster's CPUs; empty when the nodes do not tell enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ZoneCapacity {
    ratios: BTreeMap<Text, f64>,
}

impl ZoneCapacity {
    /// Sums up the ready nodes outside the control plane. One of them without a zone or CPU makes
    /// the whole answer empty, and so do fewer than two zones.
    pub fn from_nodes<'a>(nodes: impl IntoIterator<Item = &'a NodeFacts>) -> Self {
        let mut millis: BTreeMap<Text, u64> = BTreeMap::new();
        for node in nodes.into_iter().filter(|node| node.ready && !node.control_plane) {
            match &node.zone {
                Some(zone) if node.cpu_millis > 0 => {
                    *millis.entry(zone.clone()).or_default() += node.cpu_millis
                }
                _ => return Self::default(),
            }
        }
        if millis.len() < 2 {
            return Self::default();
        }
        let total = millis.values().sum::<u64>() as f64;
        Self {
            ratios: millis
                .into_iter()
                .map(|(zone, cpu)| (zone, cpu as f64 / total))
                .collect(),
        }
    }

    /// Whether a Service hinted like this leaves some zone with too few endpoints.
    pub fn overloads(&self, hinted: &BTreeMap<Text, usize>) -> bool {
        if hinted.is_empty() {
            return false;
        }
        let total: usize = hinted.values().sum();
        self.ratios.is_empty()
            || self.ratios.iter().any(|(zone, ratio)| {
                hinted
                    .get(zone)
                    .is_none_or(|have| *have < minimum(*ratio * total as f64))
            })
    }

    fn allocate(&self, endpoints: usize) -> Result<BTreeMap<&Text, Allocation>, NoHints> {
        if self.ratios.is_empty() {
            return Err(NoHints::NodesTellTooLittle);
        }
        let zones = self.ratios.len();
        if endpoints < zones {
            return Err(NoHints::TooFewEndpoints { endpoints, zones });
        }
        let needed: usize = self
            .ratios
            .values()
            .map(|ratio| minimum(ratio * endpoints as f64))
            .sum();
        let slack = endpoints
            .checked_sub(needed)
            .ok_or(NoHints::WouldOverload { endpoints, zones })?;
        Ok(self
            .ratios
            .iter()
            .map(|(zone, ratio)| {
                let desired = ratio * endpoints as f64;
                let minimum = minimum(desired);
                let desired = desired.max(minimum as f64);
                (
                    zone,
                    Allocation {
                        minimum,
                        maximum: minimum + slack,
                        desired,
                    },
                )
            })
            .collect())
    }
}

fn minimum(desired: f64) -> usize {
    (desired / (1.0 + OVERLOAD_THRESHOLD)).ceil() as usize
}

/// How many endpoints a zone may have.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    minimum: usize,
    maximum: usize,
    desired: f64,
}

/// Why topology-aware hints cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHints {
    NodesTellTooLittle,
    TooFewEndpoints { endpoints: usize, zones: usize },
    WouldOverload { endpoints: usize, zones: usize },
    EndpointWithoutZone,
}

impl fmt::Display for NoHints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodesTellTooLittle => f.write_str(
                "no zone hints: every ready worker node must have a zone label and allocatable CPU, in two zones or more",
            ),
            Self::TooFewEndpoints { endpoints, zones } => {
                write!(f, "no zone hints: {endpoints} ready endpoints are too few for {zones} zones")
            }
            Self::WouldOverload { endpoints, zones } => write!(
                f,
                "no zone hints: {endpoints} endpoints cannot be shared by {zones} zones without overloading one"
            ),
            Self::EndpointWithoutZone => f.write_str("no zone hints: a ready endpoint has no zone"),
        }
    }
}

/// Gives every ready endpoint one zone, keeping the hints of untouched slices where they are still
/// good. Returns how many endpoints each zone got.
pub(crate) fn assign<'a>(
    capacity: &'a ZoneCapacity,
    drafts: &mut [Draft<'a>],
) -> Result<BTreeMap<Text, usize>, NoHints> {
    let ready = drafts
        .iter()
        .flat_map(|draft| &draft.members)
        .filter(|member| member.desired.ready())
        .count();
    let allocations = capacity.allocate(ready)?;
    let (counts, kept) = distribute(&allocations, drafts, true)?;
    let balanced = allocations.iter().all(|(zone, allocation)| {
        (allocation.minimum..=allocation.maximum).contains(counts.get(zone).unwrap_or(&0))
    });
    // Kept hints can stand in the way of a fair share; then everything is dealt out afresh.
    let counts = if balanced || kept == 0 {
        counts
    } else {
        distribute(&allocations, drafts, false)?.0
    };
    Ok(counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(zone, count)| (zone.clone(), count))
        .collect())
}

type Counts<'a> = BTreeMap<&'a Text, usize>;

fn distribute<'a>(
    allocations: &BTreeMap<&'a Text, Allocation>,
    drafts: &mut [Draft<'a>],
    keep: bool,
) -> Result<(Counts<'a>, usize), NoHints> {
    let mut counts = Counts::new();
    let mut open = Vec::new();
    for draft in drafts.iter_mut() {
        if !(keep && !draft.needs_write() && keep_hints(allocations, draft, &mut counts)) {
            open.push(draft);
        }
    }
    for member in open.iter_mut().flat_map(|draft| &mut draft.members) {
        member.hint = Hint::default();
        if member.desired.ready() {
            let zone = member.desired.zone.ok_or(NoHints::EndpointWithoutZone)?;
            member.hint.zone = Some(zone);
            *counts.entry(zone).or_default() += 1;
        }
    }
    let (mut give, mut receive) = transfers(allocations, &counts);
    let opened = open.len();
    for member in open.into_iter().flat_map(|draft| &mut draft.members) {
        let Some(from) = member.hint.zone else { continue };
        let Some(left) = give.get_mut(from).filter(|left| **left > 0) else {
            continue;
        };
        let Some((to, room)) = receive.iter_mut().find(|(_, room)| **room > 0) else {
            break;
        };
        *left -= 1;
        *room -= 1;
        member.hint.zone = Some(to);
        *counts.entry(from).or_default() -= 1;
        *counts.entry(to).or_default() += 1;
    }
    Ok((counts, drafts.len() - opened))
}

/// Keeps the hints of an untouched slice if each ready endpoint has one, for a known zone, and no
/// zone gets more than it may.
fn keep_hints<'a>(
    allocations: &BTreeMap<&'a Text, Allocation>,
    draft: &mut Draft<'a>,
    counts: &mut Counts<'a>,
) -> bool {
    let mut own = Counts::new();
    let mut hints = Vec::with_capacity(draft.members.len());
    for member in &draft.members {
        let mut hint = Hint::default();
        if member.desired.ready() {
            let zone = match hints_before(member).map(|hints| (&*hints.zones, &*hints.nodes)) {
                Some(([zone], [])) => allocations.get_key_value(zone).map(|(zone, _)| *zone),
                _ => None,
            };
            let Some(zone) = zone else { return false };
            hint.zone = Some(zone);
            *own.entry(zone).or_default() += 1;
        }
        hints.push(hint);
    }
    if own
        .iter()
        .any(|(zone, count)| counts.get(zone).unwrap_or(&0) + count > allocations[zone].maximum)
    {
        return false;
    }
    for (zone, count) in own {
        *counts.entry(zone).or_default() += count;
    }
    for (member, hint) in draft.members.iter_mut().zip(hints) {
        member.hint = hint;
    }
    true
}

/// How many endpoints each zone should give away, and how many it should get.
fn transfers<'a>(
    allocations: &BTreeMap<&'a Text, Allocation>,
    counts: &Counts<'a>,
) -> (Counts<'a>, Counts<'a>) {
    let mut surplus: BTreeMap<&Text, f64> = BTreeMap::new();
    let mut deficit: BTreeMap<&Text, f64> = BTreeMap::new();
    for (zone, allocation) in allocations {
        let difference = *counts.get(zone).unwrap_or(&0) as f64 - allocation.desired;
        if difference > 0.0 {
            surplus.insert(zone, difference);
        } else if difference < 0.0 {
            deficit.insert(zone, -difference);
        }
    }
    // A zone without ready nodes of its own has nobody to serve: all its endpoints are to give.
    for (zone, count) in counts.iter().filter(|(zone, _)| !allocations.contains_key(*zone)) {
        surplus.insert(zone, *count as f64);
    }
    let (mut give, mut receive) = (Counts::new(), Counts::new());
    while let (Some((from, giving)), Some((to, receiving))) = (most(&surplus), most(&deficit)) {
        if (giving < 1.0 && receiving < 1.0) || giving < 0.5 || receiving < 0.5 {
            break;
        }
        *give.entry(from).or_default() += 1;
        *receive.entry(to).or_default() += 1;
        surplus.entry(from).and_modify(|left| *left -= 1.0);
        deficit.entry(to).and_modify(|left| *left -= 1.0);
    }
    (give, receive)
}

fn most<'a>(zones: &BTreeMap<&'a Text, f64>) -> Option<(&'a Text, f64)> {
    let positive = zones.iter().filter(|(_, number)| **number > 0.0);
    positive
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)))
        .map(|(zone, number)| (*zone, *number))
}

/// Remembers how each Service's endpoints are hinted, to find those that a change of nodes overloads.
#[derive(Debug, Default)]
pub struct TopologyRecord(HashMap<ServiceKey, BTreeMap<AddressType, BTreeMap<Text, usize>>>);

impl TopologyRecord {
    /// Takes over what a plan decided. True when the Service has hints now and had none before.
    pub fn record(&mut self, key: &ServiceKey, plan: &SlicePlan) -> bool {
        let hinted: BTreeMap<_, _> = plan
            .facts
            .iter()
            .filter(|facts| !facts.hinted_zones.is_empty())
            .map(|facts| (facts.family, facts.hinted_zones.clone()))
            .collect();
        if hinted.is_empty() {
            self.0.remove(key);
            return false;
        }
        self.0.insert(key.clone(), hinted).is_none()
    }

    /// Forgets a Service.
    pub fn remove(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }

    /// Services whose hints do not fit the zones any more, in order.
    pub fn overloaded(&self, capacity: &ZoneCapacity) -> Vec<ServiceKey> {
        let mut keys: Vec<ServiceKey> = self
            .0
            .iter()
            .filter(|(_, families)| families.values().any(|hinted| capacity.overloads(hinted)))
            .map(|(key, _)| key.clone())
            .collect();
        keys.sort();
        keys
    }
}
