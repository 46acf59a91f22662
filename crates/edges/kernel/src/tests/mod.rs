//! Faults injected at the seams to the outside, and one contract for every programmer.

mod contract;
mod divergence;
mod every_fault;
mod nftables_faults;
