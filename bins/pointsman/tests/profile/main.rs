//! Latency profiles on a running cluster: real API server, real loops, the real command line; agents on
//! nodes are stand-ins that follow their ConfigMap as the real ones do.

mod agents;
mod command;
mod faults;
mod kubeadm;
mod transitions;
