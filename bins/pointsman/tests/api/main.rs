//! Is the server what real Kubernetes clients believe it to be?
//!
//! Black-box tests: the built program as a process of its own, reached by kubectl, by kube-rs and by plain
//! HTTP. They are one binary because linking takes longer than most of them.

mod attacks;
mod authority;
mod backup;
mod connections;
mod crash;
mod custom;
mod damage;
mod faults;
mod identity;
mod kube_rs;
mod kubectl;
mod restored_etcd;
mod semantics;
