//! Whatever happened before, the kernel holds what the typed rules say.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Restores, Settings};
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::plan::cleanup;
use pointsman_iptables::{ChainName, Planner, render, saved};
use pointsman_kernel::iptables::{Iptables, Variant};
use pointsman_model::{Moment, NodeName};
use pointsman_testkit::cluster::Family;
use pointsman_testkit::history::{self, Random};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

type Rules = BTreeMap<String, Vec<Vec<String>>>;

/// A proxy that writes every transaction to the kernel and to its double in memory.
struct Proxy<A> {
    index: Index<A>,
    planner: Planner<A>,
    kernel: Iptables<A>,
    double: FakeKernel<A>,
    restores: Restores,
}

impl<A: Family> Proxy<A> {
    fn new(variant: Variant, restores: Restores) -> Self {
        let range = if A::BITS == 32 {
            "10.1.0.0/16"
        } else {
            "fd00:1::/32"
        };
        let settings = Settings {
            local: LocalDetector::from_ranges([range]),
            ..Settings::default()
        };
        Self {
            index: Index::new(NodeName::from("n1"), ExternalIps::Honoured, Moment(0)),
            // As if the table were large, where the interface makes a difference.
            planner: Planner::new(settings)
                .with_restores(restores)
                .removing_ahead_from(variant.removes_ahead_from().map(|_| 0)),
            kernel: Iptables::new(variant),
            double: FakeKernel::default(),
            restores,
        }
    }

    fn sync(&mut self) {
        if self.restores == Restores::Complete {
            self.index.force_full();
        }
        let batch = self.index.checkout();
        let plan = self
            .planner
            .plan(&batch, || self.kernel.inventory())
            .expect("iptables-save");
        for transaction in plan {
            let input = render::transaction(&transaction);
            self.kernel
                .restore(&transaction)
                .unwrap_or_else(|error| panic!("{error}\n{input}"));
            self.double
                .apply(&transaction)
                .expect("the double agrees with the kernel");
            self.planner.applied(&transaction);
        }
        let _ = self.index.commit(batch);
    }

    /// What the kernel holds, which is what its double does.
    fn check(&self) -> [Rules; 2] {
        ["filter", "nat"].map(|table| {
            let kernel = rules(&self.kernel.save(table).expect("iptables-save"), table);
            let double = rules(&self.double.save(), table);
            assert_eq!(kernel, double, "the {table} table");
            kernel
        })
    }
}

/// The rules of one table by chain; those of chains without order are sorted.
fn rules(saved: &str, wanted: &str) -> Rules {
    let mut rules = Rules::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if table != wanted {
            continue;
        }
        if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            rules.entry(chain.to_owned()).or_default();
        } else if let Some(chain) = line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()) {
            rules
                .entry(chain.to_owned())
                .or_default()
                .push(saved::meaning(line));
        }
    }
    for (chain, rules) in &mut rules {
        if ChainName::parse(chain).is_some_and(ChainName::is_dispatch) {
            rules.sort();
        }
    }
    rules
}

/// The feature is its own proof: with the gate off everything is overwritten at every step, and the kernel holds
/// the same.
fn live<A: Family>(variant: Variant, seed: u64) {
    let minimal = live_with::<A>(variant, seed, Restores::Minimal);
    let complete = live_with::<A>(variant, seed, Restores::Complete);
    for (step, (minimal, complete)) in minimal.iter().zip(&complete).enumerate() {
        assert_eq!(minimal, complete, "after step {step}");
    }
}

/// What the kernel held after each step. Set `POINTSMAN_KERNEL_HISTORY` to live through more.
fn live_with<A: Family>(variant: Variant, seed: u64, restores: Restores) -> Vec<[Rules; 2]> {
    let length = std::env::var("POINTSMAN_KERNEL_HISTORY")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(40);
    let namespace = Namespace::new().expect("a namespace");
    namespace.run(move || {
        let mut random = Random(seed);
        let mut proxy = Proxy::<A>::new(variant, restores);
        let mut held = Vec::new();
        for revision in 0..length {
            for _ in 0..=random.below(3) {
                history::fold(
                    &mut proxy.index,
                    &history::event(random.draw(), A::FAMILY),
                    revision,
                );
            }
            proxy.sync();
            held.push(proxy.check());
        }
        let nat = rules(&proxy.kernel.save("nat").expect("iptables-save"), "nat");
        assert!(
            nat.keys().any(|chain| chain.starts_with("KUBE-SEP-")),
            "the history left something: {nat:?}"
        );
        let left = cleanup::<A>(&proxy.kernel.inventory().expect("iptables-save"));
        proxy.kernel.restore(&left).expect("everything of ours can go");
        let nat = rules(&proxy.kernel.save("nat").expect("iptables-save"), "nat");
        assert!(nat.keys().all(|chain| !chain.starts_with("KUBE-")), "{nat:?}");
        held
    })
}

#[test]
fn the_kernel_follows_a_history_with_iptables_nft() {
    require_netns!();
    live::<Ipv4Addr>(Variant::Nft, 1);
}

#[test]
fn the_kernel_follows_a_history_with_iptables_legacy() {
    require_netns!();
    live::<Ipv4Addr>(Variant::Legacy, 2);
}

#[test]
fn the_kernel_follows_a_history_with_ip6tables_nft() {
    require_netns!();
    live::<Ipv6Addr>(Variant::Nft, 3);
}

#[test]
fn the_kernel_follows_a_history_with_ip6tables_legacy() {
    require_netns!();
    live::<Ipv6Addr>(Variant::Legacy, 4);
}
