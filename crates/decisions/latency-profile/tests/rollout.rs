//! What an owner does and says, case by case.

use jiff::Timestamp;
use pointsman_latency_profile::plan::Change;
use pointsman_latency_profile::profile::{DEFAULT, LOW, MEDIUM};
use pointsman_latency_profile::rollout::{
    Act, Claim, Condition, ConditionType, Decision, Ledger, NodeReading, NodesReading, Policy, Problem,
    Readings, Single, Spec, Status, View, decide,
};
use pointsman_latency_profile::{GracePeriod, Owner, Pool, Profile, ReportPeriod, Values};
use std::collections::BTreeMap;

const OWNERS: [Owner; 3] = Owner::ALL;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Everything has these values, and this profile is wanted.
fn view(values: Values, wanted: &str) -> View {
    let node = NodeReading {
        pool: Pool::default(),
        announced: Some(values.report),
        silent: false,
    };
    View {
        spec: Some(Spec {
            generation: 1,
            profile: wanted.into(),
            pools: BTreeMap::new(),
        }),
        ledger: Ledger::default(),
        readings: Readings {
            nodes: NodesReading {
                configured: BTreeMap::from([(Pool::default(), values.report)]),
                nodes: BTreeMap::from([("n1".into(), node.clone()), ("n2".into(), node)]),
                ..NodesReading::default()
            },
            grace: Single {
                configured: Some(values.grace),
                announced: Some(values.grace),
                ..Single::default()
            },
            tolerations: Single {
                configured: Some(values.tolerations),
                announced: Some(values.tolerations),
                ..Single::default()
            },
        },
        refused: None,
    }
}

fn ask(owner: Owner, view: &View, now: i64) -> Decision {
    decide(owner, "me", view, &Policy::default(), at(now))
}

fn said(decision: &Decision, kind: ConditionType) -> &Condition {
    decision.conditions.iter().find(|it| it.kind == kind).unwrap()
}

fn claimed(view: &mut View, owner: Owner, now: i64) -> u64 {
    let Act::Record(ledger) = ask(owner, view, now).act else {
        panic!("{owner:?} does not claim");
    };
    view.ledger = ledger;
    view.ledger.epoch
}

#[test]
fn only_the_owner_of_the_next_step_acts() {
    let view = view(DEFAULT.values, MEDIUM.name);
    let acts = OWNERS.map(|owner| ask(owner, &view, 0).act);
    assert!(matches!(acts[1], Act::Record(_)));
    assert_eq!([&acts[0], &acts[2]], [&Act::Wait(None), &Act::Wait(None)]);
    let waiting = ask(Owner::MachineConfigOperator, &view, 0);
    let progressing = said(&waiting, ConditionType::Progressing);
    assert_eq!(
        (progressing.status, progressing.reason),
        (Status::False, "WaitingForTurn")
    );
    assert!(
        progressing
            .message
            .starts_with("KubeControllerManagerOperator comes first")
    );
}

#[test]
fn a_step_goes_claim_write_proof_release() {
    let mut view = view(DEFAULT.values, MEDIUM.name);
    let owner = Owner::KubeControllerManagerOperator;
    let epoch = claimed(&mut view, owner, 0);
    let wanted = GracePeriod::seconds(120);
    let decision = ask(owner, &view, 1);
    let write = Act::Write {
        epoch,
        change: Some(Change::Grace(wanted)),
    };
    assert_eq!(decision.act, write);
    assert_eq!(said(&decision, ConditionType::Progressing).status, Status::True);
    view.readings.grace.configured = Some(wanted);
    view.readings.grace.epoch = Some(epoch);
    // Written, but nobody announced it: hope is no proof.
    assert_eq!(ask(owner, &view, 2).act, Act::Wait(Some(at(600))));
    view.readings.grace.announced = Some(wanted);
    let decision = ask(owner, &view, 3);
    let Act::Record(ledger) = decision.act.clone() else {
        panic!("{decision:?}")
    };
    assert_eq!(ledger.claim, None);
    assert_eq!(said(&decision, ConditionType::Complete).status, Status::True);
}

#[test]
fn a_step_that_takes_too_long_names_the_component_and_brings_default_back() {
    let mut view = view(Values::new(10, 120, 60), MEDIUM.name);
    let owner = Owner::MachineConfigOperator;
    let epoch = claimed(&mut view, owner, 0);
    view.readings
        .nodes
        .configured
        .insert(Pool::default(), ReportPeriod::seconds(20));
    view.readings.nodes.epoch = Some(epoch);
    view.readings.nodes.nodes.get_mut("n1").unwrap().announced = Some(ReportPeriod::seconds(20));
    let Act::Record(ledger) = ask(owner, &view, 600).act else {
        panic!("no failure is recorded")
    };
    view.ledger = ledger;
    let decision = ask(owner, &view, 601);
    let degraded = said(&decision, ConditionType::Degraded);
    assert_eq!((degraded.status, degraded.reason), (Status::True, "StepTimedOut"));
    assert!(degraded.message.contains("Kubelet") && degraded.message.contains("waiting for n2"));
    // Reports first: n1 may use 20 s already.
    let epoch = claimed(&mut view, owner, 602);
    let Act::Write { change, .. } = ask(owner, &view, 603).act else {
        panic!("Default is not rolled out")
    };
    let back = BTreeMap::from([(Pool::default(), ReportPeriod::seconds(10))]);
    assert_eq!((epoch, change), (2, Some(Change::Reports(back))));
    assert_eq!(ask(Owner::KubeAPIServerOperator, &view, 603).act, Act::Wait(None));
    // Another wish gets another chance.
    view.ledger.claim = None;
    view.spec.as_mut().unwrap().generation = 2;
    assert_eq!(
        said(&ask(owner, &view, 700), ConditionType::Degraded).status,
        Status::False
    );
}

