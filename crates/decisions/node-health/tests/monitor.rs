//! Nodes that live, fall silent and come back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pointsman_model::Moment;
use pointsman_node_health::action::{LiveLease, UnknownReason};
use pointsman_node_health::zone::ZoneState;
use pointsman_node_health::{Action, Monitor, Now, Renewal, Settings};
use pointsman_objects::names::{NOT_READY_TAINT as NOT_READY, UNREACHABLE_TAINT as UNREACHABLE};
use pointsman_objects::node::ConditionKind;
use pointsman_objects::taint::{Effect, Taint};
use pointsman_objects::{ConditionStatus as Status, Node};
use proptest::prelude::*;
use serde_json::{Value, json};

const EPOCH: i64 = 1_800_000_000;

/// Numbers in these tests are made for a grace period of 50 s.
fn patient() -> Settings {
    Settings {
        grace_period: Duration::from_secs(50),
        ..Settings::default()
    }
}

fn now(second: u64) -> Now {
    let wall = Moment::from_seconds(EPOCH + second as i64);
    Now {
        tick: Duration::from_secs(second),
        wall,
    }
}

fn node_json(name: &str, zone: &str, ready: Option<&str>, beat: u64) -> Value {
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastHeartbeatTime": beat.to_string() });
    let conditions =
        ready.map(|ready| json!([condition("Ready", ready), condition("MemoryPressure", "False")]));
    json!({
        "metadata": {
            "name": name, "labels": { "topology.kubernetes.io/zone": zone },
            "creationTimestamp": Moment::from_seconds(EPOCH).to_string(),
        },
        "status": { "conditions": conditions },
    })
}

fn node(name: &str, zone: &str, ready: Option<&str>, beat: u64) -> Node {
    serde_json::from_value(node_json(name, zone, ready, beat)).expect("a node")
}

/// A lease renewed at a time that the node believes in.
fn lease(name: &str, revision: u64, second: i64) -> Renewal {
    Renewal {
        node: name.into(),
        revision,
        renewed: Some(Moment::from_seconds(second)),
    }
}

/// A cluster whose API server carries out every action at once.
struct Cluster {
    monitor: Monitor,
    nodes: BTreeMap<String, Node>,
    second: u64,
    marked: Vec<(u64, String)>,
    evicting: Vec<(u64, String)>,
    events: usize,
}

impl Cluster {
    fn new(settings: Settings) -> Self {
        settings.validate().expect("good settings");
        Self {
            monitor: Monitor::new(settings),
            nodes: BTreeMap::new(),
            second: 0,
            marked: Vec::new(),
            evicting: Vec::new(),
            events: 0,
        }
    }

    fn with_nodes(zones: &[(&str, usize)]) -> Self {
        let mut cluster = Self::new(patient());
        for (zone, count) in zones {
            for index in 0..*count {
                cluster.beat(&format!("{zone}{index}"), zone, "True");
            }
        }
        cluster
    }

    fn store(&mut self, node: Node) {
        self.nodes.insert(node.metadata.name.to_string(), node.clone());
        let actions = self.monitor.observe_node(Arc::new(node), now(self.second));
        self.carry_out(actions);
    }

