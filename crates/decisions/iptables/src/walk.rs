//! What do the rules do to a packet?
//!
//! Walks the first packet of a connection through the hooks in the kernel's order. Where a rule throws
//! dice or looks up a client, both outcomes are followed, so the result holds every endpoint that can be
//! reached.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_dataplane::{Fate, Host, Packet, SeenAs};
use pointsman_model::{Address, Backend};

use crate::fake::FakeKernel;
use crate::name::{Builtin, ChainName, Table};
use crate::rule::{ConnectionState, Match, Rule, Target};

/// Chains call each other at most this deep; the kernel refuses loops.
const DEEPEST: usize = 16;

/// The fate of a packet under the rules of a kernel.
pub fn walk<A: Address>(rules: &FakeKernel<A>, host: &Host<A>, packet: &Packet<A>) -> Fate<A> {
    let walker = Walker { rules, host, packet };
    let mut outcomes = BTreeSet::new();
    for state in walker.translate() {
        outcomes.insert(walker.finish(state));
    }
    merge(outcomes)
}

/// One way the packet can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End<A> {
    Delivered(Backend<A>, SeenAs),
    Untouched,
    Dropped,
    Rejected,
}

fn merge<A: Address>(outcomes: BTreeSet<End<A>>) -> Fate<A> {
    let mut backends = BTreeMap::new();
    let mut other = None;
    for outcome in outcomes {
        match outcome {
            End::Delivered(backend, seen_as) => drop(backends.insert(backend, seen_as)),
            End::Untouched => other = Some(Fate::Untouched),
            End::Dropped => other = Some(Fate::Dropped),
            End::Rejected => other = Some(Fate::Rejected),
        }
    }
    // Rules that sometimes deliver and sometimes do not are wrong; the worse half shows it.
    other.unwrap_or(Fate::Delivered(backends))
}

/// What the packet carries from chain to chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State<A> {
    mark: u32,
    destination: Option<Backend<A>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The chain ended without a decision.
    Continue,
    Accept,
    Drop,
    Reject,
    Masquerade,
}

struct Walker<'a, A> {
    rules: &'a FakeKernel<A>,
    host: &'a Host<A>,
    packet: &'a Packet<A>,
}

