//! `DELETE` of an object or of a collection.

use super::allocation::ClaimKeys;
use super::metadata::{check_uid, deleting, held, time};
use super::update::find_newest;
use super::{Committed, Write, encoded, max_attempts, metadata};
use crate::cache::object::Object;
use crate::http::body::Body;
use crate::http::query::{Freshness, ListOptions};
use crate::keys;
use crate::read::select::Selection;
use crate::read::{not_found, page, renderer, snapshot, wait_until_fresh};
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::decode::{self, BodyFormat};
use pointsman_rules::status::Subject;
use pointsman_rules::strategy::Grace;
use pointsman_rules::value::{entry, int_at, list_at, set, str_at};
use pointsman_rules::{ApiError, FieldError, Kind, kinds, schema};
use serde_json::{Value, json};
use std::sync::Arc;

/// The finalizer that keeps an owner until its dependents are gone.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that keeps an owner until its dependents are let go.
pub const ORPHAN: &str = "orphan";

/// Namespaces that the cluster cannot do without.
const PROTECTED_NAMESPACES: &[&str] = &["default", "kube-system", "kube-public"];

/// What a delete request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The grace period, if the client names one.
    pub grace_seconds: Option<i64>,
    /// What happens to dependents.
    pub propagation: Propagation,
    /// The identity that the object must have.
    pub uid: String,
    /// The version that the object must have.
    pub resource_version: String,
    /// Whether nothing is to happen for real.
    pub dry_run: bool,
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    #[default]
    Background,
    /// They are deleted first.
    Foreground,
    Orphan,
}

