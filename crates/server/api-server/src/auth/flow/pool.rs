//! Whose turn is it within one class?
//!
//! A pool has a number of slots. A user may hold at most seven eighths of them, so that somebody
//! else always finds one soon. While users wait, a freed slot goes to the one who holds the fewest,
//! and among equals to the one who has waited longest. Nobody may fill the queue alone, and a waiter
//! that gives up leaves it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Why a slot was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many are waiting already.
    QueueFull,
    /// None came free in time.
    WaitedTooLong,
}

/// The slots of one class.
#[derive(Debug)]
pub(super) struct Pool {
    slots: usize,
    per_user: usize,
    queue_limit: usize,
    state: Mutex<State>,
}

/// The current numbers of a pool.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) in_flight: usize,
    pub(super) waiting: usize,
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    users: HashMap<Arc<str>, UserState>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct UserState {
    in_flight: usize,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    grant: oneshot::Sender<Permit>,
}

/// The right to run; dropping it frees the slot.
#[derive(Debug)]
#[must_use = "dropping the permit frees the slot"]
pub struct Permit {
    pool: Arc<Pool>,
    user: Arc<str>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = self.pool.state().release(&self.user, &self.pool);
        // Sent without the lock: a waiter that has just given up drops its permit right here.
        if let Some((grant, user)) = next {
            let _ = grant.send(Permit {
                pool: self.pool.clone(),
                user,
            });
        }
    }
}

impl Pool {
    /// A pool whose users share `slots`, with at most `queue_limit` waiting.
    pub(super) fn shared(slots: usize, queue_limit: usize) -> Arc<Self> {
        let per_user = slots - slots / 8;
        Arc::new(Self {
            slots,
            per_user,
            queue_limit,
            state: Mutex::default(),
        })
    }

    /// A pool that only limits what each user holds, without waiting.
    pub(super) fn per_user(per_user: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: usize::MAX,
            per_user,
            queue_limit: 0,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the current numbers, all of one moment.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state())
    }

    /// Takes a slot, waiting up to `wait` for one.
    pub(super) async fn acquire(self: &Arc<Self>, user: &str, wait: Duration) -> Result<Permit, Refusal> {
        let (ticket, user, granted) = {
            let mut state = self.state();
            let user = state.user_key(user);
            if state.may_start(&user, self) {
                state.start(&user);
                return Ok(Permit {
                    pool: self.clone(),
                    user,
                });
            }
            if !state.may_wait(&user, self) {
                state.rejected += 1;
                return Err(Refusal::QueueFull);
            }
            let (grant, granted) = oneshot::channel();
            (state.enqueue(&user, grant), user, granted)
        };
        let leaving = Leaving {
            pool: self,
            user: &user,
            ticket,
        };
        match tokio::time::timeout(wait, granted).await {
            Ok(Ok(permit)) => {
                // The queue entry is gone already; the guard finds nothing to remove.
                drop(leaving);
                Ok(permit)
            }
            Ok(Err(_)) | Err(_) => {
                self.state().rejected += 1;
                Err(Refusal::WaitedTooLong)
            }
        }
    }
}

/// Removes a waiter from the queue when its request is dropped or times out.
struct Leaving<'a> {
    pool: &'a Pool,
    user: &'a Arc<str>,
    ticket: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.pool.state().leave(self.user, self.ticket);
    }
}

impl State {
    fn user_key(&mut self, user: &str) -> Arc<str> {
        match self.users.get_key_value(user) {
            Some((key, _)) => key.clone(),
            None => user.into(),
        }
    }

    /// Whether `user` may take a slot without waiting: one is free, their own share is not used up,
    /// and they overtake nobody. Others only wait while slots are free when they are at their share.
    fn may_start(&self, user: &str, pool: &Pool) -> bool {
        let held = self.users.get(user).map_or(0, |user| user.in_flight);
        self.in_flight < pool.slots && held < pool.per_user
    }

    /// Whether `user` may join the queue: nobody may take up more than half of it.
    fn may_wait(&self, user: &str, pool: &Pool) -> bool {
        let own = self.users.get(user).map_or(0, |user| user.queue.len());
        self.waiting < pool.queue_limit && own < pool.queue_limit.div_ceil(2)
    }

    fn start(&mut self, user: &Arc<str>) {
        self.in_flight += 1;
        self.dispatched += 1;
        self.users.entry(user.clone()).or_default().in_flight += 1;
    }

    fn enqueue(&mut self, user: &Arc<str>, grant: oneshot::Sender<Permit>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let waiter = Waiter { ticket, grant };
        self.users
            .entry(user.clone())
            .or_default()
            .queue
            .push_back(waiter);
        ticket
    }

    /// Frees a slot of `user` and gives it to the next waiter, who must be told.
    fn release(&mut self, user: &Arc<str>, pool: &Pool) -> Option<(oneshot::Sender<Permit>, Arc<str>)> {
        self.in_flight -= 1;
        if let Some(state) = self.users.get_mut(user) {
            state.in_flight -= 1;
        }
        self.forget_if_idle(user);
        if self.waiting == 0 || self.in_flight >= pool.slots {
            return None;
        }
        let candidates = self
            .users
            .iter()
            .filter(|(_, state)| state.in_flight < pool.per_user);
        let waiting = candidates.filter_map(|(name, state)| {
            let first = state.queue.front()?;
            Some(((state.in_flight, first.ticket), name))
        });
        let next = waiting
            .min_by_key(|(order, _)| *order)
            .map(|(_, name)| name.clone())?;
        let waiter = self.users.get_mut(&next)?.queue.pop_front()?;
        self.waiting -= 1;
        self.start(&next);
        Some((waiter.grant, next))
    }

    fn leave(&mut self, user: &Arc<str>, ticket: u64) {
        if let Some(state) = self.users.get_mut(user) {
            let before = state.queue.len();
            state.queue.retain(|waiter| waiter.ticket != ticket);
            self.waiting -= before - state.queue.len();
        }
        self.forget_if_idle(user);
    }

    /// Keeps the table as small as the number of users with something going on.
    fn forget_if_idle(&mut self, user: &Arc<str>) {
        let idle = |state: &UserState| state.in_flight == 0 && state.queue.is_empty();
        if self.users.get(user).is_some_and(idle) {
            self.users.remove(user);
        }
    }

    #[cfg(test)]
    pub(super) fn known_users(&self) -> usize {
        self.users.len()
    }
}