impl<A: Address> Walker<'_, A> {
    /// The nat table on the way in.
    fn translate(&self) -> Vec<State<A>> {
        let hook = if self.host.sends(self.packet) {
            Builtin::Output
        } else {
            Builtin::Prerouting
        };
        let start = State {
            mark: 0,
            destination: None,
        };
        let ends = self.chain(Table::Nat, ChainName::Builtin(hook), start, 0);
        ends.into_iter().map(|(state, _)| state).collect()
    }

    /// The filter table, and the nat table on the way out.
    fn finish(&self, state: State<A>) -> End<A> {
        let local = self.host.is_local(self.destination(&state).address);
        let hooks: &[Builtin] = match (self.host.sends(self.packet), local) {
            (true, false) => &[Builtin::Output],
            // The packet loops back through the loopback interface.
            (true, true) => &[Builtin::Output, Builtin::Input],
            (false, true) => &[Builtin::Input],
            (false, false) => &[Builtin::Forward],
        };
        for hook in hooks {
            let ends = self.chain(Table::Filter, ChainName::Builtin(*hook), state, 0);
            for (_, verdict) in ends {
                match verdict {
                    Verdict::Drop => return End::Dropped,
                    Verdict::Reject => return End::Rejected,
                    Verdict::Accept | Verdict::Continue | Verdict::Masquerade => {}
                }
            }
        }
        let Some(backend) = state.destination else {
            return End::Untouched;
        };
        let leaving = self.chain(Table::Nat, ChainName::Builtin(Builtin::Postrouting), state, 0);
        let masqueraded = leaving.iter().any(|(_, verdict)| *verdict == Verdict::Masquerade);
        End::Delivered(backend, if masqueraded { SeenAs::Node } else { SeenAs::Client })
    }

    /// Every way through a chain.
    fn chain(
        &self,
        table: Table,
        chain: ChainName,
        state: State<A>,
        depth: usize,
    ) -> Vec<(State<A>, Verdict)> {
        assert!(depth < DEEPEST, "chains call each other in a circle");
        let rules = self.rules.chain(table, chain).unwrap_or_default();
        let mut ends = Vec::new();
        let mut walking = vec![state];
        for rule in rules {
            let mut still_walking = Vec::new();
            for state in walking {
                let (matched, passed) = self.branches(rule, &state);
                if passed {
                    still_walking.push(state);
                }
                if matched {
                    for (state, verdict) in self.target(table, rule, state, depth) {
                        match verdict {
                            None => still_walking.push(state),
                            Some(verdict) => ends.push((state, verdict)),
                        }
                    }
                }
            }
            walking = still_walking;
            walking.dedup();
        }
        ends.extend(walking.into_iter().map(|state| (state, Verdict::Continue)));
        ends
    }

    /// What a matching rule does; `None` goes on with the next rule.
    fn target(
        &self,
        table: Table,
        rule: &Rule<A>,
        state: State<A>,
        depth: usize,
    ) -> Vec<(State<A>, Option<Verdict>)> {
        let decided = |verdict| vec![(state, Some(verdict))];
        match &rule.target {
            Target::Nothing => vec![(state, None)],
            Target::Return => decided(Verdict::Continue),
            Target::Accept => decided(Verdict::Accept),
            Target::Drop => decided(Verdict::Drop),
            Target::Reject => decided(Verdict::Reject),
            Target::Masquerade => decided(Verdict::Masquerade),
            Target::Dnat(backend) => {
                vec![(
                    State {
                        destination: Some(*backend),
                        ..state
                    },
                    Some(Verdict::Accept),
                )]
            }
            Target::SetMark(mark) => vec![(
                State {
                    mark: state.mark | mark.get(),
                    ..state
                },
                None,
            )],
            Target::FlipMark(mark) => vec![(
                State {
                    mark: state.mark ^ mark.get(),
                    ..state
                },
                None,
            )],
            Target::Jump(chain) => self
                .chain(table, *chain, state, depth + 1)
                .into_iter()
                .map(|(state, verdict)| (state, (verdict != Verdict::Continue).then_some(verdict)))
                .collect(),
        }
    }

    /// Whether the rule can match and whether it can fail to.
    fn branches(&self, rule: &Rule<A>, state: &State<A>) -> (bool, bool) {
        let (mut matched, mut passed) = (true, false);
        for condition in &rule.matches {
            match condition {
                Match::OneIn(_) | Match::SeenBy(..) => passed = true,
                condition => matched &= self.holds(condition, state),
            }
        }
        (matched, passed || !matched)
    }

    fn holds(&self, condition: &Match<A>, state: &State<A>) -> bool {
        let destination = self.destination(state);
        let interface = self.packet.interface.as_ref().map_or("", |name| name.as_str());
        match condition {
            Match::Source(is, range) => is.agrees(range.contains(self.packet.source)),
            Match::Destination(is, range) => is.agrees(range.contains(destination.address)),
            Match::DestinationEnd(byte) => destination.address.octets().as_ref().last() == Some(byte),
            Match::Interface(is, name) => is.agrees(interface == name.as_str()),
            Match::InterfacePrefix(is, prefix) => is.agrees(interface.starts_with(prefix.as_str())),
            Match::Protocol(protocol) => self.packet.protocol == *protocol,
            Match::Port(protocol, port) => self.packet.protocol == *protocol && destination.port == *port,
            Match::FromThisNode => self.host.is_local(self.packet.source),
            Match::ToThisNode => self.host.is_local(destination.address),
            Match::State(is, states) => is.agrees(states.iter().any(|wanted| match wanted {
                ConnectionState::New => true,
                ConnectionState::Dnat => state.destination.is_some(),
                ConnectionState::Invalid | ConnectionState::Related | ConnectionState::Established => false,
            })),
            Match::Mark(is, mark) => is.agrees(state.mark & mark.get() == mark.get()),
            Match::TranslatedFrom(range) => {
                state.destination.is_some() && range.contains(self.packet.destination)
            }
            // Both outcomes of the first two were taken by the caller.
            Match::OneIn(_) | Match::SeenBy(..) | Match::NoteSeen(_) | Match::Counted(_) => true,
        }
    }

    fn destination(&self, state: &State<A>) -> Backend<A> {
        state.destination.unwrap_or(Backend {
            address: self.packet.destination,
            port: self.packet.port,
        })
    }
}

#[cfg(test)]
mod tests;
