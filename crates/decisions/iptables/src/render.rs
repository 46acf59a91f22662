//! How is a rule written for `iptables-restore`?
//!
//! Options come in the order in which `iptables-save` prints them. Names reach the text only inside
//! comments, where everything that could end a quoted string or a line is replaced.

use std::fmt::Write;

use pointsman_model::{Address, IpFamily};

use crate::name::{ChainName, Table};
use crate::rule::{Is, Match, Rule, Target};
use crate::transaction::{Edit, Transaction};

/// The longest comment the kernel keeps (XT_MAX_COMMENT_LEN with its final zero).
const LONGEST_COMMENT: usize = 255;

/// The input for `iptables-restore --noflush`.
pub fn transaction<A: Address>(transaction: &Transaction<A>) -> String {
    let mut out = String::new();
    for (table, edit) in &transaction.tables {
        if !edit.is_empty() {
            table_edit(&mut out, *table, edit);
        }
    }
    out
}

fn table_edit<A: Address>(out: &mut String, table: Table, edit: &Edit<A>) {
    let _ = writeln!(out, "*{}", table.as_str());
    // Declaring a chain creates it, or empties it if it exists.
    for chain in edit.writes.keys().chain(&edit.removals) {
        let _ = writeln!(out, ":{chain} - [0:0]");
    }
    for (chain, rule) in &edit.deletes {
        line(out, "-D", *chain, rule);
    }
    for (chain, thinned) in &edit.thinned {
        // From the end, so that the positions before stay what they are.
        for position in thinned.gone.iter().rev() {
            let _ = writeln!(out, "-D {chain} {}", position + 1);
        }
    }
    for (chain, rules) in &edit.writes {
        for rule in rules {
            line(out, "-A", *chain, rule);
        }
    }
    for (chain, rule) in &edit.appends {
        line(out, "-A", *chain, rule);
    }
    for (chain, rule) in &edit.inserts {
        line(out, "-I", *chain, rule);
    }
    for chain in &edit.removals {
        let _ = writeln!(out, "-X {chain}");
    }
    out.push_str("COMMIT\n");
}

/// One line of input with its command.
fn line<A: Address>(out: &mut String, command: &str, chain: ChainName, rule: &Rule<A>) {
    let _ = write!(out, "{command} {chain}");
    specification(out, rule);
    out.push('\n');
}

/// The rule as `iptables-save` would print it, with the command that appends it.
pub fn append_line<A: Address>(chain: ChainName, rule: &Rule<A>) -> String {
    let mut out = String::new();
    line(&mut out, "-A", chain, rule);
    out.pop();
    out
}

/// The matches, the comment and the target.
pub fn specification_text<A: Address>(rule: &Rule<A>) -> String {
    let mut out = String::new();
    specification(&mut out, rule);
    out
}

/// The matches and the target, each preceded by a space.
fn specification<A: Address>(out: &mut String, rule: &Rule<A>) {
    for place in 0..HEADER_PLACES {
        for condition in rule
            .matches
            .iter()
            .filter(|condition| header_place(condition) == Some(place))
        {
            header_match(out, condition);
        }
    }
    if !rule.comment_last {
        comment(out, &rule.comment);
    }
    for condition in &rule.matches {
        module_match(out, condition);
    }
    if rule.comment_last {
        comment(out, &rule.comment);
    }
    target(out, &rule.target);
}

fn comment(out: &mut String, comment: &str) {
    if !comment.is_empty() {
        let _ = write!(out, " -m comment --comment \"{}\"", clean(comment));
    }
}

/// How many kinds of header matches there are.
const HEADER_PLACES: u8 = 4;

/// Where `iptables-save` puts a match on the packet's header; `None` for matches by modules.
const fn header_place<A>(condition: &Match<A>) -> Option<u8> {
    match condition {
        Match::Source(..) => Some(0),
        Match::Destination(..) | Match::DestinationEnd(_) => Some(1),
        Match::Interface(..) | Match::InterfacePrefix(..) => Some(2),
        Match::Protocol(_) | Match::Port(..) => Some(3),
        _ => None,
    }
}

/// Matches on the packet's header, which come first.
fn header_match<A: Address>(out: &mut String, condition: &Match<A>) {
    // Writing to a string cannot fail.
    let _ = match condition {
        Match::Source(is, range) => write!(out, "{} -s {}", not(*is), range),
        Match::Destination(is, range) => write!(out, "{} -d {}", not(*is), range),
        Match::DestinationEnd(byte) => match A::FAMILY {
            IpFamily::V4 => write!(out, " -d 0.0.0.{byte}/0.0.0.255"),
            IpFamily::V6 => write!(
                out,
                " -d {}/::ff",
                std::net::Ipv6Addr::from_bits(u128::from(*byte))
            ),
        },
        Match::Interface(is, name) => write!(out, "{} -i {name}", not(*is)),
        Match::InterfacePrefix(is, prefix) => write!(out, "{} -i {prefix}+", not(*is)),
        Match::Protocol(protocol) | Match::Port(protocol, _) => write!(out, " -p {protocol}"),
        _ => Ok(()),
    };
}

