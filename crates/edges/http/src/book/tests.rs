use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    total: 40,
    kept: 10,
    source: 8,
};

fn source(number: u8) -> Source {
    IpAddr::from([10, 0, 0, number]).into()
}

#[test]
fn addresses_that_one_client_can_choose_among_are_one_source() {
    let of = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}

#[test]
fn a_newcomer_takes_the_place_of_the_oldest_silent_one_of_its_source() {
    let mut book = Book::new(LIMITS);
    for number in 0..2 {
        assert_eq!(book.enter(source(1), number).unwrap().1, None);
    }
    assert_eq!(book.enter(source(1), 2).unwrap().1, Some(0));
    assert_eq!(book.enter(source(1), 3).unwrap().1, Some(1));
    assert_eq!(
        book.enter(source(2), 4).unwrap().1,
        None,
        "another source has its own share"
    );
}

#[test]
fn the_source_with_most_silent_connections_makes_room_first() {
    let mut book = Book::new(LIMITS);
    let single = book.enter(source(200), 1000).unwrap().0;
    // Silent connections are a quarter of all: ten.
    for number in 0..9_u8 {
        let leaves = book.enter(source(1 + number / 2), u32::from(number)).unwrap().1;
        assert_eq!(leaves, None);
    }
    let (_, leaves) = book.enter(source(100), 0).unwrap();
    assert!(leaves.is_some_and(|leaves| leaves < 1000), "{leaves:?}");
    assert!(book.promote(source(200), single, Standing::Certified).is_ok());
}

#[test]
fn certificates_find_room_when_everybody_else_has_theirs() {
    let mut book = Book::new(LIMITS);
    let ask = |book: &mut Book<()>, from: u8, standing| {
        let (id, _) = book.enter(source(from), ()).unwrap();
        book.promote(source(from), id, standing)
    };
    for number in 0..30_u8 {
        ask(&mut book, number / 8, Standing::Anonymous).unwrap();
    }
    assert_eq!(ask(&mut book, 100, Standing::Anonymous), Err(Refused::Total));
    assert_eq!(ask(&mut book, 0, Standing::Anonymous), Err(Refused::Source));
    for _ in 0..6 {
        ask(&mut book, 0, Standing::Certified).unwrap();
    }
}

#[test]
fn whoever_had_to_go_cannot_come_back_by_asking() {
    let mut book = Book::new(LIMITS);
    let (first, _) = book.enter(source(1), ()).unwrap();
    for _ in 0..2 {
        book.enter(source(1), ()).unwrap();
    }
    let refused = book.promote(source(1), first, Standing::Certified);
    assert_eq!(refused, Err(Refused::Source));
    book.leave(source(1), first, Standing::Silent);
    assert_eq!(book.counts().silent, 2);
}

#[test]
fn limits_fit_the_descriptors_of_the_process() {
    let limits = Limits {
        total: 20_000,
        kept: 4_000,
        source: 1_000,
    };
    assert_eq!(limits.within(1 << 20), limits);
    assert_eq!(limits.within(1024).total, 768);
    assert_eq!(limits.within(1024).kept, 384);
    assert_eq!(limits.within(0).total, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u8),
    Promote(usize, Standing),
    Leave(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let standing = prop_oneof![Just(Standing::Anonymous), Just(Standing::Certified)];
    let step = prop_oneof![
        3 => (0..6_u8).prop_map(Step::Enter),
        2 => (any::<usize>(), standing).prop_map(|(at, standing)| Step::Promote(at, standing)),
        1 => any::<usize>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    #[test]
    fn limits_hold_and_counts_agree_after_any_history(steps in steps()) {
        let mut book = Book::new(LIMITS);
        let mut open: Vec<(Source, Id, Standing)> = Vec::new();
        for step in steps {
            match step {
                Step::Enter(number) => {
                    if let Ok((id, _)) = book.enter(source(number), ()) {
                        open.push((source(number), id, Standing::Silent));
                    }
                }
                Step::Promote(at, standing) if !open.is_empty() => {
                    let at = at % open.len();
                    let (source, id, had) = open[at];
                    if had == Standing::Silent && book.promote(source, id, standing).is_ok() {
                        open[at].2 = standing;
                    }
                }
                Step::Leave(at) if !open.is_empty() => {
                    let (source, id, standing) = open.swap_remove(at % open.len());
                    book.leave(source, id, standing);
                }
                Step::Promote(..) | Step::Leave(_) => {}
            }
            let counts = book.counts();
            prop_assert!(counts.silent + counts.anonymous + counts.certified <= LIMITS.total);
            prop_assert!(counts.silent <= LIMITS.total / 4);
            prop_assert!(counts.anonymous <= LIMITS.total - LIMITS.kept);
            for held in book.sources.values() {
                prop_assert!(held.anonymous <= LIMITS.source);
            }
        }
        for (source, id, standing) in open {
            book.leave(source, id, standing);
        }
        prop_assert_eq!(book.counts(), Counts::default());
        prop_assert!(book.sources.is_empty(), "nothing is kept of those who left");
    }
}
