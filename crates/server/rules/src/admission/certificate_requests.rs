//! Who may say yes to a certificate request, and who may answer it?
//!
//! A certificate is an identity. So the two halves of a request's status are written through two subresources, and
//! each asks for a right on the signer: upstream's plugins `CertificateApproval` and `CertificateSigning`.

use crate::kind::Subresource;
use crate::value::{at, list_at, set, str_at};
use serde_json::Value;

/// Whether a condition of the type is the answer of those who approve.
fn is_approval(condition: &Value) -> bool {
    matches!(str_at(condition, &["type"]), "Approved" | "Denied")
}

/// Keeps of `old` what is not for writers of the subresource to change: through `approval` only `Approved` and `Denied`
/// are written, through `status` everything but them.
pub fn keep_others_half(new: &mut Value, old: &Value, through: Subresource) {
    let approves = through == Subresource::Approval;
    let path = ["status", "conditions"];
    let (theirs, kept) = (list_at(new, &path), list_at(old, &path));
    let theirs = theirs.iter().filter(|found| is_approval(found) == approves);
    let kept = kept.iter().filter(|found| is_approval(found) != approves);
    let conditions: Vec<Value> = kept.chain(theirs).cloned().collect();
    if approves {
        // Whoever approves signs nothing.
        let status = at(old, &["status"]).cloned();
        set(
            new,
            &["status"],
            status.unwrap_or_else(|| Value::Object(Default::default())),
        );
    }
    if !conditions.is_empty() || !list_at(new, &path).is_empty() {
        set(new, &path, conditions);
    }
}

/// The right on the signer that a change of the status asks for, if it does.
pub fn right(new: &Value, old: &Value, through: Subresource) -> Option<&'static str> {
    if through == Subresource::Approval {
        return Some("approve");
    }
    let changes = |path: &[&str]| at(new, path) != at(old, path);
    (changes(&["status", "certificate"]) || changes(&["status", "conditions"])).then_some("sign")
}

/// The names under which a right on the signer is granted: its own, and all of its domain.
pub fn signer_names(request: &Value) -> [String; 2] {
    let signer = str_at(request, &["spec", "signerName"]);
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    [signer.to_owned(), format!("{domain}/*")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(conditions: &[&str], certificate: &str) -> Value {
        let conditions: Vec<Value> = conditions.iter().map(|name| json!({"type": name})).collect();
        json!({
            "spec": {"signerName": "example.com/one"},
            "status": {"conditions": conditions, "certificate": certificate},
        })
    }

    #[test]
    fn each_subresource_writes_its_own_half() {
        let old = request(&["Denied", "Failed"], "old");
        let written = |through| {
            let mut new = request(&["Approved", "Odd"], "new");
            keep_others_half(&mut new, &old, through);
            new
        };
        assert_eq!(
            written(Subresource::Approval),
            request(&["Failed", "Approved"], "old")
        );
        assert_eq!(written(Subresource::Status), request(&["Denied", "Odd"], "new"));
        let bare = json!({"spec": {}});
        let mut new = bare.clone();
        keep_others_half(&mut new, &bare, Subresource::Status);
        assert_eq!(new, bare);
    }

    #[test]
    fn certificates_and_conditions_are_the_signers() {
        let (old, new) = (request(&[], ""), request(&[], "new"));
        assert_eq!(right(&new, &old, Subresource::Status), Some("sign"));
        assert_eq!(
            right(&request(&["Failed"], ""), &old, Subresource::Status),
            Some("sign")
        );
        assert_eq!(right(&old, &old, Subresource::Status), None);
        assert_eq!(right(&old, &old, Subresource::Approval), Some("approve"));
        assert_eq!(signer_names(&old), ["example.com/one", "example.com/*"]);
    }
}
