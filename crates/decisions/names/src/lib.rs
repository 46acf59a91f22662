//! Which records does a cluster's DNS have, and what is the answer to a question?
//!
//! By the Kubernetes DNS specification 1.1. [`Zone`] is kept up to date by one call for each changed Service or
//! EndpointSlice, whose cost follows the Service; [`Zone::answer`] looks at one Service only. Names are small
//! letters without the last dot.

mod zone;

pub use zone::Zone;

use std::net::IpAddr;

/// The type of records that a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    A,
    Aaaa,
    Srv,
    Ptr,
    Cname,
    Txt,
    Soa,
    /// A type that no name here has records of.
    Other,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    Address(IpAddr),
    Srv {
        port: u16,
        target: String,
    },
    Ptr(String),
    Cname(String),
    Txt(&'static str),
    /// The zone's own; its fields never change.
    Soa,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub name: String,
    pub data: Data,
}

/// What is known about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Records {
        answers: Vec<Record>,
        /// Addresses of the names in the answers.
        additional: Vec<Record>,
    },
    /// The name exists without records of this kind.
    NoData,
    /// The name does not exist.
    NotFound,
    /// The name is not the cluster's business.
    Elsewhere,
}
