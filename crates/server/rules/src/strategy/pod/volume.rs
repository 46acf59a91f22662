//! Which volumes may a pod have?

use super::nonempty;
use crate::field_error::{FieldError, FieldErrors};
use crate::meta::names;
use crate::value::{at, int_at, list_at, quantity, str_at};
use pointsman_model::Quantity;
use serde_json::Value;
use std::collections::BTreeSet;

/// Adds what is wrong with the volumes of `spec` and returns the names of the sound ones.
pub fn validate<'a>(spec: &'a Value, path: &str, errors: &mut FieldErrors) -> BTreeSet<&'a str> {
    let mut sound = BTreeSet::new();
    for (index, volume) in list_at(spec, &["volumes"]).iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
        let before = errors.len();
        validate_source(volume, &path, errors);
        nonempty(volume, "name", names::dns_label, &path, errors);
        let name = str_at(volume, &["name"]);
        if sound.contains(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        if errors.len() == before {
            sound.insert(name);
        }
    }
    sound
}

fn validate_source(volume: &Value, path: &str, errors: &mut FieldErrors) {
    let sources: Vec<(&String, &Value)> = volume
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(field, value)| field.as_str() != "name" && !value.is_null())
        .collect();
    if sources.is_empty() {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    for (index, (field, source)) in sources.into_iter().enumerate() {
        let path = format!("{path}.{field}");
        if index > 0 {
            errors.push(FieldError::forbidden(
                path,
                "may not specify more than 1 volume type",
            ));
            continue;
        }
        let name_field = match field.as_str() {
            "secret" => "secretName",
            "configMap" => "name",
            "persistentVolumeClaim" => "claimName",
            "csi" => "driver",
            "hostPath" => "path",
            _ => "",
        };
        if !name_field.is_empty() && str_at(source, &[name_field]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{name_field}"), ""));
        }
        if field == "hostPath" && str_at(source, &["path"]).split('/').any(|step| step == "..") {
            let value = str_at(source, &["path"]);
            errors.push(FieldError::invalid(
                format!("{path}.path"),
                value,
                "must not contain '..'",
            ));
        }
        validate_size_limit(source, &path, errors);
        validate_files(source, &path, errors);
        for (index, part) in list_at(source, &["sources"]).iter().enumerate() {
            let path = format!("{path}.sources[{index}].podCertificate.maxExpirationSeconds");
            validate_certificate_life(part, path, errors);
        }
    }
}

/// An hour to 91 days; Kubernetes' own signers give a day at most.
fn validate_certificate_life(part: &Value, path: String, errors: &mut FieldErrors) {
    const DAY: i64 = 24 * 3600;
    let Some(seconds) = int_at(part, &["podCertificate", "maxExpirationSeconds"]) else {
        return;
    };
    let signer = str_at(part, &["podCertificate", "signerName"]);
    let domain = signer.split('/').next().unwrap_or("");
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    let most = if own { DAY } else { 91 * DAY };
    if !(3600..=most).contains(&seconds) {
        let bound = if seconds < 3600 {
            ">= 3600".to_owned()
        } else {
            format!("<= {most}")
        };
        let why = format!("if provided, maxExpirationSeconds must be {bound}");
        errors.push(FieldError::invalid(path, seconds, why));
    }
}

fn validate_size_limit(source: &Value, path: &str, errors: &mut FieldErrors) {
    let Some(limit) = at(source, &["sizeLimit"]) else {
        return;
    };
    if quantity(limit).is_none_or(|limit| limit < Quantity::ZERO) {
        errors.push(FieldError::forbidden(
            format!("{path}.sizeLimit"),
            "must be a valid resource quantity of at least 0",
        ));
    }
}

fn validate_files(source: &Value, path: &str, errors: &mut FieldErrors) {
    validate_mode(source, "defaultMode", path, errors);
    for (index, item) in list_at(source, &["items"]).iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        validate_mode(item, "mode", &path, errors);
        if at(item, &["key"]).is_some_and(|key| key == "") {
            errors.push(FieldError::required(format!("{path}.key"), ""));
        }
        let target = str_at(item, &["path"]);
        if target.is_empty() {
            errors.push(FieldError::required(format!("{path}.path"), ""));
        } else if target.starts_with('/') || target.split('/').any(|step| step == "..") {
            let detail = "must be a relative path without '..'";
            errors.push(FieldError::invalid(format!("{path}.path"), target, detail));
        }
    }
}

fn validate_mode(source: &Value, field: &str, path: &str, errors: &mut FieldErrors) {
    if let Some(mode) = int_at(source, &[field])
        && !(0..=0o777).contains(&mode)
    {
        errors.push(FieldError::invalid(
            format!("{path}.{field}"),
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}
