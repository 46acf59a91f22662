//! What does a packet ask, and how does an answer fit into one?
//!
//! Packets come from anybody. Whatever is wrong with one is found in its first bytes where that is possible, so that
//! a count of 65,535 questions makes nobody reserve memory for them.

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType, rdata};
use pointsman_names::{Data, Kind};

/// Every message begins with this many bytes.
const HEADER: usize = 12;
/// The longest question that is read: names have 255 bytes at most, and options need some more.
pub const LONGEST_QUESTION: usize = 4096;
/// The longest answer over UDP. Longer packets would be cut into fragments on some ways, which get lost.
pub const LONGEST_DATAGRAM: u16 = 1232;
/// How long an answer may be kept: as long as with CoreDNS, because changes are to be seen soon.
const TTL: u32 = 5;

/// How a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// What becomes of a packet.
#[derive(Debug)]
pub enum Received {
    /// Not worth an answer: too short to have one, or itself an answer, which could go back and forth for ever.
    Ignored,
    /// It cannot be answered, and this says so.
    Refused(ResponseCode, Vec<u8>),
    Question(Box<Question>),
}

/// What a packet asks for, and what its answer has to repeat.
#[derive(Clone, Debug)]
pub struct Question {
    pub metadata: Metadata,
    pub query: Query,
    pub edns: Option<Edns>,
}

