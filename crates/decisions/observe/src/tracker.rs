//! How far are rules that another program writes?
//!
//! Changes are folded in steps, each with the watermark that holds once it is in force. A [`Tracker`] keeps for every
//! Service the state its rules are known to say, and the later states that they have yet to say. kube-proxy may skip
//! states, never the order, so rules that say a later state have said the earlier ones too.
//!
//! - A step is said when no Service has yet to say it or an earlier one, and every rule that anybody touched since was
//!   read and found right. Until then the watermark stands.
//! - A change that leads to the same rules as before leaves no trace, and counts as said.
//! - A state that returns (ready, not ready, ready) can be read without that kube-proxy knows of it: it counts once
//!   it has been there for [`SETTLED`] and everything older has been said. So does a state that refuses
//!   packets to what was another Service's when kube-proxy may have written last: it may be that one that refuses them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pointsman_dataplane::trigger::Trigger;
use pointsman_dataplane::{Change, ServiceState, Watermark};
use pointsman_iptables::name::{ChainName, NameHash, Role};
use pointsman_model::{Address, ServiceName};

use crate::place::{Content, Key, Place, Statement, difference};

/// How long a state that returned has to stand: five times kube-proxy's least time between two syncs, by default.
pub const SETTLED: Duration = Duration::from_secs(5);
/// States that a Service may have yet to say; more are seen as fewer and longer steps.
const STATES: usize = 16;
/// Steps that may be yet to be said; more are seen as fewer and longer ones.
const STEPS: usize = 4096;
/// Samples of latency that a step keeps.
const TRIGGERS: usize = 4096;

/// Changes that came together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Everything up to here is in the rules, once the step is said.
    pub watermark: Watermark,
    pub triggers: Vec<Trigger>,
}

/// Rules that have yet to say something, or no longer say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The Service whose rules have been so for longest; none if what all Services share is missing.
    pub service: Option<ServiceName>,
    pub since: Instant,
    /// In what its rules differ.
    pub differs: String,
    /// How many Services there are of this kind.
    pub services: usize,
}

/// Each of kube-proxy's modes says what it says in its own words.
#[derive(Debug)]
pub struct Language<A> {
    /// What rules say about a Service in a state.
    pub statement: fn(Option<&ServiceState<A>>) -> Statement<A>,
    /// The chains that others of the Service lead to, where their names do not say whose they are.
    pub parts: fn(&ServiceState<A>) -> Vec<NameHash>,
}

type State<A> = Option<Arc<ServiceState<A>>>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Tracker<A> {
    language: Language<A>,
    services: HashMap<ServiceName, Watched<A>>,
    owners: Owners<A>,
    /// Services whose rules have to be read.
    doubtful: BTreeSet<ServiceName>,
    /// Services that have yet to say something, by the first step of it.
    unsaid: BTreeSet<(u64, ServiceName)>,
    /// Services whose rules no longer say what they said.
    lost: BTreeMap<ServiceName, Instant>,
    /// What all Services share, if it is missing.
    ground: Option<(Instant, String)>,
    steps: VecDeque<Step>,
    /// The number of the first of these steps.
    first: u64,
}

#[derive(Debug)]
struct Watched<A> {
    said: State<A>,
    pending: VecDeque<Pending<A>>,
    /// The rules say the newest state, and have said it before.
    returned: bool,
    differs: String,
}

#[derive(Debug)]
struct Pending<A> {
    state: State<A>,
    step: u64,
    since: Instant,
}

impl<A> Default for Watched<A> {
    fn default() -> Self {
        Self {
            said: None,
            pending: VecDeque::new(),
            returned: false,
            differs: String::new(),
        }
    }
}

impl<A: Address> Tracker<A> {
    pub fn new(language: Language<A>) -> Self {
        Self {
            language,
            services: HashMap::new(),
            owners: Owners::default(),
            doubtful: BTreeSet::new(),
            unsaid: BTreeSet::new(),
            lost: BTreeMap::new(),
            ground: None,
            steps: VecDeque::new(),
            first: 0,
        }
    }

