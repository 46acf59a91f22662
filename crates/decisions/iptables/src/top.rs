//! Which rules are there whatever the Services?

use pointsman_dataplane::settings::{NodePortAddresses, Settings};
use pointsman_model::{Address, Cidr, IpFamily};

use crate::name::{Builtin, ChainName, IpvsChain, Table, Top};
use crate::rule::{ConnectionState, Is, Match, PacketCounter, Rule, Target};

/// Where our chains hang in the kernel's, in the order in which they are put in front: the last one
/// listed for a built-in chain ends up first, so that for instance the load balancer firewall is asked
/// before translated traffic is let through.
pub fn jumps<A: Address>() -> Vec<(Table, Builtin, Rule<A>)> {
    use Builtin::{Forward, Input, Output, Postrouting, Prerouting};
    use Table::{Filter, Nat};
    let jump = |table, from, to: Top, only_new: bool, comment: &str| {
        let state = Match::State(Is::In, &[ConnectionState::New]);
        let matches = if only_new { vec![state] } else { Vec::new() };
        let rule = Rule::new(matches, Target::Jump(ChainName::Top(to))).comment(comment);
        // In kube-proxy's words, so that each of us can take out what the other one wrote.
        (table, from, if only_new { rule.reworded() } else { rule })
    };
    let portals = "kubernetes service portals";
    let external = "kubernetes externally-visible service portals";
    let firewall = "kubernetes load balancer firewall";
    vec![
        jump(Filter, Input, Top::ExternalServices, true, external),
        jump(Filter, Forward, Top::ExternalServices, true, external),
        jump(
            Filter,
            Input,
            Top::NodePorts,
            false,
            "kubernetes health check service ports",
        ),
        jump(Filter, Forward, Top::Services, true, portals),
        jump(Filter, Output, Top::Services, true, portals),
        jump(
            Filter,
            Forward,
            Top::Forward,
            false,
            "kubernetes forwarding rules",
        ),
        jump(Filter, Input, Top::ProxyFirewall, true, firewall),
        jump(Filter, Output, Top::ProxyFirewall, true, firewall),
        jump(Filter, Forward, Top::ProxyFirewall, true, firewall),
        jump(Nat, Output, Top::Services, false, portals),
        jump(Nat, Prerouting, Top::Services, false, portals),
        jump(
            Nat,
            Postrouting,
            Top::Postrouting,
            false,
            "kubernetes postrouting rules",
        ),
        jump(Filter, Input, Top::Firewall, false, ""),
        jump(Filter, Output, Top::Firewall, false, ""),
    ]
}

/// A jump as it is written, and in the words of our earlier versions, which may still hang there.
pub fn words<A: Address>(jump: &Rule<A>) -> impl Iterator<Item = Rule<A>> + use<A> {
    let earlier = jump.comment_last.then(|| jump.clone().reworded());
    std::iter::once(jump.clone()).chain(earlier)
}

/// The jumps that only kube-proxy's IPVS mode makes; the others it shares with its iptables mode.
pub fn ipvs_jumps<A: Address>() -> Vec<(Table, Builtin, Rule<A>)> {
    let jump = |from, to, comment: &str| {
        let rule = Rule::new(Vec::new(), Target::Jump(to)).comment(comment);
        (Table::Filter, from, rule)
    };
    let firewall = ChainName::Top(Top::ProxyFirewall);
    vec![
        jump(
            Builtin::Input,
            ChainName::Ipvs(IpvsChain::NodePort),
            "kubernetes health check rules",
        ),
        jump(Builtin::Input, firewall, "kube-proxy firewall rules"),
        jump(Builtin::Forward, firewall, "kube-proxy firewall rules"),
        jump(
            Builtin::Input,
            ChainName::Ipvs(IpvsChain::Filter),
            "kubernetes ipvs access filter",
        ),
        jump(
            Builtin::Output,
            ChainName::Ipvs(IpvsChain::OutFilter),
            "kubernetes ipvs access filter",
        ),
    ]
}

/// The chains with fixed content, and the beginning of those to which Services add.
pub fn chains<A: Address>(settings: &Settings<A>) -> Vec<(Table, ChainName, Vec<Rule<A>>)> {
    let top = ChainName::Top;
    vec![
        (Table::Filter, top(Top::Services), Vec::new()),
        (Table::Filter, top(Top::ExternalServices), Vec::new()),
        (Table::Filter, top(Top::NodePorts), Vec::new()),
        (Table::Filter, top(Top::ProxyFirewall), Vec::new()),
        (Table::Filter, top(Top::Forward), forward(settings)),
        (Table::Nat, top(Top::Services), node_port_jumps(settings)),
        (Table::Nat, top(Top::NodePorts), Vec::new()),
        (Table::Nat, top(Top::Postrouting), postrouting(settings)),
        (
            Table::Nat,
            top(Top::MarkMasq),
            vec![Rule::new(Vec::new(), Target::SetMark(settings.masquerade))],
        ),
        (Table::Filter, top(Top::Canary), Vec::new()),
        (Table::Nat, top(Top::Canary), Vec::new()),
        (Table::Mangle, top(Top::Canary), Vec::new()),
    ]
}

