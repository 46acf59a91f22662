//! Which objects does a request cover?

use crate::cache::object::Object;
use crate::http::query::Query;
use pointsman_rules::selector::{FieldSelector, FieldTerm, LabelSelector};
use pointsman_rules::{ApiError, Kind, views};
use std::sync::Arc;

/// Label and field selectors together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    /// Reads the selectors of a query and checks that `kind` has the fields they name.
    pub fn parse(query: &Query, kind: &Kind) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or(""))?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or(""))?;
        for term in fields.terms() {
            if !kind.can_select(&term.field) {
                return Err(FieldSelector::unknown_field(&term.field));
            }
        }
        // Views of another group's objects call some fields by other names.
        let fields = match kind.stored_as {
            None => fields,
            Some(_) => fields.rename(|field| Ok(views::stored_field(kind, field)))?,
        };
        Ok(Self { labels, fields })
    }

    /// The same selection, for one name only.
    pub fn only(mut self, name: &str) -> Self {
        self.fields = self.fields.and(FieldTerm {
            field: "metadata.name".into(),
            value: name.into(),
            negated: false,
        });
        self
    }

    /// Whether every object is covered.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether `object` is covered.
    pub fn matches(&self, object: &Object) -> bool {
        self.labels.matches_with(|key| object.labels.get(key))
            && self.fields.matches_with(|field| Some(object.field(field)))
    }

    /// What it costs to select among these objects, compared with reading bytes.
    pub fn cost(&self, objects: &[Arc<Object>]) -> usize {
        /// Finding a label or field and comparing it.
        const PER_TERM: usize = 16;
        let terms = self.labels.requirements().len() + self.fields.terms().len();
        objects.len().saturating_mul((1 + terms) * PER_TERM)
    }

    /// The value that a field must have, if the selection fixes it.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.fields.requires_exact(field)
    }
}
