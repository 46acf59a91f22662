//! What does one owner do in one round?

use super::driver::{Desk, Driver, DriverError, Posted, Reading, Version};
use jiff::Timestamp;
use pointsman_latency_profile::rollout::{
    Act, Decision, Notice, Policy, Problem, Readings, Stored, View, decide,
};
use pointsman_latency_profile::state::Owner;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A component that has just started may take this long to announce what it uses.
const BLOCKED: Duration = Duration::from_secs(10);
/// A refused write is tried again after this long.
const REFUSED: Duration = Duration::from_secs(10);

/// When the next round is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: something was done.
    Again,
    /// When something changes, or after this long.
    Wait(Option<Duration>),
}

/// One instance of an owner.
pub struct Operator {
    owner: Owner,
    identity: String,
    renamed: u64,
    drivers: [Arc<dyn Driver>; 3],
    desk: Arc<dyn Desk>,
    policy: Policy,
    refused: Option<(Problem, Instant)>,
    blocked: Option<Instant>,
    told: Vec<Notice>,
    posted: Option<Vec<Stored>>,
}

impl Operator {
    /// An instance under a name that no other has. Drivers are in the order of [`Owner::ALL`].
    pub fn new(
        owner: Owner,
        identity: &str,
        drivers: [Arc<dyn Driver>; 3],
        desk: Arc<dyn Desk>,
        policy: Policy,
    ) -> Self {
        Self {
            owner,
            identity: identity.to_owned(),
            renamed: 0,
            drivers,
            desk,
            policy,
            refused: None,
            blocked: None,
            told: Vec::new(),
            posted: None,
        }
    }

    /// Whose loop it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// From now on a step may take this long, also one that is under way.
    pub fn set_step_timeout(&mut self, limit: Duration) {
        self.policy.step_timeout = limit;
    }

