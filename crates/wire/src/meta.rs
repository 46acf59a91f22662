//! Which names, labels, annotations, finalizers and owners are well-formed?

/// The shape an object's name must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Lower case letters, digits, `-` and `.`; at most 253 bytes.
    DnsSubdomain,
    /// Lower case letters, digits and `-`; at most 63 bytes.
    DnsLabel,
    /// Anything that can be one path segment (RBAC names contain colons).
    PathSegment,
}
