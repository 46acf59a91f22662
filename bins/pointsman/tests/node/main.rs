//! The node agent with real processes, in a network namespace of its own: needs root, and says so where it
//! has to skip.

mod lab;
mod logs;
mod probes;
mod restart;
