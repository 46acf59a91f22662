//! Does one command bring up a whole cluster, and leave nothing behind?
//!
//! Every test runs the real program with a name of its own, so that tests and clusters of the user can run
//! side by side.

mod background;
mod cluster;
mod controller;
mod ends;
mod explain;
mod families;
mod harm;
mod history;
mod images;
mod life;
mod names;
mod newcomer;
mod node_loss;
mod peers;
mod pods;
mod pressure;
mod profile;
mod ranges;
mod requests;
mod resets;
mod rootless;
mod scenario;
mod silent;
mod traffic;
