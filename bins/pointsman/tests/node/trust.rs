//! Do the API server and the agent believe each other, and only each other?

use crate::lab::{on_a_node, pod_path};
use pointsman_harness::eventually;
use serde_json::json;

#[test]
fn the_server_asks_no_agent_that_cannot_prove_to_be_the_nodes() {
    on_a_node(async |lab| {
        lab.pod(
            "talk",
            json!({ "command": ["sh", "-c", "echo words; exec sleep 3600"] }),
        )
        .await;
        lab.ready("talk").await;
        let path = format!("{}/log", pod_path("talk"));
        eventually("the words are there", async || {
            let answer = lab.http.get(&path).await;
            (answer.code == 200 && answer.text == "words\n").then_some(())
        })
        .await;
        // Somebody listens there who made his certificate himself, then somebody who is another node.
        for name in [None, Some("n2")] {
            lab.kill_agent().await;
            lab.start_agent_shown_as(name);
            eventually("the agent listens again", async || {
                let answer = lab.http.get(&path).await;
                assert_ne!(answer.code, 200, "{name:?} was believed");
                answer.text.contains("certificate").then_some(())
            })
            .await;
        }
        lab.kill_agent().await;
        lab.start_agent();
        eventually("the agent is believed again", async || {
            (lab.http.get(&path).await.code == 200).then_some(())
        })
        .await;
    });
}

#[test]
fn the_servers_own_certificate_opens_agents_and_nothing_else() {
    on_a_node(async |lab| {
        let keys = lab.server.kubeconfig().with_file_name("pki");
        let ask = async |url: String| {
            let mut command = tokio::process::Command::new("curl");
            command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"]);
            command.arg("--cacert").arg(keys.join("ca.crt"));
            command
                .arg("--cert")
                .arg(keys.join("apiserver-kubelet-client.crt"));
            command
                .arg("--key")
                .arg(keys.join("apiserver-kubelet-client.key"));
            let answer = command.arg(url).output().await.unwrap();
            String::from_utf8(answer.stdout).unwrap()
        };
        // The agent's certificate is good for anybody who knows the authority.
        assert_eq!(ask(lab.agent_url("/containerLogs/default/x/c")).await, "404");
        assert_eq!(ask(lab.agent_url("/pods")).await, "200");
        let server = |path: &str| format!("https://{}{path}", lab.server.address());
        for path in ["/api/v1/pods", "/api/v1/configmaps", "/api/v1/nodes", "/metrics"] {
            assert_eq!(ask(server(path)).await, "403", "{path}");
        }
    });
}
