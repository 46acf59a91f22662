//! Where do the endpoints of a large Service lie, so that the flip of one costs nothing for the others?
//!
//! When every slice of a Service says what it should and only pods have changed since, then the slices that hold
//! these pods, planned with the pods in them, give the same writes as the whole Service, as long as every endpoint
//! stays in its place. Whatever else happens is planned from everything, as is the first look.

use std::collections::{BTreeSet, HashMap};

use crate::index::Index;
use crate::pack::ChangeKind;
use crate::plan::{FamilyFacts, Settings, SlicePlan, plan_parts};
use crate::service::ServiceKey;
use pointsman_model::Text;
use pointsman_objects::Service;
use pointsman_objects::endpoint_slice::AddressType;
use pointsman_objects::service::TrafficMode;

/// Slices from which on a Service is worth it: with fewer, looking at everything is as cheap, and takes no memory.
const LARGE: usize = 3;

/// A Service whose slices said what they should when it was last looked at as a whole.
#[derive(Debug)]
pub(crate) struct Settled {
    facts: Vec<FamilyFacts>,
    /// The slice of each pod, by family. Made when it is needed first.
    places: Option<Vec<Places>>,
}

type Places = (AddressType, HashMap<Text, Text>);

impl Settled {
    /// What is known of a Service after a plan was carried out; `None` if it is small, or if one endpoint's condition
    /// decides about others.
    pub fn after(plan: &SlicePlan, service: &Service, before: Option<Self>) -> Option<Self> {
        let slices: usize = plan.facts.iter().map(|facts| facts.slices).sum();
        let apart = service.traffic != TrafficMode::Auto && !plan.facts.iter().any(|facts| facts.withdrawn);
        if slices < LARGE || !apart {
            return None;
        }
        let families = |facts: &[FamilyFacts]| facts.iter().map(|facts| facts.family).collect::<Vec<_>>();
        // New slices are found where their names are known: among those that the server has.
        let places = before
            .filter(|before| plan.create.is_empty() && families(&before.facts) == families(&plan.facts))
            .and_then(|before| before.places);
        Some(Self {
            facts: plan.facts.clone(),
            places: places.map(|places| moved(places, plan)),
        })
    }

    /// Plans from the slices that hold these pods; `None` if that does not say it all. Also says how many pods it
    /// looked at.
    pub fn plan<'p>(
        &mut self,
        index: &Index,
        key: &ServiceKey,
        pods: impl Iterator<Item = &'p Text> + Clone,
        settings: &Settings,
    ) -> Option<(SlicePlan, usize)> {
        let places = self.places.get_or_insert_with(|| places(index, key, &self.facts));
        let mut parts = Vec::with_capacity(places.len());
        for (family, places) in places {
            let slices: BTreeSet<&Text> = pods.clone().filter_map(|pod| places.get(pod)).collect();
            parts.push((*family, index.inputs_of(key, slices, pods.clone())?));
        }
        let looked_at = parts.iter().map(|(_, part)| part.pods.len()).sum();
        let mut plan = plan_parts(&parts, settings)?;
        let in_place =
            |facts: &FamilyFacts| facts.added.is_empty() && facts.removed.is_empty() && !facts.withdrawn;
        let stays = plan.create.is_empty() && plan.delete.is_empty() && plan.skipped_pods.is_empty();
        if !stays || !plan.facts.iter().all(in_place) {
            return None;
        }
        for (part, whole) in plan.facts.iter_mut().zip(&self.facts) {
            part.desired_endpoints = whole.desired_endpoints;
            part.desired_slices = whole.desired_slices;
            part.slices = whole.slices;
        }
        Some((plan, looked_at))
    }
}

/// Follows endpoints that a plan moved. A pod that is looked for in the wrong slice is planned from everything, so
/// that nothing depends on this but the cost.
fn moved(mut places: Vec<Places>, plan: &SlicePlan) -> Vec<Places> {
    for (family, places) in &mut places {
        let updates = || plan.update.iter().filter(|update| update.family == *family);
        let changes = |kind| {
            updates().flat_map(move |update| {
                let changes = update.changes.iter().filter(move |change| change.kind == kind);
                changes.map(move |change| (&change.pod, &update.name))
            })
        };
        let gone = plan
            .delete
            .iter()
            .flat_map(|slice| slice.pods.iter().map(move |pod| (pod, &slice.name)));
        for (pod, slice) in changes(ChangeKind::Removed).chain(gone) {
            if places.get(pod) == Some(slice) {
                places.remove(pod);
            }
        }
        places.extend(changes(ChangeKind::Added).map(|(pod, slice)| (pod.clone(), slice.clone())));
    }
    places
}

fn places(index: &Index, key: &ServiceKey, facts: &[FamilyFacts]) -> Vec<Places> {
    let mut places: Vec<Places> = facts.iter().map(|facts| (facts.family, HashMap::new())).collect();
    for slice in index.slices(key).filter(|slice| slice.managed_by_us()) {
        let Some((_, places)) = places
            .iter_mut()
            .find(|(family, _)| *family == slice.address_type)
        else {
            continue;
        };
        let targets = slice
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.target.as_ref());
        places.extend(targets.map(|target| (target.name.clone(), slice.metadata.name.clone())));
    }
    places
}
