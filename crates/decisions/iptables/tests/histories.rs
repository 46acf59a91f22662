//! Whatever happened before, partial syncs leave what a full sync would.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::state::ExternalIps;
use pointsman_dataplane::{Index, LocalDetector, Scope, Settings};
use pointsman_iptables::fake::FakeKernel;
use pointsman_iptables::{Planner, Table, render};
use pointsman_model::{Moment, NodeName};
use pointsman_testkit::cluster::Family;
use pointsman_testkit::history::{self, Random};
use proptest::prelude::*;

/// A proxy with a kernel in memory.
struct Proxy<A> {
    index: Index<A>,
    planner: Planner<A>,
    kernel: FakeKernel<A>,
    revision: u64,
    partial_syncs: usize,
    failures: usize,
}

impl<A: Family> Proxy<A> {
    fn new(removing_ahead_from: Option<u64>) -> Self {
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
            planner: Planner::new(settings).removing_ahead_from(removing_ahead_from),
            kernel: FakeKernel::default(),
            revision: 0,
            partial_syncs: 0,
            failures: 0,
        }
    }

    /// Lives through one number: mostly a change, sometimes a sync, rarely trouble.
    fn live(&mut self, number: u64) {
        let mut random = Random(number);
        match random.below(10) {
            0..7 => {
                self.revision += 1;
                history::fold(
                    &mut self.index,
                    &history::event(random.draw(), A::FAMILY),
                    self.revision,
                );
            }
            7 => {
                if random.one_in(4) {
                    self.kernel.fail_after(random.below(3) as usize);
                }
                self.sync();
            }
            8 if random.one_in(10) => {
                self.kernel.flush();
                self.index.force_full();
            }
            _ => self.sync(),
        }
    }

    fn sync(&mut self) {
        let batch = self.index.checkout();
        let scope = batch.scope;
        let plan = self
            .planner
            .plan(&batch, || Ok::<_, Infallible>(self.kernel.inventory()))
            .expect("the fake can be listed");
        for transaction in plan {
            if let Err(error) = self.kernel.apply(&transaction) {
                assert!(
                    error.to_string().contains("asked to fail"),
                    "{error}\n{}",
                    render::transaction(&transaction)
                );
                self.index.abort(batch, error.recovery());
                self.failures += 1;
                return;
            }
            self.planner.applied(&transaction);
        }
        self.partial_syncs += usize::from(scope == Scope::Partial);
        let committed = self.index.commit(batch);
        assert_eq!(committed.watermark, self.index.watermark());
        self.check();
    }

    /// The kernel holds exactly what a full sync into an empty one would have left.
    fn check(&self) {
        let mut fresh = FakeKernel::default();
        let mut planner = Planner::new(self.planner.settings().clone());
        let states: Vec<_> = self.index.programmed().map(|(_, state)| state.clone()).collect();
        for transaction in full(&mut planner, states.clone()) {
            fresh.apply(&transaction).expect("a full plan is sound");
        }
        assert_eq!(self.kernel.normalised(), fresh.normalised());
        assert_eq!(
            self.planner
                .ledger()
                .differences(&self.planner.expected(states.into_iter())),
            []
        );
        assert_eq!(self.kernel.useless_chains(), []);
        for table in [Table::Filter, Table::Nat] {
            let foreign = self
                .kernel
                .chains(table)
                .iter()
                .filter(|(chain, _)| is_shared(&chain.to_string()));
            let foreign: u64 = foreign.map(|(_, rules)| rules.len() as u64).sum();
            let held: u64 = self
                .kernel
                .chains(table)
                .values()
                .map(|rules| rules.len() as u64)
                .sum();
            assert_eq!(self.planner.ledger().total(table), held - foreign);
        }
    }
}

fn is_shared(chain: &str) -> bool {
    !chain.starts_with("KUBE-") || chain == "KUBE-FIREWALL"
}

fn full<A: Family>(
    planner: &mut Planner<A>,
    states: Vec<std::sync::Arc<pointsman_dataplane::ServiceState<A>>>,
) -> impl Iterator<Item = pointsman_iptables::Transaction<A>> {
    planner.full(states, Default::default())
}

fn run<A: Family>(ahead: bool, numbers: impl Iterator<Item = u64>) -> Proxy<A> {
    let mut proxy = Proxy::<A>::new(ahead.then_some(0));
    for number in numbers {
        proxy.live(number);
    }
    proxy.sync();
    proxy.sync();
    proxy
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn partial_equals_full_after_any_history_over_ipv4(
        ahead: bool,
        numbers in prop::collection::vec(any::<u64>(), 1..60),
    ) {
        run::<Ipv4Addr>(ahead, numbers.into_iter());
    }

    #[test]
    fn partial_equals_full_after_any_history_over_ipv6(
        ahead: bool,
        numbers in prop::collection::vec(any::<u64>(), 1..60),
    ) {
        run::<Ipv6Addr>(ahead, numbers.into_iter());
    }
}

/// Set `POINTSMAN_HISTORY` to live through more changes, as the release tests do with 100,000.
#[test]
fn partial_equals_full_throughout_a_long_history() {
    let length = std::env::var("POINTSMAN_HISTORY")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(800);
    for ahead in [false, true] {
        let mut random = Random(7);
        let proxy = run::<Ipv4Addr>(ahead, (0..length).map(|_| random.draw()));
        assert!(
            proxy.partial_syncs > length / 10,
            "most syncs were partial: {}",
            proxy.partial_syncs
        );
        assert!(proxy.failures > 0, "some syncs failed");
    }
}
