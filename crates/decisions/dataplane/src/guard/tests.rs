use super::*;

const PERIOD: Duration = Duration::from_secs(30);

/// A guard, and the time and the syncs around it.
struct Scene {
    guard: Guard,
    now: Instant,
    situation: Situation,
}

impl Scene {
    fn new(comparisons: Comparisons) -> Self {
        Self {
            guard: Guard::new(comparisons, PERIOD),
            now: Instant::now(),
            situation: Situation {
                full_syncs: 1,
                progress: SyncProgress::Settled,
            },
        }
    }

    fn step(&mut self, event: Event) -> Vec<Order> {
        self.guard.step(self.now, event, self.situation)
    }

    fn later(&mut self, seconds: u64) -> Vec<Order> {
        self.now += Duration::from_secs(seconds);
        self.step(Event::Due)
    }

    fn look(&mut self, look: Look) -> Vec<Order> {
        self.step(Event::Looked(look))
    }

    fn compared(&mut self, of: Compared, differing: Option<usize>) -> Vec<Order> {
        let found = differing.map(|differing| Found {
            differing,
            in_motion: 0,
        });
        self.step(Event::Compared {
            of,
            found,
            took: Duration::from_millis(100),
        })
    }

    fn kernel(&mut self, differing: Option<usize>) -> Vec<Order> {
        self.compared(Compared::Kernel, differing)
    }

    fn full_sync(&mut self) -> Vec<Order> {
        self.situation.full_syncs += 1;
        self.step(Event::Synced {
            scope: Scope::Full,
            took: Duration::from_secs(1),
        })
    }

    /// A scene in which a comparison with the kernel runs because of this look.
    fn comparing(look: Look) -> Self {
        let mut scene = Self::new(Comparisons::BesideSyncs);
        scene.step(Event::Due);
        scene.look(look);
        let orders = scene.later(120);
        assert!(orders.contains(&Order::Compare(Compared::Kernel)), "{orders:?}");
        scene
    }
}

#[test]
fn nothing_is_checked_before_a_first_full_sync() {
    let mut scene = Scene::new(Comparisons::BesideSyncs);
    scene.situation.full_syncs = 0;
    assert_eq!(scene.step(Event::Due), []);
}

#[test]
fn one_look_at_a_time_and_a_thorough_one_every_ten_seconds() {
    let mut scene = Scene::new(Comparisons::WithFullSyncs);
    assert_eq!(scene.step(Event::Due), [Order::Look(Effort::Thorough)]);
    assert_eq!(scene.later(60), [], "the first is not back yet");
    assert_eq!(scene.look(Look::Undisturbed), []);
    assert_eq!(scene.later(0), [Order::Look(Effort::Thorough)]);
    scene.look(Look::Undisturbed);
    assert_eq!(scene.later(9), [Order::Look(Effort::Quick)]);
    scene.look(Look::Undisturbed);
    assert_eq!(scene.later(1), [Order::Look(Effort::Thorough)]);
    assert_eq!(scene.guard.trust(), Trust::Sound);
}

#[test]
fn a_suspect_look_writes_everything_again_but_not_all_the_time() {
    let mut scene = Scene::new(Comparisons::WithFullSyncs);
    let again = [Order::CountDisturbance, Order::WriteAll];
    assert_eq!(scene.look(Look::Suspect), again);
    scene.full_sync();
    assert_eq!(
        scene.look(Look::Suspect),
        [],
        "a sync of one second rests for ten"
    );
    scene.now += Duration::from_secs(10);
    assert_eq!(scene.look(Look::Suspect), again);
}

#[test]
fn a_disturbed_look_is_counted_once_and_leads_to_a_comparison() {
    let mut scene = Scene::new(Comparisons::BesideSyncs);
    scene.step(Event::Due);
    assert_eq!(scene.look(Look::Disturbed), [Order::CountDisturbance]);
    assert_eq!(scene.look(Look::Disturbed), []);
    assert_eq!(scene.guard.trust(), Trust::Disturbed);
    assert!(scene.later(0).contains(&Order::Compare(Compared::Kernel)));
    assert!(
        !scene.later(0).contains(&Order::Compare(Compared::Kernel)),
        "one at a time"
    );
    assert_eq!(scene.kernel(Some(0)), []);
    assert_eq!(scene.guard.trust(), Trust::Sound);
}

