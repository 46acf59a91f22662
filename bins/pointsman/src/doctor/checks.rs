//! What do the facts about a node and its cluster mean for whoever is about to run a proxy there?

use pointsman_kernel::features::{OLDEST, Release};
use serde::Serialize;

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// It works, and somebody should know.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of the answer.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub about: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
}

/// What was found on the machine. What could not be read is `None`, or says why.
#[derive(Debug, Default)]
pub struct Machine {
    /// As `uname -r` prints it.
    pub release: String,
    /// Whether this process may read and write rules.
    pub net_admin: bool,
    /// Whether the kernel can hold the table of nftables mode.
    pub nftables: Option<Result<(), String>>,
    /// The kernel interface that iptables mode would use.
    pub iptables: Option<Result<String, String>>,
    /// Both kernel interfaces of iptables hold Kubernetes' chains.
    pub both_interfaces: bool,
    pub forwards: Option<bool>,
    /// The policy of iptables' chain FORWARD is DROP, as Docker leaves it.
    pub drops_forwarded: bool,
    /// Connections that are tracked, and how many may be.
    pub tracked: Option<(u64, u64)>,
    /// Service proxies that run, by name and process.
    pub proxies: Vec<(String, u32)>,
    /// Programs that write rules of their own.
    pub neighbours: Vec<String>,
    /// The interface of kube-proxy's IPVS mode is there.
    pub ipvs: bool,
    /// Ports of ours on which somebody listens.
    pub taken: Vec<u16>,
    /// Interfaces and their largest packets, the one of the default route first.
    pub mtus: Vec<(String, u32)>,
}

/// What the API server said.
#[derive(Debug, Default)]
pub struct Cluster {
    pub version: String,
    /// Nodes and the versions of their kubelets.
    pub kubelets: Vec<(String, String)>,
    /// How far ahead of this machine's clock the latest heartbeat is.
    pub ahead: Option<f64>,
    /// Rights that the proxy needs and this identity has not.
    pub missing: Vec<String>,
}

/// A heartbeat from the future by more than this is a clock that is wrong, and not one that is read late.
const CLOCK_TOLERANCE: f64 = 0.5;

fn finding(about: &'static str, verdict: Verdict, found: String, advice: &'static str) -> Finding {
    let advice = (verdict != Verdict::Ok).then_some(advice);
    Finding {
        about,
        verdict,
        found,
        advice,
    }
}

/// What the machine is like.
pub fn machine(facts: &Machine) -> Vec<Finding> {
    let mut findings = vec![kernel(facts), rights(facts)];
    findings.extend(iptables(facts));
    findings.push(forwarding(facts));
    findings.extend(facts.drops_forwarded.then(drop_policy));
    findings.extend(facts.tracked.map(tracking));
    findings.push(writers(facts));
    findings.push(listeners(facts));
    findings.extend(packets(facts));
    findings
}

fn kernel(facts: &Machine) -> Finding {
    let new_enough = Release::parse(&facts.release).is_some_and(|release| release >= OLDEST);
    let (verdict, found) = match &facts.nftables {
        Some(Ok(())) => (
            Verdict::Ok,
            format!(
                "Linux {}, which can hold the table of nftables mode",
                facts.release
            ),
        ),
        Some(Err(reason)) => (Verdict::Warn, format!("Linux {}: {reason}", facts.release)),
        None if new_enough => (Verdict::Ok, format!("Linux {}", facts.release)),
        None => (
            Verdict::Warn,
            format!(
                "Linux {}, nftables mode is made for {OLDEST} and later",
                facts.release
            ),
        ),
    };
    finding(
        "kernel",
        verdict,
        found,
        "load the module nf_tables, or run the proxy with --proxy-mode=iptables",
    )
}

fn rights(facts: &Machine) -> Finding {
    let (verdict, found) = match facts.net_admin {
        true => (Verdict::Ok, "CAP_NET_ADMIN"),
        false => (Verdict::Warn, "no CAP_NET_ADMIN, so rules were not looked at"),
    };
    finding(
        "rights",
        verdict,
        found.to_owned(),
        "run this as root on the node",
    )
}

