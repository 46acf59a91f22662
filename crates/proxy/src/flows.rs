//! Who looks for UDP flows that follow an old translation, without holding up a sync?

use std::sync::mpsc;
use std::time::Instant;

use pointsman_dataplane::conntrack::UdpReview;
use pointsman_kernel::conntrack::FlowCleaner;
use pointsman_model::Address;

use crate::metrics::FamilyMetrics;

/// The way to the thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Flows<A>(mpsc::Sender<UdpReview<A>>);

impl<A: Address> Flows<A> {
    /// Starts the thread.
    pub fn start(metrics: FamilyMetrics) -> std::io::Result<Self> {
        let (sender, reviews) = mpsc::channel::<UdpReview<A>>();
        std::thread::Builder::new()
            .name(format!("flows-{}", A::FAMILY))
            .spawn(move || {
                while let Ok(mut review) = reviews.recv() {
                    // What waited goes together; what came later counts.
                    for later in reviews.try_iter() {
                        review.addresses.extend(later.addresses);
                        review.node_ports.extend(later.node_ports);
                    }
                    clean(&review, &metrics);
                }
            })?;
        Ok(Self(sender))
    }

    /// Asks for a look.
    pub fn review(&self, review: UdpReview<A>) {
        if !review.is_empty() && self.0.send(review).is_err() {
            tracing::error!(family = %A::FAMILY, "the thread that looks for stale flows is gone");
        }
    }
}

fn clean<A: Address>(review: &UdpReview<A>, metrics: &FamilyMetrics) {
    let started = Instant::now();
    let cleaned = FlowCleaner::open()
        .map_err(Into::into)
        .and_then(|mut cleaner| cleaner.clean(review));
    metrics.flows_duration.observe_duration(started.elapsed());
    match cleaned {
        Ok(deleted) => metrics.flows_deleted.add(deleted as u64),
        Err(error) => tracing::warn!(family = %A::FAMILY, %error, "stale UDP flows may be left"),
    }
}
