//! Whatever call to the outside fails, is anything lost?
//!
//! One life of a proxy in iptables mode (first sync, single changes, a chain of them, a flushed kernel, foreign
//! rules, the end) is lived again and again, and each time another call fails: the first, the second, until
//! there is none left. After every failure the retry must leave what a full sync would have written, and report
//! every change exactly once. [`stand_in`] does this with a kernel in memory, for every call and every way to
//! fail; [`programs`] with the real programs in a namespace, behind scripts that fail.

mod life;
mod programs;
mod stand_in;