    /// Takes in what rules have to say from now on.
    pub fn fold(&mut self, now: Instant, changes: Vec<Change<A>>, step: Step) {
        let number = self.begin(step);
        // A destination may go from one Service to another within a step.
        for Change { name, after, .. } in &changes {
            let latest = self.services.get(name).and_then(Watched::latest);
            if latest != after.as_ref() {
                let (before, after) = (self.said_in(latest), self.said_in(after.as_ref()));
                self.owners.replace(name, &before, &after, number);
            }
        }
        for Change { name, after, .. } in &changes {
            let parts = |state: Option<&Arc<_>>| state.map_or(Vec::new(), |it| (self.language.parts)(it));
            let latest = self.services.get(name).and_then(Watched::latest);
            self.owners
                .replace_parts(name, parts(latest), parts(after.as_ref()));
        }
        for Change { name, after, .. } in changes {
            let latest = self.services.get(&name).and_then(Watched::latest);
            if latest == after.as_ref() {
                continue;
            }
            let mut before = self.said_in(latest);
            before.retain(|place, _| !self.is_of_other(&name, place));
            let leaves_trace = before != self.said_in(after.as_ref());
            let watched = self.services.entry(name.clone()).or_default();
            if leaves_trace {
                watched.push(Pending {
                    state: after,
                    step: number,
                    since: now,
                });
                self.unsaid.insert((watched.pending[0].step, name.clone()));
                self.doubtful.insert(name.clone());
            } else {
                watched.replace_latest(after);
            }
            self.forget_if_gone(&name);
        }
    }

    fn said_in(&self, state: Option<&Arc<ServiceState<A>>>) -> Statement<A> {
        (self.language.statement)(state.map(|state| &**state))
    }

    /// Whether what is said at a place is another Service's to say.
    fn is_of_other(&self, name: &ServiceName, place: &Place<A>) -> bool {
        match place {
            Place::Element(_, key) => self.owners.keys.get(key).is_some_and(|owner| owner != name),
            Place::Chain(_) => false,
        }
    }

    /// The number of a new step. Of very many, the newest is made longer.
    fn begin(&mut self, step: Step) -> u64 {
        if self.steps.len() < STEPS {
            self.steps.push_back(step);
        } else if let Some(last) = self.steps.back_mut() {
            last.watermark = step.watermark;
            let room = TRIGGERS.saturating_sub(last.triggers.len());
            last.triggers.extend(step.triggers.into_iter().take(room));
        }
        self.first + self.steps.len() as u64 - 1
    }

    /// Somebody has written rules of this Service.
    pub fn doubt(&mut self, name: &ServiceName) {
        if self.services.contains_key(name) {
            self.doubtful.insert(name.clone());
        }
    }

    /// Somebody has written a rule about a destination.
    pub fn doubt_key(&mut self, key: &Key<A>) {
        if let Some(name) = self.owners.keys.get(key) {
            self.doubtful.insert(name.clone());
        }
    }

    /// Somebody has written a chain.
    pub fn doubt_chain(&mut self, chain: &str) {
        let part = || match ChainName::parse(chain)? {
            ChainName::Service(Role::Endpoint, hash) => self.owners.parts.get(&hash),
            _ => None,
        };
        if let Some(name) = self.owners.chains.get(chain).or_else(part) {
            self.doubtful.insert(name.clone());
        }
    }

    /// Somebody has written rules: they may say what they had yet to say.
    pub fn doubt_unsaid(&mut self) {
        self.doubtful
            .extend(self.unsaid.iter().map(|(_, name)| name.clone()));
    }

    /// Nobody knows what was written.
    pub fn doubt_all(&mut self) {
        self.doubtful.extend(self.services.keys().cloned());
    }

    /// What to read next: a Service, and the places where its rules may say something.
    pub fn question(&self) -> Option<(ServiceName, BTreeSet<Place<A>>)> {
        let name = self.doubtful.first()?;
        let watched = self.services.get(name)?;
        let states = watched.pending.iter().map(|pending| &pending.state);
        let statements = states
            .chain([&watched.said])
            .map(|state| self.said_in(state.as_ref()));
        Some((name.clone(), statements.flat_map(Statement::into_keys).collect()))
    }

