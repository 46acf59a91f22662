use super::claims::{Audiences, Bound, MAX_TOKEN, Named, unsigned};
use super::keys::Verifier;
use super::*;
use crate::auth::keyring::Section;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use proptest::prelude::*;

const NOW: i64 = 1_800_000_000;
const ISSUER: &str = "https://kubernetes.default.svc";

fn made() -> Keys {
    let dir = tempfile::tempdir().unwrap();
    let ring = Ring::Tokens.open(dir.path()).unwrap();
    Keys::read((dir.path(), &ring), &[]).unwrap()
}

fn claims() -> Claims {
    let named = |name: &str| Named {
        name: name.into(),
        uid: format!("{name}-uid"),
    };
    Claims {
        aud: Audiences(vec!["api".into(), "vault".into()]),
        exp: Some(NOW + 3600),
        iat: Some(NOW),
        nbf: Some(NOW),
        iss: ISSUER.into(),
        jti: "id".into(),
        sub: "system:serviceaccount:d:robot".into(),
        bound: Some(Bound {
            namespace: "d".into(),
            serviceaccount: named("robot"),
            pod: Some(named("p")),
            node: Some(named("n")),
            secret: None,
        }),
        ..Claims::default()
    }
}

fn signed(claims: &Claims, keys: &Keys) -> String {
    let message = unsigned(claims, &keys.signer.verifier);
    let signature = keys.signer.sign(message.as_bytes()).unwrap();
    format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// Who the claims stand for at `now`, if everything they name exists but for `gone`.
fn user(claims: &Claims, now: i64, audiences: &[&str], gone: &str) -> Option<(User, Vec<String>)> {
    let find = |_: &'static Kind, _: &str, name: &str| {
        (name != gone).then(|| Life {
            uid: format!("{name}-uid"),
            deletion: (gone == format!("{name} ends")).then_some(NOW),
        })
    };
    let audiences: Vec<String> = audiences.iter().map(|name| (*name).to_owned()).collect();
    claims.user(&World {
        now,
        issuers: &[ISSUER.to_owned()],
        audiences: &audiences,
        own: &["api".to_owned()],
        find: &find,
        holds: &|_, secret| secret != gone && gone != "held",
    })
}

#[test]
fn a_token_names_its_account_and_what_it_is_bound_to() {
    let keys = made();
    let read = verified(signed(&claims(), &keys).as_bytes(), &keys.verifiers).unwrap();
    assert_eq!(read, claims());
    let (user, audiences) = user(&read, NOW, &["other", "api"], "").unwrap();
    assert_eq!(user.name, "system:serviceaccount:d:robot");
    assert_eq!(user.uid, "robot-uid");
    assert_eq!(
        user.groups,
        ["system:serviceaccounts", "system:serviceaccounts:d"]
    );
    let extra: Vec<(&str, &str)> = user
        .extra
        .iter()
        .map(|(key, values)| (key.rsplit('/').next().unwrap(), values[0].as_str()))
        .collect();
    assert_eq!(
        extra,
        [
            ("credential-id", "JTI=id"),
            ("node-name", "n"),
            ("node-uid", "n-uid"),
            ("pod-name", "p"),
            ("pod-uid", "p-uid"),
        ]
    );
    assert_eq!(audiences, ["api"]);
}

#[test]
fn a_token_is_good_in_its_time_for_its_audience_and_while_what_it_names_is_there() {
    let good = |now, audience: &str, gone: &str| user(&claims(), now, &[audience], gone).is_some();
    assert!(good(NOW, "api", "") && good(NOW, "vault", ""));
    assert!(!good(NOW, "elsewhere", ""), "of another audience");
    assert!(
        good(NOW + 3660, "api", "") && !good(NOW + 3661, "api", ""),
        "expired"
    );
    assert!(
        good(NOW - 60, "api", "") && !good(NOW - 61, "api", ""),
        "from the future"
    );
    assert!(!good(NOW, "api", "robot"), "the account is gone");
    assert!(!good(NOW, "api", "p"), "the pod is gone");
    assert!(
        good(NOW + 60, "api", "p ends") && !good(NOW + 61, "api", "p ends"),
        "the pod was to be gone"
    );
    assert!(good(NOW, "api", "n"), "of a pod's node only the name counts");
    let change = |change: fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        user(&claims, NOW, &["api"], "n").is_some()
    };
    assert!(
        !change(|claims| claims.iss = "https://other".into()),
        "of another cluster"
    );
    assert!(!change(
        |claims| claims.sub = "system:serviceaccount:d:admin".into()
    ));
    assert!(!change(|claims| claims.exp = None));
    assert!(!change(|claims| claims.iat = Some(i64::MAX)));
    assert!(!change(|claims| claims.exp = Some(i64::MIN)));
    assert!(!change(|claims| claims.bound = None));
    assert!(!change(|claims| claims
        .bound
        .as_mut()
        .unwrap()
        .serviceaccount
        .uid = "other".into()));
    assert!(
        !change(|claims| claims.bound.as_mut().unwrap().pod = None),
        "bound to a node that is gone"
    );
}