    /// The node reports.
    fn beat(&mut self, name: &str, zone: &str, ready: &str) {
        let mut fresh = node(name, zone, Some(ready), self.second);
        if let Some(known) = self.nodes.get(name) {
            fresh.taints.clone_from(&known.taints);
        }
        self.store(fresh);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::CheckLease(name) => {
                    let answer = self
                        .monitor
                        .lease_checked(&name, LiveLease::Missing, now(self.second));
                    self.carry_out(answer.into_iter().collect());
                }
                Action::MarkUnknown(name, conditions) => {
                    let mut node = self.nodes[&*name].clone();
                    for (kind, _) in conditions {
                        node.conditions
                            .iter_mut()
                            .filter(|c| c.kind == kind)
                            .for_each(|c| {
                                c.status = Status::Unknown;
                                c.by_controller = true;
                            });
                    }
                    self.store(node);
                }
                Action::Taint(name, change) => {
                    if change.add.iter().any(|taint| taint.effect == Effect::NoExecute) {
                        self.evicting.push((self.second, name.to_string()));
                    }
                    let mut node = self.nodes[&*name].clone();
                    node.taints = change.apply(&node.taints).into();
                    self.store(node);
                }
                Action::MarkPodsUnready(name) => self.marked.push((self.second, name.to_string())),
                Action::NotReadyEvent(_) => self.events += 1,
            }
        }
    }

    /// Passes a second; nodes for which `alive` holds report every ten.
    fn pass(&mut self, seconds: u64, alive: impl Fn(&str) -> bool) {
        for _ in 0..seconds {
            self.second += 1;
            if self.second.is_multiple_of(10) {
                let names: Vec<(String, String)> = self
                    .nodes
                    .values()
                    .map(|n| {
                        (
                            n.metadata.name.to_string(),
                            n.zone().unwrap_or_default().to_owned(),
                        )
                    })
                    .collect();
                for (name, zone) in names.into_iter().filter(|(name, _)| alive(name)) {
                    self.beat(
                        &name,
                        zone.rsplit('\0').next().unwrap_or("").trim_start_matches(':'),
                        "True",
                    );
                }
            }
            if self.second.is_multiple_of(5) {
                let actions = self.monitor.check(now(self.second));
                self.carry_out(actions);
            }
            let actions = self.monitor.pace(now(self.second).tick);
            self.carry_out(actions);
        }
    }

    fn taints(&self, name: &str) -> Vec<Taint> {
        let mut taints = self.nodes[name].taints.to_vec();
        taints.sort();
        taints
    }

    fn state(&self, zone: &str) -> ZoneState {
        let found = self
            .monitor
            .zones()
            .find(|(name, _)| name.ends_with(zone))
            .expect("a zone");
        found.1.state
    }
}

#[test]
fn a_silent_node_is_unknown_tainted_and_its_pods_unready_after_the_grace_period() {
    let mut cluster = Cluster::with_nodes(&[("a", 5)]);
    cluster.pass(30, |_| true);
    cluster.pass(50, |name| name != "a0");
    assert_eq!(
        cluster.nodes["a0"].ready(),
        Some(Status::True),
        "the grace period is not over yet"
    );
    cluster.pass(5, |name| name != "a0");
    let silent = &cluster.nodes["a0"];
    assert!(
        silent
            .conditions
            .iter()
            .all(|condition| condition.status == Status::Unknown)
    );
    let unreachable = |effect| Taint::new(UNREACHABLE, effect);
    assert_eq!(
        cluster.taints("a0"),
        [unreachable(Effect::NoSchedule), unreachable(Effect::NoExecute)]
    );
    assert_eq!(cluster.marked, [(85, "a0".into())]);
    assert!(cluster.monitor.marks_pods("a0") && !cluster.monitor.marks_pods("a1"));
    assert_eq!(cluster.events, 1);
    cluster.pass(60, |name| name != "a0");
    assert_eq!(
        (cluster.marked.len(), cluster.evicting.len()),
        (1, 1),
        "once is enough"
    );
    cluster.pass(10, |_| true);
    assert_eq!(cluster.taints("a0"), []);
    assert!(!cluster.monitor.marks_pods("a0"));
}

#[test]
fn a_node_that_says_it_is_not_ready_is_believed_at_once_and_swaps_its_taint() {
    let mut cluster = Cluster::with_nodes(&[("a", 5)]);
    cluster.pass(7, |_| true);
    cluster.beat("a0", "a", "False");
    assert_eq!(cluster.marked, [(7, "a0".into())]);
    cluster.pass(60, |name| name != "a0");
    let keys: Vec<String> = cluster
        .taints("a0")
        .into_iter()
        .map(|taint| taint.key.to_string())
        .collect();
    assert_eq!(keys, [UNREACHABLE, UNREACHABLE], "from not-ready to unreachable");
    cluster.beat("a0", "a", "False");
    let keys: Vec<String> = cluster
        .taints("a0")
        .into_iter()
        .map(|taint| taint.key.to_string())
        .collect();
    assert_eq!(keys, [NOT_READY, NOT_READY]);
}

