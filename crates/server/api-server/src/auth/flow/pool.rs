//! Whose turn is it within one class?
//!
//! A pool has a number of seats. A request takes as many as its [`Width`] says. A user may hold at most seven eighths
//! of them, so that somebody else always finds one soon. While users wait, freed seats go to the one who holds the
//! fewest, and among equals to the one who has waited longest; where they are too few for that one, they are kept until
//! they are enough, or a wide request would wait for as long as there are narrow ones. Nobody may fill the queue alone,
//! and a waiter that gives up leaves it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How many seats a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Width(usize);

impl Width {
    /// The width of a request with a small body, or none.
    pub const ONE: Width = Width(1);
    /// Bytes of a body that come with one seat.
    const BYTES_PER_SEAT: usize = 64 << 10;

    /// The width of a request with a body of this many bytes.
    pub fn of_body(bytes: usize) -> Self {
        Width(1 + bytes / Self::BYTES_PER_SEAT)
    }

    /// The width of a list of this many objects. The bound is upstream's.
    pub fn of_list(objects: usize) -> Self {
        Width((1 + objects / 1_000).min(10))
    }

    /// The width of a watch whose parameters have this many bytes.
    pub fn of_query(bytes: usize) -> Self {
        Width(1 + bytes / 1024)
    }

    #[cfg(test)]
    pub(super) fn seats(seats: usize) -> Self {
        Width(seats)
    }
}

/// Why seats were not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many are waiting already.
    QueueFull,
    /// None came free in time.
    WaitedTooLong,
}

/// The seats of one class.
#[derive(Debug)]
pub(super) struct Pool {
    seats: usize,
    per_user: usize,
    queue_limit: usize,
    state: Mutex<State>,
}

/// The current numbers of a pool.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Requests that run.
    pub(super) running: usize,
    /// Seats that they hold.
    pub(super) seats: usize,
    pub(super) waiting: usize,
    pub(super) dispatched: u64,
    pub(super) rejected: u64,
    users: HashMap<Arc<str>, UserState>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct UserState {
    seats: usize,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    width: Width,
    grant: oneshot::Sender<Permit>,
}

/// The right to run; dropping it frees the seats.
#[derive(Debug)]
#[must_use = "dropping the permit frees the seats"]
pub struct Permit {
    pool: Arc<Pool>,
    user: Arc<str>,
    width: Width,
}

impl Permit {
    /// Gives back the seats beyond `width`, once it is known that the request needs no more.
    pub fn narrow(&mut self, width: Width) {
        if width < self.width {
            let spare = Width(self.width.0 - width.0);
            self.width = width;
            let granted = self.pool.state().narrow(&self.user, spare, &self.pool);
            self.pool.grant(granted);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let granted = self.pool.state().release(&self.user, self.width, &self.pool);
        self.pool.grant(granted);
    }
}

/// A waiter whose turn it is, and for whom the seats are taken already.
struct Granted {
    user: Arc<str>,
    waiter: Waiter,
}

impl Pool {
    /// A pool whose users share `seats`, with at most `queue_limit` waiting.
    pub(super) fn shared(seats: usize, queue_limit: usize) -> Arc<Self> {
        Arc::new(Self {
            seats,
            per_user: seats - seats / 8,
            queue_limit,
            state: Mutex::default(),
        })
    }

    /// A pool that only limits what each user holds, without waiting.
    pub(super) fn per_user(per_user: usize) -> Arc<Self> {
        Arc::new(Self {
            seats: usize::MAX,
            per_user,
            queue_limit: 0,
            state: Mutex::default(),
        })
    }

