//! Which admission is on?
//!
//! The names are upstream's. Some are always on here; naming them changes nothing.

/// Admission that can be turned on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Nobody adds `externalIPs` to a Service.
    pub deny_service_external_ips: bool,
}

const ALWAYS_ON: [&str; 8] = [
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "DefaultTolerationSeconds",
    "NamespaceLifecycle",
    "NodeRestriction",
    "ServiceAccount",
    "TaintNodesByCondition",
];

impl Plugins {
    /// Reads names that are separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut plugins = Self::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "DenyServiceExternalIPs" => plugins.deny_service_external_ips = true,
                name if ALWAYS_ON.contains(&name) => {}
                unknown => {
                    return Err(format!(
                        "admission plugin {unknown:?} is unknown; there are DenyServiceExternalIPs and, always on, {}",
                        ALWAYS_ON.join(", ")
                    ));
                }
            }
        }
        Ok(plugins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams_and_unknown_ones_are_refused() {
        let denying = Plugins {
            deny_service_external_ips: true,
        };
        assert_eq!(Plugins::parse(""), Ok(Plugins::default()));
        assert_eq!(Plugins::parse("NodeRestriction"), Ok(Plugins::default()));
        assert_eq!(
            Plugins::parse("NodeRestriction, DenyServiceExternalIPs"),
            Ok(denying)
        );
        assert!(
            Plugins::parse("AlwaysPullImages")
                .unwrap_err()
                .contains("is unknown")
        );
    }
}
