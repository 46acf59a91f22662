//! What does the cluster add to objects that their authors left open, and what does it refuse though it is valid?
//!
//! Functions that add change one decoded, defaulted object before its strategy prepares it; those that refuse look at it
//! once it is valid.

pub mod certificate_requests;
pub mod external_ips;
pub mod node_taint;
pub mod plugins;
pub mod service_account;
pub mod tolerations;
