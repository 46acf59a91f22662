//! What is sent to the API server for each part of a plan?

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::pack::{ChangeKind, Draft, EndpointChange};
use crate::service::{Service, ServiceKey};
use crate::slice::{AddressType, Endpoint, EndpointPort, EndpointSlice, TRIGGER_TIME_ANNOTATION};
use crate::text::{Labels, Text};
use crate::time::Moment;

/// A slice to create.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceCreate {
    /// The Service that owns it.
    pub service: ServiceKey,
    /// The Service's uid.
    pub service_uid: Text,
    /// Labels.
    pub labels: Labels,
    /// Kind of addresses.
    pub address_type: AddressType,
    /// Ports.
    pub ports: Box<[EndpointPort]>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// What the write changes, for metrics and trigger times.
    pub changes: Vec<EndpointChange>,
}

/// A slice to change.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceUpdate {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Unique id.
    pub uid: Text,
    /// The version that was planned from; the write must fail if it is not the latest.
    pub resource_version: Text,
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
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Unique id, to be sent as a precondition.
    pub uid: Text,
    /// Pods whose endpoints go with it.
    pub pods: Vec<Text>,
}

/// The body of a create.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: Value,
    address_type: AddressType,
    ports: &'a [EndpointPort],
    endpoints: &'a [Endpoint],
}

impl SliceCreate {
    pub(crate) fn new(service: &Service, family: AddressType, draft: Draft<'_>, labels: &Labels) -> Self {
        Self {
            service: service.key.clone(),
            service_uid: service.uid.clone(),
            labels: labels.clone(),
            address_type: family,
            ports: draft.ports.into(),
            endpoints: endpoints(&draft),
            changes: draft.changes,
        }
    }

    /// The object to POST, reporting a change of this time.
    pub fn body(&self, trigger: Option<Moment>) -> Vec<u8> {
        let name = &self.service.name;
        let mut metadata = json!({
            "generateName": format!("{name}-"),
            "namespace": &*self.service.namespace,
            "labels": self.labels.iter().collect::<BTreeMap<_, _>>(),
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Service",
                "name": &**name,
                "uid": &*self.service_uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        });
        if let Some(moment) = trigger {
            metadata["annotations"] = json!({ TRIGGER_TIME_ANNOTATION: moment.to_string() });
        }
        to_bytes(&Body {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            metadata,
            address_type: self.address_type,
            ports: &self.ports,
            endpoints: &self.endpoints,
        })
    }
}

impl SliceUpdate {
    pub(crate) fn new(slice: &EndpointSlice, draft: Draft<'_>, labels: &Labels) -> Self {
        let relabelled = (slice.labels != *labels).then(|| {
            let gone = slice.labels.iter().filter(|(key, _)| labels.get(key).is_none());
            (labels.clone(), gone.map(|(key, _)| key.into()).collect())
        });
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
            namespace: slice.namespace.clone(),
            name: slice.name.clone(),
            uid: slice.uid.clone(),
            resource_version: slice.resource_version.clone(),
            labels: relabelled,
            ports: (*slice.ports != *draft.ports).then(|| draft.ports.into()),
            endpoints,
            in_place,
            has_trigger_time: slice.trigger_time.is_some(),
            changes: draft.changes,
        }
    }

    /// The update as a merge patch (RFC 7396) that fails on a conflict and leaves alone what is not
    /// ours: other annotations, finalizers, further owners.
    pub fn merge_patch(&self, trigger: Option<Moment>) -> Vec<u8> {
        let mut metadata = json!({ "resourceVersion": &*self.resource_version });
        if let Some((labels, gone)) = &self.labels {
            let mut patch: Map<String, Value> = labels
                .iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect();
            patch.extend(gone.iter().map(|key| (key.to_string(), Value::Null)));
            metadata["labels"] = patch.into();
        }
        if trigger.is_some() || self.has_trigger_time {
            metadata["annotations"] =
                json!({ TRIGGER_TIME_ANNOTATION: trigger.map(|moment| moment.to_string()) });
        }
        #[derive(Serialize)]
        struct Patch<'a> {
            metadata: Value,
            #[serde(skip_serializing_if = "Option::is_none")]
            ports: Option<&'a [EndpointPort]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            endpoints: Option<&'a [Endpoint]>,
        }
        to_bytes(&Patch {
            metadata,
            ports: self.ports.as_deref(),
            endpoints: self.endpoints.as_deref(),
        })
    }

    /// The update as a JSON patch (RFC 6902) of only the endpoints that differ, when that says it
    /// all. Its first operation tests the resource version, so it fails on a conflict too.
    pub fn json_patch(&self, trigger: Option<Moment>) -> Option<Vec<u8>> {
        let (positions, endpoints) = (self.in_place.as_ref()?, self.endpoints.as_ref()?);
        // Without an annotation of ours there may be no map to add one to.
        if self.labels.is_some() || self.ports.is_some() || (trigger.is_some() && !self.has_trigger_time) {
            return None;
        }
        let annotation = format!(
            "/metadata/annotations/{}",
            TRIGGER_TIME_ANNOTATION.replace('/', "~1")
        );
        let version = &*self.resource_version;
        let mut patch = vec![json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version })];
        match trigger {
            Some(moment) => {
                patch.push(json!({ "op": "replace", "path": annotation, "value": moment.to_string() }))
            }
            None if self.has_trigger_time => patch.push(json!({ "op": "remove", "path": annotation })),
            None => {}
        }
        for position in positions {
            let value = endpoints.get(*position)?;
            patch.push(json!({ "op": "replace", "path": format!("/endpoints/{position}"), "value": value }));
        }
        Some(to_bytes(&patch))
    }

    /// Writes the update into a slice, as the API server would.
    pub fn apply(&self, slice: &mut EndpointSlice, trigger: Option<Moment>) {
        if let Some((labels, _)) = &self.labels {
            slice.labels = labels.clone();
        }
        if let Some(ports) = &self.ports {
            slice.ports = ports.clone();
        }
        if let Some(endpoints) = &self.endpoints {
            slice.endpoints = endpoints.clone();
        }
        slice.trigger_time = trigger.map(|moment| moment.to_string().into());
        slice.generation += 1;
    }
}

impl SliceDelete {
    pub(crate) fn of(slice: &EndpointSlice) -> Self {
        let targets = slice
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.target.as_ref());
        Self {
            namespace: slice.namespace.clone(),
            name: slice.name.clone(),
            uid: slice.uid.clone(),
            pods: targets.map(|target| target.name.clone()).collect(),
        }
    }
}

fn endpoints(draft: &Draft<'_>) -> Vec<Endpoint> {
    draft
        .members
        .iter()
        .map(|member| member.desired.to_endpoint(member.hint.to_hints()))
        .collect()
}

fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text keys and plain values always serialize")
}
