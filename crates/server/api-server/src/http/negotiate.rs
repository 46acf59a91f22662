//! In which form does the client want its answer?

use pointsman_rules::ApiError;

/// A form of answer that this server can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The object itself.
    Json,
    /// Rows and columns for people, in this version of them: they differ in nothing else.
    Table(&'static str),
    PartialMetadata,
    /// Discovery of all groups in one document.
    AggregatedDiscovery,
}

impl Form {
    pub const TABLE: Self = Form::Table("meta.k8s.io/v1");

    /// Whether a client that asks for this gets it where `self` is offered.
    fn offers(self, asked: Form) -> bool {
        match (self, asked) {
            (Form::Table(_), Form::Table(_)) => true,
            _ => self == asked,
        }
    }

    /// The `Content-Type` of an answer in this form.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::AggregatedDiscovery => {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            }
            _ => "application/json",
        }
    }
}

/// The first form in the `Accept` header that can be served; no header means JSON.
pub fn negotiate(accept: Option<&str>, offered: &[Form]) -> Result<Form, ApiError> {
    let Some(accept) = accept.map(str::trim).filter(|accept| !accept.is_empty()) else {
        return Ok(Form::Json);
    };
    let acceptable = accept.split(',').filter_map(form_of);
    acceptable
        .into_iter()
        .find(|form| offered.iter().any(|offered| offered.offers(*form)))
        .ok_or_else(|| ApiError::NotAcceptable("application/json, application/json;stream=watch".to_owned()))
}

fn form_of(entry: &str) -> Option<Form> {
    let mut parts = entry.split(';').map(str::trim);
    let media = parts.next()?;
    let (mut group, mut version, mut kind) = ("", "", "");
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            Some(("as", value)) => kind = value,
            _ => {}
        }
    }
    if !matches!(media, "application/json" | "application/*" | "*/*") {
        return None;
    }
    match (kind, group, version) {
        ("", _, _) => Some(Form::Json),
        ("Table", "meta.k8s.io", "v1") => Some(Form::TABLE),
        ("Table", "meta.k8s.io", "v1beta1") => Some(Form::Table("meta.k8s.io/v1beta1")),
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => {
            Some(Form::PartialMetadata)
        }
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Some(Form::AggregatedDiscovery),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT_FORMS: &[Form] = &[Form::Json, Form::TABLE, Form::PartialMetadata];

    #[test]
    fn the_first_servable_entry_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(negotiate(Some(kubectl), OBJECT_FORMS), Ok(Form::TABLE));
        let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(
            negotiate(Some(old), OBJECT_FORMS),
            Ok(Form::Table("meta.k8s.io/v1beta1"))
        );
        let informer = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(negotiate(Some(informer), OBJECT_FORMS), Ok(Form::Json));
        let discovery =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(
            negotiate(Some(discovery), &[Form::Json, Form::AggregatedDiscovery]),
            Ok(Form::AggregatedDiscovery)
        );
        assert_eq!(negotiate(None, OBJECT_FORMS), Ok(Form::Json));
        assert_eq!(negotiate(Some("*/*"), OBJECT_FORMS), Ok(Form::Json));
    }

    #[test]
    fn what_cannot_be_served_is_not_acceptable() {
        let only_protobuf = negotiate(Some("application/vnd.kubernetes.protobuf"), OBJECT_FORMS);
        assert_eq!(only_protobuf.unwrap_err().code(), 406);
        let old_discovery = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert!(negotiate(Some(old_discovery), &[Form::Json, Form::AggregatedDiscovery]).is_err());
    }
}
