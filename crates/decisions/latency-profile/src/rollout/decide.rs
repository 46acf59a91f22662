//! What does an owner do next, and what does it say about it?

use super::conditions::{Condition, ConditionType, Status, complete_about};
use super::ledger::{Claim, Failure, Ledger, Settled};
use super::readings::{Problem, Readings};
use super::speech::Voice;
use crate::plan::{Change, Day, Purpose, Step, next_step};
use crate::profile::{Catalog, DEFAULT, UnknownProfile, Wanted};
use crate::render;
use crate::state::{Component, Owner, Pool, State};
use jiff::Timestamp;
use pointsman_model::duration;
use std::collections::BTreeMap;
use std::time::Duration;

/// Settings of the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Profiles that can be asked for.
    pub catalog: Catalog,
    /// How long one step may take before its owner is degraded.
    pub step_timeout: Duration,
    /// How long a claim is left to its holder before another instance takes it over. Instances that live
    /// side by side by mistake then take turns instead of fighting.
    pub patience: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            catalog: Catalog::standard(),
            step_timeout: Duration::from_secs(600),
            patience: Duration::from_secs(2),
        }
    }
}

/// What the cluster-wide object asks for, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Spec {
    /// Changes with every wish.
    pub generation: i64,
    /// `spec.workerLatencyProfile`.
    pub profile: String,
    /// Other profiles for the nodes of some pools.
    pub pools: BTreeMap<Pool, String>,
}

impl Spec {
    /// It asks for nothing. Where a profile was rolled out before, that means Default.
    pub fn is_empty(&self) -> bool {
        self.profile.is_empty() && self.pools.is_empty()
    }

    /// What it asks for, in one line.
    pub fn name(&self) -> String {
        let profile = match self.profile.as_str() {
            "" => DEFAULT.name,
            name => name,
        };
        let pools = self.pools.iter();
        pools.fold(profile.to_owned(), |name, (pool, profile)| {
            format!("{name}, {}={profile}", pool.name())
        })
    }

    /// The profiles behind the names.
    pub fn wanted(&self, catalog: &Catalog) -> Result<Wanted, UnknownProfile> {
        let pools = self
            .pools
            .iter()
            .map(|(pool, name)| Ok((pool.clone(), catalog.find(name)?)));
        Ok(Wanted {
            profile: catalog.find(&self.profile)?,
            pools: pools.collect::<Result<_, _>>()?,
        })
    }
}

/// What one round of an owner has read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct View {
    /// What is wanted; nothing if the object is missing.
    pub spec: Option<Spec>,
    /// What owners agreed on.
    pub ledger: Ledger,
    /// What components say.
    pub readings: Readings,
    /// The last write of the own component was refused for good.
    pub refused: Option<Problem>,
}

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing, until something changes or this time comes.
    Wait(Option<Timestamp>),
    /// Write the ledger, if it is still as it was read.
    Record(Ledger),
    /// Write the own component with this epoch, if it is still as it was read.
    Write {
        epoch: u64,
        /// What to set; nothing writes the epoch alone.
        change: Option<Change>,
    },
}

/// Something people should hear of once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// Whether somebody should look.
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What to do and what to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be carried out, then everything is read again.
    pub act: Act,
    /// Of this owner, all three types.
    pub conditions: Vec<Condition>,
    /// News that come with the act.
    pub notices: Vec<Notice>,
    /// A component does not announce what it uses. A component that has just started needs a moment for
    /// that, so whoever carries this out waits a little before it says so.
    pub blocked: bool,
}

/// Decides for one instance, called `holder`, of an owner.
pub fn decide(owner: Owner, holder: &str, view: &View, policy: &Policy, now: Timestamp) -> Decision {
    let Some(spec) = &view.spec else {
        let mut decision = Voice::new(owner).cannot("ProfileMissing", NO_OBJECT.to_owned());
        if view.ledger == Ledger::default() {
            // Nobody ever asked for a profile.
            decision.notices.clear();
        }
        return decision;
    };
    if spec.is_empty() && view.ledger == Ledger::default() {
        let word = || (Status::False, "ProfileEmpty", NO_PROFILE.to_owned());
        let complete = (Status::Unknown, "ProfileEmpty", NO_PROFILE.to_owned());
        return Voice::new(owner).decision(Act::Wait(None), [word(), complete, word()]);
    }
    let mut decision = decide_about(spec, owner, holder, view, policy, now);
    let mut conditions = decision.conditions.iter_mut();
    if let Some(complete) = conditions.find(|it| it.kind == ConditionType::Complete) {
        complete.message = complete_about(spec, &complete.message);
    }
    decision
}

