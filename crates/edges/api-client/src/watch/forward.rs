//! How do events come from a watch to the task that owns the state they change?

use super::{BUNCH, Event, Watcher};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// No event for this long means that there are no more for now.
const MOMENT: Duration = Duration::from_millis(1);

impl<T: DeserializeOwned + Send + 'static> Watcher<T> {
    /// Sends every event, converted, until the receiver is gone.
    pub async fn forward<E>(
        mut self,
        sender: mpsc::Sender<E>,
        mut convert: impl FnMut(Event<T>) -> Option<E>,
    ) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                () = sender.closed() => return,
            };
            for event in std::iter::once(event).chain(std::mem::take(&mut self.ready)) {
                if let Some(event) = convert(event)
                    && sender.send(event).await.is_err()
                {
                    return;
                }
            }
        }
    }

    /// The same, with events that arrived together sent together: lists cost one wake-up for many objects.
    pub async fn forward_together<E>(
        mut self,
        sender: mpsc::Sender<Vec<E>>,
        mut convert: impl FnMut(Event<T>) -> Option<E>,
    ) {
        loop {
            let event = tokio::select! {
                event = self.next() => event,
                () = sender.closed() => return,
            };
            let arrived = std::iter::once(event).chain(self.ready.drain(..));
            let events: Vec<E> = arrived.filter_map(&mut convert).collect();
            if !events.is_empty() && sender.send(events).await.is_err() {
                return;
            }
        }
    }
}

/// Gathers events that come all the time and may wait a little, such as heartbeats: once no more come
/// for a moment they are handed over together, and the next ones gather for a while. Waking up for each
/// would cost more than reading it. Lists are not held up, nor what is urgent.
pub(crate) struct Gathering<T> {
    watcher: Watcher<T>,
    /// Zero hands over at once what has arrived.
    pause: Duration,
    urgent: Urgent<T>,
    listing: bool,
    rest_until: Option<Instant>,
}

/// Which events do not wait for others.
pub(crate) struct Urgent<T> {
    /// How often what gathers is looked at.
    pub glance: Duration,
    /// Gets every event once, in their order.
    pub is: Judge<T>,
}

type Judge<T> = Box<dyn FnMut(&Event<T>) -> bool + Send>;

impl<T: DeserializeOwned + Send + 'static> Gathering<T> {
    pub fn new(watcher: Watcher<T>, pause: Duration, urgent: Urgent<T>) -> Self {
        Self {
            watcher,
            pause,
            urgent,
            listing: true,
            rest_until: None,
        }
    }

    /// The next events, at least one. Events are lost if the future is dropped.
    pub async fn next(&mut self) -> Vec<Event<T>> {
        let rest = self.rest_until.take();
        let mut bunch = Vec::new();
        loop {
            if let Some(at) = rest {
                tokio::time::sleep_until(at.min(Instant::now() + self.urgent.glance)).await;
            }
            let looked_at = bunch.len();
            let more = self.read(&mut bunch).await;
            let mut hurry = more;
            for event in &bunch[looked_at..] {
                hurry |= (self.urgent.is)(event) || matches!(event, Event::Init);
                match event {
                    Event::Init => self.listing = true,
                    Event::Synced(_) => self.listing = false,
                    Event::Applied { .. } | Event::Deleted { .. } => {}
                }
            }
            if hurry || rest.is_none_or(|at| at <= Instant::now()) {
                let rests = !more && !self.listing;
                self.rest_until = rests.then(|| Instant::now() + self.pause);
                return bunch;
            }
        }
    }

    /// Adds what has arrived, and waits for a first event; true if more may be there.
    async fn read(&mut self, bunch: &mut Vec<Event<T>>) -> bool {
        if bunch.is_empty() {
            bunch.push(self.watcher.next().await);
        }
        loop {
            bunch.extend(self.watcher.ready.drain(..));
            if self.pause.is_zero() || bunch.len() >= BUNCH {
                return true;
            }
            match tokio::time::timeout(MOMENT, self.watcher.next()).await {
                Ok(event) => bunch.push(event),
                Err(_) => return false,
            }
        }
    }
}