    /// Reads everything, decides, reports, and does one thing.
    pub async fn round(&mut self) -> Result<Next, DriverError> {
        // The own component comes first and the ledger second: see `rollout`.
        let own = self.driver(self.owner).read().await?;
        let (ledger, ledger_version) = self.desk.ledger().await?;
        let (spec, posted) = self.desk.spec().await?;
        if own.version.0.is_none() && spec.is_some() {
            return self.prepare(&posted, ledger.settled.is_some()).await;
        }
        let readings = self.read_others(&own).await?;
        let retry = self
            .refused
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() >= REFUSED);
        if retry {
            self.refused = None;
        }
        let view = View {
            spec,
            ledger,
            readings,
            refused: self.refused.as_ref().map(|(problem, _)| problem.clone()),
        };
        let now = Timestamp::now();
        let decision = decide(self.owner, &self.holder(), &view, &self.policy, now);
        // A component that starts is blocked for a moment; that is not worth a word.
        let silent = self.is_blocked_for_a_moment(&decision);
        let writes = matches!(decision.act, Act::Write { .. });
        // What is about to change is said before it does.
        if writes && !self.report(&posted, &decision).await? {
            return Ok(Next::Again);
        }
        let mut next = self
            .carry_out(&decision, &own.version, &ledger_version, now)
            .await?;
        if silent {
            next = match next {
                Next::Wait(_) => Next::Wait(Some(Duration::from_secs(1))),
                Next::Again => Next::Again,
            };
        } else if !writes && !self.report(&posted, &decision).await? {
            next = Next::Again;
        }
        if self.refused.is_some() && matches!(next, Next::Wait(_)) {
            next = Next::Wait(Some(REFUSED));
        }
        Ok(next)
    }

    async fn prepare(&mut self, posted: &Posted, was_there: bool) -> Result<Next, DriverError> {
        let component = self.owner.component().name();
        if was_there {
            let message = format!("the settings of {component} were deleted; they are written again");
            self.tell(posted, vec![warning("SettingsDeleted", message)]);
        }
        match self.driver(self.owner).prepare().await {
            Ok(()) | Err(DriverError::Changed) => Ok(Next::Again),
            Err(error) => Err(error),
        }
    }

    async fn read_others(&self, own: &Reading) -> Result<Readings, DriverError> {
        let mut readings = Readings::default();
        for owner in Owner::ALL.into_iter().filter(|owner| *owner != self.owner) {
            let other = self.driver(owner).read().await?;
            other.part.put_into(&mut readings);
        }
        own.part.clone().put_into(&mut readings);
        Ok(readings)
    }

    async fn carry_out(
        &mut self,
        decision: &Decision,
        own: &Version,
        ledger_version: &Version,
        now: Timestamp,
    ) -> Result<Next, DriverError> {
        let done = match &decision.act {
            Act::Wait(until) => {
                let wait = until.map(|until| until.duration_since(now));
                return Ok(Next::Wait(wait.map(|wait| wait.try_into().unwrap_or_default())));
            }
            Act::Record(ledger) => self.desk.record(ledger, ledger_version).await,
            Act::Write { epoch, change } => {
                let driver = self.driver(self.owner);
                driver.write(*epoch, change.as_ref(), own).await
            }
        };
        match done {
            Ok(()) => {
                self.refused = None;
                Ok(Next::Again)
            }
            Err(DriverError::Changed) => Ok(Next::Again),
            Err(DriverError::Refused(why)) if matches!(decision.act, Act::Write { .. }) => {
                self.refused = Some((Problem::Refused(why), Instant::now()));
                Ok(Next::Again)
            }
            Err(error) => {
                // Nobody knows whether it will still happen: whoever goes on must be somebody else.
                self.renamed += 1;
                Err(error)
            }
        }
    }

    /// Says what was decided; tells whether it could be said, since owners may speak at the same time.
    async fn report(&mut self, posted: &Posted, decision: &Decision) -> Result<bool, DriverError> {
        self.tell(posted, decision.notices.clone());
        let own = |conditions: &[Stored]| -> Vec<Stored> {
            let ours = conditions.iter().filter(|it| it.owner == self.owner.name());
            ours.cloned().collect()
        };
        if let Some(last) = &self.posted
            && posted.version.is_some()
            && *last != own(&posted.conditions)
        {
            let message = format!(
                "conditions of {} were changed by somebody else and are put right",
                self.owner.name()
            );
            self.desk.tell(posted, &warning("StatusEdited", message));
            self.posted = None;
        }
        match self.desk.post(posted, &decision.conditions).await {
            Ok(Some(stored)) => self.posted = Some(own(&stored)),
            Ok(None) => {}
            Err(DriverError::Changed) => return Ok(false),
            Err(error) => {
                self.posted = None;
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Tells what was not told the last time.
    fn tell(&mut self, posted: &Posted, notices: Vec<Notice>) {
        for notice in notices.iter().filter(|notice| !self.told.contains(notice)) {
            let owner = self.owner.name();
            if notice.warning {
                tracing::warn!(owner, reason = notice.reason, "{}", notice.message);
            } else {
                tracing::info!(owner, reason = notice.reason, "{}", notice.message);
            }
            self.desk.tell(posted, notice);
        }
        self.told = notices;
    }

    fn is_blocked_for_a_moment(&mut self, decision: &Decision) -> bool {
        if !decision.blocked {
            self.blocked = None;
            return false;
        }
        self.blocked.get_or_insert_with(Instant::now).elapsed() < BLOCKED
    }

    fn driver(&self, owner: Owner) -> Arc<dyn Driver> {
        let index = Owner::ALL.iter().position(|it| *it == owner);
        self.drivers[index.expect("every owner is listed")].clone()
    }

    fn holder(&self) -> String {
        format!("{}/{}", self.identity, self.renamed)
    }
}

fn warning(reason: &'static str, message: String) -> Notice {
    Notice {
        warning: true,
        reason,
        message,
    }
}
