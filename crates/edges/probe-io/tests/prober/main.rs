//! The prober against real servers on this machine, good ones and bad ones.

mod answers;
mod budget;
mod exec;
mod faults;
mod grpc;
mod lab;
mod lifecycle;