#[test]
fn an_unclear_look_leads_to_a_comparison_after_a_while() {
    let mut scene = Scene::new(Comparisons::BesideSyncs);
    scene.step(Event::Due);
    assert_eq!(scene.look(Look::Unclear), []);
    assert_eq!(scene.guard.trust(), Trust::Unclear);
    assert!(!scene.later(59).contains(&Order::Compare(Compared::Kernel)));
    assert!(scene.later(1).contains(&Order::Compare(Compared::Kernel)));
    scene.kernel(Some(0));
    scene.look(Look::Disturbed);
    assert_eq!(scene.guard.trust(), Trust::Disturbed);
    scene.look(Look::Unclear);
    assert_eq!(scene.guard.trust(), Trust::Disturbed, "more is known already");
}

#[test]
fn no_comparison_begins_while_the_rules_change() {
    for progress in [SyncProgress::Running, SyncProgress::Unsettled] {
        let mut scene = Scene::new(Comparisons::BesideSyncs);
        scene.step(Event::Due);
        scene.look(Look::Disturbed);
        scene.situation.progress = progress;
        assert_eq!(scene.later(120), [Order::Look(Effort::Thorough)]);
    }
}

#[test]
fn a_difference_that_no_sync_explains_is_repaired_and_the_repair_is_counted() {
    let mut scene = Scene::comparing(Look::Disturbed);
    assert_eq!(
        scene.kernel(Some(3)),
        [Order::ReportForeignChange, Order::WriteAll]
    );
    assert_eq!(scene.guard.trust(), Trust::Repairing);
    assert_eq!(scene.look(Look::Disturbed), [], "it is being put right already");
    let partial = Event::Synced {
        scope: Scope::Partial,
        took: Duration::ZERO,
    };
    assert_eq!(scene.step(partial), []);
    assert_eq!(scene.full_sync(), [Order::CountRepair]);
    assert_eq!(scene.guard.trust(), Trust::Sound);
    assert_eq!(scene.full_sync(), []);
}

#[test]
fn chains_in_motion_say_nothing_however_often_they_are_found() {
    for look in [Look::Unclear, Look::Disturbed] {
        let mut scene = Scene::comparing(look);
        let before = scene.guard.trust();
        let found = |differing| Event::Compared {
            of: Compared::Kernel,
            found: Some(Found {
                differing,
                in_motion: 2,
            }),
            took: Duration::ZERO,
        };
        for _ in 0..5 {
            assert_eq!(scene.step(found(0)), []);
            assert_eq!(scene.guard.trust(), before);
            assert!(scene.later(60).contains(&Order::Compare(Compared::Kernel)));
        }
        assert_eq!(
            scene.step(found(1)),
            [Order::ReportForeignChange, Order::WriteAll]
        );
    }
}

#[test]
fn a_comparison_that_failed_is_made_again_after_a_pause() {
    for look in [Look::Unclear, Look::Disturbed] {
        let mut scene = Scene::comparing(look);
        let before = scene.guard.trust();
        assert_eq!(scene.kernel(None), []);
        assert_eq!(scene.guard.trust(), before);
        assert!(!scene.later(9).contains(&Order::Compare(Compared::Kernel)));
        assert!(scene.later(51).contains(&Order::Compare(Compared::Kernel)));
    }
}

#[test]
fn the_ledger_is_compared_every_period_where_comparisons_are_made_beside_syncs() {
    let mut scene = Scene::new(Comparisons::BesideSyncs);
    let compare = Order::Compare(Compared::Ledger);
    assert!(!scene.step(Event::Due).contains(&compare));
    assert!(scene.later(30).contains(&compare));
    assert_eq!(scene.compared(Compared::Ledger, Some(0)), []);
    assert!(!scene.later(29).contains(&compare));
    assert!(scene.later(1).contains(&compare));
    let divergences = scene.compared(Compared::Ledger, Some(2));
    assert_eq!(divergences, [Order::CountDivergences(2), Order::WriteAll]);

    let mut scene = Scene::new(Comparisons::WithFullSyncs);
    scene.step(Event::Due);
    assert!(!scene.later(300).contains(&compare));
}

#[test]
fn comparisons_take_a_bounded_share_of_the_time() {
    let mut scene = Scene::comparing(Look::Disturbed);
    scene.step(Event::Compared {
        of: Compared::Kernel,
        found: None,
        took: Duration::from_secs(4),
    });
    assert!(!scene.later(119).contains(&Order::Compare(Compared::Kernel)));
    assert!(scene.later(1).contains(&Order::Compare(Compared::Kernel)));
}
