//! Which chains and rules does the table have?
//!
//! All of them are functions of the [`TableSettings`]; no Service adds a rule, except that the first one
//! with a new affinity timeout adds the rule that knows that number ([`timeout_rule`]).
//!
//! Everything is decided in nat chains, which only see the first packet of a connection: established traffic
//! passes no rule of ours.

mod balance;
mod localhost;
mod program;

use std::collections::BTreeMap;

use pointsman_dataplane::{NodePortAddresses, Settings};
use pointsman_model::{Address, IpFamily};
use pointsman_netlink::nft::{
    BaseChain, Chain, ChainKind, CmpOp, Element, Expr, Family, Hook, Name, Op, Policy, Rule, Table,
    Transaction, UserData, Verdict,
};

pub(crate) use self::balance::{timeout_rule, touch};
pub use self::localhost::refused_on_localhost;
use self::program::{Program, Side};
use crate::intervals::interval_elements;
use crate::pool::Pool;
use crate::set_id::SetId;

/// The name of the table, in the families ip and ip6.
pub const TABLE: Name = Name::fixed("pointsman");

/// Destination translation, and the same for packets of this machine.
const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;

/// The netlink family of an address type.
pub fn family<A: Address>() -> Family {
    match A::FAMILY {
        IpFamily::V4 => Family::Ip,
        IpFamily::V6 => Family::Ip6,
    }
}

/// What shapes the table besides Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSettings<A> {
    /// What both backends need to know.
    pub shared: Settings<A>,
    /// How many clients with affinity are remembered for each kind of destination.
    pub affinity_clients: u32,
}

impl<A: Address> TableSettings<A> {
    /// Settings with room for 262,144 sticky clients.
    pub fn new(shared: Settings<A>) -> Self {
        Self {
            shared,
            affinity_clients: 1 << 18,
        }
    }
}

/// The fixed part of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    pub table: Table,
    /// Its sets and maps.
    pub sets: Vec<pointsman_netlink::nft::Set>,
    /// Its chains with their rules.
    pub chains: BTreeMap<Name, (Chain, Vec<Vec<Expr>>)>,
    /// Elements that follow from the settings.
    pub elements: Vec<(SetId, Vec<Element>)>,
}

impl Ruleset {
    /// The table for these settings.
    pub fn new<A: Address>(settings: &TableSettings<A>) -> Self {
        let mut chains = Chains::<A>::default();
        entry(&mut chains, settings);
        for pool in Pool::ALL {
            balance::chains(&mut chains, pool);
        }
        let mut sets = SetId::fixed();
        sets.push(SetId::Affinity);
        let addresses = match &settings.shared.node_ports {
            NodePortAddresses::All => Vec::new(),
            NodePortAddresses::Only(addresses) => program::address_elements(addresses),
        };
        Self {
            table: Table {
                userdata: UserData::comment("rules for services"),
                ..Table::new(family::<A>(), TABLE)
            },
            sets: sets
                .iter()
                .map(|set| set.declare::<A>(settings.affinity_clients))
                .collect(),
            chains: chains.chains,
            elements: vec![
                (
                    SetId::ServiceCidrs,
                    interval_elements(&settings.shared.service_cidrs),
                ),
                (SetId::NodePortAddresses, addresses),
            ],
        }
    }

    /// Makes the table from nothing. Chains come before rules, and base chains last, so that no packet
    /// enters before all is there; one commit makes that moot, but costs nothing.
    pub fn create(&self) -> Transaction {
        let mut transaction = self.create_empty();
        for (set, elements) in &self.elements {
            if !elements.is_empty() {
                let (set, elements) = (set.name(), elements.clone());
                transaction.ops.push(Op::AddElements { set, elements });
            }
        }
        transaction
    }

    /// The same without the service ranges: as long as Services are still missing, their addresses must be
    /// left to a predecessor. Their elements come back as a second transaction, for the end.
    pub fn create_gently(&self) -> (Transaction, Transaction) {
        let ranges = SetId::ServiceCidrs.name();
        let of_ranges = |op: &Op| matches!(op, Op::AddElements { set, .. } if *set == ranges);
        let mut create = self.create();
        let mut last = Transaction::new(self.table.family, self.table.name.clone());
        last.ops = create.ops.extract_if(.., |op| of_ranges(op)).collect();
        (create, last)
    }

