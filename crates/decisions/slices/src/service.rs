//! Which Service is meant, and did anything about it change that slices show?

use std::fmt;

use pointsman_model::Text;
use pointsman_objects::{EndpointSlice, Service};

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: Text,
    pub name: Text,
}

impl ServiceKey {
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(service: &Service) -> Self {
        Self::new(service.metadata.namespace.clone(), service.metadata.name.clone())
    }

    /// The Service that a slice says it belongs to.
    pub fn of_slice(slice: &EndpointSlice) -> Option<Self> {
        Some(Self::new(slice.metadata.namespace.clone(), slice.service_name()?))
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether two versions of a Service differ in nothing that slices or Endpoints show.
pub(crate) fn same_outcome(one: &Service, other: &Service) -> bool {
    let metadata = |service: &Service| {
        let metadata = &service.metadata;
        let (uid, labels) = (metadata.uid.clone(), metadata.labels.clone());
        (uid, labels, metadata.created, metadata.is_terminating())
    };
    let addresses = |service: &Service| {
        let external = service.is_external_name();
        (external, service.is_headless(), service.asks_for_no_cluster_ip())
    };
    metadata(one) == metadata(other)
        && addresses(one) == addresses(other)
        && one.selector == other.selector
        && one.families == other.families
        && one.publish_not_ready == other.publish_not_ready
        && one.ports == other.ports
        && one.traffic == other.traffic
}
