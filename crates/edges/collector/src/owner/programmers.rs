//! Which programmers are followed, and what do they say?

use pointsman_http::{Bytes, Target};
use pointsman_model::Moment;
use pointsman_protocol::watermark::Report;
use pointsman_sli::fold::{NodeState, ProgrammerId};
use pointsman_sli::skew::Clock;
use tokio::task::AbortHandle;

use super::Owner;
use crate::follow::{self, Key, Observation};
use crate::now;
use crate::scrape::{self, ScrapeError};

/// For one line in so many, the time until it was folded is measured.
const SAMPLED: u64 = 16;

/// A programmer that is followed.
#[derive(Debug)]
pub(crate) struct Followed {
    pub url: String,
    /// Named by the user, not found through a Node.
    pub listed: bool,
    /// It has metrics but no watermarks.
    pub plain: bool,
    /// Why the stream was lost; none while it runs.
    pub lost: Option<String>,
    /// Why its metrics could not be read; none if they could.
    pub unread: Option<String>,
    pub clock: Clock,
    id: Option<ProgrammerId>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Owner {
    /// Follows the programmer of a Node, or stops to if the Node is gone or has none.
    pub(super) fn discover(&mut self, name: &str) {
        if self.followed.get(name).is_some_and(|followed| followed.listed) {
            return;
        }
        let node = self.world.nodes.get(name).filter(|node| node.programmed);
        match node.map(|node| node.address) {
            Some(Some(address)) => {
                let port = self.config.programmer_port;
                let authority = std::net::SocketAddr::new(address, port);
                self.follow(name, format!("http://{authority}"), false);
            }
            // An address that vanished for a moment is still the best that we know.
            Some(None) => {}
            None => self.forget(name),
        }
    }

    pub(super) fn follow(&mut self, name: &str, url: String, listed: bool) {
        if self
            .followed
            .get(name)
            .is_some_and(|followed| followed.url == url)
        {
            return;
        }
        let target = match Target::parse(&url) {
            Ok(target) => target.reading_little(),
            Err(error) => {
                return tracing::warn!(programmer = name, %error, "ignoring a programmer with a bad URL");
            }
        };
        let target = match &self.config.programmer_credentials {
            Some(credentials) => target.with_credentials(credentials.clone()),
            None => target,
        };
        let (key, at): (Key, Moment) = (name.into(), now());
        // Whom the operator lists is there, whether a Node says so or not.
        let unless_known = if listed {
            NodeState::Reachable
        } else {
            NodeState::Unknown
        };
        let id = self.world.join(name, unless_known, at);
        self.measure.joined(name, at);
        let stream = tokio::spawn(follow::stream(key.clone(), target.clone(), self.observed.clone()));
        let every = self.config.scrape_interval;
        let turns = self.turns.clone();
        let scrape = tokio::spawn(follow::scrape(
            key.clone(),
            target,
            every,
            turns,
            self.observed.clone(),
        ));
        let followed = Followed {
            url,
            listed,
            plain: false,
            lost: None,
            unread: None,
            clock: Clock::default(),
            id: Some(id),
            tasks: vec![stream.abort_handle(), scrape.abort_handle()],
        };
        self.followed.insert(key, followed);
    }

    fn forget(&mut self, name: &str) {
        let Some(followed) = self.followed.remove(name) else {
            return;
        };
        self.measure.left(name, now());
        if let Some(id) = followed.id {
            self.world.fold.leave(id);
        }
    }

    pub(super) fn observe(&mut self, seen: Observation) {
        match seen {
            Observation::Lines {
                who,
                lines,
                malformed,
                at,
            } => self.take_lines(&who, &lines, malformed, at),
            Observation::Relayed { lines, malformed, at } => self.take_relayed(lines, malformed, at),
            Observation::Lost { who, why } => {
                if let Some(followed) = self.followed.get_mut(&who) {
                    if followed.lost.is_none() {
                        tracing::debug!(programmer = &*who, why, "lost a stream of watermarks");
                    }
                    followed.lost = Some(why);
                }
            }
            Observation::Plain { who } => {
                if let Some(followed) = self.followed.get_mut(&who) {
                    followed.plain = true;
                    followed.lost = None;
                    if let Some(id) = followed.id.take() {
                        self.world.fold.leave(id);
                    }
                }
            }
            Observation::Clock {
                who,
                ahead,
                round_trip,
            } => self.take_clock(&who, ahead, round_trip),
            Observation::Metrics { who, text, at } => self.take_metrics(&who, text, at),
            Observation::Deletions { gate, said } => self.gates.read(gate, said),
        }
    }

    fn take_lines(&mut self, who: &Key, lines: &[Report], malformed: u64, at: Moment) {
        self.count_malformed(malformed);
        let Some(followed) = self.followed.get_mut(who) else {
            return;
        };
        let id = *followed
            .id
            .get_or_insert_with(|| self.world.join(who, NodeState::Reachable, at));
        followed.plain = false;
        followed.lost = None;
        for report in lines {
            self.fold_line(id, *report, at);
        }
    }

    fn take_relayed(&mut self, lines: Vec<(Key, Report)>, malformed: u64, at: Moment) {
        self.count_malformed(malformed);
        for (who, report) in lines {
            let id = match self.relayed.get(&who) {
                Some(id) => *id,
                None => {
                    let id = self.world.join(&who, NodeState::Unknown, at);
                    self.relayed.insert(who, id);
                    id
                }
            };
            self.fold_line(id, report, at);
        }
    }

    fn fold_line(&mut self, id: ProgrammerId, report: Report, at: Moment) {
        match self.world.fold.report(id, report, at) {
            Ok(()) => {
                self.metrics.streams.lines.inc();
                if self.metrics.streams.lines.get().is_multiple_of(SAMPLED) {
                    let ahead = self.world.fold.programmer(id).map_or(0, |it| it.clock_ahead);
                    let written = Moment(report.time.0.saturating_sub(ahead));
                    self.metrics.folded(now().since(written));
                }
            }
            Err(fault) => self.metrics.streams.faults.with(&[fault.as_str()]).inc(),
        }
    }

    fn take_clock(&mut self, who: &Key, ahead: i64, round_trip: std::time::Duration) {
        let Some(followed) = self.followed.get_mut(who) else {
            return;
        };
        followed.clock.measured(now(), ahead, round_trip);
        let offset = followed.clock.offset().unwrap_or_default();
        if let Some(id) = followed.id {
            self.world.fold.set_clock(id, offset.ahead);
        }
    }

    fn take_metrics(&mut self, who: &Key, text: Result<Bytes, String>, at: Moment) {
        let Some(followed) = self.followed.get_mut(who) else {
            return;
        };
        let reading = text.map(|text| scrape::read(&text, at));
        match reading {
            Ok(Ok(reading)) => {
                followed.unread = None;
                let offset = followed.clock.offset().unwrap_or_default();
                self.measure.read(who, reading, offset.correction_millis());
                self.metrics.streams.scrapes.with(&["read"]).inc();
            }
            // It streams versions and writes no rules, as the DNS.
            Ok(Err(ScrapeError::NoHistogram)) if !followed.plain && followed.id.is_some() => {
                followed.unread = None;
                self.measure.without_samples(who);
                self.metrics.streams.scrapes.with(&["read"]).inc();
            }
            failed => {
                let why = match failed {
                    Err(why) => why,
                    Ok(unreadable) => unreadable
                        .err()
                        .map_or_else(String::new, |error| error.to_string()),
                };
                if followed.unread.as_ref() != Some(&why) {
                    tracing::debug!(programmer = &**who, why, "cannot read metrics");
                }
                followed.unread = Some(why);
                self.metrics.streams.scrapes.with(&["failed"]).inc();
            }
        }
    }

    fn count_malformed(&self, count: u64) {
        if count > 0 {
            self.metrics.streams.faults.with(&["garbage"]).add(count);
        }
    }
}
