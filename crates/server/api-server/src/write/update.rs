//! `PUT` and `PATCH` of an object or of its status.

use super::allocation::ClaimKeys;
use super::{Committed, Write, create, encoded, max_attempts, metadata};
use crate::cache::object::Object;
use crate::http::body::Body;
use crate::http::query::Freshness;
use crate::read::{not_found, renderer, wait_until_fresh};
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::{access, work};
use bytes::Bytes;
use http::Method;
use pointsman_rules::kind::Subresource;
use pointsman_rules::patch::{self, PatchType};
use pointsman_rules::strategy::Part;
use pointsman_rules::value::{remove, set, str_at};
use pointsman_rules::{ApiError, meta, schema, views};
use serde_json::Value;
use std::sync::Arc;

/// Replaces the object by the one in the body.
pub async fn put(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let strategy = kind.strategy;
    let unversioned = |body: &Value| str_at(body, &["metadata", "resourceVersion"]).is_empty();
    if find_newest(server, request, name).await?.is_none() {
        let read = || replacement(server, request, name).map(|(body, _)| unversioned(&body));
        let unversioned = request.work.on(request.body.len(), read).await?;
        if strategy.create_on_update() && request.target.subresource.is_none() && unversioned {
            access::may_create_instead(server, request, name)?;
            return create::create(server, request).await;
        }
    }
    update(server, request, name, Through::Strategy, &|_| {
        let (body, warnings) = replacement(server, request, name)?;
        if unversioned(&body) && strategy.update_needs_resource_version() {
            let errors = vec![meta::resource_version_required()];
            return Err(ApiError::invalid(kind, name, errors));
        }
        Ok((body, warnings))
    })
    .await
}

/// The object in the body of a `PUT`, with warnings.
fn replacement(server: &Server, request: &Request, name: &str) -> Result<(Value, Vec<String>), ApiError> {
    let (mut body, warnings) = server.decode_body(request)?;
    // An empty body must not empty the object.
    if str_at(&body, &["metadata", "name"]).is_empty() {
        let why =
            format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::BadRequest(why));
    }
    metadata::place(
        &mut body,
        request.target.kind,
        &request.target.namespace,
        Some(name),
    )?;
    Ok((body, warnings))
}

/// Changes the object as the patch in the body says.
pub async fn patch(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let patch_type = PatchType::from_content_type(&request.content_type, kind)?;
    if request.query.get("force").is_some() {
        let error =
            pointsman_rules::FieldError::forbidden("force", "may not be specified for non-apply patch");
        let subject = pointsman_rules::status::Subject {
            group: "meta.k8s.io".into(),
            kind: "PatchOptions".into(),
            ..Default::default()
        };
        return Err(ApiError::Invalid {
            subject,
            errors: vec![error],
        });
    }
    let validation = request.field_validation()?;
    let shape = schema::of(kind);
    update(server, request, name, Through::Strategy, &|old| {
        let mut shown = old.clone();
        views::show(kind, &mut shown);
        let mut decoded = patch::apply(patch_type, &request.body, &shown, shape)?;
        decoded.strict.extend(kind.strategy.prune(&mut decoded.object));
        let (mut patched, warnings) = validation.apply(decoded, kind)?;
        metadata::place(&mut patched, kind, &request.target.namespace, Some(name))?;
        Ok((patched, warnings))
    })
    .await
}

/// Computes the next version from the present one; returns it with warnings.
type Next<'a> = &'a (dyn Fn(&Value) -> Result<(Value, Vec<String>), ApiError> + Send + Sync);

/// Which rules a change has to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The rules of the kind, as for any client.
    Strategy,
    /// Those of a subresource, which the computation of the next version has applied already.
    Subresource,
}