    /// Hands permits to waiters. Without the lock: one that has just given up drops its permit right here.
    fn grant(self: &Arc<Self>, granted: Vec<Granted>) {
        for Granted { user, waiter } in granted {
            let _ = waiter.grant.send(Permit {
                pool: self.clone(),
                user,
                width: waiter.width,
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the current numbers, all of one moment.
    pub(super) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state())
    }

    /// Takes seats, waiting up to `wait` for them.
    ///
    /// A request that is wider than one user's share takes the whole share: it runs alone rather than never.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        user: &str,
        width: Width,
        wait: Duration,
    ) -> Result<Permit, Refusal> {
        let width = width.min(Width(self.per_user));
        let (ticket, user, granted) = {
            let mut state = self.state();
            let user = state.user_key(user);
            if state.may_start(&user, width, self) {
                state.start(&user, width);
                return Ok(Permit {
                    pool: self.clone(),
                    user,
                    width,
                });
            }
            if !state.may_wait(&user, self) {
                state.rejected += 1;
                return Err(Refusal::QueueFull);
            }
            let (grant, granted) = oneshot::channel();
            (state.enqueue(&user, width, grant), user, granted)
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
    pool: &'a Arc<Pool>,
    user: &'a Arc<str>,
    ticket: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let granted = self.pool.state().leave(self.user, self.ticket, self.pool);
        self.pool.grant(granted);
    }
}

impl State {
    fn user_key(&mut self, user: &str) -> Arc<str> {
        match self.users.get_key_value(user) {
            Some((key, _)) => key.clone(),
            None => user.into(),
        }
    }

    /// Whether `user` may run at once: there are seats, their own share is not used up, and they overtake nobody who
    /// waits for seats alone. (Others wait because they are at their share.)
    fn may_start(&self, user: &str, width: Width, pool: &Pool) -> bool {
        let own = self.users.get(user);
        let held = own.map_or(0, |own| own.seats);
        let fits = |seats: usize, limit: usize| seats.saturating_add(width.0) <= limit;
        fits(self.seats, pool.seats)
            && fits(held, pool.per_user)
            && (self.waiting == 0 || own.is_none_or(|own| own.queue.is_empty()) && self.next(pool).is_none())
    }

    /// Whether `user` may join the queue: nobody may take up more than half of it.
    fn may_wait(&self, user: &str, pool: &Pool) -> bool {
        let own = self.users.get(user).map_or(0, |user| user.queue.len());
        self.waiting < pool.queue_limit && own < pool.queue_limit.div_ceil(2)
    }

    fn start(&mut self, user: &Arc<str>, width: Width) {
        self.running += 1;
        self.seats += width.0;
        self.dispatched += 1;
        self.users.entry(user.clone()).or_default().seats += width.0;
    }

    fn enqueue(&mut self, user: &Arc<str>, width: Width, grant: oneshot::Sender<Permit>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let queue = &mut self.users.entry(user.clone()).or_default().queue;
        queue.push_back(Waiter { ticket, width, grant });
        ticket
    }

    /// Frees all seats of a request of `user`; the waiters whose turn it is now must be told.
    fn release(&mut self, user: &Arc<str>, width: Width, pool: &Pool) -> Vec<Granted> {
        self.running -= 1;
        self.narrow(user, width, pool)
    }

    /// Frees some seats of a request of `user`; the waiters whose turn it is now must be told.
    fn narrow(&mut self, user: &Arc<str>, width: Width, pool: &Pool) -> Vec<Granted> {
        self.seats -= width.0;
        if let Some(state) = self.users.get_mut(user) {
            state.seats -= width.0;
        }
        self.forget_if_idle(user);
        self.advance(pool)
    }

    /// Takes seats for all whose turn it is.
    fn advance(&mut self, pool: &Pool) -> Vec<Granted> {
        let mut granted = Vec::new();
        while self.waiting > 0
            && let Some((user, width)) = self.next(pool)
            && self.seats.saturating_add(width.0) <= pool.seats
            && let Some(waiter) = self
                .users
                .get_mut(&user)
                .and_then(|state| state.queue.pop_front())
        {
            self.waiting -= 1;
            self.start(&user, width);
            granted.push(Granted { user, waiter });
        }
        granted
    }

    /// Whose turn it is among those within their share, whether there are seats or not.
    fn next(&self, pool: &Pool) -> Option<(Arc<str>, Width)> {
        let waiting = self.users.iter().filter_map(|(name, state)| {
            let first = state.queue.front()?;
            let within = state.seats.saturating_add(first.width.0) <= pool.per_user;
            within.then_some((state.seats, first.ticket, name, first.width))
        });
        let (_, _, user, width) = waiting.min_by_key(|(seats, ticket, ..)| (*seats, *ticket))?;
        Some((user.clone(), width))
    }

    /// Takes a waiter out of the queue. Others may have waited behind it for seats that are free.
    fn leave(&mut self, user: &Arc<str>, ticket: u64, pool: &Pool) -> Vec<Granted> {
        if let Some(state) = self.users.get_mut(user) {
            let before = state.queue.len();
            state.queue.retain(|waiter| waiter.ticket != ticket);
            self.waiting -= before - state.queue.len();
        }
        self.forget_if_idle(user);
        self.advance(pool)
    }

    /// Keeps the table as small as the number of users with something going on.
    fn forget_if_idle(&mut self, user: &Arc<str>) {
        let idle = |state: &UserState| state.seats == 0 && state.queue.is_empty();
        if self.users.get(user).is_some_and(idle) {
            self.users.remove(user);
        }
    }

    #[cfg(test)]
    pub(super) fn known_users(&self) -> usize {
        self.users.len()
    }
}
