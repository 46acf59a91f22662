//! What does the nftables backend ask of the kernel?
//!
//! The seam at which tests put a kernel that fails.

use std::fmt;

use pointsman_netlink::nft::{
    Chain, Client, CommitError, Element, Family, Generation, Name, ReadError, Rule, Set, Table, Transaction,
};
use pointsman_nft::Records;

/// nf_tables of one network namespace.
pub trait NftKernel: fmt::Debug + Send {
    /// Commits a transaction whole, or not at all; with `only_at`, only if nobody else committed since.
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError>;
    /// The number that every commit changes.
    fn generation(&mut self) -> Result<Generation, ReadError>;
    /// The tables of a family.
    fn tables(&mut self, family: Family) -> Result<Vec<Table>, ReadError>;
    /// The chains of a table.
    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, ReadError>;
    /// The rules of a table, in the order of their chains.
    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, ReadError>;
    /// The sets of a table.
    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, ReadError>;
    /// The elements of a set, for comparison.
    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, ReadError>;
}

impl NftKernel for Client {
    fn commit(&mut self, transaction: &Transaction, only_at: Option<Generation>) -> Result<(), CommitError> {
        Self::commit(self, std::slice::from_ref(transaction), only_at)
    }

    fn generation(&mut self) -> Result<Generation, ReadError> {
        Self::generation(self)
    }

    fn tables(&mut self, family: Family) -> Result<Vec<Table>, ReadError> {
        Self::tables(self, family)
    }

    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, ReadError> {
        Self::chains(self, family, table)
    }

    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, ReadError> {
        let rules = Self::rules(self, family, table)?;
        Ok(rules.into_iter().map(|(rule, _)| rule).collect())
    }

    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, ReadError> {
        Self::sets(self, family, table)
    }

    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, ReadError> {
        let push = |records: &mut Records, element: Element| records.push(&element);
        self.collect_elements((family, table, &set.name), || Records::new(set), push)
    }
}
