//! Which Deployments serve, and have they the pods that they should have?

use crate::pod_program::PodProgram;
use pointsman_api_client::{ApiError, Client, Resource, Scope};
use pointsman_objects::Pod;
use serde_json::{Value, json};

/// A Deployment of `pointsman serve-http` whose pods, with the label `app`, are replaced one after the other.
pub fn deployment(name: &str, program: &PodProgram, port: u16, replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 10, "containers": [container(program, port)]},
            },
        },
    })
}

/// A container of `pointsman serve-http`, probed every 200 ms until it is ready and then every second.
pub fn container(program: &PodProgram, port: u16) -> Value {
    json!({
        "name": "web",
        "image": program.image,
        "command": [program.path, "serve-http", format!("--listen=0.0.0.0:{port}")],
        "ports": [{"containerPort": port}],
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": port},
            "periodSeconds": 1, "periodMilliseconds": -800,
            "timeoutSeconds": 1, "failureThreshold": 1,
        },
    })
}

/// The pods with the label `app`, in order of name.
pub async fn pods(client: &Client, namespace: &str, app: &str) -> Result<Vec<Pod>, ApiError> {
    let scope = Scope::all(Resource::PODS).labels(&format!("app={app}"));
    let mut pods: Vec<Pod> = client.list(&scope).await?;
    pods.retain(|pod| &*pod.metadata.namespace == namespace);
    pods.sort_unstable_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    Ok(pods)
}

/// Whether all pods of a Deployment are of the newest template and available.
pub fn is_rolled_out(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let generation = deployment["metadata"]["generation"].as_u64();
    let wanted = spec["replicas"].as_u64().unwrap_or(1);
    status["observedGeneration"].as_u64() >= generation
        && [
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
        ]
        .iter()
        .all(|count| status[count].as_u64().unwrap_or(0) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_is_over_when_every_pod_is_new_and_available() {
        let deployment = |observed: u64, updated: u64| {
            json!({ "metadata": { "generation": 2 }, "spec": { "replicas": 3 }, "status": {
                "observedGeneration": observed, "replicas": 3, "updatedReplicas": updated,
                "readyReplicas": 3, "availableReplicas": 3 } })
        };
        assert!(is_rolled_out(&deployment(2, 3)));
        assert!(!is_rolled_out(&deployment(1, 3)));
        assert!(!is_rolled_out(&deployment(2, 2)));
        assert!(!is_rolled_out(&json!({})));
        let none = json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 0 }, "status": { "observedGeneration": 1 } });
        assert!(is_rolled_out(&none));
    }
}
