//! What does the cluster add to objects that their authors left open?
//!
//! Each function changes one decoded, defaulted object before its strategy prepares it.

pub mod node_taint;
pub mod tolerations;
