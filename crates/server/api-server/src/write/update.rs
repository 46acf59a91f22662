//! `PUT` and `PATCH` of an object or of its status.

use super::{Committed, MAX_ATTEMPTS, Write, create, metadata};
use crate::access;
use crate::cache::object::Object;
use crate::http::body::Body;
use crate::http::query::Freshness;
use crate::read::{not_found, renderer, wait_until_fresh};
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use pointsman_rules::kind::Subresource;
use pointsman_rules::patch::{self, PatchType};
use pointsman_rules::strategy::Part;
use pointsman_rules::value::str_at;
use pointsman_rules::{ApiError, event_views, meta, schema};
use serde_json::Value;
use std::sync::Arc;

/// Replaces the object by the one in the body.
pub async fn put(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let strategy = kind.strategy;
    let (mut body, warnings) = server.decode_body(request)?;
    // An empty body must not empty the object.
    if str_at(&body, &["metadata", "name"]).is_empty() {
        let why =
            format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
        return Err(ApiError::BadRequest(why));
    }
    metadata::place(&mut body, kind, &request.target.namespace, Some(name))?;
    let unversioned = str_at(&body, &["metadata", "resourceVersion"]).is_empty();
    let found = find_newest(server, request, name).await?;
    if found.is_none() && strategy.create_on_update() && request.target.subresource.is_none() && unversioned {
        access::may_create_instead(server, request, name)?;
        return create::create_value(server, request, body, warnings).await;
    }
    if unversioned && found.is_some() && strategy.update_needs_resource_version() {
        let errors = vec![meta::resource_version_required()];
        return Err(ApiError::invalid(kind, name, errors));
    }
    update(server, request, name, warnings, Through::Strategy, &|_| {
        Ok((body.clone(), Vec::new()))
    })
    .await
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
    update(server, request, name, Vec::new(), Through::Strategy, &|old| {
        let mut shown = old.clone();
        if kind.stored_as.is_some() {
            event_views::from_core(&mut shown);
        }
        let decoded = patch::apply(patch_type, &request.body, &shown, shape)?;
        let (mut patched, warnings) = validation.apply(decoded, shape)?;
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
    mut warnings: Vec<String>,
    through: Through,
    next: Next<'_>,
) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let part = match request.target.subresource {
        Some(Subresource::Status) => Part::Status,
        _ => Part::Main,
    };
    let mut found = find_newest(server, request, name).await?;
    for _ in 0..MAX_ATTEMPTS {
        let object = found.ok_or_else(|| not_found(kind, name))?;
        let old = object.value();
        // What the client is shown and patches includes the version it was shown with.
        let (mut new, more) = next(&old)?;
        if kind.stored_as.is_some() {
            event_views::to_core(&mut new);
        }
        let revision = object.revision;
        let admitted = match through {
            Through::Strategy => server.admit_update(request, &mut new, &old, &revision.to_string(), part),
            Through::Subresource => {
                metadata::prepare_update(&mut new, &old, kind, &revision.to_string()).map(|()| Vec::new())
            }
        };
        let admitted = match admitted {
            // The client may have read a newer version from another server than this one knows yet.
            Err(conflict @ ApiError::Conflict { .. }) => {
                wait_until_fresh(server, Freshness::Newest).await?;
                found = find_newest(server, request, name).await?;
                if found.as_ref().is_some_and(|newer| newer.revision == revision) {
                    return Err(conflict);
                }
                continue;
            }
            admitted => admitted?,
        };
        let outcome = replace(server, request, name, &object, &old, new).await?;
        match outcome {
            Replaced::Done(body, code) => {
                warnings.extend(more);
                warnings.extend(admitted);
                return Ok(Reply::new(code, Body::whole(body)).with_warnings(warnings));
            }
            Replaced::Moved(now) => found = now,
        }
    }
    Err(server.busy("the object changes too fast"))
}

enum Replaced {
    Done(bytes::Bytes, u16),
    Moved(Option<Arc<Object>>),
}

async fn replace(
    server: &Server,
    request: &Request,
    name: &str,
    object: &Arc<Object>,
    old: &Value,
    mut new: Value,
) -> Result<Replaced, ApiError> {
    let kind = request.target.kind;
    let namespace = &request.target.namespace;
    let shown = renderer(request)?;
    let removed = metadata::deletion_complete(&new, kind);
    let claims = if removed {
        server.release(kind, old)
    } else {
        server.allocate(kind, &mut new, Some(old))?
    };
    if !removed && same(&new, old) {
        return Ok(Replaced::Done(shown.object(object), 200));
    }
    if request.query.dry_run()? {
        pointsman_rules::value::set(
            &mut new,
            &["metadata", "resourceVersion"],
            object.revision.to_string(),
        );
        return Ok(Replaced::Done(shown.formed(shown.view(new), request.now), 200));
    }
    let new = (!removed).then_some(&new);
    let write = Write {
        kind,
        namespace,
        name,
        old: Some(object),
        new,
        claims,
    };
    match server.commit(write).await? {
        Committed::Done(made) => Ok(Replaced::Done(shown.object(&made), 200)),
        Committed::Moved(now) => Ok(Replaced::Moved(now)),
        Committed::ClaimTaken => {
            wait_until_fresh(server, Freshness::Newest).await?;
            Ok(Replaced::Moved(Some(object.clone())))
        }
    }
}

/// Whether nothing but the resource version differs.
fn same(new: &Value, old: &Value) -> bool {
    let mut old = old.clone();
    pointsman_rules::value::remove(&mut old, &["metadata", "resourceVersion"]);
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
