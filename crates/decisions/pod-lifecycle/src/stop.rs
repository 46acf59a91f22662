//! How is a container brought to its end: hook, signal, patience, kill?

use crate::action::{Action, PodEvent};
use crate::fact::Now;
use crate::unit::{Run, Unit};
use std::time::Duration;

/// A container always has this long between the signal and the kill (kubelet's
/// `minimumGracePeriodInSeconds`).
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// A kill that had no effect is repeated after this long.
const KILL_AGAIN: Duration = Duration::from_secs(5);

/// A container's end under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stop {
    step: Step,
    /// When the next step comes by itself.
    pub(crate) until: Duration,
    /// When patience ends.
    deadline: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The pre-stop hook runs.
    Hook,
    /// The hook is over, the signal has to be sent.
    HookDone,
    /// The signal was sent.
    Signalled,
    /// The kill was sent.
    Killed,
}

impl Stop {
    /// The hook is over.
    pub(crate) fn hook_done(&mut self) {
        if self.step == Step::Hook {
            self.step = Step::HookDone;
        }
    }

    /// Patience ends earlier.
    pub(crate) fn shorten(&mut self, deadline: Duration) {
        self.deadline = self.deadline.min(deadline);
        if matches!(self.step, Step::Hook | Step::Signalled) {
            self.until = self.until.min(self.deadline);
        }
    }
}

/// Takes the next step towards the end of a running container; the first one if there was none.
pub(crate) fn advance(unit: &mut Unit, deadline: Duration, why: &str, now: Now, actions: &mut Vec<Action>) {
    let has_hook = unit.spec.lifecycle.pre_stop.is_some();
    let Run::Running(running) = &mut unit.run else {
        return;
    };
    let (name, run) = (unit.name.clone(), running.run);
    let signal = |stop_deadline: Duration| Stop {
        step: Step::Signalled,
        until: stop_deadline.max(now.mono + LEAST_GRACE),
        deadline: stop_deadline,
    };
    let Some(stop) = running.stop else {
        actions.push(Action::Record(PodEvent::normal(
            "Killing",
            format!("{why} {name}"),
        )));
        // Until its post-start hook is done, a container is not up, and its pre-stop hook has nothing to stop.
        if has_hook && !running.hook_pending && deadline > now.mono {
            running.stop = Some(Stop {
                step: Step::Hook,
                until: deadline,
                deadline,
            });
            let within = deadline - now.mono;
            actions.push(Action::PreStop {
                container: name,
                run,
                within,
            });
        } else {
            running.stop = Some(signal(deadline));
            actions.push(Action::Signal { container: name, run });
        }
        return;
    };
    match stop.step {
        Step::Hook if now.mono < stop.until => {}
        Step::Hook | Step::HookDone => {
            running.stop = Some(signal(stop.deadline));
            actions.push(Action::Signal { container: name, run });
        }
        Step::Signalled | Step::Killed if now.mono < stop.until => {}
        Step::Signalled | Step::Killed => {
            running.stop = Some(Stop {
                step: Step::Killed,
                until: now.mono + KILL_AGAIN,
                deadline: stop.deadline,
            });
            actions.push(Action::Kill { container: name, run });
        }
    }
}
