//! How are the endpoints of one port set spread over slices with the fewest writes?
//!
//! Slices are never merged for tidiness: a write is sent to every node, a half-empty slice is not.

use std::collections::HashMap;

use crate::desired::Desired;
use crate::hints::Hint;
use crate::plan::FamilyFacts;
use pointsman_model::{Labels, Moment, Text};
use pointsman_objects::EndpointSlice;
use pointsman_objects::endpoint_slice::{Endpoint, EndpointConditions, EndpointPort};

/// What a write does to one pod's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The endpoint was not in this slice.
    Added,
    /// The endpoint shows something else than before.
    Updated,
    /// The endpoint is not in this slice any more.
    Removed,
}

/// One endpoint that a write changes.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointChange {
    /// Name of the pod; empty for endpoints without one.
    pub pod: Text,
    /// What happens to it.
    pub kind: ChangeKind,
    /// Conditions after the change, or before a removal.
    pub conditions: EndpointConditions,
    /// When the pod itself says it last changed; not known for removals.
    pub pod_time: Option<Moment>,
}

/// An endpoint of a draft and where it stood before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub desired: Desired<'a>,
    pub before: Option<&'a Endpoint>,
    pub hint: Hint<'a>,
}

/// A slice as it will be.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub base: Option<&'a EndpointSlice>,
    pub ports: &'a [EndpointPort],
    pub members: Vec<Member<'a>>,
    pub changes: Vec<EndpointChange>,
    pub relabel: bool,
    pub rehint: bool,
}

impl<'a> Draft<'a> {
    pub fn new(ports: &'a [EndpointPort]) -> Self {
        Self {
            base: None,
            ports,
            members: Vec::new(),
            changes: Vec::new(),
            relabel: false,
            rehint: false,
        }
    }

    /// The slice as it stands, without its endpoints yet.
    pub fn keeping(slice: &'a EndpointSlice, labels: &Labels) -> Self {
        Self {
            base: Some(slice),
            relabel: slice.metadata.labels != *labels,
            ..Self::new(&slice.ports)
        }
    }

    pub fn needs_write(&self) -> bool {
        self.base.is_none() || self.relabel || self.rehint || !self.changes.is_empty()
    }

    /// Writes this draft over a slice that would otherwise be deleted.
    pub fn reuse(&mut self, slice: &'a EndpointSlice) {
        self.base = Some(slice);
        self.changes.extend(slice.endpoints.iter().map(removed));
    }

    pub fn count(&self, facts: &mut FamilyFacts) {
        for change in &self.changes {
            let counts = match change.kind {
                ChangeKind::Added => &mut facts.added,
                ChangeKind::Updated => &mut facts.updated,
                ChangeKind::Removed => &mut facts.removed,
            };
            *counts.entry(change.conditions.label()).or_default() += 1;
        }
    }

    fn add(&mut self, desired: Desired<'a>) {
        self.changes.push(changed(&desired, ChangeKind::Added));
        self.members.push(Member {
            desired,
            before: None,
            hint: Hint::default(),
        });
    }

    fn keep(&mut self, desired: Desired<'a>, before: &'a Endpoint) {
        if !desired.shown_by(before) {
            self.changes.push(changed(&desired, ChangeKind::Updated));
        }
        self.members.push(Member {
            desired,
            before: Some(before),
            hint: Hint::default(),
        });
    }
}

/// Slices for one port set, and existing ones that lost all their endpoints.
pub(crate) struct Packed<'a> {
    pub drafts: Vec<Draft<'a>>,
    pub emptied: Vec<&'a EndpointSlice>,
}

