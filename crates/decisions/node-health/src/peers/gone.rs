//! To which nodes may connections be ended, because nobody is there any more?
//!
//! Two have to agree: the controllers, which list the nodes that are withdrawn, and this node, which asks each of them and
//! gets no answer. Both for the whole bound, without a break:
//!
//! - an answer of the node, however late, begins the bound anew, whatever the list says;
//! - a list that was not renewed for a while says nothing: its writer may be gone, and the nodes back;
//! - time that this process slept through does not count, and a new process begins anew;
//! - this node itself, and one that cannot be asked, are never gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pointsman_model::Text;

/// How often a listed node is asked.
pub const EVERY: Duration = Duration::from_millis(500);
/// So many asks in a row have to stay without an answer.
pub const ASKS: u32 = 4;
/// The shortest bound: time for that many asks, and some to spare.
pub const LEAST: Duration = Duration::from_secs(3);
/// Whoever looks so much later than it should has slept.
const LATE: Duration = Duration::from_secs(1);

/// The listed nodes, and what this node knows of each.
#[derive(Clone, Debug)]
pub struct Gone {
    own: Text,
    bound: Duration,
    /// How long a list counts.
    fresh: Duration,
    listed_at: Option<Duration>,
    nodes: BTreeMap<Text, Doubt>,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// It is listed and did not answer since.
    since: Duration,
    unanswered: u32,
    ask_at: Duration,
}

impl Doubt {
    const fn from(now: Duration) -> Self {
        Self {
            since: now,
            unanswered: 0,
            ask_at: now,
        }
    }
}

impl Gone {
    /// Nothing is listed yet. A bound below [`LEAST`] counts as that.
    pub fn new(own: Text, bound: Duration, fresh: Duration) -> Self {
        Self {
            own,
            bound: bound.max(LEAST),
            fresh,
            listed_at: None,
            nodes: BTreeMap::new(),
        }
    }