fn iptables(facts: &Machine) -> Vec<Finding> {
    let advice =
        "needed in iptables mode only: apt install iptables, or run the proxy with --proxy-mode=nftables";
    let mut findings = Vec::new();
    match &facts.iptables {
        Some(Ok(variant)) => findings.push(finding("iptables", Verdict::Ok, variant.clone(), advice)),
        Some(Err(reason)) => findings.push(finding("iptables", Verdict::Warn, reason.clone(), advice)),
        None => {}
    }
    if facts.both_interfaces {
        findings.push(finding(
            "iptables",
            Verdict::Fail,
            "chains of Kubernetes in both kernel interfaces: packets meet two sets of rules".to_owned(),
            "find who writes into the older one (iptables-legacy-save) and clean it: iptables-legacy -t nat -F, or a reboot",
        ));
    }
    findings
}

fn forwarding(facts: &Machine) -> Finding {
    let (verdict, found) = match facts.forwards {
        Some(true) => (Verdict::Ok, "net.ipv4.ip_forward=1"),
        Some(false) => (
            Verdict::Fail,
            "net.ipv4.ip_forward=0: packets to pods of other nodes and from pods are dropped",
        ),
        None => (Verdict::Warn, "net.ipv4.ip_forward cannot be read"),
    };
    finding(
        "forwarding",
        verdict,
        found.to_owned(),
        "sysctl -w net.ipv4.ip_forward=1, and in /etc/sysctl.d",
    )
}

fn drop_policy() -> Finding {
    finding(
        "forwarding",
        Verdict::Warn,
        "the policy of FORWARD is DROP: nftables mode forwards only what rules there accept".to_owned(),
        "see that rules of FORWARD accept pods (with Docker: DOCKER-USER) before the node runs nftables mode: docs/neighbours.md",
    )
}

fn tracking((used, most): (u64, u64)) -> Finding {
    let verdict = match used * 10 {
        tenths if tenths >= most * 10 => Verdict::Fail,
        tenths if tenths >= most * 8 => Verdict::Warn,
        _ => Verdict::Ok,
    };
    let found = format!("{used} of {most} connections are tracked");
    finding(
        "conntrack",
        verdict,
        found,
        "raise net.netfilter.nf_conntrack_max: new connections are dropped when it is full",
    )
}

/// Whoever else writes rules for Services.
fn writers(facts: &Machine) -> Finding {
    let names: Vec<String> = facts
        .proxies
        .iter()
        .map(|(name, pid)| format!("{name} ({pid})"))
        .collect();
    let neighbours = match facts.neighbours.as_slice() {
        [] => String::new(),
        some => format!("; {} writes rules of its own", some.join(", ")),
    };
    let (verdict, found, advice) = if facts.proxies.len() > 1 {
        let found = format!(
            "{} service proxies run: {}",
            facts.proxies.len(),
            names.join(", ")
        );
        (
            Verdict::Fail,
            found,
            "keep one: deploy/README.md says how nodes are moved from kube-proxy",
        )
    } else if facts.ipvs {
        let found =
            "kube-ipvs0 is there: IPVS mode of kube-proxy left its addresses and virtual servers".to_owned();
        (
            Verdict::Warn,
            found,
            "pointsman proxy removes them within 10 minutes of its first sync",
        )
    } else if names.is_empty() {
        (Verdict::Ok, format!("no service proxy runs{neighbours}"), "")
    } else {
        (Verdict::Ok, format!("{}{neighbours}", names.join(", ")), "")
    };
    finding("writers", verdict, found, advice)
}

