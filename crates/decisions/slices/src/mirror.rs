//! Which slices show Endpoints that somebody writes for a Service without a selector?
//!
//! One slice for each address family and set of ports, with the labels and annotations of the Endpoints: what their author
//! says is not packed anew. Laws, tested in `tests/mirror.rs`: applied, the slices say what the Endpoints say, up to
//! [`MAX_ADDRESSES`] of each subset; planning again gives nothing; and what other controllers made is left alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::desired::PortSet;
use crate::service::ServiceKey;
use crate::write::{SliceDelete, changed_pairs};
use pointsman_model::{Labels, Text};
use pointsman_objects::endpoint_slice::{AddressType, Endpoint, EndpointConditions};
use pointsman_objects::endpoints::{Address, Endpoints};
use pointsman_objects::names::{
    MANAGED_BY_LABEL, MIRRORING_CONTROLLER, SERVICE_NAME_LABEL, TRIGGER_TIME_ANNOTATION,
};
use pointsman_objects::slice_body::{NewSlice, SlicePatch};
use pointsman_objects::{EndpointSlice, Service};

/// Addresses of a subset that are mirrored (upstream's default of `--mirroring-max-endpoints-per-subset`).
pub const MAX_ADDRESSES: usize = 1000;

/// The writes that make slices show the Endpoints of one Service: creates, updates and deletes, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MirrorPlan {
    pub create: Vec<Mirror>,
    pub update: Vec<MirrorUpdate>,
    pub delete: Vec<SliceDelete>,
    /// Addresses left out because there are too many.
    pub skipped: usize,
}

/// A slice as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// The Service, and the Endpoints of the same name that own the slice.
    pub key: ServiceKey,
    pub owner_uid: Text,
    pub labels: Labels,
    pub annotations: Labels,
    pub address_type: AddressType,
    pub ports: PortSet,
    /// In order, so that two mirrors of the same Endpoints are equal.
    pub endpoints: Vec<Endpoint>,
}

/// A slice that says something else than it should.
#[derive(Clone, Debug, PartialEq)]
pub struct MirrorUpdate {
    pub name: Text,
    pub resource_version: Box<str>,
    pub labels: Option<(Labels, Vec<Text>)>,
    pub annotations: Option<(Labels, Vec<Text>)>,
    pub endpoints: Option<Vec<Endpoint>>,
}

impl MirrorPlan {
    /// How many requests it takes.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }
}

/// Plans the mirror of one Service's Endpoints. `slices` are those that name the Service, whoever manages them.
pub fn plan<'a>(
    key: &ServiceKey,
    service: Option<&Service>,
    endpoints: Option<&Endpoints>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
) -> MirrorPlan {
    let mut plan = MirrorPlan::default();
    let mut ours: Vec<&EndpointSlice> = slices
        .into_iter()
        .filter(|slice| slice.mirrored_by_us() && !slice.metadata.is_terminating())
        .collect();
    ours.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let shown = service
        .filter(|service| service.selector.is_none())
        .and(endpoints);
    let groups = shown
        .filter(|endpoints| endpoints.may_be_mirrored())
        .map(|endpoints| {
            let (groups, skipped) = groups(endpoints);
            plan.skipped = skipped;
            (groups, endpoints)
        });
    if let Some((groups, endpoints)) = groups {
        let (labels, annotations) = (labels(key, endpoints), &endpoints.annotations);
        for ((address_type, ports), members) in groups {
            let same = |slice: &&EndpointSlice| slice.address_type == address_type && slice.ports == ports;
            match ours.iter().position(same) {
                Some(index) => plan
                    .update
                    .extend(update(ours.remove(index), &labels, annotations, members)),
                None => plan.create.push(Mirror {
                    key: key.clone(),
                    owner_uid: endpoints.uid.clone(),
                    labels: labels.clone(),
                    annotations: annotations.clone(),
                    address_type,
                    ports,
                    endpoints: members,
                }),
            }
        }
    }
    plan.delete.extend(ours.into_iter().map(SliceDelete::of));
    plan
}

