//! Which watches have something to read?
//!
//! Watches of one prefix share one signal, so a commit costs a few look-ups per changed key, however
//! many watches there are, and wakes only those that have something to deliver.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What a watch is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// There is something to read, or progress to report, up to this revision.
    pub revision: u64,
    /// How often progress was asked for.
    pub asked: u64,
    /// The store was closed.
    pub closed: bool,
}

/// All running watches' signals, by prefix.
#[derive(Debug, Default)]
pub struct Signals {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_prefix: HashMap<Arc<str>, watch::Sender<Signal>>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<usize, usize>,
    closed: bool,
}

/// A watch's place among the signals; leaving is dropping it.
#[derive(Debug)]
pub struct Subscription {
    signals: Arc<Signals>,
    prefix: Arc<str>,
    receiver: Option<watch::Receiver<Signal>>,
}

impl Signals {
    /// Joins the watches of a prefix. Changes published after this call are signalled.
    pub fn subscribe(self: &Arc<Self>, prefix: &str) -> Subscription {
        let prefix: Arc<str> = prefix.into();
        let mut slots = self.lock();
        let closed = slots.closed;
        if !slots.by_prefix.contains_key(&prefix) {
            *slots.lengths.entry(prefix.len()).or_default() += 1;
        }
        let sender = slots.by_prefix.entry(Arc::clone(&prefix)).or_insert_with(|| {
            watch::Sender::new(Signal {
                closed,
                ..Signal::default()
            })
        });
        let receiver = Some(sender.subscribe());
        drop(slots);
        Subscription {
            signals: Arc::clone(self),
            prefix,
            receiver,
        }
    }

    /// Tells the watches of every prefix of a changed key.
    pub fn raise<'a>(&self, keys: impl Iterator<Item = &'a str>, revision: u64) {
        let slots = self.lock();
        for key in keys {
            for prefix in slots
                .lengths
                .keys()
                .map_while(|length| key.as_bytes().get(..*length))
            {
                let Ok(prefix) = std::str::from_utf8(prefix) else {
                    continue;
                };
                if let Some(sender) = slots.by_prefix.get(prefix) {
                    advance(sender, revision);
                }
            }
        }
    }

    /// Tells every watch to move on to a revision.
    pub fn raise_all(&self, revision: u64) {
        for sender in self.lock().by_prefix.values() {
            advance(sender, revision);
        }
    }

    /// Tells every watch to report how far it is.
    pub fn ask(&self) {
        for sender in self.lock().by_prefix.values() {
            sender.send_modify(|signal| signal.asked += 1);
        }
    }

    /// Ends every watch, also those that join later.
    pub fn close(&self) {
        let mut slots = self.lock();
        slots.closed = true;
        for sender in slots.by_prefix.values() {
            sender.send_modify(|signal| signal.closed = true);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn advance(sender: &watch::Sender<Signal>, revision: u64) {
    sender.send_if_modified(|signal| {
        let newer = revision > signal.revision;
        signal.revision = signal.revision.max(revision);
        newer
    });
}

impl Subscription {
    /// The signal as it is now; [`Subscription::changed`] waits for the next one after it.
    pub fn now(&mut self) -> Signal {
        let closed = Signal {
            closed: true,
            ..Signal::default()
        };
        self.receiver
            .as_mut()
            .map_or(closed, |receiver| *receiver.borrow_and_update())
    }

    /// Waits until the signal changes. Cancel-safe.
    pub async fn changed(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            // The sender outlives its receivers: a slot goes only with its last subscription.
            let _ = receiver.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut slots = self.signals.lock();
        self.receiver = None;
        let unused = slots
            .by_prefix
            .get(&self.prefix)
            .is_some_and(|sender| sender.receiver_count() == 0);
        if unused {
            slots.by_prefix.remove(&self.prefix);
            let length = self.prefix.len();
            if let Some(count) = slots.lengths.get_mut(&length) {
                *count -= 1;
                if *count == 0 {
                    slots.lengths.remove(&length);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_signalled_to_the_prefixes_of_its_key_only() {
        let signals = Arc::new(Signals::default());
        let mut all = signals.subscribe("");
        let mut pods = signals.subscribe("/pods/");
        let mut nodes = signals.subscribe("/nodes/");
        signals.raise(["/pods/a"].into_iter(), 7);
        assert_eq!(all.now().revision, 7);
        assert_eq!(pods.now().revision, 7);
        assert_eq!(nodes.now().revision, 0);
    }

    #[test]
    fn the_last_subscription_of_a_prefix_takes_its_slot_away() {
        let signals = Arc::new(Signals::default());
        let first = signals.subscribe("/pods/");
        let second = signals.subscribe("/pods/");
        drop(first);
        assert_eq!(signals.lock().by_prefix.len(), 1);
        drop(second);
        assert!(signals.lock().by_prefix.is_empty());
        assert!(signals.lock().lengths.is_empty());
    }

    #[test]
    fn a_subscription_after_the_close_is_closed() {
        let signals = Arc::new(Signals::default());
        signals.close();
        assert!(signals.subscribe("/pods/").now().closed);
    }
}
