//! How long may a connection be open without a request?

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a client may be quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Until the head of its first request has come.
    pub first: Duration,
    /// After an answer has ended, until the head of the next request has come.
    pub next: Duration,
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(crate) struct Quiet(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Requests whose answers have not ended.
    open: usize,
    has_asked: bool,
    /// When the connection, or the last answer that ended, was at its end.
    since: Instant,
}

/// What a connection that was quiet for too long was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    NeverAsked,
    Idle,
}

impl State {
    /// The moment from which on it may be too long, as far as is known at `now`.
    fn due(self, patience: Patience, now: Instant) -> Instant {
        match (self.open, self.has_asked) {
            (0, true) => self.since + patience.next,
            (0, false) => self.since + patience.first,
            // It cannot be idle for so long before that.
            _ => now + patience.next,
        }
    }

    fn too_long(self, patience: Patience, now: Instant) -> Option<TooLong> {
        let over = self.open == 0 && self.due(patience, now) <= now;
        over.then_some(match self.has_asked {
            true => TooLong::Idle,
            false => TooLong::NeverAsked,
        })
    }
}

impl Quiet {
    pub fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            open: 0,
            has_asked: false,
            since: now,
        })))
    }

    /// A request has come; its answer ends when the value is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        let mut state = self.lock();
        state.open += 1;
        state.has_asked = true;
        drop(state);
        Busy(self.clone())
    }

    /// Waits until nothing was asked for too long. Requests cost it nothing: it looks again when it could be so.
    pub async fn too_long(&self, patience: Patience) -> TooLong {
        loop {
            let (state, now) = (*self.lock(), Instant::now());
            if let Some(over) = state.too_long(patience, now) {
                return over;
            }
            tokio::time::sleep_until(state.due(patience, now)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Quiet>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open -= 1;
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        first: Duration::from_secs(10),
        next: Duration::from_secs(90),
    };

    #[tokio::test(start_paused = true)]
    async fn the_first_request_is_awaited_for_less_time_than_the_next() {
        let began = Instant::now();
        let quiet = Quiet::new(began);
        assert_eq!(quiet.too_long(PATIENCE).await, TooLong::NeverAsked);
        assert_eq!(began.elapsed().as_secs(), 10);
        drop(quiet.begin());
        assert_eq!(quiet.too_long(PATIENCE).await, TooLong::Idle);
        assert_eq!(began.elapsed().as_secs(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_go_on_and_then_the_wait_begins_anew() {
        let began = Instant::now();
        let quiet = Quiet::new(began);
        let (watch, short) = (quiet.begin(), quiet.begin());
        drop(short);
        let ends = async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(watch);
        };
        let (over, ()) = tokio::join!(quiet.too_long(PATIENCE), ends);
        assert_eq!(over, TooLong::Idle);
        assert_eq!(began.elapsed().as_secs(), 3690);
    }
}
