//! Do Secrets and tokens of service accounts work on the real program, and do their keys survive being replaced?

use pointsman_harness::{Server, eventually, program};
use serde_json::json;
use std::process::Output;
use tokio::process::Command;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn output(mut command: Command) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    match status.success() {
        true => Ok(text(stdout)),
        false => Err(text(stderr)),
    }
}

async fn kubectl(server: &Server, line: &str) -> Result<String, String> {
    let mut command = server.kubectl_command();
    command.args(line.split_whitespace());
    output(command).await
}

async fn rotate(server: &Server, line: &str) -> Result<String, String> {
    let mut command = Command::new(program());
    command.args(["keys", "rotate"]).args(line.split_whitespace());
    command.arg("--data-dir").arg(server.data_dir());
    output(command).await
}

async fn knows(server: &Server, token: &str) -> bool {
    let http = server.with_token(Some(token)).await;
    http.post(REVIEW, &json!({})).await.code == 201
}

fn holds(server: &Server, text: &str) -> bool {
    let store = std::fs::read(server.data_dir().join("store/store.redb")).unwrap();
    store.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_makes_secrets_that_are_nowhere_in_plain_text_and_tokens_that_work() {
    let server = Server::start(&["--audit-log-path=-"]).await;
    for namespace in ["default", "kube-system"] {
        let line = format!("get configmap kube-root-ca.crt -n {namespace} -o jsonpath={{.data.ca\\.crt}}");
        let published = kubectl(&server, &line).await.unwrap();
        let authority = std::fs::read_to_string(server.data_dir().join("pki/ca.crt")).unwrap();
        assert_eq!(published, authority, "{namespace}");
    }
    let made = "create secret generic own --from-literal=password=hunter2-hunter2";
    kubectl(&server, made).await.unwrap();
    let read = "get secret own -o jsonpath={.data.password}";
    let encoded = kubectl(&server, read).await.unwrap();
    assert_eq!(encoded, "aHVudGVyMi1odW50ZXIy");
    let table = kubectl(&server, "get secrets").await.unwrap();
    assert!(table.contains("TYPE") && table.contains("Opaque"), "{table}");
    let token = kubectl(&server, "create token default --duration=10m")
        .await
        .unwrap();
    let token = token.trim();
    assert!(knows(&server, token).await);
    assert!(!knows(&server, &token[..token.len() - 1]).await);
    for secret in ["hunter2-hunter2", &encoded, token] {
        assert!(!holds(&server, secret), "the store shows it");
        assert!(!server.log().contains(secret), "the log shows it");
    }
    assert!(
        holds(&server, "/registry/core/secrets/default/own"),
        "the file is looked at"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_replaced_with_kills_between_the_steps_and_nothing_is_lost() {
    let mut server = Server::start_to_be_restarted(&["--etcd-compaction-interval=1s"]).await;
    kubectl(&server, "create secret generic own --from-literal=a=b")
        .await
        .unwrap();
    let long = "create token default --duration=30h";
    let old = kubectl(&server, long).await.unwrap();
    for step in ["trust", "use"] {
        for keys in ["encryption", "tokens"] {
            rotate(&server, &format!("{keys} {step}")).await.unwrap();
        }
        server.kill().await;
        server.launch().await;
        let secret = server
            .admin()
            .await
            .get(&format!("{SECRETS}/own"))
            .await
            .expect(200);
        assert_eq!(secret["data"]["a"], "Yg==");
        assert!(knows(&server, old.trim()).await, "the old key is still believed");
    }
    let new = kubectl(&server, "create token default").await.unwrap();
    let refused = rotate(&server, "tokens drop").await.unwrap_err();
    let seconds = refused
        .split(" s more")
        .next()
        .and_then(|text| text.rsplit(' ').next());
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).expect(&refused);
    assert!(seconds > 29 * 3600 && refused.contains("--force"), "{refused}");
    rotate(&server, "tokens drop --force").await.unwrap();
    eventually("the old key is dropped without a restart", async || {
        (!knows(&server, old.trim()).await).then_some(())
    })
    .await;
    assert!(knows(&server, new.trim()).await);
    eventually("nothing needs the old key", async || {
        rotate(&server, "encryption drop").await.ok()
    })
    .await;
    server.kill().await;
    server.launch().await;
    let secret = server
        .admin()
        .await
        .get(&format!("{SECRETS}/own"))
        .await
        .expect(200);
    assert_eq!(secret["data"]["a"], "Yg==");
}