type Groups = BTreeMap<(AddressType, PortSet), Vec<Endpoint>>;

/// The endpoints by what a slice has one of, and how many addresses are too many.
fn groups(endpoints: &Endpoints) -> (Groups, usize) {
    let mut groups: BTreeMap<_, BTreeMap<IpAddr, Endpoint>> = BTreeMap::new();
    let mut skipped = 0;
    for subset in &endpoints.subsets {
        let ready = subset.addresses.iter().map(|address| (address, true));
        let all = ready.chain(subset.not_ready.iter().map(|address| (address, false)));
        skipped += (subset.addresses.len() + subset.not_ready.len()).saturating_sub(MAX_ADDRESSES);
        for (address, ready) in all.take(MAX_ADDRESSES) {
            let group = (AddressType::of(address.ip), subset.ports.clone());
            let members = groups.entry(group).or_default();
            // Named twice, it is ready if one of them is.
            if ready || !members.contains_key(&address.ip) {
                members.insert(address.ip, endpoint(address, ready));
            }
        }
    }
    let sorted = |members: BTreeMap<_, Endpoint>| {
        let mut members: Vec<Endpoint> = members.into_values().collect();
        members.sort();
        members
    };
    let groups = groups
        .into_iter()
        .map(|(group, members)| (group, sorted(members)));
    (groups.collect(), skipped)
}

fn endpoint(address: &Address, ready: bool) -> Endpoint {
    Endpoint {
        addresses: std::iter::once(address.ip).collect(),
        conditions: EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        },
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target: address.target.clone(),
        ..Endpoint::default()
    }
}

fn labels(key: &ServiceKey, endpoints: &Endpoints) -> Labels {
    let fixed = [
        (SERVICE_NAME_LABEL, &*key.name),
        (MANAGED_BY_LABEL, MIRRORING_CONTROLLER),
    ];
    Labels::new(endpoints.labels.iter().chain(fixed))
}

fn update(
    slice: &EndpointSlice,
    labels: &Labels,
    annotations: &Labels,
    members: Vec<Endpoint>,
) -> Option<MirrorUpdate> {
    let mut known = slice.endpoints.clone();
    known.sort();
    let metadata = &slice.metadata;
    let annotated = metadata
        .annotations
        .iter()
        .filter(|(name, _)| *name != TRIGGER_TIME_ANNOTATION);
    let update = MirrorUpdate {
        name: metadata.name.clone(),
        resource_version: metadata.resource_version.clone(),
        labels: changed_pairs(&metadata.labels, labels),
        annotations: changed_pairs(&Labels::new(annotated), annotations),
        endpoints: (known != members).then_some(members),
    };
    let same = update.labels.is_none() && update.annotations.is_none() && update.endpoints.is_none();
    (!same).then_some(update)
}

impl Mirror {
    /// The object to POST.
    pub fn body(&self) -> Vec<u8> {
        NewSlice {
            namespace: &self.key.namespace,
            service: &self.key.name,
            owner_kind: "Endpoints",
            owner_uid: &self.owner_uid,
            labels: &self.labels,
            annotations: Some(&self.annotations),
            trigger: None,
            address_type: self.address_type,
            ports: &self.ports,
            endpoints: &self.endpoints,
        }
        .to_json()
    }
}

impl MirrorUpdate {
    /// The merge patch, which fails if the slice changed meanwhile.
    pub fn body(&self) -> Vec<u8> {
        fn borrowed(change: &Option<(Labels, Vec<Text>)>) -> Option<(&Labels, &[Text])> {
            change.as_ref().map(|(pairs, gone)| (pairs, gone.as_slice()))
        }
        SlicePatch {
            resource_version: &self.resource_version,
            labels: borrowed(&self.labels),
            annotations: borrowed(&self.annotations),
            ports: None,
            endpoints: self.endpoints.as_deref(),
            in_place: None,
            trigger: None,
            had_trigger: false,
        }
        .to_merge_patch()
    }
}
