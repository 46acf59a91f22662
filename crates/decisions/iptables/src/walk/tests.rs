//! Runs the shared cases on iptables rules.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};

use pointsman_dataplane::{Fate, Host, Index, Packet, Settings};
use pointsman_testkit::cases::{self, CaseFamily, Mode, Walk};
use pointsman_testkit::cluster::Family;

use super::*;
use crate::plan::Planner;

struct Programmed<A> {
    kernel: FakeKernel<A>,
    host: Host<A>,
}

impl<A: Family> Walk<A> for Programmed<A> {
    fn walk(&self, packet: &Packet<A>) -> Fate<A> {
        walk(&self.kernel, &self.host, packet)
    }
}

fn program<A: Family>(mut index: Index<A>, settings: Settings<A>, host: Host<A>) -> Programmed<A> {
    let mut kernel = FakeKernel::default();
    let mut planner = Planner::new(settings);
    let batch = index.checkout();
    let plan = planner
        .plan(&batch, || Ok::<_, Infallible>(kernel.inventory()))
        .unwrap();
    for transaction in plan {
        kernel.apply(&transaction).unwrap();
        planner.applied(&transaction);
    }
    let _ = index.commit(batch);
    assert_eq!(
        kernel.useless_chains(),
        [],
        "every chain is reached and has rules"
    );
    Programmed { kernel, host }
}

#[test]
fn packets_meet_their_fate_over_ipv4() {
    cases::check_all::<Ipv4Addr, _>(Mode::Iptables, CaseFamily::V4, program);
}

#[test]
fn packets_meet_their_fate_over_ipv6() {
    cases::check_all::<Ipv6Addr, _>(Mode::Iptables, CaseFamily::V6, program);
}
