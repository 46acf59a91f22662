//! How much is programmed?

use pointsman_model::Address;

use crate::state::{PortView, ServiceState};

/// Sums over the programmed state, kept up to date change by change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub services: u64,
    pub ports: u64,
    /// Endpoints of all those ports, whatever their health.
    pub endpoints: u64,
    /// Ports whose internal traffic is dropped for lack of a local endpoint.
    pub dropping_internal: u64,
    /// Ports whose external traffic is dropped for lack of a local endpoint.
    pub dropping_external: u64,
}

impl Totals {
    fn count<A: Address>(&mut self, state: &ServiceState<A>, step: impl Fn(&mut u64, u64)) {
        step(&mut self.services, 1);
        step(&mut self.ports, state.ports.len() as u64);
        step(&mut self.endpoints, u64::from(state.endpoints));
        let count = |drops: fn(&PortView<'_, A>) -> bool| state.ports().filter(drops).count() as u64;
        step(&mut self.dropping_internal, count(|port| port.drops_internal()));
        step(&mut self.dropping_external, count(|port| port.drops_external()));
    }

    /// Replaces one Service's part.
    pub(super) fn replace<A: Address>(
        &mut self,
        before: Option<&ServiceState<A>>,
        after: Option<&ServiceState<A>>,
    ) {
        if let Some(before) = before {
            self.count(before, |sum, by| *sum -= by);
        }
        if let Some(after) = after {
            self.count(after, |sum, by| *sum += by);
        }
    }
}
