//! Is everything there that the API server said it has?
//!
//! Every object has one writer and is written in order: created once, changed on the condition that it is as
//! last seen, deleted once. A write whose answer was lost may have happened or not; nothing else may be in
//! doubt. So what is found must be the state after the last acknowledged write, or after one tried later.

use std::collections::BTreeMap;

/// What an object holds: the number of its last write, or that it is not there.
pub type State = Option<u64>;

/// All writes of a run, by object.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    objects: BTreeMap<String, Vec<Attempt>>,
    acknowledged: u64,
    problems: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    state: State,
    fate: Fate,
}

/// What is known about a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It may have happened.
    Unknown,
    /// It happened, as this version if the server named one.
    Acknowledged(Option<u64>),
    /// It did not happen.
    Refused,
}

/// Names a write that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    object: String,
    index: usize,
}

impl Journal {
    /// A write is about to be sent.
    pub fn begin(&mut self, object: &str, state: State) -> Ticket {
        let attempts = self.objects.entry(object.to_owned()).or_default();
        attempts.push(Attempt {
            state,
            fate: Fate::Unknown,
        });
        Ticket {
            object: object.to_owned(),
            index: attempts.len() - 1,
        }
    }

    /// The server said that it happened. Versions of an object must grow.
    pub fn acknowledge(&mut self, ticket: &Ticket, version: Option<u64>) {
        self.acknowledged += 1;
        let Some(attempts) = self.objects.get_mut(&ticket.object) else {
            return;
        };
        let earlier = attempts[..ticket.index]
            .iter()
            .filter_map(|attempt| match attempt.fate {
                Fate::Acknowledged(version) => version,
                Fate::Unknown | Fate::Refused => None,
            });
        if let (Some(earlier), Some(version)) = (earlier.max(), version)
            && version <= earlier
        {
            self.problems.push(format!(
                "{} was written as version {version} after {earlier}",
                ticket.object
            ));
        }
        attempts[ticket.index].fate = Fate::Acknowledged(version);
    }

    /// The server said that it did not happen.
    pub fn refuse(&mut self, ticket: &Ticket) {
        if let Some(attempts) = self.objects.get_mut(&ticket.object) {
            attempts[ticket.index].fate = Fate::Refused;
        }
    }

    /// Something was seen that cannot be.
    pub fn accuse(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// How many writes were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether the object can be in this state now.
    pub fn explains(&self, object: &str, found: State) -> bool {
        let attempts = self.objects.get(object).map_or(&[][..], Vec::as_slice);
        let is_sure = |attempt: &Attempt| matches!(attempt.fate, Fate::Acknowledged(_));
        let last_sure = attempts.iter().rposition(is_sure);
        let certain = last_sure.and_then(|index| attempts[index].state);
        let later = &attempts[last_sure.map_or(0, |index| index + 1)..];
        found == certain
            || later
                .iter()
                .any(|attempt| attempt.fate == Fate::Unknown && attempt.state == found)
    }

    /// Everything that contradicts what was found, in one sentence each.
    pub fn contradictions(&self, found: &BTreeMap<String, u64>) -> Vec<String> {
        let mut problems = self.problems.clone();
        for (object, attempts) in &self.objects {
            let state = found.get(object).copied();
            if !self.explains(object, state) {
                let last: Vec<_> = attempts.iter().rev().take(4).collect();
                problems.push(format!(
                    "{object} is {state:?}, but its last writes were, newest first, {last:?}"
                ));
            }
        }
        let unknown = found.keys().filter(|object| !self.objects.contains_key(*object));
        problems.extend(unknown.map(|object| format!("{object} was never written")));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledged_write_must_be_there() {
        let mut journal = Journal::default();
        let first = journal.begin("a", Some(1));
        assert!(journal.explains("a", None) && journal.explains("a", Some(1)));
        journal.acknowledge(&first, Some(10));
        assert!(!journal.explains("a", None));
        assert!(journal.contradictions(&BTreeMap::new())[0].starts_with("a is None"));
        assert!(
            journal
                .contradictions(&BTreeMap::from([("a".to_owned(), 1)]))
                .is_empty()
        );
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_and_a_refused_one_not() {
        let mut journal = Journal::default();
        let first = journal.begin("a", Some(1));
        journal.acknowledge(&first, Some(10));
        journal.begin("a", Some(2));
        let third = journal.begin("a", Some(3));
        journal.refuse(&third);
        assert!(journal.explains("a", Some(1)) && journal.explains("a", Some(2)));
        assert!(!journal.explains("a", Some(3)));
        let gone = journal.begin("a", None);
        assert!(journal.explains("a", None) && journal.explains("a", Some(1)));
        journal.acknowledge(&gone, None);
        assert!(journal.explains("a", None) && !journal.explains("a", Some(2)));
        assert_eq!(journal.acknowledged(), 2);
    }

    #[test]
    fn versions_grow_and_strangers_are_told() {
        let mut journal = Journal::default();
        for (number, version) in [(1, 10), (2, 10)] {
            let ticket = journal.begin("a", Some(number));
            journal.acknowledge(&ticket, Some(version));
        }
        let found = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(
            journal.contradictions(&found),
            ["a was written as version 10 after 10", "b was never written"]
        );
    }
}
