//! Who computes a handshake now?
//!
//! The steps of TLS handshakes are the dearest that a stranger can ask for. A flood of new connections would stand
//! in line before the requests of everybody else, so the steps take turns: on half of the cores, over all listeners of
//! the process. Whoever waits for its client has no turn.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::LazyLock;
use std::task::Poll;

use tokio::sync::Semaphore;

static HANDSHAKES: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((cores / 2).max(1))
});

/// Carries a handshake out, each step of it in a turn.
pub(crate) async fn handshake<T>(work: impl Future<Output = T>) -> T {
    by_turns(&HANDSHAKES, work).await
}

async fn by_turns<T>(turns: &Semaphore, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        let turn = turns.acquire().await.expect("turns do not end");
        let step = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        drop(turn);
        match step {
            Poll::Ready(done) => return done,
            Poll::Pending => until_woken().await,
        }
    }
}

/// Ends when the task is woken, by whatever it waits for.
async fn until_woken() {
    let mut slept = false;
    poll_fn(|_| match std::mem::replace(&mut slept, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn a_step_waits_for_its_turn_and_whoever_waits_for_a_client_has_none() {
        let (turns, word) = (Semaphore::new(1), Arc::new(Notify::new()));
        let mut first = pin!(by_turns(&turns, word.notified()));
        assert!(futures::poll!(first.as_mut()).is_pending());
        assert_eq!(turns.available_permits(), 1, "it waits without a turn");
        let held = turns.acquire().await.unwrap();
        word.notify_one();
        assert!(futures::poll!(first.as_mut()).is_pending(), "it is not its turn");
        drop(held);
        first.await;
    }
}
