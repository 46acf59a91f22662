//! What does an owner say about what it sees and does?

use super::conditions::{Condition, ConditionType, Status};
use super::decide::{Act, Decision, Notice, Round};
use super::ledger::Failure;
use crate::plan::Step;
use crate::profile::Profile;
use crate::render;
use crate::state::Owner;

impl Round<'_> {
    pub(super) fn conditions(&self, step: Option<&Step>, failure: Option<&Failure>) -> Vec<Condition> {
        let component = self.owner.component();
        let progressing = self.progressing(step, failure);
        let matches = self.matches_wanted();
        let complete = match (matches, failure) {
            (true, _) => (
                Status::True,
                "AsExpected",
                format!("{} has its values", component.name()),
            ),
            (false, Some(_)) => (
                Status::False,
                "RolledBack",
                "it could not be rolled out, Default replaces it".to_owned(),
            ),
            (false, None) => (
                Status::False,
                "RollingOut",
                format!("{} does not have its values yet", component.name()),
            ),
        };
        let problem = self.view.readings.problem(component);
        let degraded = match failure {
            Some(failure) if failure.owner == self.owner => {
                let reason = match failure.reason.as_str() {
                    "Refused" => "Refused",
                    _ => "StepTimedOut",
                };
                let message = format!(
                    "{}: {}. Default is rolled out instead",
                    component.name(),
                    failure.message
                );
                (Status::True, reason, message)
            }
            _ => match problem.or(self.view.refused.as_ref()) {
                Some(problem) => (
                    Status::True,
                    problem.reason(),
                    format!("{}: {problem}", component.name()),
                ),
                None => (Status::False, "AsExpected", String::new()),
            },
        };
        Voice::new(self.owner).conditions([progressing, complete, degraded])
    }

    fn progressing(&self, step: Option<&Step>, failure: Option<&Failure>) -> Said {
        let claim = self.view.ledger.claim.as_ref();
        let instead = if failure.is_some() {
            ", to restore Default"
        } else {
            ""
        };
        match (claim, step) {
            (Some(claim), Some(step)) if claim.owner == self.owner => (
                Status::True,
                if self.is_settled() && failure.is_none() {
                    "CorrectingDrift"
                } else {
                    "RollingOut"
                },
                format!(
                    "{}{instead}; {}",
                    render::describe(&step.change),
                    self.view.readings.lagging(self.owner.component())
                ),
            ),
            (_, Some(step)) if step.change.component().owner() != self.owner && !self.matches_wanted() => (
                Status::False,
                "WaitingForTurn",
                format!(
                    "{} comes first: {}{instead}",
                    step.change.component().owner().name(),
                    render::describe(&step.change)
                ),
            ),
            (_, Some(step)) if step.change.component().owner() == self.owner => (
                Status::True,
                "RollingOut",
                format!("{}{instead}", render::describe(&step.change)),
            ),
            _ => (Status::False, "AsExpected", String::new()),
        }
    }

    /// Whether the own component has what the wanted profile, not its replacement, says.
    fn matches_wanted(&self) -> bool {
        let control_plane: Profile = self.wanted.control_plane();
        match self.owner {
            Owner::MachineConfigOperator => self
                .state
                .reports
                .iter()
                .all(|(pool, span)| span.is(self.wanted.of_pool(pool).values.report)),
            Owner::KubeControllerManagerOperator => self.state.grace.is(control_plane.values.grace),
            Owner::KubeAPIServerOperator => self.state.tolerations.is(control_plane.values.tolerations),
        }
    }
}

pub(super) type Said = (Status, &'static str, String);

/// Speaks for one owner.
pub(super) struct Voice(Owner);

impl Voice {
    pub(super) fn new(owner: Owner) -> Self {
        Self(owner)
    }

    /// Nothing can be done, and that is reported as degraded.
    pub(super) fn cannot(&self, reason: &'static str, message: String) -> Decision {
        let mut decision = self.decision(
            Act::Wait(None),
            [
                (Status::False, reason, message.clone()),
                (Status::Unknown, reason, message.clone()),
                (Status::True, reason, message.clone()),
            ],
        );
        decision.notices.push(Notice::warning(reason, message));
        decision
    }

    pub(super) fn decision(&self, act: Act, said: [Said; 3]) -> Decision {
        Decision {
            act,
            conditions: self.conditions(said),
            notices: Vec::new(),
            blocked: false,
        }
    }

    fn conditions(&self, said: [Said; 3]) -> Vec<Condition> {
        let kinds = [
            ConditionType::Progressing,
            ConditionType::Complete,
            ConditionType::Degraded,
        ];
        kinds
            .into_iter()
            .zip(said)
            .map(|(kind, (status, reason, message))| Condition {
                owner: self.0,
                kind,
                status,
                reason,
                message,
            })
            .collect()
    }
}
