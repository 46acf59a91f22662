//! How does a whole pod end?
//!
//! By itself, by its deadline, because somebody asked for it, or because its object is gone. The shutdown gate
//! comes first where traffic may still come, then containers, then sidecars, then what they shared.

use crate::action::Action;
use crate::fact::Now;
use crate::machine::Machine;
use crate::stop;
use crate::unit::{Role, Run, Unit};
use std::time::Duration;

/// Grace of a pod that was removed by force: the signal, and little more.
const FORCED_GRACE: Duration = Duration::from_secs(2);
/// Grace of a pod that has too much on disk (the kubelet's).
const EVICTED_GRACE: Duration = Duration::from_secs(1);
/// Patience with a gate beyond the bound that it was asked to keep.
const GATE_SLACK: Duration = Duration::from_secs(2);

/// Why the whole pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its containers are done.
    Completed,
    /// It was active for too long.
    Deadline,
    /// It has more on disk than it may.
    Evicted,
    /// Somebody asked for its end.
    Deleted,
    /// Its object is gone.
    Vanished,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gate {
    Unasked,
    Asked { until: Duration },
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Torn {
    NotYet { retry_at: Duration },
    Asked,
    Done,
}

/// The end of the whole pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ending {
    pub(crate) why: Why,
    /// Nobody wants to see it any more.
    pub(crate) deleted: bool,
    grace: Duration,
    pub(crate) gate: Gate,
    /// When the first container was asked to stop.
    begun: Option<Duration>,
    pub(crate) torn: Torn,
}

impl Machine {
    /// The pod's object is gone: whatever runs has to end now.
    pub fn vanish(&mut self) {
        self.begin_ending(Why::Vanished);
        if let Some(ending) = &mut self.ending {
            ending.why = Why::Vanished;
            ending.deleted = true;
            ending.gate = Gate::Open;
        }
        self.shorten(FORCED_GRACE);
    }

    pub(crate) fn delete(&mut self, grace: Duration) {
        match &mut self.ending {
            None => {
                self.begin_ending(Why::Deleted);
                if let Some(ending) = &mut self.ending {
                    ending.grace = grace;
                }
            }
            Some(ending) if ending.why == Why::Deleted => self.shorten(grace),
            Some(ending) => {
                // Nothing of it serves any more, so there is nobody to wait for.
                if ending.why != Why::Vanished {
                    ending.deleted = true;
                    ending.gate = Gate::Open;
                }
                self.shorten(grace);
            }
        }
    }

    /// A second request may leave less time, never more.
    fn shorten(&mut self, grace: Duration) {
        let Some(ending) = &mut self.ending else { return };
        ending.grace = ending.grace.min(grace);
        let Some(begun) = ending.begun else { return };
        let deadline = begun + ending.grace;
        for unit in &mut self.units {
            if let Run::Running(running) = &mut unit.run
                && let Some(stop) = &mut running.stop
            {
                stop.shorten(deadline);
            }
        }
    }

    pub(crate) fn begin_ending(&mut self, why: Why) {
        if self.ending.is_none() {
            self.ending = Some(Ending {
                why,
                deleted: matches!(why, Why::Deleted | Why::Vanished),
                grace: match why {
                    Why::Evicted => EVICTED_GRACE,
                    _ => self.grace(),
                },
                gate: Gate::Unasked,
                begun: None,
                torn: Torn::NotYet {
                    retry_at: Duration::ZERO,
                },
            });
        }
    }

    /// Takes the next steps towards the pod's end.
    pub(crate) fn end(&mut self, now: Now, actions: &mut Vec<Action>) {
        let serving = self.mains().any(|unit| unit.running().is_some());
        let Some(ending) = &mut self.ending else { return };
        if ending.gate == Gate::Unasked {
            ending.gate = match self.settings.gate {
                Some(bound) if self.is_gated && ending.why == Why::Deleted && serving => {
                    actions.push(Action::AskGate);
                    Gate::Asked {
                        until: now.mono + bound + GATE_SLACK,
                    }
                }
                _ => Gate::Open,
            };
        }
        if let Gate::Asked { until } = ending.gate {
            if now.mono < until {
                return;
            }
            ending.gate = Gate::Open;
        }
        let begun = *ending.begun.get_or_insert(now.mono);
        let deadline = begun + ending.grace;
        self.stop_units(deadline, now, actions);
        if self.any_alive() {
            return;
        }
        let Some(ending) = &mut self.ending else { return };
        if let Torn::NotYet { retry_at } = ending.torn
            // What has to go because of what it has on disk takes that along.
            && (ending.deleted || ending.why == Why::Evicted)
            && retry_at <= now.mono
        {
            ending.torn = Torn::Asked;
            actions.push(Action::TearDown);
        }
    }

    /// Containers first and all at once, then sidecars one by one, the last started first.
    fn stop_units(&mut self, deadline: Duration, now: Now, actions: &mut Vec<Action>) {
        let why = "Stopping container";
        for unit in self.units.iter_mut().filter(|unit| unit.role != Role::Sidecar) {
            stop::advance(unit, deadline, why, now, actions);
        }
        let busy = |unit: &Unit| unit.role != Role::Sidecar && unit.is_alive();
        if self.units.iter().any(busy) {
            return;
        }
        let mut sidecars = self.units.iter_mut().rev();
        if let Some(last) = sidecars.find(|unit| unit.is_alive()) {
            stop::advance(last, deadline, why, now, actions);
        }
    }
}
