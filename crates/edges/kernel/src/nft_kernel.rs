//! What does the nftables backend ask of the kernel?
//!
//! The seam at which tests put a kernel that fails.

use std::fmt;

use pointsman_netlink::nft::{Chain, Element, Family, Generation, Name, Rule, Set, Table, Transaction};
use pointsman_netlink_io::{Client, CommitError, RequestError};
use pointsman_nft::Records;

/// nf_tables of one network namespace.
pub trait NftKernel: fmt::Debug + Send {
    /// Commits a transaction whole, or not at all; with `only_at`, only if nobody else committed since.
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError>;
    /// The number that every commit changes.
    fn generation(&mut self) -> Result<Generation, RequestError>;
    /// The tables of a family.
    fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError>;
    /// The chains of a table.
    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError>;
    /// The rules of a table, in the order of their chains.
    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, RequestError>;
    /// The sets of a table.
    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError>;
    /// The elements of a set, for comparison.
    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, RequestError>;
}

impl NftKernel for Client {
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError> {
        Self::commit(self, std::slice::from_ref(transaction), only_at)
    }

    fn generation(&mut self) -> Result<Generation, RequestError> {
        Self::generation(self)
    }

    fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError> {
        Self::tables(self, family)
    }

    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError> {
        Self::chains(self, family, table)
    }

    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, RequestError> {
        let rules = Self::rules(self, family, table)?;
        Ok(rules.into_iter().map(|(rule, _)| rule).collect())
    }

    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError> {
        Self::sets(self, family, table)
    }

    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, RequestError> {
        let push = |records: &mut Records, element: Element| records.push(&element);
        self.collect_elements((family, table, &set.name), || Records::new(set), push)
    }
}
