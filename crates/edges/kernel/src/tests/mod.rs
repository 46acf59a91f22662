//! Faults injected at the seams to the outside, and one contract for every programmer.

mod contract;
mod divergence;
mod every_fault;
mod looked_up;
mod nftables_faults;