#[test]
fn leases_keep_a_node_alive_whatever_its_clock_says() {
    let mut monitor = Monitor::new(patient());
    monitor.observe_node(Arc::new(node("n", "a", Some("True"), 0)), now(0));
    for (revision, renewed) in [(1, 2_000), (2, -1_000), (3, 3_000)] {
        monitor.observe_lease(&lease("n", revision, renewed), now(40 * revision));
        assert_eq!(monitor.check(now(40 * revision + 45)), []);
    }
    monitor.observe_lease(&lease("n", 2, -1_000), now(160));
    assert_eq!(
        monitor.check(now(171)),
        [Action::CheckLease("n".into())],
        "an old version is no sign of life"
    );
}

#[test]
fn a_lease_cache_that_lags_behind_stops_all_verdicts_until_it_catches_up() {
    let mut monitor = Monitor::new(patient());
    for name in ["n", "m"] {
        monitor.observe_node(Arc::new(node(name, "a", Some("True"), 0)), now(0));
        monitor.observe_lease(&lease(name, 1, 1), now(0));
    }
    assert_eq!(monitor.check(now(60)).len(), 2);
    assert_eq!(
        monitor.lease_checked(&"n".into(), LiveLease::Failed, now(60)),
        None
    );
    assert_eq!(
        monitor.lease_checked(&"n".into(), LiveLease::Revision(9), now(60)),
        None
    );
    assert_eq!(
        monitor.lease_checked(&"m".into(), LiveLease::Revision(1), now(60)),
        None,
        "m has to wait too"
    );
    assert_eq!(monitor.check(now(65)), []);
    monitor.observe_lease(&lease("n", 9, 9), now(66));
    assert_eq!(monitor.check(now(70)), [Action::CheckLease("m".into())]);
    assert!(
        monitor
            .lease_checked(&"m".into(), LiveLease::Revision(1), now(70))
            .is_some()
    );
}

#[test]
fn a_lease_that_is_gone_or_starts_over_stops_nobody() {
    let mut monitor = Monitor::new(patient());
    for name in ["n", "m"] {
        monitor.observe_node(Arc::new(node(name, "a", Some("True"), 0)), now(0));
        monitor.observe_lease(&lease(name, 100, 1), now(0));
    }
    // Verdicts wait for a version that never comes, because the lease is deleted.
    monitor.lease_checked(&"n".into(), LiveLease::Revision(109), now(60));
    assert!(monitor.leases_behind());
    monitor.remove_lease("n");
    assert_eq!(monitor.check(now(65)).len(), 2);
    // A server restored from a backup counts anew; the renewal still is a sign of life.
    monitor.leases_restart();
    monitor.observe_lease(&lease("m", 7, 2), now(70));
    assert_eq!(monitor.check(now(100)), [Action::CheckLease("n".into())]);
    monitor.observe_lease(&lease("m", 8, 0), now(110));
    assert_eq!(monitor.check(now(150)), [Action::CheckLease("n".into())]);
}

#[test]
fn time_without_hearing_counts_against_nobody() {
    let mut monitor = Monitor::new(patient());
    monitor.observe_node(Arc::new(node("n", "a", Some("True"), 0)), now(0));
    monitor.observe_node(Arc::new(node("m", "a", Some("True"), 0)), now(0));
    monitor.observe_lease(&lease("m", 1, 1), now(28));
    monitor.forgive(Duration::from_secs(40), now(70).tick);
    assert_eq!(
        monitor.check(now(90)),
        [],
        "n has been silent for 50 s that count"
    );
    assert_eq!(monitor.check(now(91)), [Action::CheckLease("n".into())]);
    assert_eq!(
        monitor.check(now(119)).len(),
        2,
        "m has been silent for 51 s that count"
    );
    monitor.forgive(Duration::from_secs(1_000), now(120).tick);
    assert_eq!(monitor.check(now(170)), [], "nobody was heard in the future");
}

