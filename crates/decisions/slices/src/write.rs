//! What is sent to the API server for each part of a plan?

use crate::pack::{ChangeKind, Draft, EndpointChange};
use crate::service::ServiceKey;
use pointsman_model::{Labels, Moment, Text};
use pointsman_objects::endpoint_slice::{AddressType, Endpoint, EndpointPort};
use pointsman_objects::metadata::Annotations;
use pointsman_objects::names::TRIGGER_TIME_ANNOTATION;
use pointsman_objects::slice_body::{NewSlice, SlicePatch};
use pointsman_objects::{EndpointSlice, Service};

/// A slice to create.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceCreate {
    /// The Service that owns it.
    pub service: ServiceKey,
    /// The Service's uid.
    pub service_uid: Text,
    pub labels: Labels,
    /// Kind of addresses.
    pub address_type: AddressType,
    pub ports: Box<[EndpointPort]>,
    pub endpoints: Vec<Endpoint>,
    /// What the write changes, for metrics and trigger times.
    pub changes: Vec<EndpointChange>,
}

/// A slice to change.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceUpdate {
    pub namespace: Text,
    pub name: Text,
    /// Kind of addresses.
    pub family: AddressType,
    pub uid: Text,
    /// The version that was planned from; the write must fail if it is not the latest.
    pub resource_version: Box<str>,
    /// New labels with those to remove, when they change.
    pub labels: Option<(Labels, Vec<Text>)>,
    /// New ports, when they change.
    pub ports: Option<Box<[EndpointPort]>>,
    /// New endpoints, when they change.
    pub endpoints: Option<Vec<Endpoint>>,
    /// Positions in `endpoints` that differ, when nothing was added, removed or moved.
    pub in_place: Option<Vec<usize>>,
    /// Whether the slice carries a trigger time now.
    pub has_trigger_time: bool,
    /// What the write changes, for metrics and trigger times.
    pub changes: Vec<EndpointChange>,
}

/// A slice to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceDelete {
    pub namespace: Text,
    pub name: Text,
    /// Unique id, to be sent as a precondition.
    pub uid: Text,
    /// Pods whose endpoints go with it.
    pub pods: Vec<Text>,
}

impl SliceCreate {
    pub(crate) fn new(service: &Service, family: AddressType, draft: Draft<'_>, labels: &Labels) -> Self {
        Self {
            service: ServiceKey::of(service),
            service_uid: service.metadata.uid.clone(),
            labels: labels.clone(),
            address_type: family,
            ports: draft.ports.into(),
            endpoints: endpoints(&draft),
            changes: draft.changes,
        }
    }

    /// The object to POST, reporting a change of this time.
    pub fn body(&self, trigger: Option<Moment>) -> Vec<u8> {
        NewSlice {
            namespace: &self.service.namespace,
            service: &self.service.name,
            owner_kind: "Service",
            owner_uid: &self.service_uid,
            labels: &self.labels,
            annotations: None,
            trigger,
            address_type: self.address_type,
            ports: &self.ports,
            endpoints: &self.endpoints,
        }
        .to_json()
    }
}

impl SliceUpdate {
    pub(crate) fn new(slice: &EndpointSlice, draft: Draft<'_>, labels: &Labels) -> Self {
        let relabelled = changed_pairs(&slice.metadata.labels, labels);
        let endpoints = Some(endpoints(&draft)).filter(|endpoints| *endpoints != slice.endpoints);
        let moved = draft
            .changes
            .iter()
            .any(|change| change.kind != ChangeKind::Updated);
        let in_place = endpoints.as_ref().filter(|_| !moved).map(|new| {
            let pairs = new.iter().zip(&slice.endpoints).enumerate();
            pairs
                .filter(|(_, (new, old))| new != old)
                .map(|(index, _)| index)
                .collect()
        });
        Self {
            namespace: slice.metadata.namespace.clone(),
            name: slice.metadata.name.clone(),
            family: slice.address_type,
            uid: slice.metadata.uid.clone(),
            resource_version: slice.metadata.resource_version.clone(),
            labels: relabelled,
            ports: (*slice.ports != *draft.ports).then(|| draft.ports.into()),
            endpoints,
            in_place,
            has_trigger_time: slice.metadata.annotations.contains_key(TRIGGER_TIME_ANNOTATION),
            changes: draft.changes,
        }
    }

    /// What has to be sent, reporting a change of this time.
    pub fn patch(&self, trigger: Option<Moment>) -> SlicePatch<'_> {
        SlicePatch {
            resource_version: &self.resource_version,
            labels: self
                .labels
                .as_ref()
                .map(|(labels, gone)| (labels, gone.as_slice())),
            annotations: None,
            ports: self.ports.as_deref(),
            endpoints: self.endpoints.as_deref(),
            in_place: self.in_place.as_deref(),
            trigger,
            had_trigger: self.has_trigger_time,
        }
    }

    /// Writes the update into a slice, as the API server would.
    pub fn apply(&self, slice: &mut EndpointSlice, trigger: Option<Moment>) {
        if let Some((labels, _)) = &self.labels {
            slice.metadata.labels = labels.clone();
        }
        if let Some(ports) = &self.ports {
            slice.ports = ports.clone();
        }
        if let Some(endpoints) = &self.endpoints {
            slice.endpoints = endpoints.clone();
        }
        let time = trigger.map(|moment| (TRIGGER_TIME_ANNOTATION, moment.to_string()));
        slice.metadata.annotations = Annotations::new(Labels::new(time));
        slice.metadata.generation += 1;
    }
}

impl SliceDelete {
    pub(crate) fn of(slice: &EndpointSlice) -> Self {
        let targets = slice
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.target.as_ref());
        Self {
            namespace: slice.metadata.namespace.clone(),
            name: slice.metadata.name.clone(),
            uid: slice.metadata.uid.clone(),
            pods: targets.map(|target| target.name.clone()).collect(),
        }
    }
}

/// The pairs to write with the names to remove, if they change.
pub(crate) fn changed_pairs(old: &Labels, new: &Labels) -> Option<(Labels, Vec<Text>)> {
    let gone = old.iter().filter(|(key, _)| new.get(key).is_none());
    (old != new).then(|| (new.clone(), gone.map(|(key, _)| key.into()).collect()))
}

fn endpoints(draft: &Draft<'_>) -> Vec<Endpoint> {
    draft
        .members
        .iter()
        .map(|member| member.desired.to_endpoint(member.hint.to_hints()))
        .collect()
}
