//! What can an instance of an owner do next: read, decide as the product does, write?

use super::*;

pub(super) fn rounds(world: &World, made: &mut Decisions, next: &mut Vec<World>) {
    let broken = made.broken;
    for index in 0..world.writers.len() {
        let writer = &world.writers[index];
        let mut go = |at: At| {
            let mut after = world.clone();
            after.writers[index].at = at;
            next.push(after);
        };
        let foreign = |ledger: &LedgerModel| ledger.claim.is_some_and(|claim| claim.0 != writer.owner);
        match &writer.at {
            At::Start if !writer.slow => {
                if foreign(&world.ledger) {
                    continue;
                }
                let mut reading = world.clone();
                reading.writers[index].at = At::Written(
                    world.config(writer.owner).clone(),
                    world.ledger.clone(),
                    world.ledger_version,
                    world.wanted,
                    world.generation,
                    [world.reports.value, world.grace.value, world.tolerations.value],
                );
                decisions(&reading, index, made, next);
            }
            At::Start if broken == Break::ReadOrder => {
                let own = Config {
                    value: 9,
                    epoch: 0,
                    version: 0,
                };
                if !foreign(&world.ledger) {
                    go(At::Ledger(own, world.ledger.clone(), world.ledger_version));
                }
            }
            At::Start => go(At::Own(world.config(writer.owner).clone())),
            // Somebody else's turn: the round ends here without consequences.
            At::Own(_) if foreign(&world.ledger) && broken != Break::NoClaim => go(At::Start),
            At::Own(own) => go(At::Ledger(
                own.clone(),
                world.ledger.clone(),
                world.ledger_version,
            )),
            At::Ledger(own, ledger, version) => {
                let own = match broken {
                    Break::ReadOrder => world.config(writer.owner).clone(),
                    _ => own.clone(),
                };
                let mut values = [world.reports.value, world.grace.value, world.tolerations.value];
                values[writer.owner as usize] = own.value;
                go(At::Written(
                    own,
                    ledger.clone(),
                    *version,
                    world.wanted,
                    world.generation,
                    values,
                ));
            }
            At::Written(..) => decisions(world, index, made, next),
            At::Send(pending) => next.push(deliver(world, index, pending)),
        }
    }
}

/// What decisions depend on.
pub(super) type Question = (
    u8,
    u8,
    LedgerModel,
    (Value, i64),
    [Value; 3],
    u64,
    Vec<Value>,
    [Value; 2],
    bool,
);

/// Decisions are pure, so each is made once.
pub(super) struct Decisions {
    pub(super) broken: Break,
    pub(super) known: HashMap<Question, Answer>,
}

#[derive(Clone)]
pub(super) enum Answer {
    Wait,
    Ledger(LedgerModel),
    Component(Option<Value>, u64),
}

/// Reads what components announce, decides, and gets ready to send.
fn decisions(world: &World, index: usize, decisions: &mut Decisions, next: &mut Vec<World>) {
    let writer = &world.writers[index];
    let At::Written(own, ledger, version, wanted, generation, values) = &writer.at else {
        unreachable!("called in this place only");
    };
    let late = ledger.claim.is_some() && world.timeouts_left > 0;
    for late in [Some(false), late.then_some(true)].into_iter().flatten() {
        let question: Question = (
            writer.owner,
            writer.holder,
            ledger.clone(),
            (*wanted, *generation),
            *values,
            own.epoch,
            world.nodes.iter().map(|node| node.announced).collect(),
            [world.manager.announced, world.server.announced],
            late,
        );
        let answer = match decisions.known.get(&question) {
            Some(answer) => answer.clone(),
            None => {
                let answer = answer(&question, decisions.broken);
                decisions.known.insert(question, answer.clone());
                answer
            }
        };
        let mut after = world.clone();
        if let Answer::Ledger(record) = &answer {
            let holders = [ledger, record].map(|ledger| ledger.claim.map(|claim| claim.1));
            if holders[0].is_some() && holders[1].is_some() && holders[0] != holders[1] {
                if after.takeovers_left == 0 {
                    continue;
                }
                after.takeovers_left -= 1;
            }
        }
        if late {
            let failed = matches!(&answer, Answer::Ledger(record) if record.failed != ledger.failed);
            if !failed {
                continue;
            }
            after.timeouts_left -= 1;
        }
        after.writers[index].at = match answer {
            Answer::Wait => At::Start,
            Answer::Ledger(record) => At::Send(Pending::Ledger(record, *version)),
            Answer::Component(value, epoch) => At::Send(Pending::Component(value, epoch, own.version)),
        };
        next.push(after);
    }
}

fn answer(question: &Question, broken: Break) -> Answer {
    let (owner, holder, _, _, _, _, _, _, late) = question;
    let view = view(question, broken);
    let policy = Policy {
        catalog: Catalog::standard(),
        step_timeout: Duration::from_secs(100),
        patience: Duration::ZERO,
    };
    let owner = Owner::ALL[*owner as usize];
    let now = at(if *late { 100 } else { 0 });
    let mut act = decide(owner, &holder.to_string(), &view, &policy, now).act;
    if broken == Break::NoClaim {
        act = without_claims(act, &view, owner, &policy);
    }
    match act {
        Act::Wait(_) => Answer::Wait,
        Act::Record(ledger) => Answer::Ledger(to_model(&ledger)),
        Act::Write { epoch, change } => Answer::Component(change.map(|change| index_of(&change)), epoch),
    }
}