#[test]
fn a_node_that_never_reported_gets_the_startup_grace_from_its_creation() {
    let mut monitor = Monitor::new(patient());
    monitor.observe_node(Arc::new(node("n", "a", None, 0)), now(30));
    assert_eq!(monitor.check(now(60)), []);
    assert_eq!(monitor.check(now(61)), [Action::CheckLease("n".into())]);
    let Some(Action::MarkUnknown(_, conditions)) =
        monitor.lease_checked(&"n".into(), LiveLease::Missing, now(61))
    else {
        panic!("a verdict");
    };
    assert_eq!(conditions.len(), 4);
    assert!(
        conditions
            .iter()
            .all(|(kind, reason)| *reason == UnknownReason::Never
                && *kind != ConditionKind::NetworkUnavailable)
    );
}

#[test]
fn a_restart_during_an_outage_punishes_nobody() {
    let mut first = Cluster::with_nodes(&[("a", 3)]);
    first.pass(45, |name| name != "a0");
    let mut second = Cluster::new(patient());
    second.second = first.second;
    for node in first.nodes.values() {
        second.store(node.clone());
    }
    second.pass(50, |name| name != "a0");
    assert_eq!((second.marked.len(), second.evicting.len()), (0, 0));
    second.pass(5, |name| name != "a0");
    assert_eq!(second.marked.len(), 1);
}

#[test]
fn in_a_normal_zone_one_node_in_ten_seconds_is_tainted_and_pods_are_marked_faster() {
    let mut cluster = Cluster::with_nodes(&[("a", 100)]);
    cluster.pass(20, |_| true);
    cluster.pass(100, |name| !name.starts_with("a1"));
    let tainted: Vec<u64> = cluster.evicting.iter().map(|(second, _)| *second).collect();
    assert!(
        tainted.windows(2).all(|pair| pair[1] - pair[0] >= 10),
        "{tainted:?}"
    );
    assert!(tainted.len() >= 4);
    let marked: Vec<u64> = cluster.marked.iter().map(|(second, _)| *second).collect();
    assert_eq!(marked.len(), 11);
    assert!(marked[10] - marked[0] <= 1, "{marked:?}");
}

#[test]
fn a_small_zone_under_partial_disruption_stops_evicting_and_marks_slowly() {
    let mut cluster = Cluster::with_nodes(&[("a", 10), ("b", 10)]);
    cluster.pass(20, |_| true);
    cluster.pass(75, |name| !name.starts_with('a') || name == "a0" || name == "a1");
    assert_eq!(cluster.state("a"), ZoneState::PartialDisruption);
    assert_eq!(cluster.evicting, []);
    let marked: Vec<u64> = cluster.marked.iter().map(|(second, _)| *second).collect();
    assert!(
        marked.len() > 2 && marked.windows(2).all(|pair| pair[1] - pair[0] >= 2),
        "{marked:?}"
    );
}

#[test]
fn when_every_zone_is_silent_it_is_us_and_nothing_is_done() {
    let mut cluster = Cluster::with_nodes(&[("a", 10), ("b", 10)]);
    cluster.pass(20, |_| true);
    cluster.pass(200, |_| false);
    assert!(cluster.monitor.blind());
    assert_eq!((cluster.marked.len(), cluster.evicting.len()), (0, 0));
    cluster.pass(15, |name| name != "a0");
    assert!(!cluster.monitor.blind());
    cluster.pass(60, |name| name != "a0");
    assert_eq!(
        cluster
            .marked
            .iter()
            .map(|(_, name)| name.as_str())
            .collect::<Vec<_>>(),
        ["a0"]
    );
    assert_eq!(cluster.evicting.len(), 1);
}

