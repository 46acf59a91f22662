//! How do several parts of one process follow a collection with one watch?
//!
//! A [`Reflector`] reads every object once and hands an [`Arc`] of it to each of its readers. All of them
//! get every event in the same order; one that has no room for more makes the watch wait, and through it
//! the server, so that nothing piles up here.

use crate::watch::forward::{Gathering, Urgent};
use crate::watch::{Event, Watcher};
use serde::de::DeserializeOwned;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// One watch for many readers, who all subscribe before it runs.
pub struct Reflector<T> {
    watcher: Watcher<T>,
    pause: Duration,
    urgent: Option<Urgent<T>>,
    prepare: Box<dyn FnMut(&mut T) + Send>,
    readers: Vec<Reader<T>>,
}

/// Hands an event to a reader.
type Reader<T> = Box<dyn FnMut(&Event<Arc<T>>) -> Handed + Send>;

/// What became of an event.
enum Handed {
    Done,
    /// The reader has no room: done when this is.
    Waiting(Pin<Box<dyn Future<Output = bool> + Send>>),
    /// Nobody reads any more.
    Closed,
}

impl<T: DeserializeOwned + Send + Sync + 'static> Reflector<T> {
    /// Follows what this watcher follows.
    pub fn new(watcher: Watcher<T>) -> Self {
        Self {
            watcher,
            pause: Duration::ZERO,
            urgent: None,
            prepare: Box::new(|_| {}),
            readers: Vec::new(),
        }
    }

    /// For events that come all the time and may wait a little, such as heartbeats: they gather for this
    /// long and are handed over together. Lists, and an event after a time of quiet, are not held up.
    pub fn gather(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// Some of the events that gather do not wait for the others: what comes is looked at this often, and all of it is
    /// handed over if one is urgent.
    pub fn unless(self, glance: Duration, is: impl FnMut(&Event<T>) -> bool + Send + 'static) -> Self {
        let is = Box::new(is);
        Self {
            urgent: Some(Urgent { glance, is }),
            ..self
        }
    }

    /// Changes every object before anybody gets it: to share what repeats from object to object.
    pub fn prepare(self, prepare: impl FnMut(&mut T) + Send + 'static) -> Self {
        let prepare = Box::new(prepare);
        Self { prepare, ..self }
    }

    /// Adds a reader that looks at every event and needs no channel.
    pub fn inspect(&mut self, mut look: impl FnMut(&Event<Arc<T>>) + Send + 'static) {
        self.readers.push(Box::new(move |event| {
            look(event);
            Handed::Done
        }));
    }

    /// Adds a reader: it is sent every event that `convert` makes something of.
    pub fn subscribe<E: Send + 'static>(
        &mut self,
        sender: mpsc::Sender<E>,
        mut convert: impl FnMut(&Event<Arc<T>>) -> Option<E> + Send + 'static,
    ) {
        self.readers.push(Box::new(move |event| {
            let Some(event) = convert(event) else {
                return Handed::Done;
            };
            match sender.try_send(event) {
                Ok(()) => Handed::Done,
                Err(mpsc::error::TrySendError::Closed(_)) => Handed::Closed,
                Err(mpsc::error::TrySendError::Full(event)) => {
                    let sender = sender.clone();
                    Handed::Waiting(Box::pin(async move { sender.send(event).await.is_ok() }))
                }
            }
        }));
    }

    /// Whether anybody has subscribed.
    pub fn is_read(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Watches until no reader is left.
    pub async fn run(self) {
        let never = Urgent {
            glance: self.pause,
            is: Box::new(|_| false),
        };
        let mut events = Gathering::new(self.watcher, self.pause, self.urgent.unwrap_or(never));
        let (mut readers, mut prepare) = (self.readers, self.prepare);
        while !readers.is_empty() {
            for event in events.next().await {
                let event = event.map(|mut object| {
                    prepare(&mut object);
                    Arc::new(object)
                });
                hand_over(&mut readers, &event).await;
            }
        }
    }
}