/// The broken variant in which every owner follows the plan as soon as it is its turn.
fn without_claims(act: Act, view: &View, owner: Owner, policy: &Policy) -> Act {
    let Act::Record(_) = act else { return act };
    let mut view = view.clone();
    view.ledger.claim = Some(Claim {
        owner,
        holder: "x".into(),
        epoch: 1,
        taken_over: false,
        generation: 1,
        since: at(0),
        held_since: at(0),
    });
    match decide(owner, "x", &view, policy, at(0)).act {
        Act::Write {
            change: Some(change), ..
        } => Act::Write {
            epoch: 0,
            change: Some(change),
        },
        _ => Act::Wait(None),
    }
}

fn view(question: &Question, broken: Break) -> View {
    let (owner, _, ledger, (wanted, generation), values, epoch, nodes, announced, _) = question;
    let mut epochs = [None; 3];
    epochs[*owner as usize] = Some(*epoch);
    let nodes = nodes.iter().enumerate().map(|(index, announced)| {
        let reading = NodeReading {
            pool: Pool::default(),
            announced: Some(report(*announced)),
            silent: false,
        };
        (index.to_string(), reading)
    });
    let mut ledger = from_model(ledger);
    if broken == Break::NoFence
        && let Some(claim) = &mut ledger.claim
    {
        claim.taken_over = false;
    }
    View {
        spec: Some(Spec {
            generation: *generation,
            profile: PROFILES[*wanted as usize].name.into(),
            pools: BTreeMap::new(),
        }),
        ledger,
        readings: Readings {
            nodes: NodesReading {
                configured: BTreeMap::from([(Pool::default(), report(values[0]))]),
                nodes: nodes.collect(),
                epoch: epochs[0],
                problem: None,
            },
            grace: Single {
                configured: Some(grace(values[1])),
                announced: Some(grace(announced[0])),
                epoch: epochs[1],
                problem: None,
            },
            tolerations: Single {
                configured: Some(tolerations(values[2])),
                announced: Some(tolerations(announced[1])),
                epoch: epochs[2],
                problem: None,
            },
        },
        refused: None,
    }
}

fn deliver(world: &World, index: usize, pending: &Pending) -> World {
    let mut after = world.clone();
    let owner = world.writers[index].owner;
    match pending {
        Pending::Ledger(ledger, version) if *version == world.ledger_version => {
            after.ledger = ledger.clone();
            after.ledger_version += 1;
        }
        Pending::Component(value, epoch, version) if *version == world.config(owner).version => {
            let config = after.config_mut(owner);
            config.value = value.unwrap_or(config.value);
            config.epoch = *epoch;
            config.version += 1;
        }
        // Somebody else wrote meanwhile: the write is refused, and the round starts again.
        Pending::Ledger(..) | Pending::Component(..) => {}
    }
    after.writers[index].at = At::Start;
    after
}

fn index_of(change: &Change) -> Value {
    let index = PROFILES.iter().position(|profile| match change {
        Change::Reports(periods) => periods.values().all(|period| *period == profile.values.report),
        Change::Grace(grace) => *grace == profile.values.grace,
        Change::Tolerations(tolerations) => *tolerations == profile.values.tolerations,
    });
    index.expect("plans use values of profiles") as Value
}

fn to_model(ledger: &Ledger) -> LedgerModel {
    LedgerModel {
        epoch: ledger.epoch,
        claim: ledger.claim.as_ref().map(|claim| {
            let owner = Owner::ALL.iter().position(|owner| *owner == claim.owner).unwrap() as u8;
            (
                owner,
                claim.holder.parse().unwrap(),
                claim.epoch,
                claim.taken_over,
                claim.generation,
            )
        }),
        failed: ledger
            .failure
            .as_ref()
            .map(|failure| (failure.generation, named(&failure.profile))),
        settled: ledger
            .settled
            .as_ref()
            .map(|settled| (settled.generation, named(&settled.profile))),
    }
}

fn from_model(model: &LedgerModel) -> Ledger {
    Ledger {
        epoch: model.epoch,
        claim: model
            .claim
            .map(|(owner, holder, epoch, taken_over, generation)| Claim {
                owner: Owner::ALL[owner as usize],
                holder: holder.to_string(),
                epoch,
                taken_over,
                generation,
                since: at(0),
                held_since: at(0),
            }),
        failure: model.failed.map(|(generation, profile)| Failure {
            owner: Owner::MachineConfigOperator,
            generation,
            profile: PROFILES[profile as usize].name.into(),
            reason: String::new(),
            message: String::new(),
            at: at(0),
        }),
        settled: model.settled.map(|(generation, profile)| Settled {
            generation,
            profile: PROFILES[profile as usize].name.into(),
        }),
    }
}

fn named(name: &str) -> Value {
    PROFILES.iter().position(|profile| profile.name == name).unwrap() as Value
}
