//! What does the kernel hold?
//!
//! The table as nf_tables keeps it, as a value: filled from a dump, or by applying transactions with the
//! kernel's rules about what may be added and deleted. Planning compares with it, the packet walk runs it,
//! and tests use it instead of a kernel.

use std::collections::BTreeMap;

use pointsman_netlink::nft::{Chain, Element, Expr, Name, Op, Rule, Set, Transaction, Value, Verdict};

/// A change the kernel would refuse. The whole transaction is refused with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedChange {
    /// What is changed, deleted or referred to does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// It exists and is different.
    #[error("{0} exists and is different")]
    Conflict(String),
    /// It cannot be deleted as long as something refers to it.
    #[error("{0} is still referred to")]
    InUse(String),
}

/// A set and its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetContent {
    pub set: Set,
    /// The elements by key. The two ends of a plain range are separate elements.
    pub elements: BTreeMap<(Value, bool), Element>,
}

/// A chain and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainContent {
    pub chain: Chain,
    pub rules: Vec<Vec<Expr>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelTable {
    /// Whether the table exists.
    pub exists: bool,
    /// Its sets and maps.
    pub sets: BTreeMap<Name, SetContent>,
    pub chains: BTreeMap<Name, ChainContent>,
}

impl KernelTable {
    /// The table as a dump gives it. Rules and elements of unknown chains and sets are left out.
    pub fn from_dump(
        sets: impl IntoIterator<Item = (Set, Vec<Element>)>,
        chains: impl IntoIterator<Item = Chain>,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Self {
        let mut table = Self {
            exists: true,
            ..Self::default()
        };
        for (set, elements) in sets {
            let elements = elements
                .into_iter()
                .map(|element| (place(&element), element))
                .collect();
            table.sets.insert(set.name.clone(), SetContent { set, elements });
        }
        for chain in chains {
            table.chains.insert(
                chain.name.clone(),
                ChainContent {
                    chain,
                    rules: Vec::new(),
                },
            );
        }
        for mut rule in rules {
            // What was counted meanwhile is no difference.
            for expr in &mut rule.exprs {
                if let Expr::Counter { packets, bytes } = expr {
                    (*packets, *bytes) = (0, 0);
                }
            }
            if let Some(content) = table.chains.get_mut(&rule.chain) {
                content.rules.push(rule.exprs);
            }
        }
        table
    }

    /// An element by its key.
    pub fn element(&self, set: &Name, key: &Value) -> Option<&Element> {
        self.sets.get(set)?.elements.get(&(*key, false))
    }

    /// Applies a transaction whole, or not at all.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<(), RefusedChange> {
        let mut undo = Vec::new();
        let result = transaction
            .ops
            .iter()
            .try_for_each(|op| self.apply_op(op, &mut undo));
        if result.is_err() {
            undo.into_iter().rev().for_each(|step| self.take_back(step));
        }
        result
    }

    fn take_back(&mut self, step: Undo) {
        match step {
            Undo::Table(table) => *self = *table,
            Undo::Chain(name, Some(content)) => {
                self.chains.insert(name, content);
            }
            Undo::Chain(name, None) => {
                self.chains.remove(&name);
            }
            Undo::Set(name, Some(content)) => {
                self.sets.insert(name, content);
            }
            Undo::Set(name, None) => {
                self.sets.remove(&name);
            }
            Undo::Element { set, place, before } => {
                if let Some(content) = self.sets.get_mut(&set) {
                    match before {
                        Some(element) => content.elements.insert(place, element),
                        None => content.elements.remove(&place),
                    };
                }
            }
        }
    }

    fn apply_op(&mut self, op: &Op, undo: &mut Vec<Undo>) -> Result<(), RefusedChange> {
        match op {
            Op::AddTable(_) => {
                if !self.exists {
                    undo.push(Undo::Table(Box::default()));
                    self.exists = true;
                }
            }
            Op::DeleteTable => {
                if !self.exists {
                    return Err(missing("the table"));
                }
                undo.push(Undo::Table(Box::new(std::mem::take(self))));
            }
            Op::AddChain(chain) => return self.add_chain(chain, undo),
            Op::DeleteChain(chain) => return self.delete_chain(chain, undo),
            Op::FlushChain(chain) => {
                let content = self.chain_mut(chain)?;
                undo.push(Undo::Chain(chain.clone(), Some(content.clone())));
                content.rules.clear();
            }
            Op::AddRule(rule) => return self.add_rule(rule, undo),
            Op::DeleteRule { chain, .. } => return Err(missing(&format!("a handle in {chain}"))),
            Op::AddSet(set) => return self.add_set(set, undo),
            Op::DeleteSet(set) => {
                if self.uses_set(set) {
                    return Err(RefusedChange::InUse(format!("set {set}")));
                }
                let gone = self
                    .sets
                    .remove(set)
                    .ok_or_else(|| missing(&format!("set {set}")))?;
                undo.push(Undo::Set(set.clone(), Some(gone)));
            }
            Op::FlushSet(set) => {
                let content = self.set_mut(set)?;
                undo.push(Undo::Set(set.clone(), Some(content.clone())));
                content.elements.clear();
            }
            Op::AddElements { set, elements } => {
                for element in elements {
                    self.add_element(set, element, undo)?;
                }
            }
            Op::DeleteElements { set, elements } => {
                for element in elements {
                    self.delete_element(set, element, undo)?;
                }
            }
        }
        Ok(())
    }

