//! Does the kernel hold what one Service should have?
//!
//! Reads without writing, for people who ask. This lists whole tables, so it is not for a sync.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pointsman_dataplane::claims::destinations;
use pointsman_dataplane::{Change, Destination, ProgramError, ServiceState, Settings};
use pointsman_iptables::saved::meaning;
use pointsman_iptables::service::{EndpointComments, ServiceRules};
use pointsman_iptables::{ChainName, Table, render};
use pointsman_model::Address;
use pointsman_netlink::nft::{Element, Name, Op, Set, Value};
use pointsman_netlink_io::{Buffers, Client, RequestError};
use pointsman_nft::{Planner, SetId, TABLE, TableSettings, describe, family};

use crate::commits::unreadable;
use crate::iptables::{Iptables, Variant};
use crate::mode::Mode;

/// How the kernel's state of one Service differs from what it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// What the kernel should have and has not.
    pub missing: Vec<String>,
    /// What the kernel has and should not have.
    pub unexpected: Vec<String>,
}

impl Differences {
    /// Whether nothing differs.
    pub fn agrees(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty()
    }

    fn of(wanted: &BTreeSet<String>, found: &BTreeSet<String>) -> Self {
        Self {
            missing: wanted.difference(found).cloned().collect(),
            unexpected: found.difference(wanted).cloned().collect(),
        }
    }
}

/// Compares what a Service should have with the kernel of this thread's network namespace. `None` if there are no
/// rules of a proxy at all.
pub fn service<A: Address>(
    mode: Mode,
    state: &Arc<ServiceState<A>>,
    settings: &Settings<A>,
) -> Result<Option<Differences>, ProgramError> {
    match mode {
        Mode::Iptables => iptables(state, settings, Variant::detect()?),
        Mode::Nftables => nftables(state, settings),
    }
}

/// Compares the chains of a Service and the rules that lead to them.
fn iptables<A: Address>(
    state: &ServiceState<A>,
    settings: &Settings<A>,
    variant: Variant,
) -> Result<Option<Differences>, ProgramError> {
    let rules = ServiceRules::of(Some(state), settings, EndpointComments::LeftOut);
    let tables = Iptables::<A>::new(variant);
    let mut present = false;
    let mut found: BTreeMap<(Table, ChainName), Vec<Vec<String>>> = BTreeMap::new();
    for table in [Table::Filter, Table::Nat] {
        for line in tables.save(table.as_str())?.lines() {
            present |= line.starts_with(":KUBE-SERVICES ");
            let Some(name) = line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()) else {
                continue;
            };
            let chain = ChainName::parse(name).filter(|chain| {
                rules.chains.contains_key(chain)
                    || rules.dispatch.iter().any(|(_, shared, _)| shared == chain)
            });
            if let Some(chain) = chain {
                found.entry((table, chain)).or_default().push(meaning(line));
            }
        }
    }
    if !present {
        return Ok(None);
    }
    let mut differences = Differences::default();
    for (chain, wanted) in &rules.chains {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|rule| meaning(&render::append_line(*chain, rule)))
            .collect();
        let held = found
            .get(&(Table::Nat, *chain))
            .map_or(&[] as &[_], Vec::as_slice);
        if held != wanted {
            let has = held.len();
            let should = wanted.len();
            differences
                .missing
                .push(format!("chain {chain} with its {should} rules (it has {has})"));
        }
    }
    for (table, chain, rule) in &rules.dispatch {
        let line = render::append_line(*chain, rule);
        let wanted = meaning(&line);
        if !found
            .get(&(*table, *chain))
            .is_some_and(|held| held.contains(&wanted))
        {
            differences.missing.push(format!("{}: {line}", table.as_str()));
        }
    }
    Ok(Some(differences))
}

