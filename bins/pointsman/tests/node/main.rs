//! The node agent with real processes, in a network namespace of its own: needs root.

mod containers;
mod disk;
mod flood;
mod lab;
mod logs;
mod periods;
mod probes;
mod restart;
mod security;
mod stats;
mod streams;
mod streams_raw;
mod trust;
