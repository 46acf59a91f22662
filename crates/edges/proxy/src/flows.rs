//! Who looks for UDP flows that follow an old translation, without holding up a sync?
//!
//! A look that fails is repeated, sooner at first: a flow that keeps its old translation would lead to an
//! endpoint that is gone for as long as its client goes on sending.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pointsman_dataplane::conntrack::UdpReview;
use pointsman_kernel::conntrack::FlowCleaner;
use pointsman_model::Address;

use crate::metrics::FamilyMetrics;

/// The wait after a first failure, which doubles with each further one, and the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The way to the thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Flows<A>(mpsc::Sender<UdpReview<A>>);

impl<A: Address> Flows<A> {
    /// Starts the thread.
    pub fn start(metrics: FamilyMetrics) -> std::io::Result<Self> {
        Self::start_with(FIRST_RETRY, move |review| clean(review, &metrics))
    }

    /// The same with another way to clean, which returns whether it worked.
    fn start_with(
        first_retry: Duration,
        clean: impl FnMut(&UdpReview<A>) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, reviews) = mpsc::channel::<UdpReview<A>>();
        std::thread::Builder::new()
            .name(format!("flows-{}", A::FAMILY))
            .spawn(move || follow(&reviews, first_retry, clean))?;
        Ok(Self(sender))
    }

    /// Asks for a look.
    pub fn review(&self, review: UdpReview<A>) {
        if !review.is_empty() && self.0.send(review).is_err() {
            tracing::error!(family = %A::FAMILY, "the thread that looks for stale flows is gone");
        }
    }
}

fn follow<A: Address>(
    reviews: &mpsc::Receiver<UdpReview<A>>,
    first_retry: Duration,
    mut clean: impl FnMut(&UdpReview<A>) -> bool,
) {
    let mut waiting: Option<UdpReview<A>> = None;
    let mut pause = first_retry;
    loop {
        let next = match &waiting {
            None => reviews.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => reviews.recv_timeout(pause),
        };
        let next = match next {
            Ok(review) => Some(review),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // What waited goes together; what came later counts.
        for later in next.into_iter().chain(reviews.try_iter()) {
            match &mut waiting {
                None => waiting = Some(later),
                Some(review) => {
                    review.addresses.extend(later.addresses);
                    review.node_ports.extend(later.node_ports);
                }
            }
        }
        let done = waiting.as_ref().is_none_or(&mut clean);
        pause = if done {
            first_retry
        } else {
            (pause * 2).min(LONGEST_RETRY)
        };
        if done {
            waiting = None;
        }
    }
}

fn clean<A: Address>(review: &UdpReview<A>, metrics: &FamilyMetrics) -> bool {
    let started = Instant::now();
    let cleaned = FlowCleaner::open()
        .map_err(Into::into)
        .and_then(|mut cleaner| cleaner.clean(review));
    metrics.flows_duration.observe_duration(started.elapsed());
    match &cleaned {
        Ok(deleted) => metrics.flows_deleted.add(*deleted as u64),
        Err(error) => {
            tracing::warn!(family = %A::FAMILY, %error, "stale UDP flows may be left, looking again");
        }
    }
    cleaned.is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pointsman_dataplane::conntrack::Expected;
    use pointsman_model::{Backend, Port};

    use super::*;

    fn address(last: u8) -> Backend<Ipv4Addr> {
        Backend {
            address: Ipv4Addr::new(10, 96, 0, last),
            port: Port::new(53).unwrap(),
        }
    }

    fn review(last: u8) -> UdpReview<Ipv4Addr> {
        UdpReview {
            addresses: [(address(last), Expected::Only(Default::default()))].into(),
            node_ports: Default::default(),
        }
    }

    #[test]
    fn a_look_that_fails_is_repeated_with_everything_that_came_since() {
        for failures in 0..4 {
            let (sender, seen) = mpsc::channel();
            let mut left: u32 = failures;
            let flows = Flows::start_with(Duration::from_millis(5), move |review| {
                sender
                    .send(review.addresses.keys().copied().collect::<Vec<_>>())
                    .unwrap();
                let worked = left == 0;
                left = left.saturating_sub(1);
                worked
            })
            .unwrap();
            flows.review(review(1));
            let mut last = Vec::new();
            for _ in 0..=failures {
                last = seen.recv_timeout(Duration::from_secs(60)).unwrap();
                assert_eq!(last[0], address(1), "nothing is forgotten before it worked");
            }
            assert_eq!(last, [address(1)]);
            flows.review(review(2));
            assert_eq!(
                seen.recv_timeout(Duration::from_secs(60)).unwrap(),
                [address(2)],
                "what worked is not repeated"
            );
        }
    }
}