fn decide_about(
    spec: &Spec,
    owner: Owner,
    holder: &str,
    view: &View,
    policy: &Policy,
    now: Timestamp,
) -> Decision {
    let wanted = match spec.wanted(&policy.catalog) {
        Ok(wanted) => wanted,
        Err(unknown) => {
            let message = format!("{unknown}; what is in force stays");
            return Voice::new(owner).cannot("UnknownProfile", message);
        }
    };
    for component in Component::ALL {
        if let Some(problem @ Problem::Refused(_)) = view.readings.problem(component) {
            let message = format!("{}: {problem}", component.name());
            return blocked(owner, component, problem.reason(), message);
        }
    }
    let state = match view.readings.state() {
        Ok(state) => state,
        Err(unaware) => return blocked(owner, unaware.component, "VersionSkew", unaware.to_string()),
    };
    Round {
        owner,
        holder,
        view,
        spec,
        wanted,
        state,
        policy,
        now,
    }
    .decide()
}

const NO_OBJECT: &str = "there is no nodes.config.openshift.io named cluster; what is in force stays. Create it to choose a profile";

const NO_PROFILE: &str = "no profile was ever asked for; components use their own flags";

/// One component keeps what it uses to itself: nothing is changed anywhere.
fn blocked(owner: Owner, component: Component, reason: &'static str, message: String) -> Decision {
    let voice = Voice::new(owner);
    let mut decision = if component == owner.component() {
        voice.cannot(
            reason,
            format!("{message}. Nothing is changed until that is mended"),
        )
    } else {
        let message = format!("waiting: {message}");
        voice.decision(
            Act::Wait(None),
            [
                (Status::False, "Blocked", message.clone()),
                (Status::Unknown, "Blocked", message),
                (Status::False, "AsExpected", String::new()),
            ],
        )
    };
    decision.blocked = true;
    decision
}

pub(super) struct Round<'a> {
    pub(super) owner: Owner,
    pub(super) holder: &'a str,
    pub(super) view: &'a View,
    pub(super) spec: &'a Spec,
    pub(super) wanted: Wanted,
    pub(super) state: State,
    pub(super) policy: &'a Policy,
    pub(super) now: Timestamp,
}

