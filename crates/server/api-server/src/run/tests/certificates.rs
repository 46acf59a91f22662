//! Who asks for certificates, who says yes, who answers?

use super::*;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENTS: &str = "kubernetes.io/kube-apiserver-client";

pub(super) fn asking(name: &str, group: &str, signer: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "jane");
    params.distinguished_name.push(DnType::OrganizationName, group);
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let spec = json!({
        "request": BASE64_STANDARD.encode(pem), "signerName": signer, "usages": ["client auth"],
        "username": "admin", "uid": "of-another", "extra": {"of": ["another"]},
    });
    json!({"metadata": {"name": name}, "spec": spec})
}

impl World {
    async fn stored_request(&self, name: &str) -> Value {
        let kind = &kinds::declared::CERTIFICATE_SIGNING_REQUEST;
        self.server.find(kind, "", name).unwrap().value()
    }

    async fn request_rights(&self, user: &str) {
        let parts = [
            "certificatesigningrequests",
            "certificatesigningrequests/approval",
            "certificatesigningrequests/status",
        ];
        let all = json!({"apiGroups": ["certificates.k8s.io"], "resources": parts, "verbs": ["*"]});
        self.grant_rule(user, &format!("{user}-requests"), all).await;
    }

    async fn signer_right(&self, user: &str, verb: &str, signer: &str) {
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb], "resourceNames": [signer]});
        self.grant_rule(user, &format!("{user}-{verb}"), rule).await;
    }
}

#[tokio::test]
async fn a_request_says_who_made_it_and_nobody_asks_for_the_masters_group() {
    let world = World::new().await;
    world.request_rights("jane").await;
    let mut jane = User::new("jane", &["people"]);
    for (signer, group, code) in [
        (CLIENTS, "system:masters", 403),
        (CLIENTS, "people", 201),
        ("example.com/any", "system:masters", 201),
    ] {
        let body = asking(&format!("{group}-{code}"), group, signer);
        let (got, why) = world.ask(&jane, Method::POST, REQUESTS, &body).await;
        assert_eq!(got, code, "{signer} {group}: {why}");
    }
    let odd = json!({"metadata": {"name": "x"}, "spec": {"request": "AAAA", "signerName": CLIENTS}});
    assert_eq!(world.ask(&jane, Method::POST, REQUESTS, &odd).await.0, 403);
    let spec = world.stored_request("people-201").await["spec"].take();
    assert_eq!(spec["username"], "jane");
    assert_eq!((&spec["uid"], &spec["extra"]), (&Value::Null, &Value::Null));
    jane.uid = "u1".into();
    jane.extra.insert("scope".into(), vec!["a".into()]);
    let body = asking("full", "people", CLIENTS);
    assert_eq!(world.ask(&jane, Method::POST, REQUESTS, &body).await.0, 201);
    let spec = world.stored_request("full").await["spec"].take();
    assert_eq!(
        (&spec["uid"], &spec["extra"]),
        (&json!("u1"), &json!({"scope": ["a"]}))
    );
}

#[tokio::test]
async fn approval_and_signature_need_rights_on_the_signer() {
    let world = World::new().await;
    let jane = User::new("jane", &[]);
    world.request_rights("jane").await;
    let body = asking("r", "people", CLIENTS);
    assert_eq!(world.ask(&jane, Method::POST, REQUESTS, &body).await.0, 201);
    let answer = json!({"status": {
        "certificate": "AAAA",
        "conditions": [{"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}],
    }});
    let patch = async |part: &str| {
        let path = format!("{REQUESTS}/r/{part}");
        world.ask(&jane, Method::PATCH, &path, &answer).await
    };
    for part in ["approval", "status"] {
        let (code, why) = patch(part).await;
        assert!(
            code == 403 && why.contains("with signerName"),
            "{part}: {code} {why}"
        );
    }
    world.signer_right("jane", "sign", "kubernetes.io/*").await;
    assert_eq!(patch("approval").await.0, 403, "signing is not approving");
    assert_eq!(patch("status").await.0, 200);
    let status = world.stored_request("r").await["status"].take();
    assert_eq!(status["certificate"], "AAAA");
    let types = |status: &Value| -> Vec<String> {
        let conditions = status["conditions"].as_array().unwrap().iter();
        conditions
            .map(|found| found["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(types(&status), ["Failed"], "who signs does not approve");
    world.signer_right("jane", "approve", CLIENTS).await;
    assert_eq!(patch("approval").await.0, 200);
    let status = world.stored_request("r").await["status"].take();
    assert_eq!(types(&status), ["Approved", "Failed"]);
}

#[tokio::test]
async fn whom_a_signer_trusts_is_said_by_those_who_may_attest_it() {
    const BUNDLES: &str = "/apis/certificates.k8s.io/v1/clustertrustbundles";
    let world = World::new().await;
    let jane = User::new("jane", &[]);
    let all =
        json!({"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "verbs": ["*"]});
    world.grant_rule("jane", "bundles", all).await;
    let bundle = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let of_nobody = bundle("any", json!({"trustBundle": "x"}));
    assert_eq!(world.ask(&jane, Method::POST, BUNDLES, &of_nobody).await.0, 201);
    let of_signer = bundle(
        "example.com:s:a",
        json!({"trustBundle": "x", "signerName": "example.com/s"}),
    );
    let (code, why) = world.ask(&jane, Method::POST, BUNDLES, &of_signer).await;
    assert!(code == 403 && why.contains("attest"), "{code} {why}");
    assert_eq!(
        world.ask(&admin(), Method::POST, BUNDLES, &of_signer).await.0,
        201
    );
    let path = format!("{BUNDLES}/example.com:s:a");
    let more = json!({"spec": {"trustBundle": "y"}});
    assert_eq!(world.ask(&jane, Method::PATCH, &path, &more).await.0, 403);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(world.ask(&jane, Method::PATCH, &path, &label).await.0, 200);
    world.signer_right("jane", "attest", "example.com/*").await;
    assert_eq!(world.ask(&jane, Method::PATCH, &path, &more).await.0, 200);
    let other = json!({"spec": {"signerName": "example.com/t"}});
    assert_eq!(world.ask(&jane, Method::PATCH, &path, &other).await.0, 422);
}