#[test]
fn going_blind_takes_the_taints_back() {
    let mut cluster = Cluster::with_nodes(&[("a", 3), ("b", 3)]);
    cluster.pass(20, |_| true);
    cluster.pass(80, |name| name != "a0");
    assert!(
        cluster
            .taints("a0")
            .iter()
            .any(|taint| taint.effect == Effect::NoExecute)
    );
    cluster.pass(80, |_| false);
    assert!(cluster.monitor.blind());
    assert!(
        cluster
            .nodes
            .values()
            .all(|node| node.taints.iter().all(|taint| taint.effect != Effect::NoExecute))
    );
}

#[test]
fn taints_of_others_and_excluded_nodes_are_respected() {
    let mut cluster = Cluster::with_nodes(&[("a", 2), ("b", 2)]);
    let mut value = node_json("x", "a", Some("False"), 0);
    value["metadata"]["labels"]["node.kubernetes.io/exclude-disruption"] = "".into();
    value["spec"] =
        json!({ "unschedulable": true, "taints": [{ "key": "mine", "value": "v", "effect": "NoExecute" }] });
    cluster.store(serde_json::from_value(value).expect("a node"));
    cluster.pass(5, |_| true);
    let census = cluster.monitor.zones().next().expect("a zone").1.census;
    assert_eq!((census.ready, census.not_ready), (2, 0));
    let taints = cluster.taints("x");
    assert!(taints.iter().any(|taint| &*taint.key == "mine"));
    assert!(
        taints
            .iter()
            .any(|taint| &*taint.key == "node.kubernetes.io/unschedulable")
    );
}

#[test]
fn settings_change_while_running() {
    let mut cluster = Cluster::with_nodes(&[("a", 3)]);
    cluster.pass(20, |_| true);
    let quick = Settings {
        grace_period: Duration::from_secs(15),
        ..patient()
    };
    cluster.monitor.set_settings(quick, now(20));
    cluster.pass(20, |name| name != "a0");
    assert_eq!(cluster.marked.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Nodes go silent and come back at random; heartbeats of the living are never more than 10 s apart.
    #[test]
    fn the_living_are_never_harmed_and_the_dead_are_found(
        sizes in (1usize..8, 1usize..8),
        outages in prop::collection::vec((0usize..8, any::<bool>(), 0u64..200, 20u64..200), 0..6),
    ) {
        let mut cluster = Cluster::with_nodes(&[("a", sizes.0), ("b", sizes.1)]);
        let silent = |name: &str, second: u64| outages.iter().any(|(index, zone, start, length)| {
            let dead = format!("{}{index}", if *zone { "a" } else { "b" });
            name == dead && (*start..start + length).contains(&second)
        });
        let mut last_beat: BTreeMap<String, u64> = BTreeMap::new();
        for _ in 0..40 {
            let second = cluster.second;
            let beats = |name: &str| !silent(name, second + 10);
            for name in cluster.nodes.keys() {
                if beats(name) {
                    last_beat.insert(name.clone(), second + 10);
                }
            }
            cluster.pass(10, beats);
            for (second, name) in cluster.marked.iter().chain(&cluster.evicting) {
                // Every mark and taint was set at least a grace period after the last report before it.
                let reported = (0..=*second).rev().find(|s| s.is_multiple_of(10) && !silent(name, *s)).unwrap_or(0);
                prop_assert!(
                    second - reported > 50, "{name} at {second}, last report {reported}");
            }
        }
        let dead: Vec<&String> = cluster.nodes.keys().filter(|name| last_beat.get(*name).copied().unwrap_or(0) + 70 < cluster.second).collect();
        for name in dead {
            prop_assert_eq!(cluster.nodes[name].ready(), Some(Status::Unknown), "{} is not found", name);
        }
        for (name, node) in &cluster.nodes {
            if last_beat.get(name).is_some_and(|beat| beat + 10 > cluster.second) {
                prop_assert!(node.taints.is_empty(), "{name} is alive and has {:?}", node.taints);
            }
        }
    }
}
