//! Which fields does each kind have, and of which type?
//!
//! The answer is data: `crates/server/rules/schema/*.txt`, one file per API package, read once. Decoding of
//! JSON, YAML and protobuf, strategic merge patches and the OpenAPI documents all read the same table, so they cannot
//! disagree. The text format is described in [`mod@parse`].

pub mod declared;
mod number;
pub mod parse;

use crate::kind::Kind;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::OnceLock;

pub use number::{Member, ProtobufField, embedded_at};

/// One type with named fields, such as Pod or Container.
#[derive(Debug)]
pub struct ObjectType {
    /// The id in OpenAPI documents, such as `io.k8s.api.core.v1.Pod`.
    pub id: String,
    /// The last part of the id.
    pub name: &'static str,
    /// Where the type is served, if it can be the body of a request.
    pub served_as: Option<GroupVersionKind<'static>>,
    /// One sentence for people; empty for rarely used types.
    pub description: &'static str,
    /// Whether it has fields that are known elsewhere: those of custom resources are in their definitions.
    pub open: bool,
    /// Whether only protobuf has the fields: JSON has what the one that is set holds.
    pub union: bool,
    /// Whether clients that apply on the server replace it whole.
    pub map_type: Option<&'static str>,
    /// The fields, sorted by name.
    fields: Vec<Field>,
    /// Where in `fields` the holder of a protobuf number is.
    numbers: BTreeMap<(Option<u32>, u32), usize>,
}

/// The name of a type in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupVersionKind<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// API version within the group.
    pub version: &'a str,
    /// The `kind` field.
    pub kind: &'a str,
}

/// One field of an [`ObjectType`].
#[derive(Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Whether upstream lists it as required. Absence is left to validation.
    pub required: bool,
    /// Its place in protobuf messages; none for fields that only JSON has.
    pub protobuf: Option<ProtobufField>,
    /// How a strategic merge patch treats it.
    pub patch: PatchStrategy,
    /// Whether clients send `$retainKeys` for it, because its members exclude one another.
    pub retain_keys: bool,
    /// How server-side apply treats a list or map, in the spelling of OpenAPI.
    pub merge_type: Option<MergeType>,
    /// What it holds if nobody says, for kinds whose defaults are data.
    pub default: Option<Value>,
    /// One sentence for people; empty for rarely used fields.
    pub description: &'static str,
}

/// What a field, a list item or a map value holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A single value.
    Scalar(Scalar),
    /// An object with known fields.
    Object(TypeIndex),
    /// A list of equal shapes.
    List(Box<Shape>),
    /// An object with free keys and values of one shape.
    Map(Box<Shape>),
    /// Anything at all.
    Any,
}

/// The single values of the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    String,
    /// A 32-bit signed number.
    Int32,
    /// A 64-bit signed number.
    Int64,
    /// `true` or `false`.
    Bool,
    /// A floating point number.
    Double,
    /// RFC 3339 with whole seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// A number with a unit suffix, such as `500m` or `2Gi`.
    Quantity,
    /// A number or a name or a percentage.
    IntOrString,
    /// Base64.
    Bytes,
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchStrategy {
    /// Objects are merged, everything else is replaced.
    Default,
    /// Replaced whole, even if it is an object.
    Replace,
    /// A list whose items are matched by this field.
    MergeBy(&'static str),
    /// A list of single values, united.
    MergeSet,
}

/// How server-side apply treats a list or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeType {
    /// `x-kubernetes-list-type`, with the keys if it is `map`.
    List(&'static str, Vec<&'static str>),
    /// `x-kubernetes-map-type`.
    Map(&'static str),
}

/// A reference to an [`ObjectType`] of the built-in schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeIndex(usize);

impl TypeIndex {
    pub fn get(self) -> &'static ObjectType {
        &schema().types[self.0]
    }
}

impl ObjectType {
    /// The fields, sorted by name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| field.name.cmp(name)).ok()?;
        Some(&self.fields[at])
    }
}

impl fmt::Display for ObjectType {
    /// `Pod in version "v1"`, as upstream starts its messages about undecodable bodies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.served_as {
            Some(served) if served.group.is_empty() => {
                write!(f, "{} in version {:?}", self.name, served.version)
            }
            Some(served) => write!(
                f,
                "{} in version \"{}/{}\"",
                self.name, served.group, served.version
            ),
            None => f.write_str(self.name),
        }
    }
}

impl Scalar {
    /// The name in the schema files and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Scalar::String => "string",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Bool => "bool",
            Scalar::Double => "double",
            Scalar::Time => "time",
            Scalar::MicroTime => "microTime",
            Scalar::Quantity => "quantity",
            Scalar::IntOrString => "intOrString",
            Scalar::Bytes => "bytes",
        }
    }

    const ALL: [Scalar; 10] = [
        Scalar::String,
        Scalar::Int32,
        Scalar::Int64,
        Scalar::Bool,
        Scalar::Double,
        Scalar::Time,
        Scalar::MicroTime,
        Scalar::Quantity,
        Scalar::IntOrString,
        Scalar::Bytes,
    ];
}

/// All types of all files.
#[derive(Debug)]
pub struct Schema {
    types: Vec<ObjectType>,
    /// Where the types are that can be the body of a request.
    served: HashMap<GroupVersionKind<'static>, usize>,
}

impl Schema {
    /// Every type, sorted by id.
    pub fn types(&self) -> &[ObjectType] {
        &self.types
    }

    fn served<'a>(&'static self, name: &GroupVersionKind<'a>) -> Option<&'static ObjectType> {
        // A key of the map lives as long as the program, a question does not.
        let served: &HashMap<GroupVersionKind<'a>, usize> = &self.served;
        served.get(name).map(|at| &self.types[*at])
    }