/// Matches by kernel modules.
fn module_match<A: Address>(out: &mut String, condition: &Match<A>) {
    let _ = match condition {
        Match::Port(protocol, port) => write!(out, " -m {protocol} --dport {port}"),
        Match::FromThisNode => write!(out, " -m addrtype --src-type LOCAL"),
        Match::ToThisNode => write!(out, " -m addrtype --dst-type LOCAL"),
        Match::State(is, states) => {
            let states: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
            write!(out, " -m conntrack{} --ctstate {}", not(*is), states.join(","))
        }
        Match::Mark(is, mark) => write!(out, " -m mark{} --mark {mark}/{mark}", not(*is)),
        Match::OneIn(n) => write!(
            out,
            " -m statistic --mode random --probability {}",
            probability(*n)
        ),
        Match::SeenBy(list, affinity) => write!(
            out,
            " -m recent --rcheck --seconds {} --reap --name {list}",
            affinity.timeout_seconds
        ),
        Match::NoteSeen(list) => write!(out, " -m recent --set --name {list}"),
        Match::TranslatedFrom(range) => {
            write!(out, " -m conntrack --ctstate DNAT --ctorigdst {range}")
        }
        Match::Counted(counter) => write!(out, " -m nfacct --nfacct-name {}", counter.as_str()),
        _ => Ok(()),
    };
}

fn target<A: Address>(out: &mut String, target: &Target<A>) {
    let _ = match target {
        Target::Nothing => Ok(()),
        Target::Jump(chain) => write!(out, " -j {chain}"),
        Target::Return => write!(out, " -j RETURN"),
        Target::Accept => write!(out, " -j ACCEPT"),
        Target::Drop => write!(out, " -j DROP"),
        Target::Reject => write!(out, " -j REJECT"),
        Target::Dnat(backend) => write!(out, " -j DNAT --to-destination {backend}"),
        Target::Masquerade => write!(out, " -j MASQUERADE --random-fully"),
        Target::SetMark(mark) => write!(out, " -j MARK --set-xmark {mark}/{mark}"),
        Target::FlipMark(mark) => write!(out, " -j MARK --set-xmark {mark}/0x0"),
    };
}

const fn not(is: Is) -> &'static str {
    match is {
        Is::In => "",
        Is::NotIn => " !",
    }
}

/// One in `n` with upstream's ten decimals.
pub fn probability(n: u32) -> String {
    format!("{:.10}", 1.0 / f64::from(n))
}

/// The comment without anything that could break out of it.
fn clean(comment: &str) -> String {
    let safe = comment.chars().map(|character| match character {
        '"' | '\\' => '?',
        ' '..='~' => character,
        _ => '?',
    });
    safe.take(LONGEST_COMMENT).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use pointsman_dataplane::settings::MasqueradeMark;
    use pointsman_model::{Cidr, Port, Protocol};

    use super::*;
    use crate::name::Top;
    use crate::rule::ConnectionState;

    fn text<A: Address>(rule: &Rule<A>) -> String {
        append_line(ChainName::Top(Top::Services), rule).split_off("-A KUBE-SERVICES ".len())
    }

    #[test]
    fn rules_are_spelled_as_iptables_save_spells_them() {
        let address: Ipv4Addr = "10.96.0.1".parse().unwrap();
        let port = Match::Port(Protocol::Tcp, Port::new(443).unwrap());
        let to = Match::Destination(Is::In, Cidr::host(address));
        let rule =
            Rule::new(vec![to, port], Target::Reject).comment("default/kubernetes:https has no endpoints");
        assert_eq!(
            text(&rule),
            "-d 10.96.0.1/32 -p tcp -m comment --comment \"default/kubernetes:https has no endpoints\" \
             -m tcp --dport 443 -j REJECT"
        );
        let mark = MasqueradeMark::default();
        let marked = Rule::<Ipv4Addr>::new(vec![Match::Mark(Is::NotIn, mark)], Target::Return);
        assert_eq!(text(&marked), "-m mark ! --mark 0x4000/0x4000 -j RETURN");
        let states = &[ConnectionState::Related, ConnectionState::Established];
        let known = Rule::<Ipv4Addr>::new(vec![Match::State(Is::In, states)], Target::Accept);
        assert_eq!(
            text(&known),
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        );
    }

    #[test]
    fn buckets_match_the_last_byte_in_both_families() {
        let jump = Target::Jump(ChainName::Bucket(7));
        assert_eq!(
            text(&Rule::<Ipv4Addr>::new(vec![Match::DestinationEnd(7)], jump)),
            "-d 0.0.0.7/0.0.0.255 -j KUBE-SERVICES-07"
        );
        let jump = Target::Jump(ChainName::Bucket(255));
        assert_eq!(
            text(&Rule::<Ipv6Addr>::new(vec![Match::DestinationEnd(255)], jump)),
            "-d ::ff/::ff -j KUBE-SERVICES-FF"
        );
    }

    #[test]
    fn a_comment_cannot_end_its_line_or_quotes() {
        let rule = Rule::<Ipv4Addr>::new(Vec::new(), Target::Nothing).comment("a\"b\nCOMMIT\\ü".repeat(40));
        let text = text(&rule);
        assert!(!text.contains('\n') && !text.contains('\\') && text.is_ascii());
        assert_eq!(text.matches('"').count(), 2);
        assert!(text.len() < 300);
    }

    #[test]
    fn probabilities_fall_strictly_and_keep_ten_decimals() {
        assert_eq!(probability(1), "1.0000000000");
        assert_eq!(probability(3), "0.3333333333");
        let mut previous = probability(1);
        for n in 2..=100_000 {
            let next = probability(n);
            assert!(next < previous, "{n}: {next} {previous}");
            previous = next;
        }
    }
}
