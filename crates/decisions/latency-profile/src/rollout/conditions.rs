//! What does the status of the profile say?

use super::decide::Spec;
use crate::state::Owner;
use jiff::Timestamp;

/// An aspect that each owner reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The component is being changed.
    Progressing,
    /// The component has what the wanted profile says.
    Complete,
    /// The component did not get there.
    Degraded,
}

/// Whether it is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    True,
    False,
    /// Cannot be said.
    Unknown,
}

impl From<bool> for Status {
    fn from(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }
}

/// What an owner says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Who says it.
    pub owner: Owner,
    pub kind: ConditionType,
    /// Whether it is so.
    pub status: Status,
    /// One word why.
    pub reason: &'static str,
    /// A sentence why.
    pub message: String,
}

/// A condition as it is stored; whatever somebody wrote there can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Who says it.
    pub owner: String,
    pub kind: String,
    /// Whether it is so.
    pub status: String,
    /// When that changed last.
    pub last_transition_time: String,
    /// One word why.
    pub reason: String,
    /// A sentence why.
    pub message: String,
}

impl Stored {
    /// Whether it is about the present request, and not about an earlier one that its owner saw last.
    pub fn is_about(&self, spec: &Spec) -> bool {
        self.kind == "Complete" && self.message.starts_with(&complete_about(spec, ""))
    }
}

/// What an owner says about completeness. The API has no field for the request that was seen.
pub(super) fn complete_about(spec: &Spec, message: &str) -> String {
    format!("{}: {message}", spec.name())
}

/// The list to store: what others say is kept as it is, and the time of a condition changes with its
/// status only. `None` if nothing changes.
pub fn merge(stored: &[Stored], said: &[Condition], now: Timestamp) -> Option<Vec<Stored>> {
    // Kubernetes stores these times in whole seconds.
    let seconds = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    // A version of the API that did not ask for times may have stored a condition without one.
    let timed = |old: &Stored| Stored {
        last_transition_time: match old.last_transition_time.parse::<Timestamp>() {
            Ok(_) => old.last_transition_time.clone(),
            Err(_) => seconds.clone(),
        },
        ..old.clone()
    };
    let is_ours = |old: &&Stored| said.iter().any(|condition| old.owner == condition.owner.name());
    let mut merged: Vec<Stored> = stored.iter().filter(|old| !is_ours(old)).map(timed).collect();
    for condition in said {
        let (owner, kind) = (condition.owner.name(), format!("{:?}", condition.kind));
        let status = format!("{:?}", condition.status);
        let same = stored
            .iter()
            .find(|old| old.owner == owner && old.kind == kind && old.status == status)
            .filter(|old| old.last_transition_time.parse::<Timestamp>().is_ok());
        merged.push(Stored {
            owner: owner.to_owned(),
            kind,
            status,
            last_transition_time: same
                .map_or_else(|| seconds.clone(), |old| old.last_transition_time.clone()),
            reason: condition.reason.to_owned(),
            message: condition.message.clone(),
        });
    }
    merged.sort_by(|a, b| place(a).cmp(&place(b)));
    (merged != stored).then_some(merged)
}

/// Owners in the order of the specification, then anybody else.
fn place(condition: &Stored) -> (usize, &str, usize, &str) {
    let owner = Owner::ALL
        .iter()
        .position(|owner| owner.name() == condition.owner)
        .unwrap_or(Owner::ALL.len());
    let kind = ["Progressing", "Complete", "Degraded"]
        .iter()
        .position(|kind| *kind == condition.kind)
        .unwrap_or(3);
    (owner, &condition.owner, kind, &condition.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: Status, message: &str) -> Condition {
        Condition {
            owner: Owner::KubeAPIServerOperator,
            kind: ConditionType::Complete,
            status,
            reason: "AsExpected",
            message: message.into(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn times_change_with_the_status_only_and_others_words_stay() {
        let foreign = Stored {
            owner: "SomebodyElse".into(),
            kind: "Complete".into(),
            status: "odd".into(),
            last_transition_time: "1970-01-01T00:00:00Z".into(),
            reason: String::new(),
            message: String::new(),
        };
        let first = merge(std::slice::from_ref(&foreign), &[said(Status::False, "a")], at(1)).unwrap();
        assert_eq!((first.len(), &first[1]), (2, &foreign));
        assert_eq!(merge(&first, &[said(Status::False, "a")], at(2)), None);
        let second = merge(&first, &[said(Status::False, "b")], at(3)).unwrap();
        assert_eq!(second[0].last_transition_time, first[0].last_transition_time);
        let third = merge(&second, &[said(Status::True, "b")], at(4)).unwrap();
        assert_eq!(third[0].last_transition_time, "1970-01-01T00:00:04Z");
    }

    #[test]
    fn conditions_edited_by_hand_are_put_right() {
        let good = merge(&[], &[said(Status::True, "a")], at(1)).unwrap();
        let mut edited = good.clone();
        edited[0].status = "False".into();
        edited.push(good[0].clone());
        let mended = merge(&edited, &[said(Status::True, "a")], at(9)).unwrap();
        assert_eq!(mended.len(), 1);
        assert_eq!(mended[0].status, "True");
        edited[0] = good[0].clone();
        edited[0].last_transition_time = "never".into();
        let mended = merge(&edited[..1], &[said(Status::True, "a")], at(9)).unwrap();
        assert_eq!(mended[0].last_transition_time, "1970-01-01T00:00:09Z");
    }

    #[test]
    fn a_condition_that_somebody_left_without_a_time_does_not_keep_ours_from_being_stored() {
        let timeless = Stored {
            owner: "SomebodyElse".into(),
            last_transition_time: String::new(),
            ..merge(&[], &[said(Status::True, "a")], at(1)).unwrap().remove(0)
        };
        let merged = merge(&[timeless], &[said(Status::True, "a")], at(5)).unwrap();
        assert_eq!(merged[1].last_transition_time, "1970-01-01T00:00:05Z");
    }
}
