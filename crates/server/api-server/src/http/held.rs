//! What does an answer hold until it has been sent?
//!
//! A request keeps its place until the client has its answer: what is being sent takes memory as well. A client that
//! reads too slowly must not keep it from others, so where the answer has an end there is a limit: then the place is
//! free, and the answer is cut off.

use super::body::{Body, FRAME};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Something that is kept until it is dropped.
pub type Guard = Box<dyn Any + Send>;

/// A body that keeps something until it has been sent.
pub struct HeldBody {
    body: Body,
    /// Empty once the limit has passed.
    guard: Option<Arc<Mutex<Option<Guard>>>>,
}

/// The client took too long.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not read in time")]
pub struct TooSlow;

impl HeldBody {
    /// A body that keeps nothing.
    pub fn free(body: Body) -> Self {
        Self { body, guard: None }
    }

    /// Keeps `guard` until `body` has been sent, or for `limit` at most.
    pub fn new(body: Body, guard: Guard, limit: Option<Duration>) -> Self {
        let guard = Arc::new(Mutex::new(Some(guard)));
        // What fits one frame is handed over at once.
        let small = http_body::Body::size_hint(&body).exact();
        let small = small.is_some_and(|size| size <= FRAME as u64);
        if let Some(limit) = limit.filter(|_| !small) {
            tokio::spawn(release_after(limit, Arc::downgrade(&guard)));
        }
        Self {
            body,
            guard: Some(guard),
        }
    }
}

/// Frees the place also where nobody asks for the next frame, because the connection is full.
async fn release_after(limit: Duration, guard: Weak<Mutex<Option<Guard>>>) {
    tokio::time::sleep(limit).await;
    if let Some(guard) = guard.upgrade() {
        guard.lock().take();
    }
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = TooSlow;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TooSlow>>> {
        let this = self.get_mut();
        if this.guard.as_ref().is_some_and(|guard| guard.lock().is_none()) {
            return Poll::Ready(Some(Err(TooSlow)));
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(None) = frame {
            this.guard = None;
        }
        frame.map_err(|never| match never {})
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn held(body: Body, limit: Option<Duration>) -> (HeldBody, Weak<()>) {
        let place = Arc::new(());
        let watched = Arc::downgrade(&place);
        (HeldBody::new(body, Box::new(place), limit), watched)
    }

    fn list() -> Body {
        Body::pieces(vec![Bytes::from(vec![b'x'; FRAME]); 3])
    }

    #[tokio::test]
    async fn the_place_is_kept_until_the_last_frame() {
        let (mut body, place) = held(list(), Some(Duration::from_secs(60)));
        for _ in 0..3 {
            assert!(body.frame().await.unwrap().is_ok() && place.upgrade().is_some());
        }
        assert!(body.frame().await.is_none() && place.upgrade().is_none());
        let (body, place) = held(Body::whole("abc"), None);
        assert!(place.upgrade().is_some());
        drop(body);
        assert!(place.upgrade().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_too_slowly_loses_its_place_and_its_answer() {
        let (mut body, place) = held(list(), Some(Duration::from_secs(60)));
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(place.upgrade().is_none());
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_is_kept_for_as_long_as_it_lasts() {
        let (mut body, place) = held(Body::stream(Box::pin(futures::stream::pending())), None);
        let waited = tokio::time::timeout(Duration::from_secs(3600), body.frame()).await;
        assert!(waited.is_err() && place.upgrade().is_some());
    }
}
