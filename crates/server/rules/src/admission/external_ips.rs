//! Who may give a Service addresses of their own choice?
//!
//! `externalIPs` let whoever writes a Service take traffic for any address (CVE-2020-8554). With upstream's admission
//! plugin `DenyServiceExternalIPs` nobody adds one; those that are there may stay or go.

use crate::value::list_at;
use serde_json::Value;

/// Why `new` is refused, if it has addresses that `old` had not.
pub fn deny_new(new: &Value, old: Option<&Value>) -> Result<(), String> {
    let of = |service| list_at(service, &["spec", "externalIPs"]);
    let known = old.map_or(&[][..], of);
    if of(new).iter().all(|address| known.contains(address)) {
        return Ok(());
    }
    Err("Use of external IPs is denied by admission control.".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_may_stay_and_go_but_not_come() {
        let with = |addresses: Value| json!({"spec": {"externalIPs": addresses}});
        let two = with(json!(["192.0.2.1", "192.0.2.2"]));
        let one = with(json!(["192.0.2.2"]));
        let none = json!({"spec": {}});
        assert!(deny_new(&two, None).is_err() && deny_new(&none, None).is_ok());
        assert!(deny_new(&two, Some(&one)).is_err() && deny_new(&one, Some(&none)).is_err());
        for (new, old) in [(&two, &two), (&one, &two), (&none, &two), (&none, &none)] {
            assert!(deny_new(new, Some(old)).is_ok());
        }
        // The order is the author's business.
        let turned = with(json!(["192.0.2.2", "192.0.2.1"]));
        assert!(deny_new(&turned, Some(&two)).is_ok());
    }
}
