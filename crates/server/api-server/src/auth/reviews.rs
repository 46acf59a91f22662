//! What may somebody do, asked through the API?
//!
//! The review kinds are questions, not objects: a POST is answered at once and nothing is stored.

use super::rbac::{Attributes, Decision, Policy, Rule};
use super::{Authenticator, User};
use jiff::Timestamp;
use pointsman_rules::decode::{BodyFormat, decode};
use pointsman_rules::review::{Question, Review};
use pointsman_rules::value::{at, list_at, map_at, str_at};
use pointsman_rules::{ApiError, FieldError, FieldErrors, schema, status::Subject};
use serde_json::{Value, json};

/// The question in the body of a request.
pub fn decode_body(review: &Review, body: &[u8], format: BodyFormat) -> Result<Value, ApiError> {
    let shape = schema::named(review.group, Review::VERSION, review.kind).ok_or(ApiError::NoSuchResource)?;
    Ok(decode(body, format, shape)?.object)
}

/// Answers a review that `user` posted; `namespace` is the one in the URL.
pub fn answer(
    review: &Review,
    user: &User,
    namespace: &str,
    body: &Value,
    (policy, authenticator, now): (&Policy, &Authenticator, Timestamp),
) -> Result<Value, ApiError> {
    let spec = body.get("spec").unwrap_or(&Value::Null);
    let status = match review.question {
        Question::SelfSubject => json!({"userInfo": user_info(user)}),
        Question::Token => token_status(spec, authenticator, now),
        Question::SelfRules => rules_status(user, spec, policy)?,
        Question::SelfAccess => {
            validate(review, union_errors(spec))?;
            access_status(user, spec, policy)
        }
        Question::Access | Question::LocalAccess => {
            validate(review, subject_errors(review, namespace, spec))?;
            access_status(&subject(spec), spec, policy)
        }
    };
    let mut answer = json!({
        "kind": review.kind,
        "apiVersion": format!("{}/v1", review.group),
        "metadata": {},
        "status": status,
    });
    if review.question == Question::LocalAccess {
        answer["metadata"]["namespace"] = json!(namespace);
    }
    if review.question != Question::SelfSubject {
        answer["spec"] = if spec.is_null() { json!({}) } else { spec.clone() };
    }
    if review.question == Question::Token {
        // Upstream says it back; who asks has it already, and answers end up in logs.
        answer["spec"] = json!({});
    }
    Ok(answer)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

/// Whose token it is, and for which of the audiences that were asked for.
fn token_status(spec: &Value, authenticator: &Authenticator, now: Timestamp) -> Value {
    let audiences = list_at(spec, &["audiences"]).iter().filter_map(Value::as_str);
    let audiences: Vec<String> = audiences.map(str::to_owned).collect();
    match authenticator.token(str_at(spec, &["token"]).as_bytes(), &audiences, now) {
        Some((user, audiences)) => {
            json!({"authenticated": true, "user": user_info(&user), "audiences": audiences})
        }
        None => json!({"authenticated": false}),
    }
}

fn access_status(user: &User, spec: &Value, policy: &Policy) -> Value {
    let field = |of: &str, name: &str| str_at(spec, &[of, name]).to_owned();
    let resource = |name: &str| field("resourceAttributes", name);
    let [verb, group, plural, sub, namespace, name] =
        ["verb", "group", "resource", "subresource", "namespace", "name"].map(resource);
    let (path, path_verb) = (
        field("nonResourceAttributes", "path"),
        field("nonResourceAttributes", "verb"),
    );
    let request = if at(spec, &["resourceAttributes"]).is_some() {
        Attributes::resource(user, &verb, &group, &plural)
            .subresource(&sub)
            .in_namespace(&namespace)
            .named(&name)
    } else {
        Attributes::path(user, &path_verb, &path)
    };
    match policy.authorize(&request) {
        Decision::Allow => match policy.explain(&request) {
            Some(reason) => json!({"allowed": true, "reason": reason}),
            None => json!({"allowed": true}),
        },
        Decision::NoOpinion { reason } if reason.is_empty() => json!({"allowed": false}),
        Decision::NoOpinion { reason } => json!({"allowed": false, "reason": reason}),
    }
}

fn rules_status(user: &User, spec: &Value, policy: &Policy) -> Result<Value, ApiError> {
    let namespace = str_at(spec, &["namespace"]);
    if namespace.is_empty() {
        return Err(ApiError::BadRequest("no namespace on request".into()));
    }
    let (mut rules, missing) = policy.rules_for(user, namespace);
    if user.is_master() {
        let all = vec!["*".to_owned()];
        rules.push(Rule {
            api_groups: all.clone(),
            resources: all.clone(),
            verbs: all.clone(),
            ..Rule::default()
        });
        rules.push(Rule {
            non_resource_urls: all.clone(),
            verbs: all,
            ..Rule::default()
        });
    }
    let (mut resource_rules, mut path_rules) = (Vec::new(), Vec::new());
    for rule in &rules {
        let mut wire = rule.to_wire();
        if !rule.non_resource_urls.is_empty() {
            path_rules.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
        if let (false, Some(fields)) = (rule.resources.is_empty(), wire.as_object_mut()) {
            fields.remove("nonResourceURLs");
            resource_rules.push(wire);
        }
    }
    let mut status =
        json!({"resourceRules": resource_rules, "nonResourceRules": path_rules, "incomplete": false});
    if !missing.is_empty() {
        status["evaluationError"] = json!(missing.join(", "));
    }
    Ok(status)
}

/// The user a review asks about.
fn subject(spec: &Value) -> User {
    let texts = |list: &[Value]| {
        list.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let extra = map_at(spec, &["extra"]).into_iter().flatten();
    User {
        name: str_at(spec, &["user"]).to_owned(),
        groups: texts(list_at(spec, &["groups"])),
        uid: str_at(spec, &["uid"]).to_owned(),
        extra: extra
            .map(|(key, values)| (key.clone(), texts(list_at(values, &[]))))
            .collect(),
    }
}

fn validate(review: &Review, errors: FieldErrors) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    let subject = Subject {
        group: review.group.into(),
        kind: review.kind.into(),
        name: String::new(),
    };
    Err(ApiError::Invalid { subject, errors })
}

fn union_errors(spec: &Value) -> FieldErrors {
    let (resource, path) = (
        at(spec, &["resourceAttributes"]),
        at(spec, &["nonResourceAttributes"]),
    );
    if resource.is_some() != path.is_some() {
        return Vec::new();
    }
    let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
    vec![FieldError::invalid(
        "spec",
        path.cloned().unwrap_or(Value::Null),
        detail,
    )]
}

fn subject_errors(review: &Review, namespace: &str, spec: &Value) -> FieldErrors {
    let mut errors = union_errors(spec);
    if str_at(spec, &["user"]).is_empty() && list_at(spec, &["groups"]).is_empty() {
        errors.push(FieldError::invalid(
            "spec.user",
            "",
            "at least one of user or group must be specified",
        ));
    }
    if review.question != Question::LocalAccess {
        return errors;
    }
    let asked = str_at(spec, &["resourceAttributes", "namespace"]);
    if at(spec, &["resourceAttributes"]).is_some() && asked != namespace {
        let field = "spec.resourceAttributes.namespace";
        errors.push(FieldError::invalid(field, asked, "must match metadata.namespace"));
    }
    if let Some(path) = at(spec, &["nonResourceAttributes"]) {
        let detail = "disallowed on this kind of request";
        errors.push(FieldError::invalid(
            "spec.nonResourceAttributes",
            path.clone(),
            detail,
        ));
    }
    errors
}

#[cfg(test)]
mod tests;
