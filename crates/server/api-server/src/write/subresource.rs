//! Subresources that write: scale, binding, eviction, finalize.

use super::delete::{DeleteOptions, delete_object};
use super::update::{Through, cost, find_newest, update};
use crate::background::{internal, through};
use crate::read::not_found;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use http::Method;
use pointsman_rules::decode::{self, BodyFormat};
use pointsman_rules::kind::Subresource;
use pointsman_rules::patch::{self, PatchType};
use pointsman_rules::schema::{self, ObjectType};
use pointsman_rules::strategy::{budget, pod};
use pointsman_rules::value::{at, set, str_at};
use pointsman_rules::{ApiError, kinds, scale};
use serde_json::{Value, json};

/// Writes through a subresource other than `status`.
pub async fn write(server: &Server, request: &Request, subresource: Subresource) -> Result<Reply, ApiError> {
    let name = request.target.name.as_deref();
    match (subresource, &request.method, name) {
        (Subresource::Scale, &Method::PUT | &Method::PATCH, Some(name)) => {
            put_scale(server, request, name).await
        }
        (Subresource::Binding, &Method::POST, _) => bind(server, request).await,
        (Subresource::Eviction, &Method::POST, Some(name)) => evict(server, request, name).await,
        (Subresource::Finalize, &Method::PUT, Some(name)) => finalize(server, request, name).await,
        _ => Err(ApiError::MethodNotAllowed(format!(
            "{} is not supported on {}/{}",
            request.method,
            request.target.kind.plural,
            subresource.name()
        ))),
    }
}

async fn put_scale(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let kind = request.target.kind;
    let patched = |old: &Value| -> Result<Value, ApiError> {
        let shown = scale::scale_of(old, kind);
        if request.method == Method::PUT {
            return decode_as(request, "autoscaling", "Scale");
        }
        let patch_type = PatchType::from_content_type(&request.content_type, kind)?;
        Ok(patch::apply(patch_type, &request.body, &shown, shape("autoscaling", "Scale"))?.object)
    };
    let reply = update(server, request, name, Through::Strategy, &|old| {
        let scaled = patched(old)?;
        let mut new =
            scale::apply_scale(old, kind, &scaled).map_err(|errors| ApiError::invalid(kind, name, errors))?;
        // The Scale's version is its parent's; without one the last writer wins.
        match at(&scaled, &["metadata", "resourceVersion"]) {
            Some(version) => set(&mut new, &["metadata", "resourceVersion"], version.clone()),
            None => set(&mut new, &["metadata", "resourceVersion"], ""),
        }
        Ok((new, Vec::new()))
    })
    .await?;
    let found = find_newest(server, request, name)
        .await?
        .ok_or_else(|| not_found(kind, name))?;
    let dry_run = request.query.dry_run()?;
    let show = || -> Result<Value, ApiError> {
        let object = found.value();
        let mut shown = scale::scale_of(&object, kind);
        if dry_run {
            shown["spec"] = patched(&object)?["spec"].take();
        }
        Ok(shown)
    };
    let shown = request.work.on(cost(request, &found), show).await?;
    Ok(Reply::json(200, shown).with_warnings(reply.warnings))
}

async fn bind(server: &Server, request: &Request) -> Result<Reply, ApiError> {
    let binding = || decode_as(request, "", "Binding");
    let stated = || binding().map(|binding| str_at(&binding, &["metadata", "name"]).to_owned());
    let stated = &request.work.on(request.body.len(), stated).await?;
    let name = request.target.name.as_deref().unwrap_or(stated);
    if name.is_empty() || (!stated.is_empty() && stated != name) {
        let why = format!("the binding names pod {stated:?}, the URL names {name:?}");
        return Err(ApiError::BadRequest(why));
    }
    update(server, request, name, Through::Subresource, &|old| {
        Ok((pod::binding::bind(old, &binding()?, request.now)?, Vec::new()))
    })
    .await?;
    Ok(success(201))
}

