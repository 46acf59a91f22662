//! The loops against a running API server: real processes, real sockets, kubectl where people use it.

mod harness;

mod faults;
mod gate;
mod rollout;
mod slices;