#[test]
fn a_token_in_a_secret_is_good_while_the_secret_holds_it() {
    let legacy = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:d:robot",
        "kubernetes.io/serviceaccount/namespace": "d",
        "kubernetes.io/serviceaccount/secret.name": "robot-token",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "robot-uid",
    });
    let mut legacy: Claims = serde_json::from_value(legacy).unwrap();
    let good = |claims: &Claims, gone| user(claims, NOW, &["api"], gone).is_some();
    assert!(good(&legacy, ""));
    let of = |audiences: &[&str]| user(&legacy, NOW, audiences, "").map(|(_, audiences)| audiences);
    assert_eq!(
        of(&["vault", "api"]),
        Some(vec!["api".to_owned()]),
        "for this server"
    );
    assert_eq!(of(&["vault"]), None, "for nobody else");
    for gone in ["robot", "robot-token", "held"] {
        assert!(!good(&legacy, gone), "{gone}");
    }
    legacy.sub = "system:serviceaccount:d:admin".into();
    assert!(!good(&legacy, ""));
}

#[test]
fn signatures_of_others_and_tokens_without_one_are_refused() {
    let (keys, others) = (made(), made());
    let token = signed(&claims(), &keys);
    let known = |token: &str| verified(token.as_bytes(), &keys.verifiers).is_some();
    assert!(known(&token));
    assert!(!known(&signed(&claims(), &others)), "of another cluster");
    let part = |json: Value| BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
    let (head, rest) = token.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    let kid = &keys.signer.verifier.id;
    for alg in ["none", "None", "HS256", "RS256", "ES384", ""] {
        for signature in ["", signature] {
            let header = part(json!({"alg": alg, "kid": kid}));
            assert!(!known(&format!("{header}.{body}.{signature}")), "{alg}");
        }
    }
    for bad in [
        format!("{head}.{body}."),
        format!("{head}.{body}"),
        format!("{token}.{signature}"),
        format!("{token}="),
        format!("{head}.{}.{signature}", part(json!({"iss": ISSUER}))),
        format!("{head}..{signature}"),
        "..".into(),
        "ey".repeat(MAX_TOKEN),
    ] {
        assert!(!known(&bad), "{}", &bad[..bad.len().min(80)]);
    }
}

#[test]
fn keys_of_each_kind_sign_verify_and_are_published() {
    // `openssl genrsa 2048`, `openssl ecparam -name secp384r1 -genkey | openssl pkcs8 -topk8 -nocrypt`
    for (pem, algorithm, kind) in [
        (include_str!("../../../testdata/sa-rsa.pem"), "RS256", "RSA"),
        (include_str!("../../../testdata/sa-p384.pem"), "ES384", "EC"),
    ] {
        let found = sections(pem).unwrap();
        let keys = Keys::read((Path::new("x"), &found), &[]).unwrap();
        let token = signed(&claims(), &keys);
        assert!(
            verified(token.as_bytes(), &keys.verifiers).is_some(),
            "{algorithm}"
        );
        assert!(verified(token.as_bytes(), &made().verifiers).is_none());
        let jwk = keys.verifiers[0].to_jwk();
        assert_eq!(
            (jwk["alg"].as_str(), jwk["kty"].as_str()),
            (Some(algorithm), Some(kind))
        );
        assert_eq!(jwk["kid"], keys.signer.verifier.id);
    }
    let jwk = made().verifiers[0].to_jwk();
    let length = |field: &str| jwk[field].as_str().map(str::len);
    assert_eq!((length("x"), length("y")), (Some(43), Some(43)));
    let garbage =
        Section::clone(&sections("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----").unwrap()[0]);
    assert!(Keys::read((Path::new("x"), &[garbage]), &[]).is_err());
}

#[test]
fn public_keys_in_files_are_believed_besides() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.pub");
    let (keys, others) = (made(), made());
    let own = Ring::Tokens.open(dir.path()).unwrap();
    let rsa = include_str!("../../../testdata/sa-rsa.pub");
    std::fs::write(&other, rsa).unwrap();
    let read = Keys::read((dir.path(), &own), &[&other]).unwrap();
    let ids: Vec<&str> = read
        .verifiers
        .iter()
        .map(|key: &Verifier| key.id.as_str())
        .collect();
    let found = sections(include_str!("../../../testdata/sa-rsa.pem")).unwrap();
    let rsa = Keys::read((Path::new("x"), &found), &[]).unwrap();
    assert_eq!(ids, [&read.signer.verifier.id, &rsa.signer.verifier.id]);
    assert!(verified(signed(&claims(), &rsa).as_bytes(), &read.verifiers).is_some());
    assert!(verified(signed(&claims(), &keys).as_bytes(), &others.verifiers).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No change of a single byte leaves a token good, and no bytes make reading one panic.
    #[test]
    fn a_changed_token_is_no_token(at: prop::sample::Index, byte: u8, any in proptest::collection::vec(any::<u8>(), 0..200)) {
        thread_local!(static KEYS: (Keys, String) = {
            let keys = made();
            let token = signed(&claims(), &keys);
            (keys, token)
        });
        KEYS.with(|(keys, token)| {
            let mut bytes = token.clone().into_bytes();
            let at = at.index(bytes.len());
            let same = bytes[at] == byte;
            bytes[at] = byte;
            prop_assert_eq!(verified(&bytes, &keys.verifiers).is_some(), same);
            prop_assert!(verified(&any, &keys.verifiers).is_none());
            Ok(())
        })?;
    }
}
