//! What is the answer to a question, or who else has to be asked?

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use pointsman_names::{Answer, Data, Kind, Zone};

use crate::wire::{self, Question, Reply};

/// What comes after a look at the zone.
#[derive(Debug)]
pub enum Step {
    Reply(Reply),
    /// Somebody else knows.
    Forward,
    /// The zone's answer is another name, about which somebody else knows.
    Follow(Reply, Query),
}

/// What the zone says. One that is not `complete` yet cannot say that a name does not exist.
pub fn answer(zone: &Zone, complete: bool, question: &Question) -> Step {
    let query = &question.query;
    let is_transfer = matches!(query.query_type, RecordType::AXFR | RecordType::IXFR);
    if query.query_class != DNSClass::IN || is_transfer {
        return Step::Reply(Reply::new(ResponseCode::Refused));
    }
    let kind = question.kind();
    let found = match question.name() {
        Some(name) => zone.answer(&name, kind),
        None if is_below(&query.name, zone.domain()) => Answer::NotFound,
        None => Answer::Elsewhere,
    };
    match found {
        // Whose addresses are the cluster's is not known yet.
        Answer::Elsewhere if !complete && is_reverse(&query.name) => {
            Step::Reply(Reply::new(ResponseCode::ServFail))
        }
        Answer::Elsewhere => Step::Forward,
        _ if !complete => Step::Reply(Reply::new(ResponseCode::ServFail)),
        Answer::NotFound => Step::Reply(negative(zone, ResponseCode::NXDomain)),
        Answer::NoData => Step::Reply(negative(zone, ResponseCode::NoError)),
        Answer::Records {
            mut answers,
            additional,
        } => {
            spread(&mut answers);
            let share = u16::try_from(100 / answers.len().max(1)).unwrap_or(1).max(1);
            let asked = question.name().unwrap_or_default();
            let write = |records: &[pointsman_names::Record]| {
                let records = records.iter();
                records
                    .map(|it| wire::record(question, &asked, zone.domain(), it, share))
                    .collect::<Option<Vec<_>>>()
            };
            let (Some(written), Some(additionals)) = (write(&answers), write(&additional)) else {
                return Step::Reply(Reply::new(ResponseCode::ServFail));
            };
            let reply = Reply {
                authoritative: true,
                answers: written,
                additionals,
                ..Reply::new(ResponseCode::NoError)
            };
            followed(zone, question, kind, reply)
        }
    }
}

/// Whoever gets another name only, instead of what was asked for, is told what that name has.
fn followed(zone: &Zone, question: &Question, kind: Kind, mut reply: Reply) -> Step {
    let target = match reply.answers.last().map(|record| &record.data) {
        Some(RData::CNAME(target)) if kind != Kind::Cname => target.0.clone(),
        _ => return Step::Reply(reply),
    };
    let text = target.to_ascii().to_ascii_lowercase();
    let found = match zone.answer(text.trim_end_matches('.'), kind) {
        Answer::Elsewhere => {
            return Step::Follow(reply, Query::query(target, question.query.query_type));
        }
        Answer::NotFound => negative(zone, ResponseCode::NXDomain),
        Answer::NoData => negative(zone, ResponseCode::NoError),
        // Names that lead to each other.
        Answer::Records { .. } => return Step::Reply(reply),
    };
    (reply.code, reply.authorities) = (found.code, found.authorities);
    Step::Reply(reply)
}

/// Nothing, and how long that may be believed.
fn negative(zone: &Zone, code: ResponseCode) -> Reply {
    Reply {
        authoritative: true,
        authorities: wire::soa(zone.domain()).into_iter().collect(),
        ..Reply::new(code)
    }
}

/// Clients take the first address, so that each has its turn.
fn spread(answers: &mut [pointsman_names::Record]) {
    let is_address = |record: &pointsman_names::Record| matches!(record.data, Data::Address(_));
    let first = answers.iter().position(is_address).unwrap_or(answers.len());
    fastrand::shuffle(&mut answers[first..]);
}

fn is_reverse(asked: &Name) -> bool {
    ["in-addr.arpa", "ip6.arpa"]
        .iter()
        .any(|zone| is_below(asked, zone))
}

fn is_below(asked: &Name, domain: &str) -> bool {
    wire::name(domain).is_some_and(|domain| domain.zone_of(asked))
}
