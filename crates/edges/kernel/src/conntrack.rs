//! How are UDP flows that follow an old translation forgotten?

use pointsman_dataplane::conntrack::{UdpFlow, UdpReview};
use pointsman_model::{Address, Backend, IpFamily, Port};
use pointsman_netlink::conntrack::{Flow, Tuple};
use pointsman_netlink_io::{Buffers, Conntrack, RequestError, SocketError};

/// The number of UDP in IP headers.
const UDP: u8 = 17;

/// Deletes stale flows of one family, in the network namespace of the thread that made the value.
#[derive(Debug)]
pub struct FlowCleaner {
    listing: Conntrack,
    deleting: Conntrack,
}

impl FlowCleaner {
    /// Connects to the connection tracker.
    pub fn open() -> Result<Self, SocketError> {
        Ok(Self {
            listing: Conntrack::open(Buffers::default())?,
            deleting: Conntrack::open(Buffers::default())?,
        })
    }

    /// Deletes the flows that the review calls stale; returns how many those were.
    ///
    /// The kernel walks all flows once and shows those of UDP, of the one destination if there is but one. Each is
    /// judged as it comes and none is kept, so a table of any size takes no memory here; but it takes time, and belongs
    /// on a thread of its own.
    pub fn clean<A: Address>(&mut self, review: &UdpReview<A>) -> Result<usize, RequestError> {
        let family = match A::FAMILY {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        };
        let (address, port) = review.common();
        let like = Tuple {
            protocol: UDP,
            destination: address.map(A::widen),
            destination_port: port.map(Port::get),
            ..Tuple::default()
        };
        let (mut deleted, mut failed) = (0, None);
        self.listing.visit(family, &like, &mut |flow| {
            if failed.is_none() && read(&flow).is_some_and(|flow| review.is_stale(&flow)) {
                match self.deleting.delete(family, &flow) {
                    Ok(was_there) => deleted += usize::from(was_there),
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        failed.map_or(Ok(deleted), Err)
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
