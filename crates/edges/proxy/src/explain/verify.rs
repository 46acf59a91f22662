//! Does the kernel of this machine agree?

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::{Index, ProgramError, Settings};
use pointsman_kernel::compare::{self, Differences};
use pointsman_kernel::{Mode, interfaces};
use pointsman_model::{Address, ServiceName};

use crate::explain::{Cluster, KernelAnswer};
use crate::worker::Chain;

/// Compares what the kernel of this network namespace holds for some Services with what it should.
///
/// Looks only if this machine is the node: by its name, or by one of the addresses that its Node names.
pub fn verify(cluster: &Cluster, mode: Mode, services: &[ServiceName]) -> KernelAnswer {
    let not_asked = |reason: String| KernelAnswer {
        not_asked: Some(reason),
        ..KernelAnswer::default()
    };
    if !is_here(cluster) {
        return not_asked(format!("this machine is not node {}", cluster.node));
    }
    if !rustix::process::geteuid().is_root() {
        return not_asked("only root may read the rules".to_owned());
    }
    let mut answer = KernelAnswer::default();
    for service in services {
        let outcome = family::<Ipv4Addr>(&cluster.v4, &cluster.settings.0, mode, service, &mut answer)
            .and_then(|()| family::<Ipv6Addr>(&cluster.v6, &cluster.settings.1, mode, service, &mut answer));
        match outcome {
            Ok(()) => {}
            Err(error) => return not_asked(format!("the rules cannot be read: {}", Chain(&error))),
        }
    }
    answer
}

fn family<A: Address>(
    index: &Index<A>,
    settings: &Settings<A>,
    mode: Mode,
    service: &ServiceName,
    answer: &mut KernelAnswer,
) -> Result<(), ProgramError> {
    let Some(state) = index.desired_service(service) else {
        return Ok(());
    };
    let found = compare::service(mode, &state, settings)?.unwrap_or_else(|| Differences {
        missing: vec![format!("all {} rules of {} mode", A::FAMILY, mode.as_str())],
        ..Differences::default()
    });
    answer.agrees = Some(answer.agrees.unwrap_or(true) && found.agrees());
    answer.missing.extend(found.missing);
    answer.unexpected.extend(found.unexpected);
    Ok(())
}

fn is_here(cluster: &Cluster) -> bool {
    let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own: Vec<IpAddr> = interfaces::addresses().unwrap_or_default();
    let routable = |address: &IpAddr| !address.is_loopback() && own.contains(address);
    host_name.trim().to_lowercase() == cluster.node || cluster.addresses.iter().any(routable)
}
