//! Whole containers in simulated time: what is checked when, and what is said about it.

mod laws;
mod life;
mod milliseconds;
mod plain;
mod sim;
mod waves;