async fn evict(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let eviction = || decode_as(request, "policy", "Eviction");
    let options = || -> Result<DeleteOptions, ApiError> {
        let mut options = request.clone();
        options.body = match at(&eviction()?, &["deleteOptions"]) {
            Some(nested) => nested.to_string().into(),
            None => bytes::Bytes::new(),
        };
        options.content_type = "application/json".into();
        DeleteOptions::parse(&options)
    };
    let mut options = request.work.on(request.body.len(), options).await?;
    let found = find_newest(server, request, name).await?;
    let object = found.ok_or_else(|| not_found(request.target.kind, name))?;
    let spared_by = spend_budget(server, request, &object.value(), options.dry_run).await?;
    if !options.dry_run {
        update(server, request, name, Through::Subresource, &|old| {
            // It may have become ready since the budget was asked.
            match &spared_by {
                Some(budget) if !budget::exempt(old) && !budget::spares(budget, old) => {
                    Err(budget::too_early(str_at(budget, &["metadata", "name"])))
                }
                _ => Ok((pod::binding::evict(old, &eviction()?, request.now)?, Vec::new())),
            }
        })
        .await?;
        // That was the version asked for; marking the pod made another of it.
        options.resource_version.clear();
    }
    let object = find_newest(server, request, name).await?.unwrap_or(object);
    delete_object(server, request, object, &options).await?;
    Ok(success(201))
}

/// Takes an eviction off the budget that covers the pod. Returns the budget if the pod may go without being counted.
async fn spend_budget(
    server: &Server,
    request: &Request,
    pod: &Value,
    dry_run: bool,
) -> Result<Option<Value>, ApiError> {
    let kind = &kinds::declared::POD_DISRUPTION_BUDGET;
    let namespace = &request.target.namespace;
    if budget::exempt(pod) {
        return Ok(None);
    }
    let all = server
        .cache
        .of(kind)
        .list(namespace, None, server.cache.applied());
    let budgets = all.objects.iter().map(|budget| budget.value());
    let mut covering = budgets.filter(|budget| budget::covers(budget, pod));
    let Some(found) = covering.next() else {
        return Ok(None);
    };
    if covering.next().is_some() {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(ApiError::Internal(why.into()));
    }
    if budget::spares(&found, pod) {
        return Ok(Some(found));
    }
    let (name, pod) = (
        str_at(&found, &["metadata", "name"]),
        str_at(pod, &["metadata", "name"]),
    );
    if dry_run {
        budget::spend(&found, pod, request.now)?;
        return Ok(None);
    }
    let ours = through(
        internal(Method::PUT, kind, namespace, Some(name)),
        Subresource::Status,
    );
    update(server, &ours, name, Through::Subresource, &|old| {
        Ok((budget::spend(old, pod, request.now)?, Vec::new()))
    })
    .await?;
    Ok(None)
}

async fn finalize(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    update(server, request, name, Through::Subresource, &|old| {
        let (mut body, warnings) = server.decode_body(request)?;
        let version = at(&body, &["metadata", "resourceVersion"]).cloned();
        let mut new = old.clone();
        set(
            &mut new,
            &["spec", "finalizers"],
            body["spec"]["finalizers"].take(),
        );
        set(
            &mut new,
            &["metadata", "resourceVersion"],
            version.unwrap_or_default(),
        );
        Ok((new, warnings))
    })
    .await
}

fn shape(group: &str, kind: &str) -> &'static ObjectType {
    schema::named(group, "v1", kind).expect("the bodies of subresources are in the schema")
}

fn decode_as(request: &Request, group: &str, kind: &str) -> Result<Value, ApiError> {
    let format = BodyFormat::from_content_type(Some(&request.content_type))?;
    Ok(decode::decode(&request.body, format, shape(group, kind))?.object)
}

fn success(code: u16) -> Reply {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    Reply::json(code, status)
}
