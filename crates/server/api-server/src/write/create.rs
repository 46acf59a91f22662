//! `POST` to a collection.

use super::metadata::{deleting, generate_name, place};
use super::{Committed, Write};
use crate::http::body::Body;
use crate::http::query::Freshness;
use crate::http::route::Target;
use crate::read::{renderer, wait_until_fresh};
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use bytes::Bytes;
use pointsman_rules::status::Subject;
use pointsman_rules::value::{at, set, str_at};
use pointsman_rules::{ApiError, event_views};
use serde_json::Value;

/// How many generated names are tried. Upstream's number.
const NAME_ATTEMPTS: usize = 8;
/// How often a lost race for a dynamically chosen address or port is retried.
const CLAIM_ATTEMPTS: usize = 16;

/// Creates the object in the body.
pub async fn create(server: &Server, request: &Request) -> Result<Reply, ApiError> {
    let (object, warnings) = server.decode_body(request)?;
    create_value(server, request, object, warnings).await
}

/// Creates `object`, which passed the schema.
pub async fn create_value(
    server: &Server,
    request: &Request,
    mut object: Value,
    mut warnings: Vec<String>,
) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    prepare(request, &mut object)?;
    let prefix = str_at(&object, &["metadata", "generateName"]).to_owned();
    let generated = str_at(&object, &["metadata", "name"]).is_empty() && !prefix.is_empty();
    let (mut names_left, mut claims_left) = (NAME_ATTEMPTS, CLAIM_ATTEMPTS);
    loop {
        let mut attempt = object.clone();
        if generated {
            let name = generate_name(&prefix, |below| server.random_below(below));
            set(&mut attempt, &["metadata", "name"], name);
        }
        let admitted = server.admit_create(request, &mut attempt)?;
        let claims = server.allocate(kind, &mut attempt, None)?;
        let name = str_at(&attempt, &["metadata", "name"]).to_owned();
        if request.query.dry_run()? {
            warnings.extend(admitted);
            return dry_run(server, request, &name, attempt, warnings);
        }
        let write = Write {
            kind,
            namespace: &request.target.namespace,
            name: &name,
            old: None,
            new: Some(&attempt),
            claims,
        };
        match server.commit(write).await? {
            Committed::Done(made) => {
                warnings.extend(admitted);
                return created(renderer(request)?.object(&made), warnings);
            }
            Committed::Moved(_) if generated && names_left > 1 => names_left -= 1,
            Committed::Moved(Some(present)) if deleting(&present.value()) => {
                return Err(ApiError::BeingDeleted(Subject::new(kind, name)));
            }
            Committed::Moved(_) => return Err(ApiError::AlreadyExists(Subject::new(kind, name))),
            Committed::ClaimTaken if claims_left > 0 => {
                // Someone else was faster; the next plan sees their claim.
                claims_left -= 1;
                wait_until_fresh(server, Freshness::Newest).await?;
            }
            Committed::ClaimTaken => return Err(server.busy("addresses or ports are claimed too fast")),
        }
    }
}

/// Checks what a create may say about its place, and turns a view into what is stored.
fn prepare(request: &Request, object: &mut Value) -> Result<(), ApiError> {
    let target = &request.target;
    if at(object, &["metadata", "resourceVersion"]).is_some_and(|version| version != "") {
        let why = "metadata.resourceVersion: must not be set on objects to be created";
        return Err(ApiError::BadRequest(why.into()));
    }
    place(object, target.kind, &target.namespace, target.name.as_deref())?;
    if target.kind.stored_as.is_some() {
        event_views::to_core(object);
    }
    Ok(())
}

fn dry_run(
    server: &Server,
    request: &Request,
    name: &str,
    object: Value,
    warnings: Vec<String>,
) -> Result<Reply, ApiError> {
    let Target { kind, namespace, .. } = &request.target;
    if server.find(kind, namespace, name).is_ok() {
        return Err(ApiError::AlreadyExists(Subject::new(kind, name)));
    }
    let shown = renderer(request)?;
    created(shown.formed(shown.view(object), request.now), warnings)
}

fn created(body: Bytes, warnings: Vec<String>) -> Result<Reply, ApiError> {
    Ok(Reply::new(201, Body::whole(body)).with_warnings(warnings))
}