    /// Takes in what the rules of a Service say.
    pub fn observe(&mut self, now: Instant, name: &ServiceName, found: &Statement<A>) {
        self.doubtful.remove(name);
        let Some(mut watched) = self.services.remove(name) else {
            return;
        };
        if let Some(first) = watched.pending.front() {
            self.unsaid.remove(&(first.step, name.clone()));
        }
        let differing = |state: Option<&_>| self.differing(name, &self.said_in(state), found);
        let moved = differing(watched.said.as_ref()).is_some();
        let says = |pending: &Pending<A>| differing(pending.state.as_ref()).is_none();
        let own = !self.has_contested(&watched);
        if moved
            && own
            && let Some(at) = watched.pending.iter().position(says)
        {
            let said = watched.pending.drain(..=at).next_back();
            watched.said = said.and_then(|pending| pending.state);
        }
        let differs = differing(watched.latest());
        watched.returned = differs.is_none() && !watched.pending.is_empty();
        if watched.pending.is_empty() && differs.is_some() {
            self.lost.entry(name.clone()).or_insert(now);
        } else {
            self.lost.remove(name);
        }
        watched.differs = differs.unwrap_or_default();
        if let Some(first) = watched.pending.front() {
            self.unsaid.insert((first.step, name.clone()));
        }
        self.services.insert(name.clone(), watched);
        self.forget_if_gone(name);
    }

    /// Whether a Service said, or has yet to say, something that another may say as well: of destinations that have changed
    /// hands, and in words that do not tell whose they are.
    fn has_contested(&self, watched: &Watched<A>) -> bool {
        let is_contested = |(place, content): (&Place<A>, &Content<A>)| {
            let nameless = matches!(content, Content::Rejects | Content::Drops);
            nameless
                && place
                    .key()
                    .is_some_and(|key| self.owners.contested.contains_key(key))
        };
        let pending = watched.pending.iter().map(|pending| &pending.state);
        let mut states = pending.chain([&watched.said]);
        !self.owners.contested.is_empty()
            && states.any(|state| self.said_in(state.as_ref()).iter().any(is_contested))
    }

    /// In what rules differ from a statement. A destination that another Service has by now is not looked at.
    fn differing(&self, name: &ServiceName, desired: &Statement<A>, found: &Statement<A>) -> Option<String> {
        let surplus = found.keys().filter(|place| !desired.contains_key(*place));
        let surplus = surplus.filter(|place| !self.is_of_other(name, place));
        let mut places = desired.keys().chain(surplus);
        let place = places.find(|place| desired.get(*place) != found.get(*place))?;
        Some(difference(place, desired.get(place), found.get(place)))
    }

    /// Takes in whether what all Services share is there, or what of it is missing.
    pub fn observe_ground(&mut self, now: Instant, missing: Option<String>) {
        self.ground = missing.map(|what| (self.ground.as_ref().map_or(now, |(since, _)| *since), what));
    }

    /// Whether what all Services share was missing when it was looked at last.
    pub const fn lacks_ground(&self) -> bool {
        self.ground.is_some()
    }

    /// When to ask again, should nothing happen.
    pub fn wake(&self) -> Option<Instant> {
        let (_, name) = self.unsaid.first()?;
        self.services[name].settled_at()
    }

    /// The steps that have been said since this was asked.
    pub fn said(&mut self, now: Instant) -> Vec<Step> {
        if !self.doubtful.is_empty() {
            return Vec::new();
        }
        while let Some((step, name)) = self.unsaid.first().cloned()
            && let Some(watched) = self.services.get_mut(&name)
            && watched.settled_at().is_some_and(|at| at <= now)
        {
            watched.said = watched
                .pending
                .drain(..)
                .next_back()
                .and_then(|pending| pending.state);
            watched.returned = false;
            self.unsaid.remove(&(step, name.clone()));
            self.forget_if_gone(&name);
        }
        let shared_is_missing = self.ground.is_some() && !self.services.is_empty();
        if !self.lost.is_empty() || shared_is_missing {
            return Vec::new();
        }
        let until = self.unsaid.first().map(|(step, _)| *step);
        let count = until.map_or(self.steps.len(), |until| (until - self.first) as usize);
        self.first += count as u64;
        self.owners.settle(self.first);
        self.steps.drain(..count).collect()
    }

