//! Which optional behaviours are on?

use std::collections::BTreeMap;

/// A gate that Pointsman knows, with its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// `serving` and `terminating` conditions in EndpointSlices (KEP-1672).
    EndpointSliceTerminatingCondition,
    /// Millisecond offsets in probes (KEP-3066).
    SubSecondProbes,
}

impl Gate {
    /// Every gate, for `--help` and for parsing.
    pub const ALL: [Gate; 2] = [Gate::EndpointSliceTerminatingCondition, Gate::SubSecondProbes];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Gate::EndpointSliceTerminatingCondition => "EndpointSliceTerminatingCondition",
            Gate::SubSecondProbes => "SubSecondProbes",
        }
    }

    /// Whether the gate is on when nobody says anything.
    pub fn default_on(self) -> bool {
        true
    }
}

/// The state of all gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

/// Why a `--feature-gates` value was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GateError {
    /// The name is not one of [`Gate::ALL`].
    #[error("unknown feature gate {0:?}; known gates: {known}", known = known())]
    Unknown(String),
    /// Not `Name=true` or `Name=false`.
    #[error("{0:?} is not of the form Name=true or Name=false")]
    Malformed(String),
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self(
            Gate::ALL
                .into_iter()
                .map(|gate| (gate, gate.default_on()))
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
            let gate = Gate::ALL
                .into_iter()
                .find(|gate| gate.name() == name.trim())
                .ok_or_else(|| GateError::Unknown(name.trim().to_owned()))?;
            gates.0.insert(gate, on);
        }
        Ok(gates)
    }

    /// The same gates with one of them set.
    pub fn with(mut self, gate: Gate, on: bool) -> Self {
        self.0.insert(gate, on);
        self
    }

    /// Whether `gate` is on.
    pub fn enabled(&self, gate: Gate) -> bool {
        self.0[&gate]
    }
}

fn known() -> String {
    Gate::ALL.map(Gate::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_upstream_format_and_names_what_is_wrong() {
        let gates =
            FeatureGates::parse("SubSecondProbes=false, EndpointSliceTerminatingCondition=true").unwrap();
        assert!(!gates.enabled(Gate::SubSecondProbes));
        assert!(gates.enabled(Gate::EndpointSliceTerminatingCondition));
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
