//! What is it called?
//!
//! A name is one shared string: cloning is a reference count, and [`Interner`](crate::Interner) makes equal names share
//! their bytes, which matters for port, node and zone names that recur in every Service.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::Protocol;

/// A name that cannot be one: empty, or containing the `/` that separates namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name")]
pub struct BadName(pub String);

macro_rules! namespaced {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Joins a namespace and a name; both must be non-empty and free of `/`.
            pub fn new(namespace: &str, name: &str) -> Result<Self, BadName> {
                for part in [namespace, name] {
                    if part.is_empty() || part.contains('/') {
                        return Err(BadName(part.to_owned()));
                    }
                }
                Ok(Self(join(namespace, name)))
            }

            pub fn namespace(&self) -> &str {
                self.0.split_once('/').map_or("", |(namespace, _)| namespace)
            }

            /// The name within the namespace.
            pub fn name(&self) -> &str {
                self.0.split_once('/').map_or("", |(_, name)| name)
            }

            /// `namespace/name`.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// `namespace/name`. Names of the lengths that API servers allow are put together without memory of their own.
fn join(namespace: &str, name: &str) -> Arc<str> {
    let mut buffer = [0; 320];
    let length = namespace.len() + 1 + name.len();
    let joined = buffer.get_mut(..length).and_then(|buffer| {
        buffer[..namespace.len()].copy_from_slice(namespace.as_bytes());
        buffer[namespace.len()] = b'/';
        buffer[namespace.len() + 1..].copy_from_slice(name.as_bytes());
        std::str::from_utf8(buffer).ok()
    });
    match joined {
        Some(joined) => Arc::from(joined),
        None => Arc::from([namespace, "/", name].concat()),
    }
}

namespaced! {
    /// The namespace and name of a Service.
    ServiceName
}

namespaced! {
    /// The namespace and name of an EndpointSlice.
    SliceName
}

plain! {
    /// The name of a Service port; empty for the only port of a Service that does not name it.
    PortName
}

plain! {
    /// The name of a node.
    NodeName
}

plain! {
    /// The value of a node's `topology.kubernetes.io/zone` label.
    Zone
}

/// One port of one Service: what a set of endpoints belongs to.
///
/// Prints as `namespace/name:port`, and without the colon if the port has no name, as upstream does in
/// rule comments and chain-name hashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    pub service: ServiceName,
    /// The port's name.
    pub port: PortName,
    /// The port's protocol; names need only be unique together with it in older objects.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.service.as_str())?;
        if self.port.as_str().is_empty() {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_port_prints_as_upstream_does() {
        let service = ServiceName::new("ns1", "svc1").unwrap();
        let named = ServicePortName {
            service,
            port: "p80".into(),
            protocol: Protocol::Tcp,
        };
        let unnamed = ServicePortName {
            port: "".into(),
            ..named.clone()
        };
        assert_eq!(named.to_string(), "ns1/svc1:p80");
        assert_eq!(unnamed.to_string(), "ns1/svc1");
        assert_eq!((named.service.namespace(), named.service.name()), ("ns1", "svc1"));
    }

    #[test]
    fn a_name_with_a_slash_or_without_letters_is_refused() {
        assert_eq!(ServiceName::new("a/b", "c"), Err(BadName("a/b".into())));
        assert_eq!(ServiceName::new("a", ""), Err(BadName(String::new())));
    }
}
