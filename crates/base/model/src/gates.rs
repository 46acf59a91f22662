//! Which optional behaviours are on?

use std::collections::BTreeMap;

/// A behaviour that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// `serving` and `terminating` conditions in EndpointSlices (KEP-1672).
    EndpointSliceTerminatingCondition,
    /// Node ports on localhost in nftables mode (KEP-6032).
    KubeProxyNFTablesLocalhostNodePorts,
    /// Only chains of changed Services are given to `iptables-restore` (KEP-3453).
    MinimizeIPTablesRestore,
    /// Millisecond offsets in probes (KEP-3066).
    SubSecondProbes,
}

impl Feature {
    /// Every feature, for `--help` and for parsing.
    pub const ALL: [Feature; 4] = [
        Feature::EndpointSliceTerminatingCondition,
        Feature::KubeProxyNFTablesLocalhostNodePorts,
        Feature::MinimizeIPTablesRestore,
        Feature::SubSecondProbes,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Feature::EndpointSliceTerminatingCondition => "EndpointSliceTerminatingCondition",
            Feature::KubeProxyNFTablesLocalhostNodePorts => "KubeProxyNFTablesLocalhostNodePorts",
            Feature::MinimizeIPTablesRestore => "MinimizeIPTablesRestore",
            Feature::SubSecondProbes => "SubSecondProbes",
        }
    }

    /// Whether the feature is on by default.
    pub fn default_on(self) -> bool {
        self != Feature::KubeProxyNFTablesLocalhostNodePorts
    }
}

/// Which features are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Feature, bool>);

/// Why a `--feature-gates` value was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GateError {
    /// The name is not one of [`Feature::ALL`].
    #[error("unknown feature gate {0:?}; known gates: {known}", known = known())]
    Unknown(String),
    /// Not `Name=true` or `Name=false`.
    #[error("{0:?} is not of the form Name=true or Name=false")]
    Malformed(String),
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self(
            Feature::ALL
                .into_iter()
                .map(|feature| (feature, feature.default_on()))
                .collect(),
        )
    }
}

impl FeatureGates {
    /// Reads kube-apiserver's format, `A=true,B=false`; later entries win.
    pub fn parse(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let malformed = || GateError::Malformed(item.to_owned());
            let (name, on) = item.split_once('=').ok_or_else(malformed)?;
            let on = match on.trim() {
                "true" => true,
                "false" => false,
                _ => return Err(malformed()),
            };
            let feature = Feature::ALL
                .into_iter()
                .find(|feature| feature.name() == name.trim())
                .ok_or_else(|| GateError::Unknown(name.trim().to_owned()))?;
            gates.0.insert(feature, on);
        }
        Ok(gates)
    }

    /// The same gates with one feature switched.
    pub fn with(mut self, feature: Feature, on: bool) -> Self {
        self.0.insert(feature, on);
        self
    }

    /// Whether `feature` is on.
    pub fn enabled(&self, feature: Feature) -> bool {
        self.0[&feature]
    }
}

fn known() -> String {
    Feature::ALL.map(Feature::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_upstream_format_and_names_what_is_wrong() {
        let gates =
            FeatureGates::parse("SubSecondProbes=false, EndpointSliceTerminatingCondition=true").unwrap();
        assert!(!gates.enabled(Feature::SubSecondProbes));
        assert!(gates.enabled(Feature::EndpointSliceTerminatingCondition));
        assert_eq!(
            FeatureGates::parse("Nope=true"),
            Err(GateError::Unknown("Nope".into()))
        );
        assert_eq!(
            FeatureGates::parse("SubSecondProbes"),
            Err(GateError::Malformed("SubSecondProbes".into()))
        );
    }
}
