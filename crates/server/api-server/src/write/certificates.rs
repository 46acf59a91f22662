//! Whose certificate request is it, and may this caller answer it?

use crate::auth::authn::MASTERS;
use crate::auth::{Attributes, User};
use crate::request::Request;
use crate::server::Server;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pointsman_rules::admission::certificate_requests::{attests, keep_others_half, right, signer_names};
use pointsman_rules::kinds::declared::{CERTIFICATE_SIGNING_REQUEST, CLUSTER_TRUST_BUNDLE};
use pointsman_rules::status::Subject;
use pointsman_rules::value::{remove, set, str_at};
use pointsman_rules::{ApiError, Kind};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// Signs certificates that this server takes for those of its clients.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Says in a certificate request who made it: signers rely on it.
pub fn requested_by(kind: &Kind, object: &mut Value, user: &User) {
    if kind != &CERTIFICATE_SIGNING_REQUEST {
        return;
    }
    set(object, &["spec", "username"], user.name.clone());
    set(object, &["spec", "groups"], user.groups.clone());
    // What the author says about these is not to be believed either.
    remove(object, &["spec", "uid"]);
    remove(object, &["spec", "extra"]);
    if !user.uid.is_empty() {
        set(object, &["spec", "uid"], user.uid.clone());
    }
    for (key, values) in &user.extra {
        set(object, &["spec", "extra", key], values.clone());
    }
}

/// Leaves what the subresource does not write as it is.
pub fn keep(request: &Request, new: &mut Value, old: &Value) {
    let Some(through) = request.target.subresource else {
        return;
    };
    if request.target.kind == &CERTIFICATE_SIGNING_REQUEST {
        keep_others_half(new, old, through);
    }
}

impl Server {
    /// Checks that nobody asks for the group that may do everything, and that whoever answers, or says whom a signer
    /// trusts, has the right to.
    pub fn admit_certificate(
        &self,
        request: &Request,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), ApiError> {
        let kind = request.target.kind;
        let refused = |why: String| ApiError::Forbidden {
            subject: Subject::new(kind, str_at(new, &["metadata", "name"])),
            why,
            cause: None,
        };
        let verb = if kind == &CLUSTER_TRUST_BUNDLE {
            attests(new, old).then_some("attest")
        } else if kind == &CERTIFICATE_SIGNING_REQUEST {
            match (old, request.target.subresource) {
                (Some(old), Some(through)) => right(new, old, through),
                _ => return asks_for_less(new).map_err(refused),
            }
        } else {
            None
        };
        let Some(verb) = verb else {
            return Ok(());
        };
        // Whose it is cannot be changed, so that it is the same in both.
        let names = signer_names(old.unwrap_or(new));
        let may = names.iter().any(|name| {
            let asked = Attributes::resource(&request.user, verb, kind.group, "signers").named(name);
            self.policy.authorize(&asked).is_ok()
        });
        if may {
            return Ok(());
        }
        let [signer, _] = names;
        let user = &request.user.name;
        Err(refused(format!(
            "user {user:?} is not permitted to {verb} {} with signerName {signer:?}",
            kind.plural
        )))
    }
}

/// Whether the certificate would not make its holder one of those who may do everything.
fn asks_for_less(object: &Value) -> Result<(), String> {
    if str_at(object, &["spec", "signerName"]) != CLIENT_SIGNER {
        return Ok(());
    }
    let unreadable = || "spec.request is not a certificate request in PEM".to_owned();
    let text = BASE64_STANDARD.decode(str_at(object, &["spec", "request"]));
    let text = text.map_err(|_| unreadable())?;
    // Signers read PEM in other ways: what could be another block or a header to one of them is not let through.
    let plain = String::from_utf8_lossy(&text);
    let begins = plain.matches("-----BEGIN").count();
    if begins != 1 || !plain.contains("-----BEGIN CERTIFICATE REQUEST-----") || plain.contains(':') {
        return Err(unreadable());
    }
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text).map_err(|_| unreadable())?;
    let parsed = X509CertificationRequest::from_der(&pem.contents);
    let (_, asked) = parsed.map_err(|_| unreadable())?;
    for name in asked.certification_request_info.subject.iter_organization() {
        // A name in another encoding may read as anything to the signer.
        if name.as_str().map_err(|_| unreadable())? == MASTERS {
            return Err(format!(
                "use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
            ));
        }
    }
    Ok(())
}