    /// The type with that OpenAPI id.
    pub fn by_id(&self, id: &str) -> Option<&ObjectType> {
        let at = self
            .types
            .binary_search_by(|known| known.id.as_str().cmp(id))
            .ok()?;
        Some(&self.types[at])
    }
}

/// The built-in schema.
pub fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| parse::parse(SOURCES).expect("the schema files are part of the program and tested"))
}

/// The type of objects of `kind`.
pub fn of(kind: &Kind) -> &'static ObjectType {
    if kind.defined.is_some() {
        return schema()
            .by_id("io.pointsman.CustomResource")
            .expect("custom.txt has it");
    }
    named(kind.group, kind.version, kind.kind).expect("every served kind has a schema")
}

/// The type that requests call by this group, version and kind, such as `autoscaling`, `v1`, `Scale`.
pub fn named(group: &str, version: &str, kind: &str) -> Option<&'static ObjectType> {
    schema().served(&GroupVersionKind { group, version, kind })
}

/// `DeleteOptions`, the body of DELETE.
pub fn delete_options() -> &'static ObjectType {
    named("", "v1", "DeleteOptions").expect("meta_v1.txt has it")
}

const SOURCES: &[&str] = &[
    include_str!("../../schema/admissionregistration_v1.txt"),
    include_str!("../../schema/apiextensions_v1.txt"),
    include_str!("../../schema/apps_v1.txt"),
    include_str!("../../schema/authentication_v1.txt"),
    include_str!("../../schema/authorization_v1.txt"),
    include_str!("../../schema/autoscaling_v1.txt"),
    include_str!("../../schema/autoscaling_v2.txt"),
    include_str!("../../schema/batch_v1.txt"),
    include_str!("../../schema/certificates_v1.txt"),
    include_str!("../../schema/config_openshift_v1.txt"),
    include_str!("../../schema/coordination_v1.txt"),
    include_str!("../../schema/core_v1.txt"),
    include_str!("../../schema/custom.txt"),
    include_str!("../../schema/discovery_v1.txt"),
    include_str!("../../schema/events_v1.txt"),
    include_str!("../../schema/meta_v1.txt"),
    include_str!("../../schema/networking_v1.txt"),
    include_str!("../../schema/node_v1.txt"),
    include_str!("../../schema/policy_v1.txt"),
    include_str!("../../schema/rbac_v1.txt"),
    include_str!("../../schema/resource_v1.txt"),
    include_str!("../../schema/scheduling_v1.txt"),
    include_str!("../../schema/storage_v1.txt"),
    include_str!("../../schema/storagemigration_v1.txt"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn field(id: &str, name: &str) -> &'static Field {
        schema().by_id(id).unwrap().field(name).unwrap()
    }

    #[test]
    fn every_served_kind_has_a_type_with_metadata() {
        for kind in kinds::ALL.iter() {
            assert!(of(kind).field("metadata").is_some(), "{}", kind.kind);
            assert!(of(kind).field("apiVersion").is_some(), "{}", kind.kind);
        }
    }

    #[test]
    fn every_kind_and_all_its_own_fields_are_described() {
        for kind in kinds::ALL.iter() {
            let shape = of(kind);
            assert!(!shape.description.is_empty(), "{}", shape.id);
            for field in shape.fields() {
                assert!(
                    !field.description.is_empty() || field.name.starts_with("deprecated"),
                    "{}.{}",
                    shape.id,
                    field.name
                );
            }
        }
    }

    #[test]
    fn merge_keys_are_the_upstream_ones() {
        let cases = [
            (
                "io.k8s.api.core.v1.PodSpec",
                "containers",
                PatchStrategy::MergeBy("name"),
            ),
            (
                "io.k8s.api.core.v1.PodSpec",
                "tolerations",
                PatchStrategy::Default,
            ),
            (
                "io.k8s.api.core.v1.PodSpec",
                "volumes",
                PatchStrategy::MergeBy("name"),
            ),
            (
                "io.k8s.api.core.v1.Container",
                "ports",
                PatchStrategy::MergeBy("containerPort"),
            ),
            (
                "io.k8s.api.core.v1.Container",
                "volumeMounts",
                PatchStrategy::MergeBy("mountPath"),
            ),
            (
                "io.k8s.api.core.v1.ServiceSpec",
                "ports",
                PatchStrategy::MergeBy("port"),
            ),
            ("io.k8s.api.core.v1.NodeSpec", "taints", PatchStrategy::Default),
            (
                "io.k8s.api.core.v1.NodeStatus",
                "addresses",
                PatchStrategy::MergeBy("type"),
            ),
            (
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "finalizers",
                PatchStrategy::MergeSet,
            ),
            (
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "ownerReferences",
                PatchStrategy::MergeBy("uid"),
            ),
            (
                "io.k8s.api.discovery.v1.EndpointSlice",
                "endpoints",
                PatchStrategy::Default,
            ),
        ];
        for (id, name, expected) in cases {
            assert_eq!(field(id, name).patch, expected, "{id}.{name}");
        }
        assert!(field("io.k8s.api.core.v1.PodSpec", "volumes").retain_keys);
        assert!(field("io.k8s.api.apps.v1.DeploymentSpec", "strategy").retain_keys);
    }

    #[test]
    fn probes_have_millisecond_offsets() {
        for name in [
            "periodMilliseconds",
            "initialDelayMilliseconds",
            "timeoutMilliseconds",
        ] {
            assert_eq!(
                field("io.k8s.api.core.v1.Probe", name).shape,
                Shape::Scalar(Scalar::Int32)
            );
        }
    }
}