/// Computes and commits until nobody else was faster.
pub async fn update(
    server: &Server,
    request: &Request,
    name: &str,
    through: Through,
    next: Next<'_>,
) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let mut found = find_newest(server, request, name).await?;
    let mut attempts = 0;
    loop {
        let object = found.ok_or_else(|| not_found(kind, name))?;
        let bytes = cost(request, &object);
        attempts += 1;
        if attempts > max_attempts(bytes) {
            return Err(server.busy("the object changes too fast"));
        }
        let plan = request
            .work
            .on(bytes, || plan(server, request, &object, through, next))
            .await;
        let (step, warnings) = match plan {
            // The client may have read a newer version from another server than this one knows yet.
            Err(conflict @ ApiError::Conflict { .. }) => {
                wait_until_fresh(server, Freshness::Newest).await?;
                found = find_newest(server, request, name).await?;
                if found
                    .as_ref()
                    .is_some_and(|newer| newer.revision == object.revision)
                {
                    return Err(conflict);
                }
                continue;
            }
            plan => plan?,
        };
        let (new, claims) = match step {
            Step::Answer(body) => return Ok(Reply::new(200, Body::whole(body)).with_warnings(warnings)),
            Step::Write(new, claims) => (new, claims),
        };
        let write = Write {
            kind,
            namespace: &request.target.namespace,
            name,
            old: Some(&object),
            new,
            claims,
        };
        match server.commit(write).await? {
            Committed::Done(made) => {
                let body = renderer(request)?.object_by_turns(&request.work, &made).await;
                return Ok(Reply::new(200, Body::whole(body)).with_warnings(warnings));
            }
            Committed::Moved(now) => found = now,
            Committed::ClaimTaken => {
                wait_until_fresh(server, Freshness::Newest).await?;
                found = Some(object);
            }
        }
    }
}

/// About how many bytes are read to change `object`.
pub fn cost(request: &Request, object: &Object) -> usize {
    let json_patch = request.method == Method::PATCH && request.content_type.contains("json-patch");
    if json_patch && may_do_much(&request.body) {
        return work::MUCH;
    }
    request.body.len() + object.size()
}

/// Whether a JSON patch may take longer than its length says: by copies, or because it shifts lists often.
fn may_do_much(patch: &[u8]) -> bool {
    const FEW: usize = 16;
    let text = String::from_utf8_lossy(patch);
    let operations = ["\"copy\"", "\"move\"", "\"add\"", "\"remove\""];
    let [copies, moves, additions, removals] = operations.map(|name| text.matches(name).count());
    // Names may be written with escapes, which nobody but an attacker does.
    copies > 0 || moves + additions + removals > FEW || text.contains("\\u")
}

/// What is done about a change that passed all rules.
enum Step {
    /// Nothing is to be written: this is the answer.
    Answer(Bytes),
    /// The next version, or none where it is removed.
    Write(Option<Bytes>, ClaimKeys),
}

/// Computes the next version of `object`; returns what to do, with warnings.
fn plan(
    server: &Server,
    request: &Request,
    object: &Object,
    through: Through,
    next: Next<'_>,
) -> Result<(Step, Vec<String>), ApiError> {
    let kind = request.target.kind;
    let old = object.value();
    // What the client is shown and patches includes the version it was shown with.
    let (mut new, mut warnings) = next(&old)?;
    views::store(kind, &mut new);
    let revision = object.revision.to_string();
    match through {
        Through::Strategy => {
            let part = match request.target.subresource {
                Some(Subresource::Status | Subresource::Approval) => Part::Status,
                _ => Part::Main,
            };
            warnings.extend(server.admit_update(request, &mut new, &old, &revision, part)?);
        }
        Through::Subresource => metadata::prepare_update(&mut new, &old, kind, &revision)?,
    }
    let shown = renderer(request)?;
    let removed = metadata::deletion_complete(&new, kind);
    let claims = if removed {
        server.release(kind, &old)
    } else {
        server.allocate(kind, &mut new, Some(&old))?
    };
    let step = if !removed && same(&new, old) {
        Step::Answer(shown.object(object))
    } else if request.query.dry_run()? {
        set(&mut new, &["metadata", "resourceVersion"], revision);
        Step::Answer(shown.formed(shown.view(new), request.now))
    } else {
        let stored = (!removed).then(|| encoded(kind, new));
        Step::Write(stored, claims)
    };
    Ok((step, warnings))
}

/// Whether nothing but the resource version differs.
fn same(new: &Value, mut old: Value) -> bool {
    remove(&mut old, &["metadata", "resourceVersion"]);
    *new == old
}

/// The object from the cache, or from the newest state if the cache does not have it.
pub async fn find_newest(
    server: &Server,
    request: &Request,
    name: &str,
) -> Result<Option<Arc<Object>>, ApiError> {
    let collection = server.cache.of(request.target.kind);
    let key = crate::keys::local(&request.target.namespace, name);
    if let Some(found) = collection.get(&key) {
        return Ok(Some(found));
    }
    wait_until_fresh(server, Freshness::Newest).await?;
    Ok(collection.get(&key))
}
