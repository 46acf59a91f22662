//! Shows in aggregated ClusterRoles the rules that they gather from others.
//!
//! Authorization does not need it, its index gathers by itself; people who read the role do.

use super::{internal, with_body};
use crate::server::Server;
use crate::write::update::put;
use http::Method;
use pointsman_rules::kinds;
use serde_json::Value;
use std::sync::Arc;

/// Works for ever.
pub async fn run(server: Arc<Server>) {
    let kind = &kinds::CLUSTER_ROLE;
    let mut changed = server.cache.of(kind).subscribe();
    loop {
        let gathered: Vec<(String, Vec<Value>)> = server.policy.read(|policy| {
            let names = policy.aggregated_roles();
            names
                .filter_map(|name| Some((name.to_owned(), policy.aggregated_rules(name)?)))
                .collect()
        });
        for (name, rules) in gathered {
            let Ok(role) = server.find(kind, "", &name) else {
                continue;
            };
            let mut role = role.value();
            let rules = Value::from(rules);
            if role.get("rules").unwrap_or(&Value::Array(Vec::new())) == &rules {
                continue;
            }
            role["rules"] = rules;
            let request = with_body(internal(Method::PUT, kind, "", Some(&name)), &role);
            if let Err(error) = put(&server, &request, &name).await {
                tracing::warn!(role = name, %error, "cannot show the rules of an aggregated role yet");
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}