/// Ports are taken by the proxy that runs, or by a stranger that will keep ours from starting.
fn listeners(facts: &Machine) -> Finding {
    let ports: Vec<String> = facts.taken.iter().map(u16::to_string).collect();
    let (verdict, found) = match (ports.is_empty(), facts.proxies.is_empty()) {
        (true, _) => (Verdict::Ok, "10249 and 10256 are free".to_owned()),
        (false, false) => (
            Verdict::Ok,
            format!("{} in use while a proxy runs", ports.join(" and ")),
        ),
        (false, true) => (
            Verdict::Fail,
            format!("{} in use, and no proxy runs", ports.join(" and ")),
        ),
    };
    finding(
        "ports",
        verdict,
        found,
        "ss -ltnp names the program; or choose other addresses: --healthz-bind-address, --metrics-bind-address",
    )
}

fn packets(facts: &Machine) -> Option<Finding> {
    let ((uplink, most), others) = facts.mtus.split_first()?;
    let larger = others.iter().find(|(_, mtu)| mtu > most);
    Some(match larger {
        None => finding(
            "mtu",
            Verdict::Ok,
            format!("{most} on {uplink}, and nowhere larger"),
            "",
        ),
        Some((name, mtu)) => finding(
            "mtu",
            Verdict::Warn,
            format!(
                "{mtu} on {name} and {most} on {uplink}: large packets from pods are split or lost on the way out"
            ),
            "set the network plugin's MTU to that of the uplink, less what its tunnel adds",
        ),
    })
}

/// What the cluster is like.
pub fn cluster(asked: &Result<Cluster, String>) -> Vec<Finding> {
    let facts = match asked {
        Ok(facts) => facts,
        Err(reason) => {
            let advice = "is the address in the kubeconfig reachable from this node without a Service?";
            return vec![finding("api", Verdict::Fail, reason.clone(), advice)];
        }
    };
    let mut findings = vec![versions(facts)];
    let clock = match facts.ahead {
        Some(ahead) if ahead > CLOCK_TOLERANCE => (
            Verdict::Warn,
            format!("a node's heartbeat is {ahead:.1} s in the future: clocks differ"),
        ),
        Some(_) => (Verdict::Ok, "no heartbeat is from the future".to_owned()),
        None => (
            Verdict::Warn,
            "no heartbeat could be read, so clocks were not compared".to_owned(),
        ),
    };
    findings.push(finding(
        "clock",
        clock.0,
        clock.1,
        "keep the nodes' clocks in step (chrony): latencies are measured across them",
    ));
    let (verdict, found) = match facts.missing.as_slice() {
        [] => (Verdict::Ok, "the proxy may read what it needs".to_owned()),
        missing => (Verdict::Fail, format!("may not {}", missing.join("; "))),
    };
    findings.push(finding(
        "permissions",
        verdict,
        found,
        "kubectl apply -f deploy/proxy/rbac.yaml",
    ));
    findings
}

