//! Which slices have to be created, updated and deleted so that they say what the pods say?
//!
//! Laws, tested in `tests/laws.rs`: after the plan is applied the slices hold exactly the desired
//! endpoints, each once; no slice is over the limit; and planning again gives an empty plan.

use std::collections::BTreeMap;

use crate::desired::{PortSet, select};
use crate::hints::{self, HintEvent};
use crate::node::Nodes;
use crate::pack::{Draft, pack};
use crate::topology::ZoneCapacity;
use crate::write::{SliceCreate, SliceDelete, SliceUpdate};
use pointsman_model::{Labels, Text};
use pointsman_objects::endpoint_slice::AddressType;
use pointsman_objects::names::{HEADLESS_LABEL, MANAGED_BY_LABEL, SERVICE_NAME_LABEL, SLICE_CONTROLLER};
use pointsman_objects::{EndpointSlice, Pod, Service};

/// What an operator can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Upper bound of endpoints per slice; upstream's default is 100.
    pub max_endpoints_per_slice: usize,
    /// Gate `EndpointSliceTerminatingCondition`: write `serving` and `terminating`, keep terminating pods.
    pub terminating_condition: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_endpoints_per_slice: 100,
            terminating_condition: true,
        }
    }
}

/// Everything that decides the slices of one Service.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    pub service: &'a Service,
    /// The pods it selects, in any order: the plan does not depend on it.
    pub pods: Vec<&'a Pod>,
    /// Slices of its namespace that name it; those of other controllers are left alone.
    pub slices: Vec<&'a EndpointSlice>,
    pub nodes: &'a Nodes,
    /// CPU per zone, for topology-aware hints.
    pub zones: &'a ZoneCapacity,
}

/// The writes for one Service, and facts about them.
///
/// Carry them out in the order creates, updates, deletes: an endpoint that moves between slices is
/// then never missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlicePlan {
    pub create: Vec<SliceCreate>,
    pub update: Vec<SliceUpdate>,
    /// Slices that have no use any more.
    pub delete: Vec<SliceDelete>,
    /// One entry per address family, for metrics.
    pub facts: Vec<FamilyFacts>,
    /// Pods left out because their node is not known; the Service has to be tried again.
    pub skipped_pods: Vec<Text>,
    /// What to tell the Service's owner about hints.
    pub events: Vec<HintEvent>,
}

/// What a plan amounts to in one family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FamilyFacts {
    pub family: AddressType,
    /// Endpoints added, by condition label.
    pub added: BTreeMap<&'static str, usize>,
    /// Endpoints changed in place, by condition label after the change.
    pub updated: BTreeMap<&'static str, usize>,
    /// Endpoints removed, by condition label before the change.
    pub removed: BTreeMap<&'static str, usize>,
    /// Endpoints after the plan.
    pub desired_endpoints: usize,
    /// Slices that perfect packing would need, at least 1.
    pub desired_slices: usize,
    /// Slices after the plan.
    pub slices: usize,
    /// Slices created, updated or deleted.
    pub slices_changed: usize,
    /// Ready endpoints hinted to each zone, when topology-aware hints are on.
    pub hinted_zones: BTreeMap<Text, usize>,
    /// Whether an endpoint is on a node that others do not reach.
    pub withdrawn: bool,
}

impl SlicePlan {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        self.writes() == 0
    }

    /// How many requests the plan takes.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }
}

/// Plans the slices of one Service.
pub fn plan(inputs: &Inputs<'_>, settings: &Settings) -> SlicePlan {
    let mut plan = SlicePlan::default();
    let service = inputs.service;
    if !service.wants_slices() {
        return plan;
    }
    let labels = slice_labels(service);
    let mut ours: Vec<&EndpointSlice> = inputs
        .slices
        .iter()
        .copied()
        .filter(|s| is_ours(s, service))
        .collect();
    ours.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    for family in &service.families {
        let existing: Vec<&EndpointSlice> = ours
            .iter()
            .copied()
            .filter(|s| s.address_type == *family)
            .collect();
        plan_family(inputs, settings, &labels, *family, &existing, &mut plan);
    }
    for slice in ours {
        if !service.families.contains(&slice.address_type) {
            plan.delete.push(SliceDelete::of(slice));
        }
    }
    plan
}