/// The rule that keeps outsiders from 127.0.0.1, which node ports on localhost make routable
/// (CVE-2020-8558). It lives in a chain shared with the kubelet.
pub fn localhost_guard<A: Address>(settings: &Settings<A>) -> Option<Rule<A>> {
    localhost_works(settings).then(|| {
        let known = &[
            ConnectionState::Related,
            ConnectionState::Established,
            ConnectionState::Dnat,
        ];
        let matches = vec![
            Match::Source(Is::NotIn, A::LOOPBACK),
            Match::Destination(Is::In, A::LOOPBACK),
            Match::State(Is::NotIn, known),
        ];
        Rule::new(matches, Target::Drop).comment("block incoming localnet connections")
    })
}

/// The rules at the end of `KUBE-SERVICES` that send the node's own addresses to `KUBE-NODEPORTS`.
///
/// They must stay last: an address of the node may also be an external address of a Service.
fn node_port_jumps<A: Address>(settings: &Settings<A>) -> Vec<Rule<A>> {
    let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let jump = |matches| Rule::new(matches, Target::Jump(ChainName::Top(Top::NodePorts))).comment(comment);
    let localhost_works = localhost_works(settings);
    match &settings.node_ports {
        NodePortAddresses::All if localhost_works => vec![jump(vec![Match::ToThisNode])],
        NodePortAddresses::All => {
            vec![jump(vec![
                Match::Destination(Is::NotIn, A::LOOPBACK),
                Match::ToThisNode,
            ])]
        }
        NodePortAddresses::Only(addresses) => addresses
            .iter()
            .filter(|address| localhost_works || !A::LOOPBACK.contains(**address))
            .map(|address| jump(vec![Match::Destination(Is::In, Cidr::host(*address))]))
            .collect(),
    }
}

fn forward<A: Address>(settings: &Settings<A>) -> Vec<Rule<A>> {
    let mut rules = Vec::new();
    if !settings.conntrack_liberal {
        // Conntrack calls late or reordered packets invalid and does not translate them back; let
        // through, they would make the peer reset the connection (kubernetes/kubernetes#74839).
        let invalid = vec![Match::State(Is::In, &[ConnectionState::Invalid])];
        rules.push(counting(
            settings,
            PacketCounter::InvalidDropped,
            invalid,
            Target::Drop,
        ));
    }
    let marked = Match::Mark(Is::In, settings.masquerade);
    rules.push(Rule::new(vec![marked], Target::Accept).comment("kubernetes forwarding rules"));
    let known = Match::State(Is::In, &[ConnectionState::Related, ConnectionState::Established]);
    rules.push(Rule::new(vec![known], Target::Accept).comment("kubernetes forwarding conntrack rule"));
    rules
}

fn postrouting<A: Address>(settings: &Settings<A>) -> Vec<Rule<A>> {
    let mark = settings.masquerade;
    let mut rules = vec![
        Rule::new(vec![Match::Mark(Is::NotIn, mark)], Target::Return),
        // The packet may pass here again after encapsulation; the mark must not.
        Rule::new(Vec::new(), Target::FlipMark(mark)),
    ];
    if localhost_works(settings) {
        // All of them are masqueraded, and only the first packet of a connection comes here: one rule counts what
        // upstream counts by one for each node port.
        let from_localhost = vec![Match::TranslatedFrom(A::LOOPBACK)];
        let counted = PacketCounter::LocalhostAccepted;
        rules.push(counting(settings, counted, from_localhost, Target::Nothing));
    }
    rules
        .push(Rule::new(Vec::new(), Target::Masquerade).comment("kubernetes service traffic requiring SNAT"));
    rules
}

/// A rule that counts under a name if the kernel can; every rule counts by itself besides.
fn counting<A: Address>(
    settings: &Settings<A>,
    counter: PacketCounter,
    mut matches: Vec<Match<A>>,
    target: Target<A>,
) -> Rule<A> {
    matches.extend(settings.named_counters.then_some(Match::Counted(counter)));
    Rule::new(matches, target)
}

/// IPv6 has no way to route ::1 elsewhere; IPv4 has one, if it is asked for.
fn localhost_works<A: Address>(settings: &Settings<A>) -> bool {
    A::FAMILY == IpFamily::V4 && settings.localhost_node_ports
}
