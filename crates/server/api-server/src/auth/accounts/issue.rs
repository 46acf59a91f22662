//! Who gets a token of a service account, for what and for how long?
//!
//! `POST .../serviceaccounts/NAME/token`, as upstream answers it. Lives are never longer than was asked for: upstream's
//! extension of pods' tokens to a year is left out, since whoever reads the file gets a new token in time.

use super::Accounts;
use super::claims::{Audiences, Bound, Claims, Named, unsigned};
use crate::auth::authn::service_account_user;
use crate::auth::keyring::{TOKEN_LIFE, remember_end};
use crate::auth::node_restriction;
use crate::cache::object::Object;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;
use crate::write::update::find_newest;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use pointsman_rules::decode::{BodyFormat, decode};
use pointsman_rules::status::Subject;
use pointsman_rules::value::{at, int_at, list_at, set, set_default, str_at};
use pointsman_rules::{ApiError, FieldError, Kind, kinds, schema};
use serde_json::{Value, json};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Issues the token that the body asks for.
pub async fn issue(server: &Server, request: &Request, name: &str) -> Result<Reply, ApiError> {
    let format = BodyFormat::from_content_type(Some(&request.content_type))?;
    let shape = schema::named(GROUP, "v1", KIND).ok_or(ApiError::NoSuchResource)?;
    let mut asked = decode(&request.body, format, shape)?.object;
    let account = find_newest(server, request, name).await?;
    let account = account.ok_or_else(|| crate::read::not_found(request.target.kind, name))?;
    let account = account.value();
    complete(&mut asked, &account, &server.accounts, request.now)?;
    let bound = bind(server, request, &account, &asked)?;
    let mut warnings = Vec::new();
    let longest = server.accounts.settings.max_expiration;
    let longest = longest.map_or(MAX_SECONDS, |longest| longest.as_secs() as i64);
    let wanted = int_at(&asked, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    if wanted > longest {
        warnings.push(format!(
            "requested expiration of {wanted} seconds shortened to {longest} seconds"
        ));
        set(&mut asked, &["spec", "expirationSeconds"], longest);
    }
    let seconds = wanted.min(longest);
    let token = server
        .accounts
        .sign(&asked, bound, request.now, seconds, server.new_uid());
    let token = token.ok_or_else(|| ApiError::Internal("the token cannot be signed".into()))?;
    let end = request.now.saturating_add(SignedDuration::from_secs(seconds));
    let end = end.unwrap_or(Timestamp::MAX);
    let end = Timestamp::from_second(end.as_second()).unwrap_or(Timestamp::MAX);
    asked["status"] = json!({"token": token, "expirationTimestamp": end.to_string()});
    asked["kind"] = KIND.into();
    asked["apiVersion"] = format!("{GROUP}/v1").into();
    Ok(Reply::json(201, asked).with_warnings(warnings))
}

impl Accounts {
    /// A signed token that says what was asked for.
    pub fn sign(
        &self,
        asked: &Value,
        bound: Bound,
        now: Timestamp,
        seconds: i64,
        id: String,
    ) -> Option<String> {
        let texts = list_at(asked, &["spec", "audiences"]).iter();
        let now = now.as_second();
        let claims = Claims {
            aud: Audiences(texts.filter_map(Value::as_str).map(str::to_owned).collect()),
            exp: Some(now.saturating_add(seconds)),
            iat: Some(now),
            nbf: Some(now),
            iss: self.settings.issuers.first()?.clone(),
            jti: id,
            sub: service_account_user(&bound.namespace, &bound.serviceaccount.name),
            bound: Some(bound),
            ..Claims::default()
        };
        let keys = self.keys.read().clone();
        if seconds > TOKEN_LIFE.as_secs() as i64 {
            let [now, end] = [now, now.saturating_add(seconds)].map(|at| u64::try_from(at).unwrap_or(0));
            let remembered = remember_end(&self.pki, &keys.signer.name, end, now);
            remembered
                .inspect_err(|error| tracing::error!(%error, "cannot remember how long a token is good"))
                .ok()?;
        }
        let message = unsigned(&claims, &keys.signer.verifier);
        let signature = keys.signer.sign(message.as_bytes())?;
        Some(format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Fills in what was left open, and says what cannot be asked for.
fn complete(asked: &mut Value, account: &Value, accounts: &Accounts, now: Timestamp) -> Result<(), ApiError> {
    let name = str_at(account, &["metadata", "name"]).to_owned();
    let invalid = |name: &str, error: FieldError| {
        let subject = Subject {
            group: GROUP.into(),
            kind: KIND.into(),
            name: name.into(),
        };
        let errors = vec![error];
        Err(ApiError::Invalid { subject, errors })
    };
    for field in ["name", "namespace"] {
        let stated = str_at(asked, &["metadata", field]);
        if !stated.is_empty() && stated != str_at(account, &["metadata", field]) {
            let path = format!("metadata.{field}");
            let why = format!("must match the service account {field} if specified");
            return invalid(&name, FieldError::invalid(path, stated, why));
        }
    }
    let (stated, uid) = (
        str_at(asked, &["metadata", "uid"]),
        str_at(account, &["metadata", "uid"]),
    );
    if !stated.is_empty() && stated != uid {
        let why = format!(
            "the UID in the token request ({stated}) does not match the UID of the service account ({uid})"
        );
        return Err(conflict(GROUP, KIND, &name, why));
    }
    for field in ["name", "namespace", "uid"] {
        let value = str_at(account, &["metadata", field]);
        set(asked, &["metadata", field], value);
    }
    let created = Timestamp::from_second(now.as_second()).unwrap_or(now);
    set(asked, &["metadata", "creationTimestamp"], created.to_string());
    if list_at(asked, &["spec", "audiences"]).is_empty() {
        set(asked, &["spec", "audiences"], accounts.settings.audiences.clone());
    }
    set_default(asked, &["spec", "expirationSeconds"], DEFAULT_SECONDS);
    let field = "spec.expirationSeconds";
    match int_at(asked, &["spec", "expirationSeconds"]).unwrap_or_default() {
        seconds @ ..MIN_SECONDS => {
            let why = "may not specify a duration less than 10 minutes";
            invalid("", FieldError::invalid(field, seconds, why))
        }
        seconds if seconds > MAX_SECONDS => {
            let why = "may not specify a duration larger than 2^32 seconds";
            invalid("", FieldError::invalid(field, seconds, why))
        }
        _ => Ok(()),
    }
}

/// What the token is bound to: the account, and the object that the request names.
fn bind(server: &Server, request: &Request, account: &Value, asked: &Value) -> Result<Bound, ApiError> {
    let namespace = &request.target.namespace;
    let named = |object: &Value| Named {
        name: str_at(object, &["metadata", "name"]).to_owned(),
        uid: str_at(object, &["metadata", "uid"]).to_owned(),
    };
    let mut bound = Bound {
        namespace: namespace.clone(),
        serviceaccount: named(account),
        ..Bound::default()
    };
    let reference = at(asked, &["spec", "boundObjectRef"]);
    let find = |kind: &'static Kind, namespace: &str| -> Result<Value, ApiError> {
        let name = reference.map_or("", |reference| str_at(reference, &["name"]));
        server.find(kind, namespace, name).map(|object| object.value())
    };
    let of = |field| reference.map_or("", |reference| str_at(reference, &[field]));
    let mut pod = None;
    let uid = match (of("apiVersion"), of("kind")) {
        _ if reference.is_none() => String::new(),
        ("v1", "Pod") => {
            let found = find(&kinds::POD, namespace)?;
            if str_at(&found, &["spec", "serviceAccountName"]) != bound.serviceaccount.name {
                let name = &bound.serviceaccount.name;
                let why = format!(
                    "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                );
                return Err(ApiError::BadRequest(why));
            }
            bound.node = node_of(server, &found);
            bound.pod = Some(named(&found));
            pod = Some(found);
            bound.pod.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default()
        }
        ("v1", "Node") => bound.node.insert(named(&find(&kinds::NODE, "")?)).uid.clone(),
        ("v1", "Secret") => bound
            .secret
            .insert(named(&find(&kinds::SECRET, namespace)?))
            .uid
            .clone(),
        (version, kind) => {
            let why = format!("cannot bind token to object of type {version}, Kind={kind}");
            return Err(ApiError::BadRequest(why));
        }
    };
    if !of("uid").is_empty() && of("uid") != uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            of("uid")
        );
        return Err(conflict("", of("kind"), of("name"), why));
    }
    let own = &server.accounts.settings.audiences;
    let drivers = match &pod {
        Some(pod) if node_restriction::applies(&request.user) => server.drivers_of(pod),
        _ => Vec::new(),
    };
    let within = node_restriction::check_token(&request.user, asked, pod.as_ref(), own, &drivers);
    within.map_err(|why| ApiError::Forbidden {
        subject: Subject::new(&kinds::SERVICE_ACCOUNT, &*bound.serviceaccount.name),
        why,
        cause: None,
    })?;
    Ok(bound)
}

/// Where a pod runs, as far as that is known.
fn node_of(server: &Server, pod: &Value) -> Option<Named> {
    let name = Some(str_at(pod, &["spec", "nodeName"])).filter(|name| !name.is_empty())?;
    let node = server.find(&kinds::NODE, "", name).ok();
    let uid = node.as_deref().and_then(Object::uid);
    Some(Named {
        name: name.to_owned(),
        uid: uid.unwrap_or_default(),
    })
}

fn conflict(group: &str, kind: &str, name: &str, why: String) -> ApiError {
    let subject = Subject {
        group: group.into(),
        kind: kind.into(),
        name: name.into(),
    };
    ApiError::Conflict { subject, why }
}
