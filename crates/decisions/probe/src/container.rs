//! Which of a container's probes may run, and what do they say together?
//!
//! Startup comes first: readiness and liveness wait until it has passed. After any call the due
//! times of all three may have changed.

use std::time::Duration;

use crate::kind::{Effects, Kind, Outcome, Verdict};
use crate::tick::Tick;
use crate::timing::{Pace, Timing};
use crate::worker::{Begun, Probe};

/// The probes of one container.
#[derive(Clone, Debug)]
pub struct Container {
    probes: [Option<Probe>; 3],
    sidecar: bool,
    running: bool,
    terminating: bool,
}

/// A container began to run, or was found running.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Start {
    /// How long ago it began.
    pub age: Duration,
    /// Set for a container found running after a restart of the agent.
    pub previous: Option<Previous>,
}

/// What was last known about a container that was found running.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Previous {
    /// Whether it was ready; a ready container stays ready until its probe says otherwise.
    pub ready: bool,
    /// Whether its startup probe had passed.
    pub started: bool,
    /// How long the agent runs.
    pub agent_age: Duration,
    /// A random number from 0 up to 1: which part of a period the first check waits, so that an
    /// agent that starts does not check everything at once.
    pub spread: f64,
}

impl Container {
    /// The probes of a container that does not run yet. `sidecar` is an init container that
    /// restarts: its liveness and startup probes go on while the pod terminates.
    pub fn new(probes: impl IntoIterator<Item = (Kind, Timing)>, sidecar: bool) -> Self {
        let mut slots = [None, None, None];
        for (kind, timing) in probes {
            slots[kind.slot()] = Some(Probe::new(kind, timing));
        }
        Self {
            probes: slots,
            sidecar,
            running: false,
            terminating: false,
        }
    }

    /// The probe of this kind, if the container has one.
    pub fn probe(&self, kind: Kind) -> Option<&Probe> {
        self.probes[kind.slot()].as_ref()
    }

    /// When the next check of this kind is due, if one is to come and none is under way.
    pub fn due(&self, kind: Kind) -> Option<Tick> {
        self.probe(kind)?.due()
    }

    /// Whether the container runs and its startup probe, if it has one, passed.
    pub fn is_started(&self) -> bool {
        let passed = self
            .probe(Kind::Startup)
            .is_none_or(|probe| probe.verdict() == Verdict::Success);
        self.running && passed
    }

    /// Whether the container runs, has started and, if it has a readiness probe, is ready by it.
    pub fn is_ready(&self) -> bool {
        let passed = self
            .probe(Kind::Readiness)
            .is_none_or(|probe| probe.verdict() == Verdict::Success);
        self.is_started() && passed
    }

    /// The container runs anew: every hold ends and nothing of the run before counts.
    pub fn start(&mut self, start: Start, now: Tick) {
        self.running = true;
        let previous = start.previous;
        for probe in self.probes.iter_mut().flatten() {
            let seeded = match probe.kind() {
                Kind::Readiness => previous.map(|previous| previous.ready && previous.started),
                Kind::Startup => previous.map(|previous| previous.started),
                Kind::Liveness => None,
            };
            probe.start(now - start.age, seeded);
        }
        let spread = |timing: &Timing| match previous {
            Some(previous) if previous.agent_age < timing.period => {
                timing.period.mul_f64(previous.spread.clamp(0.0, 1.0))
            }
            _ => Duration::ZERO,
        };
        if let Some(startup) = &mut self.probes[Kind::Startup.slot()] {
            let due = startup.first().max(now) + spread(startup.timing());
            startup.release(due);
        }
        if self.is_started() {
            for kind in [Kind::Readiness, Kind::Liveness] {
                if let Some(probe) = &mut self.probes[kind.slot()] {
                    let due = probe.first().max(now) + spread(probe.timing());
                    probe.release(due);
                }
            }
        }
    }

    /// The container no longer runs. Returns the readiness verdict if that changed it.
    pub fn stop(&mut self) -> Option<Verdict> {
        self.running = false;
        let mut readiness = None;
        for probe in self.probes.iter_mut().flatten() {
            readiness = readiness.or(probe.stop());
        }
        readiness
    }

    /// The pod is to go: nothing restarts its containers any more, but whether they can still
    /// serve is asked until they stop.
    pub fn terminate(&mut self) {
        self.terminating = true;
        if self.sidecar {
            return;
        }
        for kind in [Kind::Liveness, Kind::Startup] {
            if let Some(probe) = &mut self.probes[kind.slot()] {
                probe.end();
            }
        }
    }

    /// Whether the pod is to go.
    pub fn is_terminating(&self) -> bool {
        self.terminating
    }

    /// Asks a readiness probe that does not say success to check now.
    pub fn poke(&mut self, now: Tick) {
        if let Some(probe) = &mut self.probes[Kind::Readiness.slot()] {
            probe.poke(now);
        }
    }

    /// The factor by which periods are stretched has changed by `ratio` and is that of `pace` now: so do the waits for
    /// the next checks, except for those of first checks. `place`, from 0 up to 1, is the part of a period after which
    /// this container is checked when all are dealt out anew; those of many containers have to be evenly spread.
    pub fn rescale(&mut self, ratio: f64, place: f64, now: Tick, pace: Pace) {
        for probe in self.probes.iter_mut().flatten() {
            probe.rescale(ratio, place, now, pace);
        }
    }

    /// Begins a check, if one is due and none is under way. Every begun check must be finished.
    pub fn begin(&mut self, kind: Kind, now: Tick, pace: Pace) -> Option<Begun> {
        self.probes[kind.slot()].as_mut()?.begin(now, pace)
    }

    /// Takes the outcome of the check under way.
    pub fn finish(&mut self, kind: Kind, outcome: Outcome, now: Tick, pace: Pace) -> Effects {
        let Some(probe) = &mut self.probes[kind.slot()] else {
            return Effects::default();
        };
        let effects = probe.finish(outcome, now, pace);
        if kind == Kind::Startup && effects.verdict == Some(Verdict::Success) {
            self.release(now, pace);
        }
        effects
    }

    /// The startup probe passed. Readiness is asked at once; liveness, which the startup probe has
    /// just answered in effect, at its next point of the grid.
    fn release(&mut self, now: Tick, pace: Pace) {
        if let Some(readiness) = &mut self.probes[Kind::Readiness.slot()] {
            let due = readiness.first().max(now);
            readiness.release(due);
        }
        if let Some(liveness) = &mut self.probes[Kind::Liveness.slot()] {
            let period = liveness.timing().period.mul_f64(pace.stretch.max(1.0));
            let first = liveness.first();
            let due = if first >= now {
                first
            } else {
                first.advanced(period, now) + period
            };
            liveness.release(due);
        }
    }
}