    /// The chains, rules and sets in a table of another name and without hooks, so that the kernel can be
    /// asked whether it can hold them without touching a packet.
    pub fn probe(&self, table: Name) -> Transaction {
        let mut transaction = self.create_empty();
        transaction.table = table.clone();
        for op in &mut transaction.ops {
            match op {
                Op::AddTable(it) => it.name = table.clone(),
                Op::AddChain(chain) => chain.base = None,
                _ => {}
            }
        }
        transaction
    }

    /// The same without elements.
    pub(crate) fn create_empty(&self) -> Transaction {
        let mut transaction = Transaction::new(self.table.family, self.table.name.clone());
        let ops = &mut transaction.ops;
        ops.push(Op::AddTable(self.table.clone()));
        ops.extend(self.sets.iter().cloned().map(Op::AddSet));
        let (base, regular): (Vec<_>, Vec<_>) =
            self.chains.values().partition(|(chain, _)| chain.base.is_some());
        let ordered = || regular.iter().chain(&base);
        ops.extend(ordered().map(|(chain, _)| Op::AddChain(chain.clone())));
        for (chain, rules) in ordered() {
            ops.extend(
                rules
                    .iter()
                    .map(|exprs| Op::AddRule(Rule::new(chain.name.clone(), exprs.clone()))),
            );
        }
        transaction
    }
}

/// Chains under construction.
#[derive(Debug)]
struct Chains<A> {
    chains: BTreeMap<Name, (Chain, Vec<Vec<Expr>>)>,
    family: std::marker::PhantomData<A>,
}

impl<A> Default for Chains<A> {
    fn default() -> Self {
        Self {
            chains: BTreeMap::new(),
            family: std::marker::PhantomData,
        }
    }
}

impl<A: Address> Chains<A> {
    fn chain(&mut self, name: Name, rules: impl IntoIterator<Item = Program<A>>) {
        self.insert(Chain::regular(name), rules);
    }

    fn base(
        &mut self,
        name: &'static str,
        hook: Hook,
        priority: i32,
        rules: impl IntoIterator<Item = Program<A>>,
    ) {
        let base = BaseChain {
            kind: ChainKind::Nat,
            hook,
            priority,
            policy: Policy::Accept,
        };
        self.insert(
            Chain {
                base: Some(base),
                ..Chain::regular(Name::fixed(name))
            },
            rules,
        );
    }

    fn insert(&mut self, chain: Chain, rules: impl IntoIterator<Item = Program<A>>) {
        let rules = rules.into_iter().map(Program::finish).collect();
        self.chains.insert(chain.name.clone(), (chain, rules));
    }
}

const SERVICES: Name = Name::fixed("services");
const CLUSTER_IP: Name = Name::fixed("cluster-ip");
const EXTERNAL_IP: Name = Name::fixed("external-ip");
const NODE_PORT: Name = Name::fixed("node-port");
const FIREWALL: Name = Name::fixed("firewall");
const MARK: Name = Name::fixed("mark-for-masquerade");
/// `reject` itself is no name to `nft`.
const REFUSE: Name = Name::fixed("refuse");

/// The chains from the hooks down to the choice of a pool.
fn entry<A: Address>(chains: &mut Chains<A>, settings: &TableSettings<A>) {
    let rule = Program::<A>::new;
    let mark = settings.shared.masquerade.get();
    let localhost = localhost::chain(chains, settings.shared.localhost);
    hooks(chains, mark, localhost);
    dispatch(chains, settings);
    chains.chain(
        FIREWALL,
        [
            rule()
                .key_and_source_in(SetId::SourceRanges)
                .then(Verdict::Return),
            rule().then(Verdict::Drop),
        ],
    );
    let external_ip = (
        EXTERNAL_IP,
        Pool::Address,
        SetId::ExternalLocal,
        Pool::AddressLocal,
    );
    external(chains, settings, external_ip);
    let node_port = (
        NODE_PORT,
        Pool::NodePort,
        SetId::NodePortsLocal,
        Pool::NodePortLocal,
    );
    external(chains, settings, node_port);
    chains.chain(MARK, [rule().set_mark(!mark, mark)]);
    chains.chain(REFUSE, [rule().reject()]);
}