    /// Takes in the list, also one that was only renewed.
    pub fn observe_list<'a>(&mut self, names: impl IntoIterator<Item = &'a str>, now: Duration) {
        self.expire(now);
        let mut before = std::mem::take(&mut self.nodes);
        for name in names.into_iter().filter(|name| *name != &*self.own) {
            let doubt = before.remove(name).unwrap_or(Doubt::from(now));
            self.nodes.insert(name.into(), doubt);
        }
        self.listed_at = Some(now);
    }

    /// The node gave a sign of life.
    pub fn answered(&mut self, name: &str, now: Duration) {
        if let Some(doubt) = self.nodes.get_mut(name) {
            doubt.since = now;
            doubt.unanswered = 0;
        }
    }

    /// The nodes to ask now; whoever does says so by [`Gone::asked`].
    pub fn look(&mut self, now: Duration) -> Vec<Text> {
        self.expire(now);
        let mut due = Vec::new();
        for (name, doubt) in &mut self.nodes {
            if now > doubt.ask_at + LATE {
                *doubt = Doubt::from(now);
            }
            if now >= doubt.ask_at {
                doubt.ask_at = now + EVERY;
                due.push(name.clone());
            }
        }
        due
    }

    /// The node was asked.
    pub fn asked(&mut self, name: &str) {
        if let Some(doubt) = self.nodes.get_mut(name) {
            doubt.unanswered = doubt.unanswered.saturating_add(1);
        }
    }

    /// Whether the node is listed.
    pub fn is_listed(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    /// The nodes to which connections may be ended. Ask after [`Gone::look`], which notices what was slept through.
    pub fn gone(&self, now: Duration) -> BTreeSet<Text> {
        let gone = self
            .nodes
            .iter()
            .filter(|(_, doubt)| doubt.unanswered >= ASKS && now >= doubt.since + self.bound);
        gone.map(|(name, _)| name.clone()).collect()
    }

    /// When to look again, after a look now: for the next ask, or when a bound is over.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let asks = self.nodes.values().map(|doubt| doubt.ask_at);
        let bounds = self.nodes.values().map(|doubt| doubt.since + self.bound);
        asks.chain(bounds.filter(|at| *at > now)).min()
    }

    fn expire(&mut self, now: Duration) {
        if self.listed_at.is_some_and(|at| now > at + self.fresh) {
            self.nodes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FRESH: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn bounded(seconds: u64) -> Gone {
        Gone::new("own".into(), Duration::from_secs(seconds), FRESH)
    }

    /// Looks whenever it is time until then, asks whom it is to, and returns when `n1` was first gone.
    fn run(gone: &mut Gone, from: u64, to: u64) -> Option<u64> {
        let mut now = at(from);
        loop {
            for name in gone.look(now) {
                gone.asked(&name);
            }
            if gone.gone(now).contains("n1") {
                return Some(now.as_millis() as u64);
            }
            match gone.wake_at(now) {
                Some(next) if next <= at(to) => {
                    assert!(next > now, "nobody looks twice for nothing");
                    now = next;
                }
                _ => return None,
            }
        }
    }

    #[test]
    fn a_listed_node_that_does_not_answer_is_gone_at_the_bound() {
        let mut gone = bounded(10);
        gone.observe_list(["n1", "own"], at(0));
        assert_eq!(run(&mut gone, 0, 20_000), Some(10_000));
        assert!(!gone.is_listed("own"));
        gone.observe_list([], at(10_001));
        assert!(
            gone.gone(at(10_001)).is_empty(),
            "at once when it is off the list"
        );
        let mut least = bounded(0);
        least.observe_list(["n1"], at(0));
        assert_eq!(run(&mut least, 0, 20_000), Some(3_000));
    }

    #[test]
    fn an_answer_ends_it_at_once_and_begins_the_bound_anew() {
        let mut gone = bounded(10);
        gone.observe_list(["n1"], at(0));
        assert_eq!(run(&mut gone, 0, 20_000), Some(10_000));
        gone.answered("n1", at(10_100));
        assert!(gone.gone(at(10_100)).is_empty());
        gone.observe_list(["n1"], at(10_200));
        assert_eq!(run(&mut gone, 10_200, 30_000), Some(20_100));
    }

    #[test]
    fn without_a_renewed_list_asks_or_wakefulness_nothing_is_gone() {
        let mut gone = bounded(40);
        gone.observe_list(["n1"], at(0));
        assert_eq!(
            run(&mut gone, 0, 60_000),
            None,
            "the list is stale before the bound"
        );
        let mut unasked = bounded(10);
        unasked.observe_list(["n1"], at(0));
        for second in 0..29 {
            unasked.look(at(second * 1000));
            assert!(unasked.gone(at(second * 1000)).is_empty(), "it has no address");
        }
        let mut sleeper = bounded(10);
        sleeper.observe_list(["n1"], at(0));
        assert_eq!(run(&mut sleeper, 0, 9_000), None);
        assert_eq!(sleeper.look(at(25_000)).len(), 1);
        sleeper.asked("n1");
        assert!(sleeper.gone(at(25_000)).is_empty(), "nobody knows what it missed");
    }

    #[derive(Clone, Debug)]
    enum Move {
        List(bool),
        Answer,
        Pass(u64),
    }

    proptest! {
        /// Whatever comes in whatever order: gone means listed freshly, and silent for the bound, as a second reading of
        /// the same history has it.
        #[test]
        fn only_a_node_that_is_listed_and_silent_for_the_bound_is_gone(
            moves in prop::collection::vec(prop_oneof![
                any::<bool>().prop_map(Move::List),
                Just(Move::Answer),
                (1u64..4_000).prop_map(Move::Pass),
                (1u64..400).prop_map(Move::Pass),
            ], 0..200)
        ) {
            let mut gone = bounded(3);
            let (mut now, mut listed, mut renewed, mut quiet_since) = (0, None, None, 0);
            for step in moves {
                match step {
                    Move::List(with) => {
                        gone.observe_list(with.then_some("n1"), at(now));
                        listed = with.then(|| listed.unwrap_or(now));
                        renewed = Some(now);
                    }
                    Move::Answer => {
                        gone.answered("n1", at(now));
                        quiet_since = now;
                    }
                    Move::Pass(millis) => now += millis,
                }
                for name in gone.look(at(now)) {
                    gone.asked(&name);
                }
                if gone.gone(at(now)).contains("n1") {
                    prop_assert!(now - renewed.unwrap() <= 30_000);
                    prop_assert!(now - listed.unwrap() >= 3_000);
                    prop_assert!(now - quiet_since >= 3_000);
                }
            }
        }
    }
}
