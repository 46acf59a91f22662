//! `POST` to a collection.

use super::metadata::{deleting, generate_name, place};
use super::{Committed, Write, allocation, encoded};
use crate::background::accounts;
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
use pointsman_rules::{ApiError, kinds, views};
use serde_json::Value;
use std::time::Instant;

/// How many generated names are tried. Upstream's number.
const NAME_ATTEMPTS: usize = 8;
/// How often a lost race for a dynamically chosen address or port is retried.
const CLAIM_ATTEMPTS: usize = 16;

/// Creates the object in the body.
pub async fn create(server: &Server, request: &Request) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let (mut names_left, mut claims_left) = (NAME_ATTEMPTS, CLAIM_ATTEMPTS);
    loop {
        let plan = request.work.on(request.body.len(), || plan(server, request));
        let Plan {
            name,
            generated,
            step,
            warnings,
        } = plan.await?;
        let (new, claims) = match step {
            Step::Answer(body) => return Ok(created(body, warnings)),
            Step::Write(new, claims) => (new, claims),
        };
        let write = Write {
            kind,
            namespace: &request.target.namespace,
            name: &name,
            old: None,
            new: Some(new),
            claims,
        };
        match server.commit(write).await? {
            Committed::Done(made) => {
                if kind == &kinds::NAMESPACE {
                    // Pods may be created in it at once. What fails here is made good in the background.
                    let _ = Box::pin(accounts::equip(server, &name, Instant::now())).await;
                }
                let body = renderer(request)?.object_by_turns(&request.work, &made).await;
                return Ok(created(body, warnings));
            }
            Committed::Moved(_) if generated && names_left > 1 => names_left -= 1,
            Committed::Moved(Some(present)) => {
                let going = request.work.on(present.size(), || deleting(&present.value()));
                let subject = Subject::new(kind, name);
                return Err(if going.await {
                    ApiError::BeingDeleted(subject)
                } else {
                    ApiError::AlreadyExists(subject)
                });
            }
            Committed::Moved(None) => return Err(ApiError::AlreadyExists(Subject::new(kind, name))),
            Committed::ClaimTaken if claims_left > 0 => {
                // Someone else was faster; the next plan sees their claim.
                claims_left -= 1;
                wait_until_fresh(server, Freshness::Newest).await?;
            }
            Committed::ClaimTaken => return Err(server.busy("addresses or ports are claimed too fast")),
        }
    }
}

/// What is to be done for an object that passed all rules.
struct Plan {
    name: String,
    /// Whether the server chose the name, and may choose another one.
    generated: bool,
    step: Step,
    warnings: Vec<String>,
}

enum Step {
    /// Nothing is to be written: this is what would have been.
    Answer(Bytes),
    Write(Bytes, allocation::ClaimKeys),
}

fn plan(server: &Server, request: &Request) -> Result<Plan, ApiError> {
    let Target { kind, namespace, .. } = &request.target;
    let (mut object, mut warnings) = server.decode_body(request)?;
    prepare(request, &mut object)?;
    let prefix = str_at(&object, &["metadata", "generateName"]);
    let generated = str_at(&object, &["metadata", "name"]).is_empty() && !prefix.is_empty();
    if generated {
        let name = generate_name(prefix, |below| server.random_below(below));
        set(&mut object, &["metadata", "name"], name);
    }
    warnings.extend(server.admit_create(request, &mut object)?);
    let claims = server.allocate(kind, &mut object, None)?;
    let name = str_at(&object, &["metadata", "name"]).to_owned();
    let step = if request.query.dry_run()? {
        if server.find(kind, namespace, &name).is_ok() {
            return Err(ApiError::AlreadyExists(Subject::new(kind, name)));
        }
        let shown = renderer(request)?;
        Step::Answer(shown.formed(shown.view(object), request.now))
    } else {
        Step::Write(encoded(kind, object), claims)
    };
    Ok(Plan {
        name,
        generated,
        step,
        warnings,
    })
}

/// Checks what a create may say about its place, and turns a view into what is stored.
fn prepare(request: &Request, object: &mut Value) -> Result<(), ApiError> {
    let target = &request.target;
    if at(object, &["metadata", "resourceVersion"]).is_some_and(|version| version != "") {
        let why = "metadata.resourceVersion: must not be set on objects to be created";
        return Err(ApiError::BadRequest(why.into()));
    }
    place(object, target.kind, &target.namespace, target.name.as_deref())?;
    views::store(target.kind, object);
    Ok(())
}

fn created(body: Bytes, warnings: Vec<String>) -> Reply {
    Reply::new(201, Body::whole(body)).with_warnings(warnings)
}
