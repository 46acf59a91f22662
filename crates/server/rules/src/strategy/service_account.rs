//! What makes a ServiceAccount well-formed? Only its metadata; tokens are not issued.

use super::Strategy;

/// Rules for core ServiceAccounts.
pub struct ServiceAccount;

impl Strategy for ServiceAccount {}
