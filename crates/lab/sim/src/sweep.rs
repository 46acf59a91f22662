//! How are many seeds run on all cores?

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds that a thread takes at a time.
const BATCH: u64 = 64;

pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs all seeds; `add` runs one and adds its outcome to a thread's report.
pub fn sweep<R: Default + Send>(
    seeds: Range<u64>,
    add: impl Fn(&mut R, u64) + Sync,
    merge: impl Fn(&mut R, R),
) -> R {
    let next = AtomicU64::new(seeds.start);
    let work = |shows: bool| {
        let mut report = R::default();
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= seeds.end {
                return report;
            }
            for seed in from..(from + BATCH).min(seeds.end) {
                add(&mut report, seed);
            }
            if shows {
                let (done, all) = (from - seeds.start, seeds.end - seeds.start);
                let _ = write!(std::io::stderr(), "\r{done} of {all} seeds ");
            }
        }
    };
    let shows = std::io::stderr().is_terminal();
    let mut total = R::default();
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads())
            .map(|index| {
                let work = &work;
                scope.spawn(move || work(shows && index == 0))
            })
            .collect();
        for handle in handles {
            merge(&mut total, handle.join().expect("runs do not panic"));
        }
    });
    if shows {
        let _ = write!(std::io::stderr(), "\r");
    }
    total
}
