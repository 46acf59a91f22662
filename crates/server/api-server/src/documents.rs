//! What does the server say about itself: version, health, metrics, discovery and OpenAPI?

use crate::dispatch::text;
use crate::http::body::Body;
use crate::http::negotiate::{Form, negotiate};
use crate::http::query::Query;
use crate::http::route::Route;
use crate::reply::Reply;
use crate::server::Server;
use crate::{health, version};
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, header};
use pointsman_rules::document::Document;
use pointsman_rules::{ApiError, discovery, openapi};
use serde_json::Value;

/// How kubectl asks for OpenAPI v2, which it looks into before it sends a list of objects.
const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2";

/// Serves what is neither a resource nor a review.
pub async fn serve(
    server: &Server,
    route: Route,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Reply, ApiError> {
    let accept = text(headers, header::ACCEPT);
    let forms = &[Form::Json, Form::AggregatedDiscovery];
    let aggregated = |document: &Document| {
        let mut reply = published(document, headers);
        reply.content_type = Form::AggregatedDiscovery.content_type();
        reply.headers.push((header::VARY, "Accept".into()));
        reply.headers.push((header::CACHE_CONTROL, "public".into()));
        reply
    };
    match route {
        Route::Version => Ok(Reply::json(200, version::document())),
        Route::Health { probe, check } => {
            let verbose = query.all("verbose").next().is_some();
            let excluded: Vec<&str> = query.all("exclude").collect();
            Ok(health::answer(server, &probe, check.as_deref(), &excluded, verbose).await)
        }
        Route::Metrics => {
            let mut reply = Reply::text(200, server.metrics.registry.render());
            reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
            Ok(reply)
        }
        Route::OpenIdConfiguration => {
            let mut reply = Reply::json(200, server.accounts.discovery());
            reply
                .headers
                .push((header::CACHE_CONTROL, "public, max-age=3600".into()));
            Ok(reply)
        }
        Route::OpenIdKeys => {
            let mut reply = Reply::json(200, server.accounts.jwks());
            reply.content_type = "application/jwk-set+json";
            reply
                .headers
                .push((header::CACHE_CONTROL, "public, max-age=3600".into()));
            Ok(reply)
        }
        Route::Backup => backup(server),
        Route::Api if negotiate(accept.as_deref(), forms)? == Form::AggregatedDiscovery => {
            Ok(aggregated(&discovery::aggregated_core()))
        }
        Route::Apis if negotiate(accept.as_deref(), forms)? == Form::AggregatedDiscovery => {
            Ok(aggregated(&discovery::aggregated_groups()))
        }
        Route::Api => Ok(Reply::json(200, discovery::api_versions())),
        Route::Apis => Ok(Reply::json(200, discovery::group_list())),
        Route::Group(group) => found(discovery::group(&group)),
        Route::GroupVersion(group, version) => found(discovery::resource_list(&group, &version)),
        Route::Swagger
            if accept
                .as_deref()
                .is_some_and(|accept| accept.starts_with(SWAGGER_PROTOBUF)) =>
        {
            let mut reply = Reply::new(200, Body::whole(openapi::v2::without_types()));
            reply.content_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
            Ok(reply)
        }
        Route::Swagger => Ok(published(&openapi::v2::document(), headers)),
        Route::OpenApiIndex => Ok(published(&openapi::index(), headers)),
        Route::OpenApi(group, version) => {
            let document = openapi::document(&group, &version).ok_or(ApiError::NoSuchResource)?;
            let mut reply = published(&document, headers);
            if query.get("hash").is_some() {
                // The URL names the content, so it never changes.
                reply
                    .headers
                    .push((header::CACHE_CONTROL, "public, immutable".into()));
            }
            Ok(reply)
        }
        Route::Root => Ok(Reply::json(200, paths())),
        Route::Resource(_) | Route::Review { .. } | Route::Measured { .. } => Err(ApiError::NoSuchResource),
    }
}

/// Everything in the store at one revision. If reading fails on the way the answer just ends, which the missing
/// checksum says.
fn backup(server: &Server) -> Result<Reply, ApiError> {
    if let Some(advice) = server.store.own_backup() {
        return Err(ApiError::MethodNotAllowed(advice.into()));
    }
    let pieces = pointsman_store::backup::write(server.raw_store.clone());
    let pieces = pieces.scan((), |(), piece| {
        let piece = piece.inspect_err(|error| tracing::error!(%error, "a backup was cut off"));
        std::future::ready(piece.ok())
    });
    Ok(Reply {
        content_type: "application/octet-stream",
        ..Reply::new(200, Body::stream(Box::pin(pieces)))
    })
}

fn found(document: Option<Value>) -> Result<Reply, ApiError> {
    document
        .map(|document| Reply::json(200, document))
        .ok_or(ApiError::NoSuchResource)
}

/// A document, or 304 if the client has it.
fn published(document: &Document, headers: &HeaderMap) -> Reply {
    let etag = document.etag();
    let known = text(headers, header::IF_NONE_MATCH).is_some_and(|known| known.contains(&etag));
    let (code, body) = if known {
        (304, Bytes::new())
    } else {
        (200, document.body.clone())
    };
    let mut reply = Reply::new(code, Body::whole(body));
    reply.headers.push((header::ETAG, etag));
    reply
}

fn paths() -> Value {
    let versions = discovery::group_versions().into_iter();
    let groups = versions.map(|(group, version)| match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    });
    let fixed = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/backup",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    let mut paths: Vec<String> = groups.chain(fixed.map(String::from)).collect();
    paths.sort();
    serde_json::json!({"paths": paths})
}