/// Compares the elements of a Service.
fn nftables<A: Address>(
    state: &Arc<ServiceState<A>>,
    settings: &Settings<A>,
) -> Result<Option<Differences>, ProgramError> {
    let (family, destinations) = (family::<A>(), keys(state));
    let mut client = Client::open(Buffers::default()).map_err(|error| unreadable(error.into()))?;
    let sets = match client.sets(family, &TABLE) {
        Err(RequestError::NotFound) => return Ok(None),
        sets => sets.map_err(unreadable)?,
    };
    if sets.is_empty() {
        return Ok(None);
    }
    let wanted = elements(state, settings)
        .iter()
        .map(|(set, element)| normal(set, element))
        .collect();
    let affinity = SetId::Affinity.name();
    let mut found = BTreeSet::new();
    for set in sets.iter().filter(|set| set.name != affinity) {
        let elements = client.elements(family, &TABLE, &set.name).map_err(unreadable)?;
        let mine = elements
            .iter()
            .filter(|element| destinations.iter().any(|key| belongs(set, element, key)));
        found.extend(mine.map(|element| normal(set, element)));
    }
    Ok(Some(Differences::of(&wanted, &found)))
}

/// The elements of a Service in a table without others, except those that Services share.
pub fn elements<A: Address>(state: &Arc<ServiceState<A>>, settings: &Settings<A>) -> Vec<(Set, Element)> {
    let planner = Planner::new(TableSettings::new(settings.clone()));
    let change = Change {
        name: state.service.name.clone(),
        before: None,
        after: Some(Arc::clone(state)),
    };
    let mut sets: BTreeMap<Name, Set> = planner
        .ruleset()
        .sets
        .iter()
        .map(|set| (set.name.clone(), set.clone()))
        .collect();
    let mut elements = Vec::new();
    let shared = [SetId::Hairpin.name(), SetId::ClusterIps.name()];
    for op in planner.plan(&[change]).transaction.ops {
        match op {
            Op::AddSet(set) => drop(sets.insert(set.name.clone(), set)),
            Op::AddElements { set, elements: added } if !shared.contains(&set) => {
                if let Some(set) = sets.get(&set) {
                    elements.extend(added.into_iter().map(|element| (set.clone(), element)));
                }
            }
            _ => {}
        }
    }
    elements
}

/// A destination as it begins a key: with or without an address.
struct Key {
    node_port: bool,
    bytes: Value,
}

fn keys<A: Address>(state: &ServiceState<A>) -> Vec<Key> {
    let of_port = |port| destinations(&state.service, port).map(|(_, at)| at);
    let all = state.service.ports.iter().flat_map(of_port);
    let key = |at: Destination<A>| {
        let mut bytes = Value::EMPTY;
        let (protocol, port) = match at {
            Destination::Address(address, protocol, port) => {
                bytes.push_field(address.octets().as_ref()).ok()?;
                (protocol, port)
            }
            Destination::NodePort(protocol, port) => (protocol, port.0),
        };
        bytes.push_field(&[protocol.number()]).ok()?;
        bytes.push_field(&port.get().to_be_bytes()).ok()?;
        let node_port = matches!(at, Destination::NodePort(..));
        Some(Key { node_port, bytes })
    };
    all.filter_map(key).collect()
}

fn belongs(set: &Set, element: &Element, key: &Key) -> bool {
    let name = set.name.as_str();
    let node_port = name.starts_with("np-") || name.starts_with("node-ports");
    node_port == key.node_port && element.key.as_bytes().starts_with(key.bytes.as_bytes())
}

/// Slots and tokens depend on history, so only what they lead to is compared.
fn normal(set: &Set, element: &Element) -> String {
    let text = describe::element(set, element);
    let name = &set.name;
    let without_number = |text: &str| {
        let (key, data) = text.split_once(" : ")?;
        let (destination, _) = key.rsplit_once(" . ")?;
        Some((destination.to_owned(), data.to_owned()))
    };
    match without_number(&text) {
        Some((destination, data)) if name.as_str().ends_with("backends") => {
            format!("{name}: {destination} : {data}")
        }
        Some((destination, _)) if name.as_str().ends_with("sticky-slots") => {
            format!("{name}: {destination}")
        }
        _ => format!("{name}: {text}"),
    }
}