    fn add_chain(&mut self, chain: &Chain, undo: &mut Vec<Undo>) -> Result<(), RefusedChange> {
        if !self.exists {
            return Err(missing("the table"));
        }
        match self.chains.get(&chain.name) {
            Some(known) if known.chain.base != chain.base => {
                Err(RefusedChange::Conflict(format!("chain {}", chain.name)))
            }
            Some(_) => Ok(()),
            None => {
                let content = ChainContent {
                    chain: chain.clone(),
                    rules: Vec::new(),
                };
                self.chains.insert(chain.name.clone(), content);
                undo.push(Undo::Chain(chain.name.clone(), None));
                Ok(())
            }
        }
    }

    fn delete_chain(&mut self, chain: &Name, undo: &mut Vec<Undo>) -> Result<(), RefusedChange> {
        let jumps = |rule: &Vec<Expr>| {
            rule.iter().any(
                |expr| matches!(expr, Expr::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) if to == chain),
            )
        };
        if self
            .chains
            .values()
            .any(|content| content.rules.iter().any(jumps))
        {
            return Err(RefusedChange::InUse(format!("chain {chain}")));
        }
        if !self.chain_mut(chain)?.rules.is_empty() {
            return Err(RefusedChange::InUse(format!("chain {chain}")));
        }
        let gone = self.chains.remove(chain);
        undo.push(Undo::Chain(chain.clone(), gone));
        Ok(())
    }

    fn add_rule(&mut self, rule: &Rule, undo: &mut Vec<Undo>) -> Result<(), RefusedChange> {
        for expr in &rule.exprs {
            match expr {
                Expr::Lookup { set, .. } | Expr::Dynset { set, .. } => {
                    self.set_mut(set)?;
                }
                Expr::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => {
                    self.chain_mut(chain)?;
                }
                _ => {}
            }
        }
        let content = self.chain_mut(&rule.chain)?;
        undo.push(Undo::Chain(rule.chain.clone(), Some(content.clone())));
        content.rules.push(rule.exprs.clone());
        Ok(())
    }

    fn add_set(&mut self, set: &Set, undo: &mut Vec<Undo>) -> Result<(), RefusedChange> {
        if !self.exists {
            return Err(missing("the table"));
        }
        match self.sets.get(&set.name) {
            Some(known) if known.set != *set => Err(RefusedChange::Conflict(format!("set {}", set.name))),
            Some(_) => Ok(()),
            None => {
                let content = SetContent {
                    set: set.clone(),
                    elements: BTreeMap::new(),
                };
                self.sets.insert(set.name.clone(), content);
                undo.push(Undo::Set(set.name.clone(), None));
                Ok(())
            }
        }
    }

    fn add_element(
        &mut self,
        set: &Name,
        element: &Element,
        undo: &mut Vec<Undo>,
    ) -> Result<(), RefusedChange> {
        let content = self.set_mut(set)?;
        match content.elements.get(&place(element)) {
            Some(known) if known == element => Ok(()),
            Some(_) => Err(RefusedChange::Conflict(format!("element {element} of {set}"))),
            None => {
                content.elements.insert(place(element), element.clone());
                undo.push(Undo::Element {
                    set: set.clone(),
                    place: place(element),
                    before: None,
                });
                Ok(())
            }
        }
    }

    fn delete_element(
        &mut self,
        set: &Name,
        element: &Element,
        undo: &mut Vec<Undo>,
    ) -> Result<(), RefusedChange> {
        let gone = self.set_mut(set)?.elements.remove(&place(element));
        let gone = gone.ok_or_else(|| missing(&format!("element {element} of {set}")))?;
        undo.push(Undo::Element {
            set: set.clone(),
            place: place(element),
            before: Some(gone),
        });
        Ok(())
    }

    fn chain_mut(&mut self, chain: &Name) -> Result<&mut ChainContent, RefusedChange> {
        self.chains
            .get_mut(chain)
            .ok_or_else(|| missing(&format!("chain {chain}")))
    }

    fn set_mut(&mut self, set: &Name) -> Result<&mut SetContent, RefusedChange> {
        self.sets
            .get_mut(set)
            .ok_or_else(|| missing(&format!("set {set}")))
    }

    fn uses_set(&self, set: &Name) -> bool {
        let uses = |expr: &Expr| matches!(expr, Expr::Lookup { set: used, .. } | Expr::Dynset { set: used, .. } if used == set);
        self.chains
            .values()
            .any(|content| content.rules.iter().flatten().any(uses))
    }
}

/// How to take back one change.
enum Undo {
    Table(Box<KernelTable>),
    Chain(Name, Option<ChainContent>),
    Set(Name, Option<SetContent>),
    Element {
        set: Name,
        place: (Value, bool),
        before: Option<Element>,
    },
}

fn place(element: &Element) -> (Value, bool) {
    (element.key, element.interval_end)
}

fn missing(what: &str) -> RefusedChange {
    RefusedChange::Missing(what.to_owned())
}
