//! How is one of a pool's endpoints chosen, and how is the choice remembered?

use pointsman_model::Address;
use pointsman_netlink::nft::{Name, Rule, Verdict};

use super::program::Program;
use super::{Chains, REFUSE};
use crate::class::{Class, Draws};
use crate::pool::Pool;
use crate::set_id::SetId;

/// The chain that chooses an endpoint of a destination known to be ours.
pub(super) fn pick(pool: Pool) -> Name {
    pool.name("pick")
}

/// The chain that restarts a client's timeout; it has one rule for each timeout in use.
pub(crate) fn touch(pool: Pool) -> Name {
    pool.name("touch")
}

fn sticky(pool: Pool) -> Name {
    pool.name("sticky-pick")
}

fn again(pool: Pool) -> Name {
    pool.name("pick-again")
}

fn sticky_again(pool: Pool) -> Name {
    pool.name("sticky-again")
}

fn connect(pool: Pool) -> Name {
    pool.name("sticky-connect")
}

/// The rule that remembers clients of destinations with this timeout.
pub(crate) fn timeout_rule<A: Address>(pool: Pool, seconds: u32) -> Rule {
    let program = Program::<A>::new()
        .key_in(pool, SetId::Timeout(pool, seconds))
        .remember(seconds);
    Rule::new(touch(pool), program.finish())
}

pub(super) fn chains<A: Address>(chains: &mut Chains<A>, pool: Pool) {
    let rule = Program::<A>::new;
    chains.chain(
        pick(pool),
        [rule().set_service_port(pool).goto(sticky(pool))]
            .into_iter()
            .chain(by_class(pool, plain))
            .chain([rule().goto(again(pool))]),
    );
    // A commit may move a destination to a class that a packet has just passed. So before a packet is refused,
    // it looks once more, and would have to meet a second commit within a microsecond to miss it again.
    chains.chain(again(pool), by_class(pool, plain).chain(nothing(pool)));
    chains.chain(
        sticky_again(pool),
        by_class(pool, remembered).chain(nothing(pool)),
    );
    // The number of the Service port and the token of the remembered endpoint travel in the two halves of the
    // packet's priority, the only scratch space that means nothing to routing and filters.
    chains.chain(
        sticky(pool),
        [
            rule().by_client().set_priority().jump(touch(pool)),
            rule().by_token(pool, SetId::StickyBackends(pool)).dnat(),
            // Not remembered, or the endpoint is gone. An update would keep the old token.
            rule().set_service_port(pool),
            rule().forget(),
        ]
        .into_iter()
        .chain(by_class(pool, remembered))
        .chain([rule().goto(sticky_again(pool))]),
    );
    chains.chain(
        connect(pool),
        [
            rule().jump(touch(pool)),
            rule().by_token(pool, SetId::StickyBackends(pool)).dnat(),
            rule().then(Verdict::Drop),
        ],
    );
    chains.chain(touch(pool), []);
    for class in Class::all() {
        class_chains(chains, pool, class, plain(pool, class), &|range| {
            Program::new().draw(pool, range, SetId::Backends(pool)).dnat()
        });
        class_chains(chains, pool, class, remembered(pool, class), &|range| {
            let drawn = Program::new().draw(pool, range, SetId::StickySlots(pool));
            drawn.set_priority().goto(connect(pool))
        });
    }
}

fn plain(pool: Pool, class: Class) -> Name {
    pool.name(&format!("lb-{}", class.range()))
}

fn remembered(pool: Pool, class: Class) -> Name {
    pool.name(&format!("sticky-lb-{}", class.range()))
}

/// Smaller classes first: most Services have few endpoints.
fn by_class<A: Address>(pool: Pool, chain: fn(Pool, Class) -> Name) -> impl Iterator<Item = Program<A>> {
    Class::all().map(move |class| {
        Program::new()
            .key_in(pool, SetId::Size(pool, class))
            .goto(chain(pool, class))
    })
}

/// The end of a destination without usable endpoints.
fn nothing<A: Address>(pool: Pool) -> [Program<A>; 2] {
    [
        Program::new()
            .key_in(pool, SetId::Drops(pool))
            .then(Verdict::Drop),
        Program::new().goto(REFUSE),
    ]
}

/// The chains of one class. See [`crate::class`] for the draws.
///
/// A packet may see the class of one commit and the slots of the next. The last draws therefore end at slot
/// zero, which every Service with endpoints has; and if even that is gone, the packet is dropped and the
/// client's next one finds the new state.
fn class_chains<A: Address>(
    chains: &mut Chains<A>,
    pool: Pool,
    class: Class,
    name: Name,
    draw: &dyn Fn(u32) -> Program<A>,
) {
    let Draws { rounds, per_round } = class.draws();
    let mut rules = Vec::new();
    if rounds == 0 {
        rules.extend((0..per_round).map(|_| draw(class.range())));
    } else {
        let round = crate::pool::name(format!("{name}-draw"));
        chains.chain(round.clone(), (0..per_round).map(|_| draw(class.range())));
        rules.extend((0..rounds).map(|_| Program::new().jump(round.clone())));
        rules.push(draw(class.surely_filled()));
    }
    if class.range() > 1 {
        rules.push(draw(1));
    }
    rules.push(Program::new().then(Verdict::Drop));
    debug_assert!(name.as_str().starts_with(pool.prefix()));
    chains.chain(name, rules);
}