/// Gives an event to all readers and leaves out those that are gone.
async fn hand_over<T>(readers: &mut Vec<Reader<T>>, event: &Event<Arc<T>>) {
    let mut at = 0;
    while let Some(reader) = readers.get_mut(at) {
        let open = match reader(event) {
            Handed::Done => true,
            Handed::Closed => false,
            Handed::Waiting(sent) => sent.await,
        };
        if open {
            at += 1;
        } else {
            drop(readers.remove(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{Script, Thing, bookmark, line};
    use crate::{Resource, Scope};

    /// A list of two things, a thousand changes of one and the deletion of the other.
    fn answers() -> [String; 2] {
        let first = line("ADDED", "a", "1", 1) + &line("ADDED", "b", "2", 1) + &bookmark("3", true);
        let more: String = (4..1004)
            .map(|version| line("MODIFIED", "a", &version.to_string(), version))
            .collect();
        [first + &more, line("DELETED", "b", "1004", 1)]
    }

    fn script(answers: &[String]) -> Script {
        let answers: Vec<(u16, &str)> = answers.iter().map(|text| (200, text.as_str())).collect();
        Script::new(&answers)
    }

    fn reflector(script: &Script) -> Reflector<Thing> {
        Reflector::new(Watcher::new(script.client(), Scope::all(Resource::PODS)))
    }

    async fn receive<E>(receiver: &mut mpsc::Receiver<E>, count: usize) -> Vec<E> {
        let mut events = Vec::new();
        while events.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(600), receiver.recv());
            events.push(next.await.expect("an event comes").expect("it goes on"));
        }
        events
    }

    #[tokio::test(start_paused = true)]
    async fn gathered_or_not_every_reader_gets_the_same_events_in_the_same_order() {
        let expected = crate::watch::tests::events(&script(&answers()), 1005).await;
        for pause in [0, 100] {
            let script = script(&answers());
            let mut reflector = reflector(&script).gather(Duration::from_millis(pause));
            let (small, mut slow) = mpsc::channel(1);
            let (large, mut fast) = mpsc::channel(2048);
            reflector.subscribe(small, |event| Some(event.clone()));
            reflector.subscribe(large, |event| Some(event.clone()));
            let task = tokio::spawn(reflector.run());
            // Nothing runs away from the reader that has not begun to read.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                fast.len() <= 2,
                "{} events passed a reader that is stuck",
                fast.len()
            );
            let of_slow = receive(&mut slow, 1005).await;
            let of_fast = receive(&mut fast, 1005).await;
            assert_eq!(of_slow, of_fast, "gathering for {pause} ms");
            for (seen, expected) in of_fast.iter().zip(&expected) {
                assert_eq!(seen.clone().map(|object| Thing::clone(&object)), *expected);
            }
            let Event::Applied { object: one, .. } = &of_slow[1] else {
                panic!("{:?} is no object", of_slow[1]);
            };
            assert!(
                matches!(&of_fast[1], Event::Applied { object, .. } if Arc::ptr_eq(one, object)),
                "read once"
            );
            assert!(
                script.asked()[1].contains("resourceVersion=1003"),
                "{:?}",
                script.asked()
            );
            task.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_urgent_does_not_wait_until_the_rest_has_gathered() {
        let rest = Duration::from_secs(60);
        for (urgent, waits) in [(6, false), (i32::MAX, true)] {
            // Each of these watches ends at once, so that the next event comes a moment after the one before.
            let answers = [
                line("ADDED", "a", "1", 1) + &bookmark("1", true),
                line("MODIFIED", "a", "4", 4),
                line("MODIFIED", "a", "5", 5),
                line("MODIFIED", "a", "6", 6),
            ];
            let is_urgent = move |event: &Event<Thing>| matches!(event, Event::Applied { object, .. } if object.value == urgent);
            let mut reflector = reflector(&script(&answers))
                .gather(rest)
                .unless(Duration::from_millis(20), is_urgent);
            let (sender, mut receiver) = mpsc::channel(16);
            reflector.subscribe(sender, |event| match event {
                Event::Applied { object, .. } => Some(object.value),
                _ => None,
            });
            let task = tokio::spawn(reflector.run());
            assert_eq!(receive(&mut receiver, 1).await, [1]);
            let began = tokio::time::Instant::now();
            assert_eq!(receive(&mut receiver, 3).await, [4, 5, 6]);
            assert_eq!(began.elapsed() > rest / 2, waits, "urgent: {urgent}");
            task.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_gone_does_not_hold_up_the_others() {
        let lists = [line("ADDED", "a", "1", 1), line("MODIFIED", "a", "2", 2)];
        let script = script(&[lists[0].clone() + &bookmark("1", true), lists[1].clone()]);
        let mut reflector = reflector(&script);
        let (leaves, mut left) = mpsc::channel(1);
        let (stays, mut stayed) = mpsc::channel(16);
        reflector.subscribe(leaves, |event| Some(event.clone()));
        reflector.subscribe(stays, |event| match event {
            Event::Applied { object, .. } => Some(object.value),
            _ => None,
        });
        let task = tokio::spawn(reflector.run());
        assert_eq!(receive(&mut left, 1).await, [Event::Init]);
        drop(left);
        assert_eq!(receive(&mut stayed, 2).await, [1, 2]);
        drop(stayed);
        task.abort();
    }
}