    /// Whose rules have been wrong for longest.
    pub fn behind(&self) -> Option<Behind> {
        let services = self.unsaid.len() + self.lost.len();
        if let Some((since, what)) = self.ground.as_ref().filter(|_| !self.services.is_empty()) {
            return Some(Behind {
                service: None,
                since: *since,
                differs: what.clone(),
                services,
            });
        }
        let unsaid = self
            .unsaid
            .first()
            .map(|(_, name)| (self.services[name].pending[0].since, name));
        let lost = self.lost.iter().map(|(name, since)| (*since, name)).min();
        let (since, name) = unsaid.into_iter().chain(lost).min()?;
        Some(Behind {
            service: Some(name.clone()),
            since,
            differs: self.services[name].differs.clone(),
            services,
        })
    }

    fn forget_if_gone(&mut self, name: &ServiceName) {
        let gone = |watched: &Watched<A>| watched.said.is_none() && watched.pending.is_empty();
        if self.services.get(name).is_some_and(gone) {
            self.services.remove(name);
            self.doubtful.remove(name);
            self.lost.remove(name);
        }
    }
}

impl<A> Watched<A> {
    /// The state that rules are to say in the end.
    fn latest(&self) -> Option<&Arc<ServiceState<A>>> {
        let newest = self.pending.back().map_or(&self.said, |pending| &pending.state);
        newest.as_ref()
    }

    fn replace_latest(&mut self, state: State<A>) {
        match self.pending.back_mut() {
            Some(pending) => pending.state = state,
            None => self.said = state,
        }
    }

    /// Of very many states, the last but one is left out.
    fn push(&mut self, mut pending: Pending<A>) {
        if self.pending.len() >= STATES
            && let Some(skipped) = self.pending.pop_back()
        {
            (pending.step, pending.since) = (skipped.step, skipped.since);
        }
        self.pending.push_back(pending);
        self.returned = false;
    }

    /// When a state that returned counts.
    fn settled_at(&self) -> Option<Instant> {
        let newest = self.pending.back().filter(|_| self.returned)?;
        Some(newest.since + SETTLED)
    }
}

/// Which Service destinations and chains belong to, by what was folded last.
#[derive(Debug)]
struct Owners<A> {
    keys: HashMap<Key<A>, ServiceName>,
    chains: HashMap<Box<str>, ServiceName>,
    /// Whose chains others lead to, of which there is one for each endpoint.
    parts: HashMap<NameHash, ServiceName>,
    /// Destinations that a Service gave up, and the step in which it did so last, until that is said.
    contested: HashMap<Key<A>, u64>,
    /// The same in the order of the steps.
    given_up: VecDeque<(u64, Key<A>)>,
}

impl<A> Default for Owners<A> {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            chains: HashMap::new(),
            parts: HashMap::new(),
            contested: HashMap::new(),
            given_up: VecDeque::new(),
        }
    }
}

impl<A: Address> Owners<A> {
    fn replace(&mut self, name: &ServiceName, before: &Statement<A>, after: &Statement<A>, step: u64) {
        let kept: HashSet<&Key<A>> = after.keys().filter_map(Place::key).collect();
        for place in before.keys() {
            match place {
                Place::Element(_, key) if self.keys.get(key) == Some(name) => {
                    if !kept.contains(key) {
                        self.give_up(*key, step);
                    }
                    self.keys.remove(key);
                }
                Place::Element(..) => {}
                Place::Chain(chain) => drop(self.chains.remove(&**chain)),
            }
        }
        for place in after.keys() {
            match place {
                Place::Element(_, key) => {
                    let before = self.keys.insert(*key, name.clone());
                    if before.is_some_and(|before| before != *name) {
                        self.give_up(*key, step);
                    }
                }
                Place::Chain(chain) => drop(self.chains.insert(chain.as_str().into(), name.clone())),
            }
        }
    }

    fn replace_parts(&mut self, name: &ServiceName, before: Vec<NameHash>, after: Vec<NameHash>) {
        for part in before {
            self.parts.remove(&part);
        }
        self.parts
            .extend(after.into_iter().map(|part| (part, name.clone())));
    }

    fn give_up(&mut self, key: Key<A>, step: u64) {
        if self.contested.insert(key, step) != Some(step) {
            self.given_up.push_back((step, key));
        }
    }

    /// Forgets what was given up before the first step that is not said.
    fn settle(&mut self, first: u64) {
        while let Some((step, key)) = self.given_up.pop_front_if(|(step, _)| *step < first) {
            if self.contested.get(&key) == Some(&step) {
                self.contested.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