/// Where the kernel enters the table.
fn hooks<A: Address>(chains: &mut Chains<A>, mark: u32, localhost: Option<Program<A>>) {
    let rule = Program::<A>::new;
    chains.base(
        "nat-prerouting",
        Hook::Prerouting,
        DSTNAT,
        [rule().jump(SERVICES)],
    );
    let output = [rule().jump(SERVICES)].into_iter().chain(localhost);
    chains.base("nat-output", Hook::Output, DSTNAT, output);
    chains.base(
        "nat-postrouting",
        Hook::Postrouting,
        SRCNAT,
        [
            // The mark is taken off, so that nobody after us acts on it.
            rule().if_marked(mark).set_mark(u32::MAX, mark).masquerade(),
            rule()
                .source_and_destination_in(SetId::Hairpin)
                .if_translated()
                .masquerade(),
        ],
    );
}

/// The chain that tells what a packet is sent to.
fn dispatch<A: Address>(chains: &mut Chains<A>, settings: &TableSettings<A>) {
    let rule = Program::<A>::new;
    let node_port = rule().key_in(Pool::NodePort, SetId::NodePorts);
    let node_port = match &settings.shared.node_ports {
        NodePortAddresses::All => node_port.if_local(Side::Destination).address_is(
            Side::Destination,
            CmpOp::Neq,
            &program::loopback(),
        ),
        NodePortAddresses::Only(_) => node_port.destination_in(SetId::NodePortAddresses),
    };
    chains.chain(
        SERVICES,
        [
            rule().destination_in(SetId::ClusterIps).goto(CLUSTER_IP),
            rule().key_in(Pool::Address, SetId::ExternalIps).goto(EXTERNAL_IP),
            rule().destination_in(SetId::ServiceCidrs).then(Verdict::Drop),
            node_port.goto(NODE_PORT),
        ],
    );
    chains.chain(
        CLUSTER_IP,
        cluster_ip_masquerade(settings)
            .into_iter()
            .chain([rule().goto(balance::pick(Pool::Address))]),
    );
}

/// Replies to a client must come back through this node if it is not one of our pods.
fn cluster_ip_masquerade<A: Address>(settings: &TableSettings<A>) -> Option<Program<A>> {
    let local = &settings.shared.local;
    if settings.shared.masquerade_all {
        Some(Program::new().jump(MARK))
    } else if local.is_some() {
        Some(Program::new().if_from_pod(local, CmpOp::Neq).jump(MARK))
    } else {
        None
    }
}

/// Traffic to an external address or node port: which policy, which list, and is it masqueraded?
fn external<A: Address>(
    chains: &mut Chains<A>,
    settings: &TableSettings<A>,
    (name, main, local_set, local): (Name, Pool, SetId, Pool),
) {
    let rule = Program::<A>::new;
    let local_chain = local.name("policy");
    let firewall = (main == Pool::Address).then(|| rule().key_in(main, SetId::Firewalled).jump(FIREWALL));
    chains.chain(
        name,
        firewall.into_iter().chain([
            rule().key_in(main, local_set).goto(local_chain.clone()),
            rule().jump(MARK),
            rule().goto(balance::pick(main)),
        ]),
    );
    let detector = &settings.shared.local;
    let pods = detector
        .is_some()
        .then(|| rule().if_from_pod(detector, CmpOp::Eq).goto(balance::pick(main)));
    chains.chain(
        local_chain,
        pods.into_iter().chain([
            rule().if_local(Side::Source).jump(MARK),
            rule().if_local(Side::Source).goto(balance::pick(main)),
            rule().goto(balance::pick(local)),
        ]),
    );
}