/// Packs `desired` into the existing slices of the same ports, and into new ones.
pub(crate) fn pack<'a>(
    ports: &'a [EndpointPort],
    desired: &[Desired<'a>],
    slices: &[&'a EndpointSlice],
    labels: &Labels,
    max: usize,
) -> Packed<'a> {
    let mut packed = Packed {
        drafts: Vec::new(),
        emptied: Vec::new(),
    };
    let mut unplaced = vec![true; desired.len()];
    if !slices.is_empty() {
        let by_pod: HashMap<&str, usize> = desired
            .iter()
            .enumerate()
            .map(|(index, endpoint)| (&*endpoint.pod.metadata.name, index))
            .collect();
        for slice in slices {
            let draft = retain(slice, desired, &by_pod, &mut unplaced, labels, max);
            if draft.members.is_empty() {
                packed.emptied.push(slice);
            } else {
                packed.drafts.push(draft);
            }
        }
    }
    let mut new: Vec<Desired<'a>> = desired
        .iter()
        .zip(unplaced)
        .filter(|(_, unplaced)| *unplaced)
        .map(|(endpoint, _)| *endpoint)
        .collect();
    new.sort_by(|a, b| b.pod.metadata.name.cmp(&a.pod.metadata.name));
    place(ports, new, &mut packed.drafts, max);
    packed
}

/// Keeps the endpoints of a slice that are still wanted, in their order.
fn retain<'a>(
    slice: &'a EndpointSlice,
    desired: &[Desired<'a>],
    by_pod: &HashMap<&str, usize>,
    unplaced: &mut [bool],
    labels: &Labels,
    max: usize,
) -> Draft<'a> {
    let mut draft = Draft::keeping(slice, labels);
    draft.members.reserve(slice.endpoints.len());
    for endpoint in &slice.endpoints {
        let wanted = endpoint
            .target
            .as_ref()
            .and_then(|target| by_pod.get(&*target.name))
            .copied();
        match wanted {
            // Past the limit (it was lowered) endpoints move on; a second copy is dropped.
            Some(index) if unplaced[index] && draft.members.len() < max && desired[index].is(endpoint) => {
                unplaced[index] = false;
                draft.keep(desired[index], endpoint);
            }
            _ => draft.changes.push(removed(endpoint)),
        }
    }
    draft
}

/// Finds room for new endpoints, given last name first.
fn place<'a>(ports: &'a [EndpointPort], mut new: Vec<Desired<'a>>, drafts: &mut Vec<Draft<'a>>, max: usize) {
    // Slices that are written anyway come first, the fullest of them before the others.
    let mut open: Vec<usize> = (0..drafts.len())
        .filter(|index| drafts[*index].needs_write())
        .collect();
    open.sort_by_key(|index| std::cmp::Reverse(drafts[*index].members.len()));
    for index in open {
        while drafts[index].members.len() < max
            && let Some(endpoint) = new.pop()
        {
            drafts[index].add(endpoint);
        }
    }
    while !new.is_empty() {
        // One untouched slice may take all that is left: the one that ends up closest to full.
        let roomy = drafts
            .iter_mut()
            .filter(|draft| !draft.needs_write() && draft.members.len() + new.len() <= max)
            .max_by_key(|draft| draft.members.len());
        match roomy {
            Some(draft) => new.drain(..).rev().for_each(|endpoint| draft.add(endpoint)),
            None => {
                let mut draft = Draft::new(ports);
                while draft.members.len() < max
                    && let Some(endpoint) = new.pop()
                {
                    draft.add(endpoint);
                }
                drafts.push(draft);
            }
        }
    }
}

fn changed(desired: &Desired<'_>, kind: ChangeKind) -> EndpointChange {
    EndpointChange {
        pod: desired.pod.metadata.name.clone(),
        kind,
        conditions: desired.conditions,
        pod_time: desired.pod.last_change(),
    }
}

fn removed(endpoint: &Endpoint) -> EndpointChange {
    EndpointChange {
        pod: endpoint
            .target
            .as_ref()
            .map_or_else(|| "".into(), |target| target.name.clone()),
        kind: ChangeKind::Removed,
        conditions: endpoint.conditions,
        pod_time: None,
    }
}
