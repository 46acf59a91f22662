//! What do the programmers ask of the outside?
//!
//! The proxy's seam to the kernel is `pointsman_dataplane::Programmer`. Behind it, each mode talks to another outside
//! thing: iptables mode runs programs, nftables mode holds a netlink socket. Those are the two seams here, private
//! to this crate and no wider than what is asked, so that tests can let every single call fail.

use std::fmt;

use pointsman_dataplane::ProgramError;
use pointsman_iptables::{Inventory, Transaction};
use pointsman_model::Address;
use pointsman_netlink::nft;
use pointsman_netlink::nft::{Chain, Element, Family, Generation, Name, Rule, Set, Table, Value};
use pointsman_netlink_io::{Client, CommitError, RequestError};
use pointsman_nft::Records;

use crate::iptables::{InputSize, Iptables};

/// The iptables programs.
pub(crate) trait Tables<A: Address>: fmt::Debug + Send {
    /// Applies a transaction, table by table, and says how large its input was.
    fn restore(&mut self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError>;
    /// Lists what is there under names of ours.
    fn list(&mut self) -> Result<Inventory, ProgramError>;
    /// Whether our canary chain is there.
    fn has_canary(&mut self) -> Result<bool, ProgramError>;
    /// Another way to the same tables, for a thread of its own.
    fn another(&self) -> Box<dyn Tables<A>>;
}

impl<A: Address> Tables<A> for Iptables<A> {
    fn restore(&mut self, transaction: &Transaction<A>) -> Result<InputSize, ProgramError> {
        Self::restore(self, transaction)
    }

    fn list(&mut self) -> Result<Inventory, ProgramError> {
        self.inventory()
    }

    fn has_canary(&mut self) -> Result<bool, ProgramError> {
        self.canary_is_alive()
    }

    fn another(&self) -> Box<dyn Tables<A>> {
        Box::new(self.clone())
    }
}

/// nf_tables of one network namespace.
pub(crate) trait NfTables: fmt::Debug + Send {
    /// Commits a transaction whole, or not at all; with `only_at`, only if nobody else committed since.
    fn commit(
        &mut self,
        transaction: &nft::Transaction,
        only_at: Option<Generation>,
    ) -> Result<(), CommitError>;
    /// The number that every commit changes.
    fn generation(&mut self) -> Result<Generation, RequestError>;
    fn tables(&mut self, family: Family) -> Result<Vec<Table>, RequestError>;
    fn chains(&mut self, family: Family, table: &Name) -> Result<Vec<Chain>, RequestError>;
    /// The rules of a table, in the order of their chains.
    fn rules(&mut self, family: Family, table: &Name) -> Result<Vec<Rule>, RequestError>;
    fn sets(&mut self, family: Family, table: &Name) -> Result<Vec<Set>, RequestError>;
    /// The elements of a set, for comparison.
    fn records(&mut self, family: Family, table: &Name, set: &Set) -> Result<Records, RequestError>;
    /// How many elements a set has, if the kernel says so and all have keys.
    fn count(&mut self, family: Family, table: &Name, set: &Name) -> Result<Option<u32>, RequestError>;
    /// Those elements of a set that have one of these keys.
    fn records_of(
        &mut self,
        family: Family,
        table: &Name,
        set: &Set,
        keys: &mut dyn Iterator<Item = Value>,
    ) -> Result<Records, RequestError>;
}

impl NfTables for Client {
    fn commit(
        &mut self,
        transaction: &nft::Transaction,
        only_at: Option<Generation>,
    ) -> Result<(), CommitError> {
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

    fn count(&mut self, family: Family, table: &Name, set: &Name) -> Result<Option<u32>, RequestError> {
        self.element_count(family, table, set)
    }

    fn records_of(
        &mut self,
        family: Family,
        table: &Name,
        set: &Set,
        keys: &mut dyn Iterator<Item = Value>,
    ) -> Result<Records, RequestError> {
        let mut records = Records::new(set);
        self.visit_elements((family, table, &set.name), keys, |element| records.push(&element))?;
        Ok(records)
    }
}
