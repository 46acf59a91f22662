//! Who may say yes to a certificate request, and who may answer it?
//!
//! A certificate is an identity. So the two halves of a request's status are written through two subresources, and
//! each asks for a right on the signer: upstream's plugins `CertificateApproval` and `CertificateSigning`. So does whoever
//! publishes a bundle of authorities in a signer's name.

use crate::kind::Subresource;
use crate::value::{at, list_at, set, str_at};
use serde_json::Value;

/// Whether a condition of the type is the answer of those who approve.
fn is_approval(condition: &Value) -> bool {
    matches!(str_at(condition, &["type"]), "Approved" | "Denied")
}

/// Keeps of `old` what is not for writers of the subresource to change: `Failed` is what signers say, through `status`,
/// `Approved` and `Denied` are written through `approval` alone. Other conditions are anybody's.
pub fn keep_others_half(new: &mut Value, old: &Value, through: Subresource) {
    let approves = through == Subresource::Approval;
    let is_others = |condition: &&Value| match approves {
        true => str_at(condition, &["type"]) == "Failed",
        false => is_approval(condition),
    };
    let path = ["status", "conditions"];
    let mut kept = list_at(old, &path).iter().filter(is_others);
    let theirs = list_at(new, &path).iter();
    // Each stays where it was, so that what nobody changed is the same.
    let theirs = theirs.filter_map(|found| {
        if is_others(&found) {
            kept.next()
        } else {
            Some(found)
        }
    });
    let mut conditions: Vec<Value> = theirs.cloned().collect();
    conditions.extend(kept.cloned());
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

/// Whether a ClusterTrustBundle says anew whom its signer's certificates are to be believed by: upstream's plugin
/// `ClusterTrustBundleAttest`.
pub fn attests(new: &Value, old: Option<&Value>) -> bool {
    let changed = old.is_none_or(|old| at(new, &["spec"]) != at(old, &["spec"]));
    changed && !str_at(new, &["spec", "signerName"]).is_empty()
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
            request(&["Approved", "Odd", "Failed"], "old")
        );
        assert_eq!(written(Subresource::Status), request(&["Denied", "Odd"], "new"));
        let mut same = request(&["Odd", "Denied", "Failed"], "new");
        keep_others_half(&mut same, &request(&["Odd", "Denied"], ""), Subresource::Status);
        assert_eq!(same, request(&["Odd", "Denied", "Failed"], "new"));
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