/// Reads a packet.
pub fn read(packet: &[u8]) -> Received {
    let Some(header) = packet.first_chunk::<HEADER>() else {
        return Received::Ignored;
    };
    let is_answer = header[2] & 0x80 != 0;
    if is_answer {
        return Received::Ignored;
    }
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if header[2] >> 3 & 0xf != u8::from(OpCode::Query) {
        return refused(header, ResponseCode::NotImp);
    }
    // Options and a signature come behind the question, and nothing else.
    if (count(4), count(6), count(8)) != (1, 0, 0) || count(10) > 2 {
        return refused(header, ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(packet) else {
        return refused(header, ResponseCode::FormErr);
    };
    let Some(query) = message.queries.pop() else {
        return refused(header, ResponseCode::FormErr);
    };
    let question = Question {
        metadata: message.metadata,
        query,
        edns: message.edns,
    };
    if question.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        let code = ResponseCode::BADVERS;
        return Received::Refused(code, Reply::new(code).encode(&question, Transport::Udp));
    }
    Received::Question(Box::new(question))
}

/// Only the header: what followed it was not understood.
fn refused(header: &[u8; HEADER], code: ResponseCode) -> Received {
    let mut answer = [0; HEADER];
    answer[..3].copy_from_slice(&header[..3]);
    // An answer to the same operation, and whether recursion was desired.
    answer[2] = header[2] & 0x79 | 0x80;
    answer[3] = code.low();
    Received::Refused(code, answer.into())
}

impl Question {
    /// The name in small letters and without its last dot; none for one that no Kubernetes object can have.
    pub fn name(&self) -> Option<String> {
        let mut text = String::with_capacity(self.query.name.len());
        for label in self.query.name.iter() {
            if !text.is_empty() {
                text.push('.');
            }
            for byte in label {
                match byte {
                    b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' => text.push(char::from(*byte)),
                    b'A'..=b'Z' => text.push(char::from(byte.to_ascii_lowercase())),
                    _ => return None,
                }
            }
        }
        Some(text)
    }

    pub fn kind(&self) -> Kind {
        match self.query.query_type {
            RecordType::A => Kind::A,
            RecordType::AAAA => Kind::Aaaa,
            RecordType::SRV => Kind::Srv,
            RecordType::PTR => Kind::Ptr,
            RecordType::CNAME => Kind::Cname,
            RecordType::TXT => Kind::Txt,
            RecordType::SOA => Kind::Soa,
            _ => Kind::Other,
        }
    }

    /// The longest answer that whoever asks can take.
    pub fn limit(&self, transport: Transport) -> usize {
        match (transport, &self.edns) {
            (Transport::Tcp, _) => usize::from(u16::MAX),
            (Transport::Udp, Some(edns)) => edns.max_payload().clamp(512, LONGEST_DATAGRAM).into(),
            (Transport::Udp, None) => 512,
        }
    }
}

/// An answer in the making.
#[derive(Clone, Debug)]
pub struct Reply {
    pub code: ResponseCode,
    /// The zone's own word.
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
}

impl Reply {
    /// An answer without records.
    pub fn new(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }

    /// The packet. What does not fit is left out: first what was not asked for, then answers, which is said.
    pub fn encode(self, question: &Question, transport: Transport) -> Vec<u8> {
        let limit = question.limit(transport);
        let mut message = message(question, self.code);
        message.metadata.authoritative = self.authoritative;
        message.answers = self.answers;
        message.authorities = self.authorities;
        message.additionals = self.additionals;
        if let Some(packet) = encoded(&message, limit) {
            return packet;
        }
        message.additionals.clear();
        if let Some(packet) = encoded(&message, limit) {
            return packet;
        }
        message.authorities.clear();
        message.metadata.truncation = true;
        // So that clients which do not ask again over TCP have something.
        let (mut fits, mut too_many) = (0, message.answers.len());
        let all = std::mem::take(&mut message.answers);
        let mut best = encoded(&message, limit);
        while fits + 1 < too_many {
            let some = fits.midpoint(too_many);
            message.answers = all[..some].to_vec();
            match encoded(&message, limit) {
                Some(packet) => (fits, best) = (some, Some(packet)),
                None => too_many = some,
            }
        }
        // Nothing that was read is too long to be repeated.
        best.unwrap_or_default()
    }
}

/// An answer of somebody else, for whoever asked: with their number, and cut if it is too long for them.
pub fn passed_on(mut packet: Vec<u8>, question: &Question, transport: Transport) -> Vec<u8> {
    if packet.len() > question.limit(transport) {
        let mut message = message(question, ResponseCode::NoError);
        message.metadata.truncation = true;
        return encoded(&message, question.limit(transport)).unwrap_or_default();
    }
    if let Some(number) = packet.first_chunk_mut() {
        *number = question.metadata.id.to_be_bytes();
    }
    packet
}

/// The code of a packet of ours, for those who count.
pub fn code(packet: &[u8]) -> ResponseCode {
    ResponseCode::from_low(packet.get(3).copied().unwrap_or_default() & 0xf)
}

fn message(question: &Question, code: ResponseCode) -> Message {
    let mut message = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata = Metadata::response_from_request(&question.metadata);
    message.metadata.response_code = code;
    message.metadata.recursion_available = true;
    message.metadata.authentic_data = false;
    message.add_query(question.query.clone());
    if let Some(asked) = &question.edns {
        let mut edns = Edns::new();
        edns.set_max_payload(LONGEST_DATAGRAM);
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        message.set_edns(edns);
    }
    message
}

fn encoded(message: &Message, limit: usize) -> Option<Vec<u8>> {
    let packet = message.to_vec().ok()?;
    (packet.len() <= limit).then_some(packet)
}

/// A name that was written as text; none if it is too long for a packet.
pub fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_labels(text.split('.').map(str::as_bytes)).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// A record of the zone. The name that was asked for is repeated letter by letter, because some who ask compare.
/// `share` is the weight of one of several that serve the same.
pub fn record(
    question: &Question,
    asked: &str,
    domain: &str,
    record: &pointsman_names::Record,
    share: u16,
) -> Option<Record> {
    let owner = match record.name == asked {
        true => question.query.name.clone(),
        false => name(&record.name)?,
    };
    let data = match &record.data {
        Data::Address(std::net::IpAddr::V4(address)) => RData::A((*address).into()),
        Data::Address(std::net::IpAddr::V6(address)) => RData::AAAA((*address).into()),
        Data::Srv { port, target } => RData::SRV(rdata::SRV::new(0, share, *port, name(target)?)),
        Data::Ptr(target) => RData::PTR(rdata::PTR(name(target)?)),
        Data::Cname(target) => RData::CNAME(rdata::CNAME(name(target)?)),
        Data::Txt(text) => RData::TXT(rdata::TXT::new(vec![(*text).to_owned()])),
        Data::Soa => return soa(domain),
    };
    Some(Record::from_rdata(owner, TTL, data))
}

/// The zone's own record. The serial number never changes, as nobody copies the zone.
pub fn soa(domain: &str) -> Option<Record> {
    let (server, person) = (
        name(&format!("ns.dns.{domain}"))?,
        name(&format!("hostmaster.{domain}"))?,
    );
    let data = rdata::SOA::new(server, person, 1, 7200, 1800, 86_400, TTL);
    Some(Record::from_rdata(name(domain)?, TTL, RData::SOA(data)))
}
