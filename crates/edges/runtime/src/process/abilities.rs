//! What can be had on this machine, and what has to be refused?
//!
//! What a spec asks for is carried out or refused; nothing is left out in silence.

use crate::{CapabilitySet, ContainerSpec, Limits, Refusal, RuntimeError, SystemCalls};

/// What a runtime found it can use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Whether containers have a layer of their own over the host's files.
    pub has_layers: bool,
    /// Whether whole containers are killed by their cgroup.
    pub has_cgroups: bool,
    /// Whether a limit of CPU is enforced.
    pub limits_cpu: bool,
    /// Whether a limit of memory is enforced.
    pub limits_memory: bool,
    /// Whether system calls can be filtered.
    pub filters_system_calls: bool,
    /// What containers can be given.
    pub capabilities: CapabilitySet,
}

impl Abilities {
    /// Refuses what cannot be carried out here.
    pub fn check(&self, spec: &ContainerSpec) -> Result<(), RuntimeError> {
        let refused = |message: String| {
            Err(RuntimeError::Refused {
                reason: Refusal::InvalidSpec,
                message,
            })
        };
        let missing = spec.security.capabilities.asked.without(self.capabilities);
        if missing != CapabilitySet::NONE {
            return refused(format!(
                "this node does not have the capabilities {missing} to give"
            ));
        }
        if spec.security.read_only_root && !self.has_layers {
            return refused(
                "readOnlyRootFilesystem: this node has no overlay, so that containers see the host's files \
                 themselves"
                    .to_owned(),
            );
        }
        if spec.security.system_calls != SystemCalls::All && !self.filters_system_calls {
            return refused("seccompProfile: this node cannot filter system calls".to_owned());
        }
        match self.unenforceable(spec.limits).first() {
            Some(resource) => refused(format!(
                "the {resource} limit cannot be enforced: this node has no {resource} controller of cgroups"
            )),
            None => Ok(()),
        }
    }

    /// The limits that would have no effect here.
    pub fn unenforceable(&self, limits: Limits) -> Vec<&'static str> {
        let cpu = limits.cpu_millis.is_some() && !self.limits_cpu;
        let memory = limits.memory_bytes.is_some() && !self.limits_memory;
        let each = [("cpu", cpu), ("memory", memory)];
        each.into_iter()
            .filter(|(_, lacks)| *lacks)
            .map(|(name, _)| name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capabilities, ContainerId, ContainerName, PodUid, Pull, Security, User};
    use std::collections::BTreeMap;

    const NOTHING: Abilities = Abilities {
        has_layers: false,
        has_cgroups: false,
        limits_cpu: false,
        limits_memory: false,
        filters_system_calls: false,
        capabilities: CapabilitySet::NONE,
    };

    fn refusal(security: Security, limits: Limits) -> Option<String> {
        let spec = ContainerSpec {
            id: ContainerId {
                pod: PodUid::try_new("a").unwrap(),
                name: ContainerName::try_new("c").unwrap(),
                attempt: 0,
            },
            image: "host".into(),
            pull: Pull::default(),
            command: vec!["true".into()],
            args: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            user: User::default(),
            mounts: Vec::new(),
            limits,
            security,
            termination_message: None,
            attachable: Default::default(),
            labels: BTreeMap::new(),
        };
        match NOTHING.check(&spec) {
            Ok(()) => None,
            Err(RuntimeError::Refused { reason, message }) => {
                assert_eq!(reason.reason(), "CreateContainerConfigError");
                Some(message)
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_machine_that_has_nothing_refuses_everything_but_the_usual() {
        let (usual, free) = (Security::default(), Limits::default());
        assert_eq!(refusal(usual, free), None);
        let named = Security {
            capabilities: Capabilities::of(&["SYS_TIME".into()], &[]).unwrap(),
            ..usual
        };
        let read_only = Security {
            read_only_root: true,
            ..usual
        };
        let filtered = Security {
            system_calls: SystemCalls::Ordinary,
            ..usual
        };
        let cpu = Limits {
            cpu_millis: Some(1),
            ..free
        };
        let memory = Limits {
            memory_bytes: Some(1),
            ..free
        };
        for (security, limits, word) in [
            (named, free, "SYS_TIME"),
            (read_only, free, "readOnlyRootFilesystem"),
            (filtered, free, "seccompProfile"),
            (usual, cpu, "cpu limit"),
            (usual, memory, "memory limit"),
        ] {
            let message = refusal(security, limits).unwrap_or_default();
            assert!(message.contains(word), "{word}: {message}");
        }
    }
}
