//! Are requests and limits amounts of resources that exist, and do they fit each other?

use crate::field_error::{FieldError, FieldErrors};
use crate::meta::{invalid_each, names};
use crate::value::{at, map_at, quantity};
use pointsman_model::Quantity;
use serde_json::Value;

/// Adds what is wrong with `resources` of the container at `path`.
pub fn validate(container: &Value, path: &str, errors: &mut FieldErrors) {
    let path = format!("{path}.resources");
    let mut compute = false;
    let mut huge_pages = false;
    for half in ["limits", "requests"] {
        for (name, amount) in map_at(container, &["resources", half]).into_iter().flatten() {
            compute |= name == "cpu" || name == "memory";
            huge_pages |= name.starts_with("hugepages-");
            validate_amount(name, amount, &format!("{path}.{half}[{name}]"), errors);
        }
    }
    for (name, request) in map_at(container, &["resources", "requests"])
        .into_iter()
        .flatten()
    {
        let limit = at(container, &["resources", "limits", name]);
        validate_pair(name, request, limit, &path, errors);
    }
    if huge_pages && !compute {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn validate_amount(name: &str, amount: &Value, path: &str, errors: &mut FieldErrors) {
    let faults = names::qualified_name(name);
    if !faults.is_empty() {
        invalid_each(errors, path, name, faults);
    } else if !name.contains('/') && !is_native(name) {
        errors.push(FieldError::invalid(
            path,
            name,
            "must be a standard resource for containers",
        ));
    }
    match quantity(amount) {
        None => errors.push(FieldError::invalid(
            path,
            amount.clone(),
            "must be a quantity such as 500m or 1Gi",
        )),
        Some(quantity) if quantity < Quantity::ZERO => errors.push(FieldError::invalid(
            path,
            amount.clone(),
            "must be greater than or equal to 0",
        )),
        Some(quantity) if !is_native(name) && !quantity.is_whole() => {
            errors.push(FieldError::invalid(path, amount.clone(), "must be an integer"));
        }
        Some(_) => {}
    }
}

fn validate_pair(name: &str, request: &Value, limit: Option<&Value>, path: &str, errors: &mut FieldErrors) {
    let overcommit = is_native(name) && !name.starts_with("hugepages-");
    let Some(limit) = limit else {
        if !overcommit {
            errors.push(FieldError::required(
                format!("{path}.limits"),
                "Limit must be set for non overcommitable resources",
            ));
        }
        return;
    };
    let (Some(asked), Some(allowed)) = (quantity(request), quantity(limit)) else {
        return;
    };
    let shown = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
    let field = format!("{path}.requests");
    if !overcommit && asked != allowed {
        let detail = format!("must be equal to {name} limit of {shown}");
        errors.push(FieldError::invalid(field, request.clone(), detail));
    } else if asked > allowed {
        let detail = format!("must be less than or equal to {name} limit of {shown}");
        errors.push(FieldError::invalid(field, request.clone(), detail));
    }
}

/// Resources that every node has; others belong to a vendor and are counted whole.
fn is_native(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-")
}
