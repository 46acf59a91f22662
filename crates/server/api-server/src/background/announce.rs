//! Reports which settings are in force, in annotations of the ConfigMap that changes them.
//!
//! Whoever rolls out a setting waits for this report.
//! Servers that share a store announce the same, each after it has read the ConfigMap itself.

use super::{internal, with_body};
use crate::server::Server;
use crate::settings::CONFIG_MAP;
use crate::write::update::put;
use http::Method;
use pointsman_rules::value::{set, str_at};
use pointsman_rules::{ApiError, Kind, kinds};
use std::sync::Arc;

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let kind = &kinds::CONFIG_MAP;
    let mut changed = server.cache.of(kind).subscribe();
    loop {
        match announce(&server, kind).await {
            // Somebody else wrote it meanwhile: the change wakes us.
            Ok(()) | Err(ApiError::Conflict { .. }) => {}
            Err(error) => tracing::warn!(config_map = CONFIG_MAP, %error, "cannot announce settings yet"),
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

async fn announce(server: &Server, kind: &'static Kind) -> Result<(), ApiError> {
    let (namespace, name) = CONFIG_MAP.split_once('/').expect("a namespace and a name");
    let Ok(object) = server.find(kind, namespace, name) else {
        return Ok(());
    };
    let mut value = object.value();
    let announcements = server.settings.announcements();
    let is_announced =
        |(key, text): &(String, String)| str_at(&value, &["metadata", "annotations", key]) == text;
    if announcements.iter().all(is_announced) {
        return Ok(());
    }
    for (key, text) in announcements {
        set(&mut value, &["metadata", "annotations", &key], text);
    }
    // The values belong to this version: a later one has to be read first.
    set(
        &mut value,
        &["metadata", "resourceVersion"],
        object.revision.to_string(),
    );
    let request = with_body(internal(Method::PUT, kind, namespace, Some(name)), &value);
    put(server, &request, name).await.map(drop)
}
