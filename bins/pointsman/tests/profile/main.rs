//! Latency profiles on a running cluster: real API server, real loops, the real command line; agents on
//! nodes are stand-ins that follow their ConfigMap as the real ones do.

#[path = "../controllers/cluster.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of the controllers, which use more of it"
)]
mod cluster;
#[path = "../api/harness.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of the API server, which use more of it"
)]
mod harness;
#[path = "../api/wire.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of the API server, which use more of it"
)]
mod wire;

mod agents;
mod command;
mod faults;
mod kubeadm;
mod transitions;
