//! How long do changes take to reach every kernel, and who is behind?
//!
//! Everything here is a function from values to values; time is an argument.
//!
//! - [`pool`], [`source`], [`window`] and [`measure`] make the SLI of the seed out of readings of all
//!   programmers' counters; [`slo`] judges cluster-days;
//! - [`fold`] folds the watermarks of all programmers: on how many is each change, who is behind;
//! - [`judgement`] says of all that what is true now, in one value for everybody who shows it; [`history`] keeps what
//!   was true in the last two hours, and [`spread`] where the time went;
//!   [`sample`] chooses the changes that are worth a trace;
//! - [`endpoints`] and [`gate`] decide when a pod under deletion may be stopped;
//! - [`skew`] measures how far clocks are apart.

pub mod endpoints;
pub mod fold;
pub mod gate;
pub mod history;
pub mod judgement;
pub mod measure;
pub mod pool;
pub mod sample;
pub mod skew;
pub mod slo;
pub mod source;
pub mod spread;
pub mod window;

/// Whole microseconds of a duration.
fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
