//! How is a schema file read?
//!
//! ```text
//! // A comment.
//! package io.k8s.api.core.v1          prefix of the ids
//! group v1                            apiVersion of its kinds
//! use meta io.k8s.apimachinery.pkg.apis.meta.v1
//!
//! kind Pod  # One sentence.           has apiVersion and kind besides the listed fields
//!   metadata meta.ObjectMeta @1       `@` is the field number in protobuf
//! type Container                      has only the listed fields
//! type ItemsOrItem union              in protobuf a message, in JSON what the one field of it holds that is set
//!   name! string @1                   `!` means required
//!   ports []ContainerPort @6 patch=merge:containerPort list=map:containerPort,protocol
//!   limits {}quantity @1              an object with free keys
//!   replicas int32 @1*                `*`: a zero in protobuf is a value, not an unset field
//!   emptyDir EmptyDirVolumeSource @2.2  field 2 of the message in field 2
//!   periodMilliseconds int32          no number: JSON only
//! ```
//!
//! Required fields need no `*`.
//!
//! `patch=` is upstream's patch strategy and merge key, `list=` and `map=` its list and map types.

use super::{
    Field, GroupVersionKind, MergeType, ObjectType, PatchStrategy, ProtobufField, Scalar, Schema, Shape,
    TypeIndex,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Where and why a schema file cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseError {
    /// A line is not of a known form.
    #[error("{package}, line {line}: {why}")]
    Line {
        /// The package the file began with.
        package: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A field names a type that no file has.
    #[error("{from} refers to {to}, which does not exist")]
    Dangling {
        /// The type with the field.
        from: String,
        /// The id that was not found.
        to: String,
    },
    /// Two types have the same id.
    #[error("{0} is there twice")]
    Twice(String),
    /// Two fields of a type have the same protobuf number.
    #[error("two fields of {0} have the same protobuf number")]
    SameNumber(String),
}

/// Reads schema files and resolves the references between them.
pub fn parse(sources: &[&'static str]) -> Result<Schema, ParseError> {
    let mut drafts = Vec::new();
    for source in sources {
        drafts.extend(File::read(source)?);
    }
    drafts.sort_by(|a, b| a.id.cmp(&b.id));
    if let Some(pair) = drafts.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(ParseError::Twice(pair[0].id.clone()));
    }
    let index: BTreeMap<String, TypeIndex> = drafts
        .iter()
        .enumerate()
        .map(|(at, draft)| (draft.id.clone(), TypeIndex(at)))
        .collect();
    let types = drafts
        .into_iter()
        .map(|draft| draft.resolve(&index))
        .collect::<Result<_, _>>()?;
    let types: Vec<ObjectType> = types;
    let served = types
        .iter()
        .enumerate()
        .filter_map(|(at, known)| Some((known.served_as?, at)))
        .collect();
    Ok(Schema { types, served })
}

/// A type whose fields still name other types by id.
struct Draft {
    id: String,
    name: &'static str,
    served_as: Option<GroupVersionKind<'static>>,
    description: &'static str,
    map_type: Option<&'static str>,
    open: bool,
    union: bool,
    fields: Vec<(Field, DraftShape)>,
}

enum DraftShape {
    Done(Shape),
    Object(String),
    List(Box<DraftShape>),
    Map(Box<DraftShape>),
}

impl Draft {
    fn resolve(self, index: &BTreeMap<String, TypeIndex>) -> Result<ObjectType, ParseError> {
        let mut fields = Vec::with_capacity(self.fields.len());
        for (field, shape) in self.fields {
            let shape = shape.resolve(&self.id, index)?;
            fields.push(Field { shape, ..field });
        }
        fields.sort_by_key(|field| field.name);
        let mut numbers = BTreeMap::new();
        for (at, field) in fields.iter().enumerate() {
            let Some(place) = field.protobuf.map(ProtobufField::place) else {
                continue;
            };
            if numbers.insert(place, at).is_some() {
                return Err(ParseError::SameNumber(self.id));
            }
        }
        Ok(ObjectType {
            id: self.id,
            name: self.name,
            served_as: self.served_as,
            description: self.description,
            map_type: self.map_type,
            open: self.open,
            union: self.union,
            fields,
            numbers,
        })
    }
}

impl DraftShape {
    fn resolve(self, from: &str, index: &BTreeMap<String, TypeIndex>) -> Result<Shape, ParseError> {
        Ok(match self {
            DraftShape::Done(shape) => shape,
            DraftShape::List(item) => Shape::List(Box::new(item.resolve(from, index)?)),
            DraftShape::Map(value) => Shape::Map(Box::new(value.resolve(from, index)?)),
            DraftShape::Object(id) => match index.get(&id) {
                Some(at) => Shape::Object(*at),
                None => {
                    return Err(ParseError::Dangling {
                        from: from.to_owned(),
                        to: id,
                    });
                }
            },
        })
    }
}

/// The state while reading one file.
#[derive(Default)]
struct File {
    package: &'static str,
    group: &'static str,
    version: &'static str,
    uses: BTreeMap<&'static str, &'static str>,
    drafts: Vec<Draft>,
}

impl File {
    fn read(source: &'static str) -> Result<Vec<Draft>, ParseError> {
        let mut file = File::default();
        for (at, line) in source.lines().enumerate() {
            file.line(line).map_err(|why| ParseError::Line {
                package: file.package.to_owned(),
                line: at + 1,
                why,
            })?;
        }
        Ok(file.drafts)
    }

    fn line(&mut self, line: &'static str) -> Result<(), String> {
        let (text, description) = match line.split_once("  # ") {
            Some((text, description)) => (text, description.trim()),
            None => (line, ""),
        };
        let words: Vec<&'static str> = text.split_whitespace().collect();
        let indented = line.starts_with(' ');
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with("//") => {}
            [name, shape, attributes @ ..] if indented => {
                let field = self.field(name, shape, attributes, description)?;
                let draft = self.drafts.last_mut().ok_or("a field before any type")?;
                draft.fields.push(field);
            }
            ["package", package] => self.package = package,
            ["group", group] => {
                (self.group, self.version) = group.split_once('/').unwrap_or(("", group));
            }
            ["use", alias, package] => {
                self.uses.insert(alias, package);
            }
            ["kind", name, attributes @ ..] => self.open(name, true, attributes, description)?,
            ["type", name, attributes @ ..] => self.open(name, false, attributes, description)?,
            _ => return Err(format!("{line:?} is neither a header, a type nor a field")),
        }
        Ok(())
    }

    fn open(
        &mut self,
        name: &'static str,
        is_kind: bool,
        attributes: &[&'static str],
        description: &'static str,
    ) -> Result<(), String> {
        let map_type = match attributes {
            [] | ["open" | "union"] => None,
            [one] => Some(
                one.strip_prefix("map=")
                    .ok_or("only map=, open or union may follow a type's name")?,
            ),
            _ => return Err("too many words after a type's name".into()),
        };
        let served_as = is_kind.then_some(GroupVersionKind {
            group: self.group,
            version: self.version,
            kind: name,
        });
        let mut fields = Vec::new();
        if is_kind {
            fields.push(self.field("apiVersion", "string", &[], "Group and version of this object.")?);
            fields.push(self.field("kind", "string", &[], "What this object is.")?);
        }
        self.drafts.push(Draft {
            id: format!("{}.{name}", self.package),
            name,
            served_as,
            description,
            map_type,
            open: attributes == ["open"],
            union: attributes == ["union"],
            fields,
        });
        Ok(())
    }

    fn field(
        &self,
        name: &'static str,
        shape: &'static str,
        attributes: &[&'static str],
        description: &'static str,
    ) -> Result<(Field, DraftShape), String> {
        let mut field = Field {
            name: name.trim_end_matches('!'),
            shape: Shape::Any,
            required: name.ends_with('!'),
            protobuf: None,
            patch: PatchStrategy::Default,
            retain_keys: false,
            merge_type: None,
            default: None,
            description,
        };
        for attribute in attributes {
            if let Some(number) = attribute.strip_prefix('@') {
                let place = ProtobufField::parse(number, field.required);
                field.protobuf = Some(place.ok_or_else(|| format!("{number:?} is not a field number"))?);
                continue;
            }
            let (key, value) = attribute
                .split_once('=')
                .ok_or_else(|| format!("{attribute:?} is not key=value"))?;
            match key {
                "patch" => set_patch(&mut field, value)?,
                "list" => {
                    let (list_type, keys) = value.split_once(':').unwrap_or((value, ""));
                    let keys = keys.split(',').filter(|key| !key.is_empty()).collect();
                    field.merge_type = Some(MergeType::List(list_type, keys));
                }
                "default" => {
                    let text = || Value::String(value.to_owned());
                    field.default = Some(serde_json::from_str(value).unwrap_or_else(|_| text()));
                }
                "map" => field.merge_type = Some(MergeType::Map(value)),
                _ => return Err(format!("unknown attribute {key:?}")),
            }
        }
        Ok((field, self.shape(shape)?))
    }

    fn shape(&self, text: &'static str) -> Result<DraftShape, String> {
        if let Some(item) = text.strip_prefix("[]") {
            return Ok(DraftShape::List(Box::new(self.shape(item)?)));
        }
        if let Some(value) = text.strip_prefix("{}") {
            return Ok(DraftShape::Map(Box::new(self.shape(value)?)));
        }
        if text == "any" {
            return Ok(DraftShape::Done(Shape::Any));
        }
        if let Some(scalar) = Scalar::ALL.into_iter().find(|scalar| scalar.name() == text) {
            return Ok(DraftShape::Done(Shape::Scalar(scalar)));
        }
        let id = match text.split_once('.') {
            None => format!("{}.{text}", self.package),
            Some((alias, name)) => {
                let package = self
                    .uses
                    .get(alias)
                    .ok_or_else(|| format!("no `use {alias}` in this file"))?;
                format!("{package}.{name}")
            }
        };
        Ok(DraftShape::Object(id))
    }
}

fn set_patch(field: &mut Field, value: &'static str) -> Result<(), String> {
    for strategy in value.split(',') {
        match strategy.split_once(':').unwrap_or((strategy, "")) {
            ("merge", "") => field.patch = PatchStrategy::MergeSet,
            ("merge", key) => field.patch = PatchStrategy::MergeBy(key),
            ("replace", "") => field.patch = PatchStrategy::Replace,
            ("retainKeys", "") => field.retain_keys = true,
            _ => return Err(format!("unknown patch strategy {strategy:?}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Member, embedded_at};

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = parse(&["package p\n\ntype A\n  x string colour=red\n"]).unwrap_err();
        assert_eq!(error.to_string(), "p, line 4: unknown attribute \"colour\"");
        let error = parse(&["package p\ntype A\n  x B\n"]).unwrap_err();
        assert_eq!(error.to_string(), "p.A refers to p.B, which does not exist");
        let error = parse(&["package p\ntype A\ntype A\n"]).unwrap_err();
        assert_eq!(error, ParseError::Twice("p.A".into()));
        assert!(parse(&["package p\n  x string\n"]).is_err());
        let error = parse(&["package p\ntype A\n  x string @0\n"]).unwrap_err();
        assert_eq!(error.to_string(), "p, line 3: \"0\" is not a field number");
        let error = parse(&["package p\ntype A\n  x string @1\n  y string @1*\n"]).unwrap_err();
        assert_eq!(error, ParseError::SameNumber("p.A".into()));
    }

    #[test]
    fn numbers_lead_to_fields_also_through_embedded_messages() {
        let schema =
            parse(&["package p\ntype A\n  a! string @1\n  b string @2.1*\n  c string @2.2\n  d string\n  e string @2.4.1\n"])
                .unwrap();
        let a = schema.by_id("p.A").unwrap();
        let found = |within, number| match a.member(within, number) {
            Some(Member::Field(field, place)) => Some((field.name, place.zero_counts)),
            Some(Member::Embedded) => Some(("embedded", false)),
            None => None,
        };
        assert_eq!(found(None, 1), Some(("a", true)));
        assert_eq!(found(None, 2), Some(("embedded", false)));
        assert_eq!(found(Some(2), 1), Some(("b", true)));
        assert_eq!(found(Some(2), 2), Some(("c", false)));
        assert_eq!(found(Some(2), 4), Some(("embedded", false)));
        assert_eq!(found(Some(embedded_at(Some(2), 4)), 1), Some(("e", false)));
        assert_eq!(
            (found(None, 3), found(Some(2), 3), found(Some(1), 1)),
            (None, None, None)
        );
        assert_eq!(a.field("d").unwrap().protobuf, None);
    }

    #[test]
    fn references_across_packages_resolve() {
        let schema = parse(&[
            "package a\nuse b b.pkg\ntype A\n  list []b.B patch=merge:name,retainKeys list=map:name,x  # Words.\n",
            "package b.pkg\ngroup g/v1\nkind B\n  name! string\n",
        ])
        .unwrap();
        let field = schema.by_id("a.A").unwrap().field("list").unwrap();
        assert_eq!(field.patch, PatchStrategy::MergeBy("name"));
        assert!(field.retain_keys);
        assert_eq!(field.merge_type, Some(MergeType::List("map", vec!["name", "x"])));
        assert_eq!(field.description, "Words.");
        let b = schema.by_id("b.pkg.B").unwrap();
        assert_eq!(b.served_as.map(|gvk| (gvk.group, gvk.version)), Some(("g", "v1")));
        assert!(b.field("name").unwrap().required && b.field("kind").is_some());
    }
}
