//! Which objects are watched?

use crate::resource::Resource;

/// Objects per page where lists cannot be streamed (client-go's number).
const PAGE: usize = 500;

/// Which objects are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub resource: Resource,
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// Label selector, or everything.
    pub labels: Option<String>,
    /// Field selector, or everything.
    pub fields: Option<String>,
}

impl Scope {
    /// All objects of a collection.
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            namespace: None,
            labels: None,
            fields: None,
        }
    }

    /// Only objects whose labels match.
    pub fn labels(self, selector: &str) -> Self {
        Self {
            labels: Some(selector.to_owned()),
            ..self
        }
    }

    /// Only objects whose fields match.
    pub fn fields(self, selector: &str) -> Self {
        Self {
            fields: Some(selector.to_owned()),
            ..self
        }
    }

    /// The path of a page of a list; an empty token names the first one.
    pub(crate) fn page_path(&self, token: &str) -> String {
        let limit = PAGE.to_string();
        let mut query = vec![("limit", limit.as_str())];
        if !token.is_empty() {
            query.push(("continue", token));
        }
        self.path(&query)
    }

    pub(crate) fn path(&self, parameters: &[(&str, &str)]) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
        let mut path = self.resource.path(self.namespace.as_deref());
        let selectors = [
            ("labelSelector", self.labels.as_deref()),
            ("fieldSelector", self.fields.as_deref()),
        ];
        let selectors = selectors
            .iter()
            .filter_map(|(name, value)| Some((*name, (*value)?)));
        let mut separator = '?';
        for (name, value) in parameters.iter().copied().chain(selectors) {
            path.push(separator);
            separator = '&';
            path.push_str(name);
            path.push('=');
            path.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        path
    }
}
