//! Who polls the streams of an HTTP/2 connection?
//!
//! A change that many watches of one connection wait for wakes all their streams. As tasks of their own they would
//! wake the connection one by one, and each event would cost a frame of TLS and a system call. Here the connection's task
//! polls them, so that all have spoken before anything is sent. What computes answers is a task of its own.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use hyper::rt::Executor;
use slab::Slab;
use tokio::task::JoinSet;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What has happened to the streams of a connection since it was last polled.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<News>>);

#[derive(Default)]
struct News {
    opened: Vec<Stream>,
    woken: Vec<usize>,
    connection: Option<Waker>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.lock().opened.push(Box::pin(stream));
    }
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one stream: the first that is woken wakes the connection. The place may have passed on to another stream,
/// which is then polled once for nothing.
struct Place {
    at: usize,
    is_woken: AtomicBool,
    streams: Streams,
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut news = self.streams.lock();
        news.woken.push(self.at);
        if let Some(connection) = news.connection.take() {
            drop(news);
            connection.wake();
        }
    }
}

/// A connection and its streams, which end with it.
pub(crate) struct Together<C> {
    connection: Pin<Box<C>>,
    open: Slab<(Stream, Arc<Place>)>,
    streams: Streams,
}

impl<C> Together<C> {
    /// `connection` gives its streams to `streams`.
    pub fn new(connection: C, streams: Streams) -> Self {
        Self {
            connection: Box::pin(connection),
            open: Slab::new(),
            streams,
        }
    }

    pub fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    fn poll_stream(&mut self, at: usize) {
        let Some((stream, place)) = self.open.get_mut(at) else {
            return;
        };
        place.is_woken.store(false, Ordering::Release);
        let waker = Waker::from(place.clone());
        if stream.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(self.open.remove(at));
        }
    }

    fn open(&mut self, stream: Stream) {
        let entry = self.open.vacant_entry();
        let at = entry.key();
        let place = Place {
            at,
            is_woken: AtomicBool::new(true),
            streams: self.streams.clone(),
        };
        entry.insert((stream, Arc::new(place)));
        self.poll_stream(at);
    }
}

impl<C: Future> Future for Together<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let woken = {
            let mut news = self.streams.lock();
            news.connection = Some(context.waker().clone());
            std::mem::take(&mut news.woken)
        };
        for at in woken {
            self.poll_stream(at);
        }
        loop {
            let ended = self.connection().poll(context);
            let opened = std::mem::take(&mut self.streams.lock().opened);
            if ended.is_ready() || opened.is_empty() {
                return ended;
            }
            for stream in opened {
                self.open(stream);
            }
        }
    }
}

/// Computes an answer in a task of its own, which ends when nobody waits for it any more. None if it panicked.
pub(crate) async fn apart<T: Send + 'static>(answer: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let mut task = JoinSet::new();
    task.spawn(answer);
    task.join_next().await?.ok()
}

#[cfg(test)]
mod tests;