#[test]
fn a_claim_left_behind_is_taken_over_and_fenced_before_it_is_let_go() {
    let mut view = view(DEFAULT.values, DEFAULT.name);
    view.ledger.epoch = 4;
    view.ledger.claim = Some(Claim {
        owner: Owner::MachineConfigOperator,
        holder: "somebody".into(),
        epoch: 4,
        taken_over: false,
        generation: 1,
        since: at(0),
        held_since: at(0),
    });
    let owner = Owner::MachineConfigOperator;
    assert_eq!(
        ask(Owner::KubeControllerManagerOperator, &view, 1).act,
        Act::Wait(None)
    );
    assert_eq!(
        ask(owner, &view, 1).act,
        Act::Wait(Some(at(2))),
        "its holder may be alive"
    );
    let epoch = claimed(&mut view, owner, 2);
    assert_eq!(ask(owner, &view, 2).act, Act::Write { epoch, change: None });
    view.readings.nodes.epoch = Some(epoch);
    let Act::Record(ledger) = ask(owner, &view, 3).act else {
        panic!("the claim is not let go")
    };
    assert_eq!(ledger.claim, None);
}

#[test]
fn what_cannot_be_done_is_said_and_nothing_is_changed() {
    let check = |view: &View, owner: Owner, reason: &str| {
        for other in OWNERS {
            assert_eq!(ask(other, view, 0).act, Act::Wait(None), "{reason}");
        }
        let decision = ask(owner, view, 0);
        let degraded = said(&decision, ConditionType::Degraded);
        assert_eq!((degraded.status, degraded.reason), (Status::True, reason));
        assert_eq!(said(&decision, ConditionType::Complete).status, Status::Unknown);
        assert!(decision.notices.iter().any(|notice| notice.warning));
    };
    check(
        &view(DEFAULT.values, "Fast"),
        Owner::KubeAPIServerOperator,
        "UnknownProfile",
    );
    let mut old = view(DEFAULT.values, MEDIUM.name);
    old.readings.nodes.nodes.get_mut("n2").unwrap().announced = None;
    check(&old, Owner::MachineConfigOperator, "VersionSkew");
    // The same node is not asked when it is unreachable anyway.
    old.readings.nodes.nodes.get_mut("n2").unwrap().silent = true;
    assert_ne!(
        ask(Owner::KubeControllerManagerOperator, &old, 0).act,
        Act::Wait(None)
    );
    let mut damaged = view(DEFAULT.values, MEDIUM.name);
    damaged.readings.grace.problem = Some(Problem::Refused("half a file".into()));
    check(&damaged, Owner::KubeControllerManagerOperator, "Refused");
    let mut gone = view(DEFAULT.values, "");
    gone.spec = None;
    gone.ledger.epoch = 1;
    check(&gone, Owner::KubeAPIServerOperator, "ProfileMissing");
}

#[test]
fn a_refused_write_fails_the_step_at_once() {
    let mut view = view(DEFAULT.values, MEDIUM.name);
    let owner = Owner::KubeControllerManagerOperator;
    claimed(&mut view, owner, 0);
    view.refused = Some(Problem::Refused("no permission".into()));
    let Act::Record(ledger) = ask(owner, &view, 1).act else {
        panic!("no failure is recorded")
    };
    let failure = ledger.failure.unwrap();
    assert_eq!((failure.owner, failure.reason.as_str()), (owner, "Refused"));
}

#[test]
fn differences_after_a_whole_rollout_are_drift() {
    let mut view = view(LOW.values, LOW.name);
    let Act::Record(ledger) = ask(Owner::KubeAPIServerOperator, &view, 0).act else {
        panic!("nobody writes down that all is done")
    };
    view.ledger = ledger;
    assert_eq!(ask(Owner::KubeAPIServerOperator, &view, 1).act, Act::Wait(None));
    view.readings.grace.configured = Some(GracePeriod::seconds(30));
    view.readings.grace.announced = Some(GracePeriod::seconds(30));
    let decision = ask(Owner::KubeControllerManagerOperator, &view, 2);
    assert!(matches!(decision.act, Act::Record(_)));
    let reasons: Vec<&str> = decision.notices.iter().map(|notice| notice.reason).collect();
    assert_eq!(reasons, ["DriftDetected", "UnsafeValues", "StepStarted"]);
}

#[test]
fn a_cluster_without_nodes_is_changed_straight() {
    let mut view = view(DEFAULT.values, LOW.name);
    view.readings.nodes.nodes.clear();
    let owner = Owner::KubeControllerManagerOperator;
    claimed(&mut view, owner, 0);
    let Act::Write { change, .. } = ask(owner, &view, 1).act else {
        panic!("no step")
    };
    assert_eq!(change, Some(Change::Grace(grace(LOW))));
}

fn grace(profile: Profile) -> GracePeriod {
    profile.values.grace
}

#[test]
fn an_empty_request_changes_nothing_before_the_first_rollout_and_means_default_after() {
    let mut view = view(Values::new(1, 5, 300), "");
    for owner in OWNERS {
        let decision = ask(owner, &view, 0);
        assert_eq!(decision.act, Act::Wait(None));
        assert_eq!(decision.notices, []);
        assert_eq!(said(&decision, ConditionType::Complete).reason, "ProfileEmpty");
    }
    view.ledger.epoch = 7;
    assert!(matches!(
        ask(Owner::KubeControllerManagerOperator, &view, 0).act,
        Act::Record(_)
    ));
}
