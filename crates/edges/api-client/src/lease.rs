//! May this replica lead now?
//!
//! A Lease names its holder and how long it may stay silent. Clocks of different machines disagree, so
//! the times in it are never compared with ours: a holder is dead when its record has not changed for
//! a whole lease, counted on our own monotonic clock from when we first saw it (as client-go does).

use jiff::Timestamp;
use pointsman_objects::lease::{Lease, LeaseSpec, MicroTime};
use std::time::Duration;

/// A point on the monotonic clock: the time since some fixed start.
pub type Tick = Duration;

/// How leadership is kept and lost. The defaults are kube-controller-manager's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Who we are; unique for each process.
    pub identity: String,
    /// How long a leader may stay silent (`--leader-elect-lease-duration`).
    pub lease: Duration,
    /// How long a leader tries to renew before it gives up (`--leader-elect-renew-deadline`).
    pub renew_deadline: Duration,
    /// Wait between attempts (`--leader-elect-retry-period`).
    pub retry: Duration,
}

impl Terms {
    /// The usual terms: 15 s, 10 s and 2 s.
    pub fn new(identity: String) -> Self {
        Self {
            identity,
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }

    /// What is wrong with them, if anything: a leader has to notice its loss before others take over.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.retry.is_zero() {
            return Err("the retry period must not be zero");
        }
        if self.renew_deadline <= self.retry {
            return Err("the renew deadline must be longer than the retry period");
        }
        if self.lease <= self.renew_deadline {
            return Err("the lease duration must be longer than the renew deadline");
        }
        Ok(())
    }
}

/// What we last saw, and when on our own clock.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    lease: Option<Lease>,
    since: Tick,
}

/// What to do about the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is none: create it with this spec.
    Create(LeaseSpec),
    /// Write this spec over the version that was seen.
    Write(LeaseSpec, Box<str>),
    /// Somebody else leads.
    Wait,
}

impl Observed {
    /// Takes in the lease as it is now. Only a change of its spec is a sign of life.
    pub fn see(&mut self, lease: Option<Lease>, now: Tick) {
        let spec = |lease: &Option<Lease>| lease.as_ref().map(|lease| lease.spec.clone());
        if self.lease.is_none() || spec(&self.lease) != spec(&lease) {
            self.since = now;
        }
        self.lease = lease;
    }

    /// Who leads, as far as we know.
    pub fn holder(&self) -> Option<&str> {
        let holder = &*self.lease.as_ref()?.spec.holder_identity;
        (!holder.is_empty()).then_some(holder)
    }

    /// When the holder was last alive, by its own clock.
    pub fn last_renewal(&self) -> Option<Timestamp> {
        Some(self.lease.as_ref()?.spec.renew_time?.0)
    }

    /// What to do. `now` is our own clock, `wall` goes into the record for people to read.
    pub fn decide(&self, terms: &Terms, now: Tick, wall: Timestamp) -> Decision {
        let seconds = i32::try_from(terms.lease.as_secs()).unwrap_or(i32::MAX).max(1);
        let wall = MicroTime(wall);
        let Some(lease) = &self.lease else {
            return Decision::Create(LeaseSpec {
                holder_identity: terms.identity.as_str().into(),
                lease_duration_seconds: seconds,
                acquire_time: Some(wall),
                renew_time: Some(wall),
                lease_transitions: 0,
            });
        };
        let spec = &lease.spec;
        let ours = *spec.holder_identity == *terms.identity;
        // The holder's own promise counts, not our setting.
        let promised = Duration::from_secs(u64::try_from(spec.lease_duration_seconds).unwrap_or(0));
        let expired = now.saturating_sub(self.since) >= promised;
        if !ours && !spec.holder_identity.is_empty() && !expired {
            return Decision::Wait;
        }
        let next = LeaseSpec {
            holder_identity: terms.identity.as_str().into(),
            lease_duration_seconds: seconds,
            acquire_time: if ours { spec.acquire_time } else { Some(wall) },
            renew_time: Some(wall),
            lease_transitions: spec.lease_transitions + i32::from(!ours),
        };
        Decision::Write(next, lease.metadata.resource_version.clone())
    }

    /// The write that gives the lease back, if it is ours.
    pub fn release(&self, terms: &Terms, wall: Timestamp) -> Option<(LeaseSpec, Box<str>)> {
        let lease = self.lease.as_ref()?;
        if *lease.spec.holder_identity != *terms.identity {
            return None;
        }
        let spec = LeaseSpec {
            holder_identity: Box::default(),
            lease_duration_seconds: 1,
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: lease.spec.lease_transitions,
        };
        Some((spec, lease.metadata.resource_version.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_objects::Metadata;

    const SECOND: Duration = Duration::from_secs(1);

    fn terms() -> Terms {
        Terms::new("me".into())
    }

    fn lease(holder: &str, renewed: i64) -> Option<Lease> {
        Some(Lease {
            metadata: Metadata {
                resource_version: "7".into(),
                ..Metadata::default()
            },
            spec: LeaseSpec {
                holder_identity: holder.into(),
                lease_duration_seconds: 15,
                renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
                lease_transitions: 3,
                ..LeaseSpec::default()
            },
        })
    }

    fn decide(observed: &Observed, now: Tick) -> Decision {
        observed.decide(&terms(), now, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn nobody_leads_so_we_do() {
        let mut observed = Observed::default();
        assert!(matches!(decide(&observed, SECOND), Decision::Create(_)));
        observed.see(lease("", 0), SECOND);
        let Decision::Write(spec, version) = decide(&observed, SECOND) else {
            panic!("a lease that was given back can be taken at once");
        };
        assert_eq!((spec.lease_transitions, &*version), (4, "7"));
    }

    #[test]
    fn a_living_leader_is_respected_whatever_its_clock_says() {
        let mut observed = Observed::default();
        for at in 0..60 {
            // Renewal times from 1970 to 2200: only that they change matters.
            observed.see(lease("other", at * 120_000_000), SECOND * at as u32);
            assert_eq!(
                decide(&observed, SECOND * at as u32),
                Decision::Wait,
                "second {at}"
            );
        }
    }

    #[test]
    fn a_silent_leader_is_replaced_after_its_lease_and_not_before() {
        let mut observed = Observed::default();
        observed.see(lease("other", 0), SECOND);
        observed.see(lease("other", 0), SECOND * 10);
        assert_eq!(decide(&observed, SECOND * 15), Decision::Wait);
        assert!(matches!(decide(&observed, SECOND * 16), Decision::Write(..)));
    }

    #[test]
    fn a_renewal_keeps_when_leadership_began_and_a_release_lets_others_in() {
        let mut observed = Observed::default();
        observed.see(lease("me", 5), SECOND);
        let Decision::Write(spec, _) = decide(&observed, SECOND) else {
            panic!("our own lease can be renewed");
        };
        assert_eq!((spec.acquire_time, spec.lease_transitions), (None, 3));
        let (released, _) = observed.release(&terms(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(&*released.holder_identity, "");
        observed.see(lease("other", 5), SECOND);
        assert_eq!(observed.release(&terms(), Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn terms_that_would_allow_two_leaders_are_refused() {
        assert!(terms().check().is_ok());
        let odd = Terms {
            renew_deadline: terms().lease,
            ..terms()
        };
        assert!(odd.check().is_err());
    }
}