impl Round<'_> {
    fn decide(&self) -> Decision {
        let failure = self
            .view
            .ledger
            .failure_of(self.spec.generation, &self.spec.name());
        let goal = match failure {
            Some(_) => Wanted::everywhere(DEFAULT),
            None => self.wanted.clone(),
        };
        let day = if self.view.readings.has_nodes() {
            Day::Two
        } else {
            Day::Zero
        };
        let step = next_step(&self.state, &goal, &self.policy.catalog, day);
        // After a failure it is enough that Default is in force.
        let step = step.or_else(|| self.unwritten_step(&goal).filter(|_| failure.is_none()));
        let (act, notices) = match &self.view.ledger.claim {
            Some(claim) if claim.owner != self.owner => (Act::Wait(None), Vec::new()),
            Some(claim) if claim.holder != self.holder => (self.take_over(claim), Vec::new()),
            Some(claim) => self.under_claim(claim, step.as_ref(), failure.is_some()),
            None => self.without_claim(step.as_ref(), failure),
        };
        Decision {
            act,
            conditions: self.conditions(step.as_ref(), failure),
            notices,
            blocked: false,
        }
    }

    /// Everything is in force, but something only because nobody wrote anything else: whatever starts
    /// later has to find it written.
    fn unwritten_step(&self, goal: &Wanted) -> Option<Step> {
        let control_plane = goal.control_plane().values;
        let pools = self.state.reports.keys().cloned().chain([Pool::default()]);
        let reports = pools.map(|pool| {
            let period = goal.of_pool(&pool).values.report;
            (pool, period)
        });
        let changes = [
            Change::Reports(reports.collect()),
            Change::Grace(control_plane.grace),
            Change::Tolerations(control_plane.tolerations),
        ];
        let change = changes
            .into_iter()
            .find(|change| !self.view.readings.is_written(change))?;
        Some(Step {
            after: change.apply(&self.state),
            change,
            purpose: Purpose::Advance,
        })
    }

    fn take_over(&self, claim: &Claim) -> Act {
        let due = claim.held_since + jiff_duration(self.policy.patience);
        if self.now < due {
            return Act::Wait(Some(due));
        }
        let epoch = self.next_epoch();
        let claim = Claim {
            holder: self.holder.to_owned(),
            epoch,
            taken_over: true,
            held_since: self.now,
            ..claim.clone()
        };
        self.record(|ledger| {
            ledger.epoch = epoch;
            ledger.claim = Some(claim);
        })
    }

    fn without_claim(&self, step: Option<&Step>, failure: Option<&Failure>) -> (Act, Vec<Notice>) {
        let Some(step) = step else {
            return self.settle(failure);
        };
        if step.change.component().owner() != self.owner {
            return (Act::Wait(None), Vec::new());
        }
        let drift = self.is_settled() && failure.is_none();
        let mut notices = Vec::new();
        let what = render::describe(&step.change);
        let present = render::why(&self.state);
        if drift {
            let message = format!("values differ from {}; correcting {what}", self.spec.name());
            notices.push(Notice::warning("DriftDetected", message));
        }
        if step.purpose != Purpose::Advance {
            let message = format!(
                "the values in force are unsafe ({present}: {}); {}: {what}",
                self.state.verdict(),
                render::reason(&self.state, step)
            );
            notices.push(Notice::warning("UnsafeValues", message));
        }
        notices.push(Notice::normal("StepStarted", what));
        let epoch = self.next_epoch();
        let claim = Claim {
            owner: self.owner,
            holder: self.holder.to_owned(),
            epoch,
            taken_over: false,
            generation: self.spec.generation,
            since: self.now,
            held_since: self.now,
        };
        let act = self.record(|ledger| {
            ledger.epoch = epoch;
            ledger.claim = Some(claim);
        });
        (act, notices)
    }

    /// Everything is in place: that is written down once, so that later differences are known for drift.
    fn settle(&self, failure: Option<&Failure>) -> (Act, Vec<Notice>) {
        let settled = Settled {
            generation: self.spec.generation,
            profile: self.spec.name(),
        };
        if failure.is_some() || self.view.ledger.settled.as_ref() == Some(&settled) {
            return (Act::Wait(None), Vec::new());
        }
        let notice = Notice::normal(
            "ProfileComplete",
            format!("{} is in force in every component", settled.profile),
        );
        let act = self.record(|ledger| {
            ledger.settled = Some(settled);
            ledger.failure = None;
        });
        (act, vec![notice])
    }

    fn under_claim(&self, claim: &Claim, step: Option<&Step>, failed: bool) -> (Act, Vec<Notice>) {
        let readings = &self.view.readings;
        let wrote = readings.epoch(self.owner.component()) == Some(claim.epoch);
        let mine = step.filter(|step| step.change.component().owner() == self.owner);
        let may_release = wrote || !claim.taken_over;
        let late = self.now.duration_since(claim.since) >= jiff_duration(self.policy.step_timeout);
        match mine {
            Some(step) => {
                let written = readings.is_written(&step.change);
                let what = render::describe(&step.change);
                if let Some(problem) = &self.view.refused {
                    if failed || !may_release {
                        return (Act::Wait(None), Vec::new());
                    }
                    let message = format!("{what}: {problem}");
                    return self.fail(claim, problem.reason(), message);
                }
                let releases = late && may_release && !failed;
                if !wrote && !releases {
                    // The same value again: only the epoch is needed, and the wait goes on.
                    let change = (!written).then(|| step.change.clone());
                    return (self.write(claim, change), Vec::new());
                }
                if late && !failed {
                    let lagging = readings.lagging(self.owner.component());
                    let limit = duration::short(self.policy.step_timeout);
                    let message = format!("{what} is not in force after {limit}: {lagging}");
                    return self.fail(claim, "StepTimedOut", message);
                }
                if written {
                    let deadline = claim.since + jiff_duration(self.policy.step_timeout);
                    return (Act::Wait(Some(deadline).filter(|at| *at > self.now)), Vec::new());
                }
                // One write for each claim: another value needs another claim.
                (self.release(), Vec::new())
            }
            None if may_release => (self.release(), Vec::new()),
            None => (self.write(claim, None), Vec::new()),
        }
    }

    fn fail(&self, claim: &Claim, reason: &str, message: String) -> (Act, Vec<Notice>) {
        let notice = Notice::warning("StepFailed", format!("{message}. Rolling out Default"));
        let failure = Failure {
            owner: self.owner,
            generation: claim.generation,
            profile: self.spec.name(),
            reason: reason.to_owned(),
            message,
            at: self.now,
        };
        let act = self.record(|ledger| {
            ledger.claim = None;
            ledger.failure = Some(failure);
        });
        (act, vec![notice])
    }

    fn release(&self) -> Act {
        self.record(|ledger| ledger.claim = None)
    }

    fn write(&self, claim: &Claim, change: Option<Change>) -> Act {
        Act::Write {
            epoch: claim.epoch,
            change,
        }
    }

    fn record(&self, edit: impl FnOnce(&mut Ledger)) -> Act {
        let mut ledger = self.view.ledger.clone();
        edit(&mut ledger);
        Act::Record(ledger)
    }

    /// Later than every epoch that was ever used, even if somebody emptied the ledger.
    fn next_epoch(&self) -> u64 {
        let used = Component::ALL.map(|component| self.view.readings.epoch(component).unwrap_or(0));
        used.into_iter().fold(self.view.ledger.epoch, u64::max) + 1
    }

    pub(super) fn is_settled(&self) -> bool {
        let settled = self.view.ledger.settled.as_ref();
        settled.is_some_and(|settled| {
            settled.generation == self.spec.generation && settled.profile == self.spec.name()
        })
    }
}

impl Notice {
    pub(super) fn warning(reason: &'static str, message: String) -> Self {
        Self {
            warning: true,
            reason,
            message,
        }
    }

    fn normal(reason: &'static str, message: String) -> Self {
        Self {
            warning: false,
            reason,
            message,
        }
    }
}

fn jiff_duration(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}