/// Plans some slices of each family of a Service, the others being as they should be. `None` if there are none to plan.
pub(crate) fn plan_parts(parts: &[(AddressType, Inputs<'_>)], settings: &Settings) -> Option<SlicePlan> {
    let (_, first) = parts.first()?;
    let labels = slice_labels(first.service);
    let mut plan = SlicePlan::default();
    for (family, inputs) in parts {
        let mut slices: Vec<&EndpointSlice> = inputs.slices.clone();
        slices.retain(|slice| is_ours(slice, inputs.service));
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        plan_family(inputs, settings, &labels, *family, &slices, &mut plan);
    }
    Some(plan)
}

/// The labels every slice of the Service carries.
pub fn slice_labels(service: &Service) -> Labels {
    let mirrored = service
        .metadata
        .labels
        .iter()
        .filter(|(key, _)| ![SERVICE_NAME_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL].contains(key));
    let fixed = [
        (SERVICE_NAME_LABEL, &*service.metadata.name),
        (MANAGED_BY_LABEL, SLICE_CONTROLLER),
    ];
    let headless = service.is_headless().then_some((HEADLESS_LABEL, ""));
    Labels::new(mirrored.chain(fixed).chain(headless))
}

fn is_ours(slice: &EndpointSlice, service: &Service) -> bool {
    slice.managed_by_us()
        && !slice.metadata.is_terminating()
        && slice.metadata.namespace == service.metadata.namespace
        && slice.service_name() == Some(&*service.metadata.name)
}

fn plan_family(
    inputs: &Inputs<'_>,
    settings: &Settings,
    labels: &Labels,
    family: AddressType,
    existing: &[&EndpointSlice],
    plan: &mut SlicePlan,
) {
    let service = inputs.service;
    let desired = select(service, &inputs.pods, inputs.nodes, family, settings);
    let max = settings.max_endpoints_per_slice.max(1);
    let mut facts = FamilyFacts {
        family,
        withdrawn: desired.withdrawn,
        ..FamilyFacts::default()
    };
    let mut drafts = Vec::new();
    // Slices that may be reused for something else, and slices of a Service that is no more.
    let (mut spare, mut foreign) = (Vec::new(), Vec::new());
    let mut by_ports: BTreeMap<&PortSet, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in existing {
        if slice.owners().any(|uid| *uid == service.metadata.uid) {
            by_ports.entry(&slice.ports).or_default().push(slice);
        } else {
            foreign.push(*slice);
        }
    }
    for (ports, endpoints) in &desired.groups {
        facts.desired_endpoints += endpoints.len();
        facts.desired_slices += endpoints.len().div_ceil(max);
        let slices = by_ports.remove(ports).unwrap_or_default();
        let packed = pack(ports, endpoints, &slices, labels, max);
        drafts.extend(packed.drafts);
        spare.extend(packed.emptied);
    }
    spare.extend(by_ports.into_values().flatten());
    facts.desired_slices = facts.desired_slices.max(1);
    if drafts.is_empty() {
        drafts.push(placeholder(&mut spare, labels));
    }
    hints::decide(
        service.traffic,
        family,
        inputs.zones,
        &mut drafts,
        &mut facts,
        &mut plan.events,
    );
    facts.slices = drafts.len();
    finish(service, labels, family, drafts, spare, foreign, &mut facts, plan);
    plan.skipped_pods.extend(desired.skipped);
    plan.facts.push(facts);
}

/// An empty slice says "looked, found nothing": one that already says so is kept.
fn placeholder<'a>(spare: &mut Vec<&'a EndpointSlice>, labels: &Labels) -> Draft<'a> {
    let fits = |slice: &&EndpointSlice| slice.ports.is_empty() && slice.endpoints.is_empty();
    let exact = spare
        .iter()
        .position(|slice| fits(slice) && slice.metadata.labels == *labels);
    match exact.or_else(|| spare.iter().position(fits)) {
        Some(index) => Draft::keeping(spare.remove(index), labels),
        None => Draft::new(&[]),
    }
}

/// Turns drafts into writes, giving a new slice the name of one that would be deleted.
#[expect(
    clippy::too_many_arguments,
    reason = "the one place where all parts of a family's plan meet"
)]
fn finish<'a>(
    service: &Service,
    labels: &Labels,
    family: AddressType,
    drafts: Vec<Draft<'a>>,
    mut spare: Vec<&'a EndpointSlice>,
    foreign: Vec<&'a EndpointSlice>,
    facts: &mut FamilyFacts,
    plan: &mut SlicePlan,
) {
    spare.sort_by(|a, b| b.metadata.name.cmp(&a.metadata.name));
    let before = plan.writes();
    for mut draft in drafts {
        if !draft.needs_write() {
            continue;
        }
        if draft.base.is_none()
            && let Some(slice) = spare.pop()
        {
            draft.reuse(slice);
        }
        draft.count(facts);
        match draft.base {
            Some(slice) => plan.update.push(SliceUpdate::new(slice, draft, labels)),
            // A Service on its way out gets no new slices.
            None if service.metadata.is_terminating() => facts.slices -= 1,
            None => plan.create.push(SliceCreate::new(service, family, draft, labels)),
        }
    }
    for slice in spare.into_iter().chain(foreign) {
        for endpoint in &slice.endpoints {
            *facts.removed.entry(endpoint.conditions.label()).or_default() += 1;
        }
        plan.delete.push(SliceDelete::of(slice));
    }
    facts.slices_changed = plan.writes() - before;
}
