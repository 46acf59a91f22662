//! Does a release live as Helm keeps it: in Secrets, which nobody reads from the disk?

use super::chart::program;
use super::deploy;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pointsman_harness::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::process::Command;

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets?labelSelector=owner%3Dhelm";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/pointsman-controllers";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/pointsman-proxy";

/// Helm with the token of a service account.
struct Helm {
    home: tempfile::TempDir,
    flags: Vec<String>,
}

impl Helm {
    async fn new(server: &Server, token: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let authority = server.data_dir().join("pki/ca.crt");
        let flags = [
            "--namespace=kube-system".to_owned(),
            format!("--kube-apiserver=https://{}", server.address()),
            format!("--kube-ca-file={}", authority.display()),
            format!("--kube-token={token}"),
        ];
        Self {
            home,
            flags: flags.to_vec(),
        }
    }

    /// Runs a command line, split at spaces; gives what it printed, or what it complained of.
    async fn run(&self, line: &str) -> Result<String, String> {
        let output = Command::new(program())
            .args(line.split(' '))
            .args(&self.flags)
            .env_clear()
            .env("HOME", self.home.path())
            .output()
            .await
            .expect("`make deps` installs helm");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    /// Revisions and their states, the oldest first.
    async fn history(&self) -> Vec<(u64, String)> {
        let history = self.run("history pointsman --output=json").await.unwrap();
        let history: Vec<Value> = serde_json::from_str(&history).unwrap();
        let brief = |one: &Value| {
            (
                one["revision"].as_u64().unwrap(),
                one["status"].as_str().unwrap().to_owned(),
            )
        };
        history.iter().map(brief).collect()
    }
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

/// Files that hold this text.
fn holders(server: &Server, text: &[u8]) -> Vec<PathBuf> {
    let mut files = files(server.data_dir());
    files.retain(|file| {
        let bytes = std::fs::read(file).unwrap();
        bytes.windows(text.len()).any(|part| part == text)
    });
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_installed_upgraded_rolled_back_and_removed() {
    let server = Server::start(&[]).await;
    let admin = server.admin().await;
    let account = json!({"metadata": {"name": "releases"}});
    admin
        .post("/api/v1/namespaces/kube-system/serviceaccounts", &account)
        .await
        .expect(201);
    let asked = json!({"spec": {"expirationSeconds": 600}});
    let token = admin
        .post(
            "/api/v1/namespaces/kube-system/serviceaccounts/releases/token",
            &asked,
        )
        .await
        .expect(201);
    let helm = Helm::new(&server, token["status"]["token"].as_str().unwrap()).await;
    let chart = deploy().join("chart").display().to_string();

    let install = format!("install pointsman {chart}");
    let refused = helm.run(&install).await.unwrap_err();
    let who = "system:serviceaccount:kube-system:releases";
    assert!(
        refused.contains("forbidden") && refused.contains(who),
        "{refused}"
    );
    let rights = json!({
        "metadata": {"name": "releases"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "releases"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    admin.post(bindings, &rights).await.expect(201);

    helm.run(&install).await.unwrap();
    admin.get(ROLES).await.expect(200);
    admin.get(DEPLOYMENT).await.expect(404);
    let upgrade = format!("upgrade pointsman {chart} --set controllers.enabled=true");
    helm.run(&upgrade).await.unwrap();
    admin.get(DEPLOYMENT).await.expect(200);
    helm.run("rollback pointsman 1").await.unwrap();
    admin.get(DEPLOYMENT).await.expect(404);
    let states = ["superseded", "superseded", "deployed"].map(str::to_owned);
    let expected: Vec<(u64, String)> = (1..).zip(states).collect();
    assert_eq!(helm.history().await, expected);
    let list = helm.run("list --output=json").await.unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let brief = ["name", "revision", "status"].map(|field| &list[0][field]);
    assert_eq!(brief, ["pointsman", "3", "deployed"]);

    let releases = admin.get(SECRETS).await.expect(200);
    let releases = releases["items"].as_array().unwrap();
    assert_eq!(releases.len(), 3);
    for release in releases {
        assert_eq!(release["type"], "helm.sh/release.v1");
        // As clients send it, and as it is encrypted: what is found in neither form is nowhere.
        let sent = release["data"]["release"].as_str().unwrap();
        let plain = BASE64_STANDARD.decode(sent).unwrap();
        for text in [sent.as_bytes(), &plain] {
            let start = &text[text.len() / 2..][..64];
            assert_eq!(holders(&server, start), Vec::<PathBuf>::new(), "on the disk");
        }
        let name = release["metadata"]["name"].as_str().unwrap();
        assert!(
            !holders(&server, name.as_bytes()).is_empty(),
            "the files are looked at"
        );
    }

    helm.run("uninstall pointsman").await.unwrap();
    admin.get(ROLES).await.expect(404);
    let releases = admin.get(SECRETS).await.expect(200);
    assert_eq!(releases["items"], json!([]));
}
