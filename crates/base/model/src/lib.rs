//! What do we call things, and which values can they hold?
//!
//! Names, addresses, ports, moments, durations, labels, and the Service and Endpoint as the data path understands them. Everything
//! here is a plain value: no Kubernetes JSON, no kernel, no clock. The types are small, because a proxy
//! holds one [`Service`] and one [`Slice`] for every Service of the cluster: names are shared, addresses
//! are bytes, and lists that are nearly always empty cost one pointer.
//!
//! A ruleset belongs to one IP family. [`Address`] is implemented by `Ipv4Addr` and `Ipv6Addr`, every
//! type that holds an address is generic over it, and so the two families cannot meet in one ruleset.

mod address;
mod dated;
pub mod duration;
mod endpoint;
mod few;
mod gates;
mod moment;
mod name;
mod port;
mod quantity;
mod revision;
mod service;
mod text;

pub use address::{Address, Cidr, IpFamily, ParseAddressError, ParseCidrError, parse_ip};
pub use dated::{Began, Dated};
pub use endpoint::{Backend, Conditions, Endpoint, Hints, Slice, SliceEndpoint, SlicePort};
pub use few::Few;
pub use gates::{Feature, FeatureGates, GateError};
pub use moment::Moment;
pub use name::{BadName, NodeName, PortName, ServiceName, ServicePortName, SliceName, Zone};
pub use port::{NodePort, ParsePortError, Port, Protocol};
pub use quantity::Quantity;
pub use revision::Revision;
pub use service::{Affinity, External, Service, ServicePort, TrafficPolicy};
pub use text::{Interner, Labels, Text};
