//! What is sent to the API server about an EndpointSlice?

use std::collections::BTreeMap;

use pointsman_model::{Labels, Moment, Text};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::endpoint_slice::{AddressType, Endpoint, EndpointPort};
use crate::names::TRIGGER_TIME_ANNOTATION;

/// A slice to create for a Service.
#[derive(Clone, Copy, Debug)]
pub struct NewSlice<'a> {
    pub namespace: &'a str,
    /// Name of the Service and of the owner, which names the slice too.
    pub service: &'a str,
    /// `Service`, or `Endpoints` for what mirrors them.
    pub owner_kind: &'a str,
    pub owner_uid: &'a str,
    pub labels: &'a Labels,
    /// Annotations besides the time.
    pub annotations: Option<&'a Labels>,
    /// The time of the change that it reports.
    pub trigger: Option<Moment>,
    pub address_type: AddressType,
    pub ports: &'a [EndpointPort],
    pub endpoints: &'a [Endpoint],
}

/// A change of a slice.
#[derive(Clone, Copy, Debug)]
pub struct SlicePatch<'a> {
    /// The version that was decided from; the write fails if it is not the latest.
    pub resource_version: &'a str,
    /// New labels with those to remove, when they change.
    pub labels: Option<(&'a Labels, &'a [Text])>,
    /// The same of annotations besides the time.
    pub annotations: Option<(&'a Labels, &'a [Text])>,
    pub ports: Option<&'a [EndpointPort]>,
    pub endpoints: Option<&'a [Endpoint]>,
    /// Positions in `endpoints` that differ, when nothing was added, removed or moved.
    pub in_place: Option<&'a [usize]>,
    /// The time of the change that it reports.
    pub trigger: Option<Moment>,
    /// The slice carries such a time now.
    pub had_trigger: bool,
}

impl NewSlice<'_> {
    /// The object to POST.
    pub fn to_json(&self) -> Vec<u8> {
        let name = self.service;
        let mut metadata = json!({
            "generateName": format!("{name}-"),
            "namespace": self.namespace,
            "labels": self.labels.iter().collect::<BTreeMap<_, _>>(),
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": self.owner_kind,
                "name": name,
                "uid": self.owner_uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        });
        for (name, text) in self.annotations.into_iter().flat_map(Labels::iter) {
            metadata["annotations"][name] = text.into();
        }
        if let Some(moment) = self.trigger {
            metadata["annotations"][TRIGGER_TIME_ANNOTATION] = moment.to_string().into();
        }
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
        to_bytes(&Body {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            metadata,
            address_type: self.address_type,
            ports: self.ports,
            endpoints: self.endpoints,
        })
    }
}

impl SlicePatch<'_> {
    /// A merge patch (RFC 7396) that fails on a conflict and leaves alone what is not ours: other
    /// annotations, finalizers, further owners.
    pub fn to_merge_patch(&self) -> Vec<u8> {
        let mut metadata = json!({ "resourceVersion": self.resource_version });
        for (field, change) in [("labels", self.labels), ("annotations", self.annotations)] {
            if let Some((pairs, gone)) = change {
                let pairs = pairs.iter().map(|(key, value)| (key.into(), value.into()));
                let gone = gone.iter().map(|key| (key.to_string(), Value::Null));
                metadata[field] = pairs.chain(gone).collect::<Map<String, Value>>().into();
            }
        }
        if self.trigger.is_some() || self.had_trigger {
            let time = self.trigger.map(|moment| moment.to_string());
            metadata["annotations"][TRIGGER_TIME_ANNOTATION] = time.into();
        }
        #[derive(Serialize)]
        struct Body<'a> {
            metadata: Value,
            #[serde(skip_serializing_if = "Option::is_none")]
            ports: Option<&'a [EndpointPort]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            endpoints: Option<&'a [Endpoint]>,
        }
        to_bytes(&Body {
            metadata,
            ports: self.ports,
            endpoints: self.endpoints,
        })
    }

    /// A JSON patch (RFC 6902) of only the endpoints that differ, when that says it all. Its first
    /// operation tests the resource version, so it fails on a conflict too.
    pub fn to_json_patch(&self) -> Option<Vec<u8>> {
        let (positions, endpoints) = (self.in_place?, self.endpoints?);
        // Without an annotation of ours there may be no map to add one to.
        let needs_map = self.trigger.is_some() && !self.had_trigger;
        if self.labels.is_some() || self.annotations.is_some() || self.ports.is_some() || needs_map {
            return None;
        }
        let annotation = format!(
            "/metadata/annotations/{}",
            TRIGGER_TIME_ANNOTATION.replace('/', "~1")
        );
        let version = self.resource_version;
        let mut patch = vec![json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version })];
        match self.trigger {
            Some(moment) => {
                patch.push(json!({ "op": "replace", "path": annotation, "value": moment.to_string() }))
            }
            None if self.had_trigger => patch.push(json!({ "op": "remove", "path": annotation })),
            None => {}
        }
        for position in positions {
            let value = endpoints.get(*position)?;
            patch.push(json!({ "op": "replace", "path": format!("/endpoints/{position}"), "value": value }));
        }
        Some(to_bytes(&patch))
    }
}

fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text keys and plain values always serialize")
}