impl DeleteOptions {
    /// Reads the body, if there is one, and the query.
    pub fn parse(request: &Request) -> Result<Self, ApiError> {
        let body = if request.body.is_empty() {
            Value::Null
        } else {
            let format = BodyFormat::from_content_type(Some(&request.content_type))?;
            decode::decode(&request.body, format, schema::delete_options())?.object
        };
        let query = &request.query;
        let grace_seconds = match int_at(&body, &["gracePeriodSeconds"]) {
            Some(seconds) => Some(seconds),
            None => query.number("gracePeriodSeconds")?,
        };
        let policy = Some(str_at(&body, &["propagationPolicy"])).filter(|text| !text.is_empty());
        let policy = policy.or_else(|| query.get("propagationPolicy"));
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let orphan = match query.get("orphanDependents") {
            Some(_) if orphan.is_none() => Some(query.flag("orphanDependents")?),
            _ => orphan,
        };
        let mut dry_run = query.dry_run()?;
        for value in list_at(&body, &["dryRun"]) {
            if value != "All" {
                return Err(invalid(FieldError::not_supported(
                    "dryRun",
                    value.clone(),
                    &["All"],
                )));
            }
            dry_run = true;
        }
        Ok(Self {
            grace_seconds,
            propagation: match (policy, orphan) {
                (None, None) if request.target.kind.orphans => Propagation::Orphan,
                _ => propagation(policy, orphan)?,
            },
            uid: str_at(&body, &["preconditions", "uid"]).to_owned(),
            resource_version: str_at(&body, &["preconditions", "resourceVersion"]).to_owned(),
            dry_run,
        })
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Propagation, ApiError> {
    match (policy, orphan) {
        (Some(_), Some(_)) => Err(invalid(FieldError::invalid(
            "propagationPolicy",
            policy.unwrap_or(""),
            "orphanDependents and deletionPropagation cannot be both set",
        ))),
        (None, Some(true)) | (Some("Orphan"), None) => Ok(Propagation::Orphan),
        (None, None | Some(false)) | (Some("Background"), None) => Ok(Propagation::Background),
        (Some("Foreground"), None) => Ok(Propagation::Foreground),
        (Some(other), None) => Err(invalid(FieldError::not_supported(
            "propagationPolicy",
            other,
            &["Background", "Foreground", "Orphan"],
        ))),
    }
}

fn invalid(error: FieldError) -> ApiError {
    let subject = Subject {
        group: "meta.k8s.io".into(),
        kind: "DeleteOptions".into(),
        name: String::new(),
    };
    ApiError::Invalid {
        subject,
        errors: vec![error],
    }
}

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// The object is removed.
    Remove,
    /// The object stays, marked.
    Mark(Value),
    /// Nothing changes: it is being deleted already.
    Nothing,
}

/// Decides what a delete request does to `object`.
fn step(kind: &Kind, object: &Value, options: &DeleteOptions, now: Timestamp) -> Step {
    let mut new = object.clone();
    let started = deleting(object);
    let mut changed = set_propagation(&mut new, options.propagation);
    let grace = match kind.strategy.grace(object, options.grace_seconds) {
        Grace::Now => 0,
        Grace::Seconds(seconds) => seconds,
    };
    let running = int_at(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    if grace == 0 && !held(&new, kind) {
        return Step::Remove;
    }
    if !started || grace < running {
        // Grace counts from the first request; a later one may only shorten it.
        let until = now
            .saturating_add(SignedDuration::from_secs(grace))
            .unwrap_or(now);
        set(&mut new, &["metadata", "deletionTimestamp"], time(until));
        set(&mut new, &["metadata", "deletionGracePeriodSeconds"], grace);
        if !started && int_at(&new, &["metadata", "generation"]).is_some_and(|generation| generation > 0) {
            metadata::bump_generation(&mut new);
        }
        if kind == &kinds::NAMESPACE {
            set(&mut new, &["status", "phase"], "Terminating");
        }
        changed = true;
    }
    if changed { Step::Mark(new) } else { Step::Nothing }
}

/// Adds or removes the finalizers that the garbage collector works on; returns whether any changed.
fn set_propagation(object: &mut Value, propagation: Propagation) -> bool {
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let before: Vec<Value> = list_at(object, &["metadata", "finalizers"]).to_vec();
    let ours = |value: &Value| value == FOREGROUND || value == ORPHAN;
    let mut after: Vec<Value> = before.iter().filter(|value| !ours(value)).cloned().collect();
    // A policy chosen by an earlier request stays in force if this one does not name another.
    match wanted {
        Some(finalizer) => after.push(finalizer.into()),
        None => after.extend(before.iter().filter(|value| ours(value)).cloned()),
    }
    let changed = after.len() != before.len() || before.iter().any(|value| !after.contains(value));
    if changed {
        entry(object, &["metadata"]).insert("finalizers".into(), after.into());
    }
    changed
}

/// Deletes one object.
pub async fn delete(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let parse = || DeleteOptions::parse(request);
    let options = request.work.on(request.body.len(), parse).await?;
    let found = find_newest(server, request, name).await?;
    let object = found.ok_or_else(|| not_found(request.target.kind, name))?;
    let (last, gone) = delete_object(server, request, object, &options).await?;
    let kind = request.target.kind;
    if !gone || kind.delete_returns_object {
        let shown = renderer(request)?.object_by_turns(&request.work, &last).await;
        return Ok(Reply::new(200, Body::whole(shown)));
    }
    let uid = || last.value()["metadata"]["uid"].take();
    let uid = request.work.on(last.size(), uid).await;
    let mut details = json!({"name": name, "kind": kind.plural, "uid": uid});
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    Ok(Reply::json(
        200,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
    ))
}

/// Deletes an object that was found; returns its last version and whether it is gone.
pub async fn delete_object(
    server: &Server,
    request: &Request,
    object: Arc<Object>,
    options: &DeleteOptions,
) -> Result<(Arc<Object>, bool), ApiError> {
    let kind = request.target.kind;
    let name = object.name().to_owned();
    let namespace = object.namespace().to_owned();
    protect(kind, &name)?;
    server.protect_address(kind, &name)?;
    let mut found = Some(object);
    let mut attempts = 0;
    loop {
        let object = found.ok_or_else(|| not_found(kind, &name))?;
        attempts += 1;
        if attempts > max_attempts(object.size()) {
            return Err(server.busy("the object changes too fast"));
        }
        let plan = || plan(server, request, &object, options);
        let (new, claims) = match request.work.on(object.size(), plan).await {
            Ok(Plan::Nothing { removed }) => return Ok((object, removed)),
            Ok(Plan::Write(new, claims)) => (new, claims),
            Err(conflict @ ApiError::Conflict { .. }) => {
                // The client may have read a newer version from another server than this one knows yet.
                wait_until_fresh(server, Freshness::Newest).await?;
                found = server.cache.of(kind).get(&keys::local(&namespace, &name));
                let same = |newer: &Object| newer.revision == object.revision;
                if found.as_deref().is_some_and(same) {
                    return Err(conflict);
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        let removed = new.is_none();
        let write = Write {
            kind,
            namespace: &namespace,
            name: &name,
            old: Some(&object),
            new,
            claims,
        };
        match server.commit(write).await? {
            Committed::Done(made) => return Ok((made, removed)),
            Committed::Moved(now) => found = now,
            Committed::ClaimTaken => return Err(ApiError::Internal("a removal takes no claims".into())),
        }
    }
}

/// What a delete request does to an object.
enum Plan {
    /// Nothing is written; whether the object would be gone.
    Nothing {
        removed: bool,
    },
    Write(Option<Bytes>, ClaimKeys),
}

fn plan(
    server: &Server,
    request: &Request,
    object: &Object,
    options: &DeleteOptions,
) -> Result<Plan, ApiError> {
    let kind = request.target.kind;
    let old = object.value();
    check_preconditions(options, object, &old, kind)?;
    server.may_write(request, Some(&old), None)?;
    let step = step(kind, &old, options, request.now);
    if options.dry_run {
        return Ok(Plan::Nothing {
            removed: step == Step::Remove,
        });
    }
    Ok(match step {
        Step::Nothing => Plan::Nothing { removed: false },
        Step::Mark(new) => Plan::Write(Some(encoded(kind, new)), ClaimKeys::default()),
        Step::Remove => Plan::Write(None, server.release(kind, &old)),
    })
}

/// Whether the object is the one that the request means.
fn check_preconditions(
    options: &DeleteOptions,
    object: &Object,
    value: &Value,
    kind: &'static Kind,
) -> Result<(), ApiError> {
    check_uid(&options.uid, value, kind)?;
    let (wanted, present) = (&options.resource_version, object.revision.to_string());
    if wanted.is_empty() || *wanted == present {
        return Ok(());
    }
    Err(ApiError::Conflict {
        subject: Subject::new(kind, object.name()),
        why: format!(
            "Precondition failed: ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {present}"
        ),
    })
}

fn protect(kind: &Kind, name: &str) -> Result<(), ApiError> {
    if kind == &kinds::NAMESPACE && PROTECTED_NAMESPACES.contains(&name) {
        return Err(ApiError::Forbidden {
            subject: Subject::new(kind, name),
            why: "this namespace may not be deleted".into(),
            cause: None,
        });
    }
    Ok(())
}

/// Deletes all selected objects of a collection.
pub async fn delete_collection(server: &Server, request: &Request) -> Result<Reply, ApiError> {
    let renderer = renderer(request)?;
    let parse = || DeleteOptions::parse(request);
    let options = request.work.on(request.body.len(), parse).await?;
    let list = ListOptions::parse(&request.query, false)?;
    let selection = Selection::parse(&request.query, request.target.kind)?;
    let snapshot = snapshot(server, request, &list).await?;
    let cost = selection.cost(&snapshot.objects);
    let select = || page(&snapshot.objects, &selection, 0).0;
    let selected = request.work.on(cost, select).await;
    let mut deleted = Vec::new();
    for object in selected {
        match delete_object(server, request, object, &options).await {
            Ok((last, _)) => deleted.push(last),
            // Someone else was faster.
            Err(ApiError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let metadata = json!({"resourceVersion": server.cache.applied().to_string()});
    let list = || renderer.list(&deleted, metadata);
    let list = request.work.on(renderer.cost(&deleted), list).await;
    Ok(Reply::new(200, Body::pieces(list)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::internal;

    fn kind(plural: &str) -> &'static Kind {
        Kind::by_resource("", "v1", plural).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    #[test]
    fn options_are_read_in_the_format_they_came_in() {
        let parse = |content_type: &str, body: &'static [u8]| {
            let mut request = internal(http::Method::DELETE, kind("pods"), "default", Some("a"));
            request.content_type = content_type.to_owned();
            request.body = body.into();
            DeleteOptions::parse(&request).map(|options| options.grace_seconds)
        };
        let json = br#"{"gracePeriodSeconds":0}"#;
        // The envelope without a type, and gracePeriodSeconds 0 in field 1.
        let protobuf = b"k8s\0\x12\x02\x08\x00";
        assert_eq!(parse("", json), Ok(Some(0)));
        assert_eq!(parse("application/yaml", b"gracePeriodSeconds: 0"), Ok(Some(0)));
        assert_eq!(
            parse("application/vnd.kubernetes.protobuf", protobuf),
            Ok(Some(0))
        );
        assert_eq!(parse("application/vnd.kubernetes.protobuf", b""), Ok(None));
        assert_eq!(parse("", protobuf).unwrap_err().code(), 400);
        assert_eq!(parse("text/plain", json).unwrap_err().code(), 415);
    }

    #[test]
    fn a_plain_object_goes_at_once_and_a_finalizer_keeps_it_marked() {
        let plain = json!({"metadata": {"name": "a", "generation": 3}});
        let options = DeleteOptions::default();
        assert_eq!(step(kind("configmaps"), &plain, &options, now()), Step::Remove);
        let held = json!({"metadata": {"name": "a", "generation": 3, "finalizers": ["x.io/y"]}});
        let Step::Mark(marked) = step(kind("configmaps"), &held, &options, now()) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-02T03:04:05Z");
        assert_eq!(marked["metadata"]["generation"], 4);
        assert_eq!(step(kind("configmaps"), &marked, &options, now()), Step::Nothing);
    }

    #[test]
    fn a_running_pod_gets_its_grace_and_later_requests_only_shorten_it() {
        let pod = json!({"metadata": {"name": "a"}, "status": {"phase": "Running"},
                         "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}});
        let ask = |grace_seconds| DeleteOptions {
            grace_seconds,
            ..Default::default()
        };
        let Step::Mark(marked) = step(kind("pods"), &pod, &ask(None), now()) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
        assert_eq!(step(kind("pods"), &marked, &ask(Some(60)), now()), Step::Nothing);
        let Step::Mark(sooner) = step(kind("pods"), &marked, &ask(Some(5)), now()) else {
            panic!("not shortened")
        };
        assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-02T03:04:10Z");
        assert_eq!(step(kind("pods"), &sooner, &ask(Some(0)), now()), Step::Remove);
    }

    #[test]
    fn propagation_becomes_a_finalizer() {
        let plain = json!({"metadata": {"name": "a"}});
        let options = DeleteOptions {
            propagation: Propagation::Foreground,
            ..Default::default()
        };
        let Step::Mark(marked) = step(kind("configmaps"), &plain, &options, now()) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["finalizers"], json!([FOREGROUND]));
    }
}
