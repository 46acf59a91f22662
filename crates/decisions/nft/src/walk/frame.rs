//! What do instructions see of a packet?

use std::net::IpAddr;

use pointsman_dataplane::packet::Packet;
use pointsman_model::Address;

/// A packet with the facts that travel with it.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub destination_port: u16,
    pub protocol: u8,
    pub interface: String,
    pub mark: u32,
    /// Senders may set it; that must not confuse us, so it is not zero here.
    pub priority: u32,
}

impl Frame {
    pub fn new<A: Address>(packet: &Packet<A>) -> Self {
        Self {
            source: packet.source.widen(),
            destination: packet.destination.widen(),
            destination_port: packet.port.get(),
            protocol: packet.protocol.number(),
            interface: packet
                .interface
                .as_ref()
                .map_or(String::new(), ToString::to_string),
            mark: 0,
            priority: 1,
        }
    }

    /// The IP header: only what rules look at is filled in.
    pub fn network_header(&self) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = vec![0; 20];
                header[0] = 0x45;
                header[9] = self.protocol;
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&destination.octets());
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = vec![0; 40];
                header[0] = 0x60;
                header[6] = self.protocol;
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&destination.octets());
                header
            }
            _ => Vec::new(),
        }
    }

    pub fn transport_header(&self) -> Vec<u8> {
        let source_port = 40_000u16;
        [source_port.to_be_bytes(), self.destination_port.to_be_bytes()].concat()
    }
}
