//! Who did what, and what came of it?
//!
//! One line per request in upstream's format, an `audit.k8s.io/v1` Event of level Metadata: who asked for what, when and
//! from where, and the outcome. Bodies and credentials are never in it. What runs long has two: when it started and when
//! it ended.

pub mod log;
mod trail;

pub use log::{Log, LogSettings};
pub use trail::{Stage, Trail};

use crate::reply::Reply;
use jiff::Timestamp;
use std::sync::Arc;

/// Writes what came of a request; for an answer without an end also when that has come.
pub fn record(log: &Arc<Log>, trail: Trail, reply: &mut Reply) {
    let now = Timestamp::now();
    match &mut reply.held {
        Some(held) if reply.body.is_stream() || reply.tunnel.is_some() => {
            log.write(&trail.event(Stage::ResponseStarted, now));
            let ending = Ending {
                log: log.clone(),
                trail,
            };
            let guard = std::mem::replace(&mut held.guard, Box::new(()));
            held.guard = Box::new((guard, ending));
        }
        _ => log.write(&trail.event(Stage::ResponseComplete, now)),
    }
}

/// Writes the last event of a request when it is dropped: when the answer has been sent, or the client is gone.
struct Ending {
    log: Arc<Log>,
    trail: Trail,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let event = self.trail.event(Stage::ResponseComplete, Timestamp::now());
        self.log.write(&event);
    }
}