/// The first two numbers of a version: `v1.31.2` is (1, 31).
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn versions(facts: &Cluster) -> Finding {
    let server = minor(&facts.version);
    let far = facts
        .kubelets
        .iter()
        .find(|(_, version)| match (minor(version), server) {
            (Some(kubelet), Some(server)) => kubelet > server || server.1.saturating_sub(kubelet.1) > 3,
            _ => false,
        });
    let nodes = facts.kubelets.len();
    match far {
        None => finding(
            "versions",
            Verdict::Ok,
            format!("API server {}, {nodes} nodes within its skew", facts.version),
            "",
        ),
        Some((node, version)) => finding(
            "versions",
            Verdict::Warn,
            format!("API server {}, kubelet of {node} {version}", facts.version),
            "kubelets may be up to three minor versions older than the API server and never newer",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Machine {
        Machine {
            release: "6.1.0".into(),
            net_admin: true,
            nftables: Some(Ok(())),
            iptables: Some(Ok("nf_tables".into())),
            forwards: Some(true),
            tracked: Some((10, 100)),
            mtus: vec![("eth0".into(), 1500), ("cni0".into(), 1450)],
            ..Machine::default()
        }
    }

    fn verdict(facts: &Machine, about: &str) -> Verdict {
        let findings = machine(facts);
        let worst = |finding: &&Finding| finding.verdict as u8;
        let found = findings.iter().filter(|finding| finding.about == about);
        found.max_by_key(worst).expect("it is looked at").verdict
    }

    #[test]
    fn a_healthy_node_has_nothing_to_do() {
        let findings = machine(&healthy());
        assert!(
            findings
                .iter()
                .all(|finding| finding.verdict == Verdict::Ok && finding.advice.is_none()),
            "{findings:?}"
        );
    }

    #[test]
    fn every_trouble_is_called_so_and_comes_with_advice() {
        type Change = fn(&mut Machine);
        let cases: [(&str, Verdict, Change); 12] = [
            ("kernel", Verdict::Warn, |node| {
                node.nftables = Some(Err("no".into()))
            }),
            ("kernel", Verdict::Warn, |node| {
                (node.nftables, node.release) = (None, "4.18.0".into())
            }),
            ("rights", Verdict::Warn, |node| node.net_admin = false),
            ("iptables", Verdict::Warn, |node| {
                node.iptables = Some(Err("missing".into()))
            }),
            ("iptables", Verdict::Fail, |node| node.both_interfaces = true),
            ("forwarding", Verdict::Fail, |node| node.forwards = Some(false)),
            ("forwarding", Verdict::Warn, |node| node.drops_forwarded = true),
            ("conntrack", Verdict::Warn, |node| node.tracked = Some((80, 100))),
            ("conntrack", Verdict::Fail, |node| node.tracked = Some((100, 100))),
            ("writers", Verdict::Fail, |node| {
                node.proxies = vec![("kube-proxy".into(), 1), ("pointsman".into(), 2)]
            }),
            ("ports", Verdict::Fail, |node| node.taken = vec![10256]),
            ("mtu", Verdict::Warn, |node| {
                node.mtus.push(("cali1".into(), 9000))
            }),
        ];
        for (about, expected, change) in cases {
            let mut facts = healthy();
            change(&mut facts);
            assert_eq!(verdict(&facts, about), expected, "{about}: {facts:?}");
            let troubled = machine(&facts)
                .into_iter()
                .filter(|finding| finding.verdict != Verdict::Ok);
            assert!(
                troubled
                    .into_iter()
                    .all(|finding| finding.advice.is_some_and(|advice| !advice.is_empty()))
            );
        }
    }

    #[test]
    fn a_port_is_no_trouble_while_a_proxy_runs() {
        let mut facts = healthy();
        (facts.taken, facts.proxies) = (vec![10249, 10256], vec![("kube-proxy".into(), 7)]);
        assert_eq!(verdict(&facts, "ports"), Verdict::Ok);
    }

    #[test]
    fn clusters_are_judged_by_skew_clocks_and_rights() {
        let of = |change: fn(&mut Cluster)| {
            let kubelets = vec![("n1".into(), "v1.30.1".into())];
            let mut facts = Cluster {
                version: "v1.33.0".into(),
                kubelets,
                ahead: Some(-3.0),
                missing: Vec::new(),
            };
            change(&mut facts);
            let findings = cluster(&Ok(facts))
                .into_iter()
                .filter(|finding| finding.verdict != Verdict::Ok);
            findings.map(|finding| finding.about).collect::<Vec<_>>()
        };
        assert!(of(|_| {}).is_empty());
        assert_eq!(of(|facts| facts.kubelets[0].1 = "v1.29.9".into()), ["versions"]);
        assert_eq!(of(|facts| facts.kubelets[0].1 = "v1.34.0".into()), ["versions"]);
        assert_eq!(of(|facts| facts.ahead = Some(2.0)), ["clock"]);
        assert_eq!(
            of(|facts| facts.missing.push("list services".into())),
            ["permissions"]
        );
        assert_eq!(cluster(&Err("refused".into()))[0].verdict, Verdict::Fail);
    }
}
