//! Is this node's proxy well, and should traffic come here?

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use pointsman_dataplane::health::SyncHealth;
use pointsman_dataplane::second_writer::Active;
use pointsman_observe::Behind;
use serde_json::{Map, Value, json};

/// What the owner knows, for those who answer questions.
#[derive(Clone, Debug)]
pub struct Health {
    /// IPv4 and IPv6.
    pub families: [SyncHealth; 2],
    /// The Node exists and is not about to be removed.
    pub node_eligible: bool,
    /// Another service proxy that writes rules on this node. It does not make this one unhealthy.
    pub second_writer: Option<Active>,
    /// Whose rules, which another program writes, have differed for long, in IPv4 and IPv6.
    pub behind: [Option<Behind>; 2],
}

/// Which question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// `/healthz`: should load balancers send new connections here?
    Healthz,
    /// `/livez`: does the proxy work?
    Livez,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503.
    pub code: u16,
    pub body: String,
}

impl Health {
    /// Whether no family has been waiting for too long.
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.families.iter().all(|family| family.is_healthy(now))
    }

    /// Answers in upstream's form. An ineligible node is still called healthy in the body.
    pub fn answer(&self, question: Question, now: Instant, clock: Timestamp) -> Answer {
        let healthy = self.is_healthy(now);
        let good = healthy && (question == Question::Livez || self.node_eligible);
        let moment = |at: Instant| {
            let ago = SignedDuration::try_from(now.saturating_duration_since(at)).unwrap_or_default();
            clock.checked_sub(ago).unwrap_or(clock)
        };
        let mut status = Map::new();
        for (family, name) in self.families.iter().zip(["IPv4", "IPv6"]) {
            if let Some(updated) = family.last_updated() {
                let state = json!({
                    "lastUpdated": moment(updated).to_string(),
                    "healthy": family.is_healthy(now),
                });
                status.insert(name.to_owned(), state);
            }
        }
        let newest = self.families.iter().filter_map(SyncHealth::last_updated).max();
        let last = if good { Some(clock) } else { newest.map(moment) };
        let mut body = json!({
            "lastUpdated": last.unwrap_or(Timestamp::UNIX_EPOCH).to_string(),
            "currentTime": clock.to_string(),
            "healthy": healthy,
            "status": status,
        });
        if question == Question::Healthz {
            body["nodeEligible"] = Value::Bool(self.node_eligible);
        }
        if let Some(active) = self.second_writer {
            body["secondWriter"] = json!({
                "writer": format!("kube-proxy in {} mode", active.writer.mode()),
                "since": moment(active.since).to_string(),
                "lastSeen": moment(active.last).to_string(),
            });
        }
        if let Some(behind) = self.behind.iter().flatten().min_by_key(|behind| behind.since) {
            body["behind"] = json!({
                "service": behind.service.as_ref().map(|name| name.as_str()),
                "since": moment(behind.since).to_string(),
                "differs": behind.differs,
                "services": behind.services,
            });
        }
        Answer {
            code: if good { 200 } else { 503 },
            body: body.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pointsman_dataplane::second_writer::Writer;

    use super::*;

    fn health() -> Health {
        Health {
            families: [SyncHealth::new(Duration::from_secs(30)); 2],
            node_eligible: true,
            second_writer: None,
            behind: [None, None],
        }
    }

    #[test]
    fn a_second_writer_is_named_and_nothing_fails_for_it() {
        let start = Instant::now();
        let disturbed = Health {
            second_writer: Some(Active {
                writer: Writer::Nftables,
                since: start,
                last: start + Duration::from_secs(50),
            }),
            ..health()
        };
        let now = start + Duration::from_secs(60);
        let clock = Timestamp::from_second(100).unwrap();
        let answer = disturbed.answer(Question::Healthz, now, clock);
        assert_eq!(answer.code, 200);
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        let expected = json!({ "writer": "kube-proxy in nftables mode",
            "since": "1970-01-01T00:00:40Z", "lastSeen": "1970-01-01T00:01:30Z" });
        assert_eq!(body["secondWriter"], expected);
    }

    #[test]
    fn a_node_about_to_go_is_alive_and_not_for_new_traffic() {
        let now = Instant::now();
        let doomed = Health {
            node_eligible: false,
            ..health()
        };
        let healthz = doomed.answer(Question::Healthz, now, Timestamp::UNIX_EPOCH);
        assert_eq!(healthz.code, 503);
        let body: Value = serde_json::from_str(&healthz.body).unwrap();
        assert_eq!(body["healthy"], true);
        assert_eq!(body["nodeEligible"], false);
        let livez = doomed.answer(Question::Livez, now, Timestamp::UNIX_EPOCH);
        assert_eq!(livez.code, 200);
        assert!(!livez.body.contains("nodeEligible"));
    }

    #[test]
    fn a_family_that_is_stuck_is_named() {
        let start = Instant::now();
        let mut stuck = health();
        stuck.families[0].updated(start, start);
        stuck.families[1].updated(start, start);
        stuck.families[1].queued(start + Duration::from_secs(1));
        let now = start + Duration::from_secs(100);
        let clock = Timestamp::from_second(1_000).unwrap();
        let answer = stuck.answer(Question::Livez, now, clock);
        assert_eq!(answer.code, 503);
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["status"]["IPv4"]["healthy"], true);
        assert_eq!(body["status"]["IPv6"]["healthy"], false);
        assert_eq!(body["lastUpdated"], "1970-01-01T00:15:00Z");
        assert_eq!(body["currentTime"], "1970-01-01T00:16:40Z");
    }
}
