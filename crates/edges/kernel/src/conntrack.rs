//! How are UDP flows that follow an old translation forgotten?

use std::collections::BTreeSet;

use pointsman_dataplane::conntrack::{UdpFlow, UdpReview};
use pointsman_model::{Address, Backend, IpFamily, Port};
use pointsman_netlink::conntrack::{Flow, Tuple};
use pointsman_netlink_io::{Buffers, Conntrack, RequestError, SocketError};

/// The number of UDP in IP headers.
const UDP: u8 = 17;

/// Deletes stale flows of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct FlowCleaner {
    conntrack: Conntrack,
}

impl FlowCleaner {
    /// Connects to the connection tracker.
    pub fn open() -> Result<Self, SocketError> {
        let conntrack = Conntrack::open(Buffers::default())?;
        Ok(Self { conntrack })
    }

    /// Deletes the flows that the review calls stale; returns how many those were.
    ///
    /// This lists all flows of the family, so it belongs on a thread of its own.
    pub fn clean<A: Address>(&mut self, review: &UdpReview<A>) -> Result<usize, RequestError> {
        let family = match A::FAMILY {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        };
        let flows = self.conntrack.list(family)?;
        let stale: BTreeSet<&Flow> = flows
            .iter()
            .filter(|flow| read(flow).is_some_and(|flow| review.is_stale(&flow)))
            .collect();
        for flow in &stale {
            self.conntrack.delete(family, flow)?;
        }
        Ok(stale.len())
    }
}

/// The flow in our words, if it is one of UDP and this family.
fn read<A: Address>(flow: &Flow) -> Option<UdpFlow<A>> {
    let Tuple {
        destination,
        destination_port,
        ..
    } = flow.original;
    let Tuple {
        source, source_port, ..
    } = flow.reply;
    let backend = |address: Option<std::net::IpAddr>, port: Option<u16>| {
        Some(Backend {
            address: A::narrow(address?)?,
            port: Port::new(port?)?,
        })
    };
    if flow.original.protocol != UDP {
        return None;
    }
    Some(UdpFlow {
        original_destination: backend(destination, destination_port)?,
        reply_source: backend(source, source_port)?,
    })
}
