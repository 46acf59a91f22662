use super::*;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

const WAIT: Duration = Duration::from_secs(5);

fn limits(reads: usize, writes: usize) -> Limits {
    Limits {
        reads,
        writes,
        queue_wait: WAIT,
        ..Limits::default()
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

#[test]
fn a_flood_of_one_user_does_not_delay_a_lease_update() {
    runtime().block_on(async {
        let flow = FlowControl::new(limits(40, 20));
        let mut running = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..500 {
            let flow = flow.clone();
            let mut request = Box::pin(async move {
                flow.acquire(Class::Workload, Duty::Write, "noisy", Width::ONE)
                    .await
            });
            match poll(request.as_mut()) {
                Some(Ok(permit)) => running.push(permit),
                Some(Err(error)) => assert_eq!((error.code(), error.retry_after_seconds()), (429, Some(1))),
                None => waiting.push(request),
            }
        }
        assert_eq!((running.len(), waiting.len()), (7, 32));
        // The heartbeat runs at once, without anything of the flood finishing.
        let heartbeat = pin!(flow.acquire(Class::NodeHigh, Duty::Write, "system:node:n1", Width::ONE));
        assert!(poll(heartbeat).is_some_and(|answer| answer.is_ok()));
        // So does another user of the same class, from the seats nobody may hold alone.
        let other = pin!(flow.acquire(Class::Workload, Duty::Write, "alice", Width::ONE));
        assert!(poll(other).is_some_and(|answer| answer.is_ok()));
        // And when those are taken too, there is room to wait.
        let _held = flow
            .acquire(Class::Workload, Duty::Write, "bob", Width::ONE)
            .await
            .unwrap();
        let mut carol = pin!(flow.acquire(Class::Workload, Duty::Write, "carol", Width::ONE));
        assert!(poll(carol.as_mut()).is_none());
        running.pop();
        assert!(poll(carol).is_some_and(|answer| answer.is_ok()));
        let read = pin!(flow.acquire(Class::Workload, Duty::Read, "noisy", Width::ONE));
        assert!(poll(read).is_some_and(|answer| answer.is_ok()));
    });
}

#[test]
fn a_freed_seat_goes_to_the_waiting_user_who_holds_the_fewest() {
    runtime().block_on(async {
        let pool = Pool::shared(8, 100);
        let mut noisy: Vec<_> = Vec::new();
        for _ in 0..7 {
            noisy.push(pool.acquire("noisy", Width::ONE, WAIT).await.unwrap());
        }
        let _other = pool.acquire("other", Width::ONE, WAIT).await.unwrap();
        let mut again = Box::pin(pool.acquire("noisy", Width::ONE, WAIT));
        let mut alice = Box::pin(pool.acquire("alice", Width::ONE, WAIT));
        let mut bob = Box::pin(pool.acquire("bob", Width::ONE, WAIT));
        assert!(
            poll(again.as_mut()).is_none() && poll(alice.as_mut()).is_none() && poll(bob.as_mut()).is_none()
        );
        noisy.pop();
        assert!(poll(again.as_mut()).is_none() && poll(bob.as_mut()).is_none());
        let held = poll(alice.as_mut()).unwrap().unwrap();
        drop(held);
        assert!(poll(again.as_mut()).is_none());
        let _held = poll(bob.as_mut()).unwrap().unwrap();
        noisy.pop();
        assert!(poll(again.as_mut()).unwrap().is_ok());
    });
}

#[test]
fn waiting_ends_with_429_and_leaves_nothing_behind() {
    runtime().block_on(async {
        let pool = Pool::shared(1, 2);
        let held = pool.acquire("a", Width::ONE, WAIT).await.unwrap();
        let mut first = Box::pin(pool.acquire("b", Width::ONE, WAIT));
        let mut second = Box::pin(pool.acquire("c", Width::ONE, WAIT));
        assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none());
        assert_eq!(
            pool.acquire("d", Width::ONE, WAIT).await.unwrap_err(),
            Refusal::QueueFull
        );
        // A caller that hangs up leaves the queue.
        drop(first);
        assert_eq!(pool.read(|state| (state.waiting, state.known_users())), (1, 2));
        // The clock is paused, so waiting takes no time here.
        assert_eq!(second.await.unwrap_err(), Refusal::WaitedTooLong);
        assert_eq!(pool.read(|state| (state.waiting, state.rejected)), (0, 2));
        drop(held);
        assert_eq!(pool.read(|state| (state.running, state.known_users())), (0, 0));
    });
}

#[test]
fn a_permit_given_to_a_caller_that_just_left_moves_on() {
    runtime().block_on(async {
        let pool = Pool::shared(1, 10);
        let held = pool.acquire("a", Width::ONE, WAIT).await.unwrap();
        let mut leaver = Box::pin(pool.acquire("b", Width::ONE, WAIT));
        let mut stayer = Box::pin(pool.acquire("c", Width::ONE, WAIT));
        assert!(poll(leaver.as_mut()).is_none() && poll(stayer.as_mut()).is_none());
        drop(held);
        drop(leaver);
        let permit = poll(stayer.as_mut()).unwrap().unwrap();
        assert_eq!(pool.read(|state| (state.running, state.waiting)), (1, 0));
        drop(permit);
        assert_eq!(pool.read(|state| (state.running, state.known_users())), (0, 0));
    });
}

#[test]
fn long_running_requests_are_limited_per_user_and_exempt_ones_are_not() {
    runtime().block_on(async {
        let flow = FlowControl::new(Limits {
            watches_per_user: 2,
            ..limits(1, 1)
        });
        let watch = |user: &'static str| flow.acquire(Class::Workload, Duty::Watch, user, Width::ONE);
        let _open = (watch("a").await.unwrap(), watch("a").await.unwrap());
        assert_eq!(watch("a").await.unwrap_err().code(), 429);
        let _other = watch("b").await.unwrap();
        let mut admin = Vec::new();
        for _ in 0..100 {
            admin.push(
                flow.acquire(Class::Exempt, Duty::Write, "root", Width::ONE)
                    .await
                    .unwrap(),
            );
        }
    });
}

#[test]
fn zero_means_no_limit_and_every_class_has_at_least_one_seat() {
    runtime().block_on(async {
        let unlimited = FlowControl::new(limits(0, 0));
        let mut held = Vec::new();
        for _ in 0..1000 {
            held.push(
                unlimited
                    .acquire(Class::CatchAll, Duty::Write, "a", Width::ONE)
                    .await
                    .unwrap(),
            );
        }
        let tiny = FlowControl::new(limits(1, 1));
        for class in Class::SHARING {
            held.push(tiny.acquire(class, Duty::Write, "a", Width::ONE).await.unwrap());
        }
    });
}

#[test]
fn metrics_show_what_runs_waits_and_was_refused() {
    runtime().block_on(async {
        let flow = FlowControl::new(Limits { queue_per_seat: 0, ..limits(10, 10) });
        let registry = Registry::new();
        flow.register(&registry);
        let mut held = Vec::new();
        for _ in 0..5 {
            held.extend(flow.acquire(Class::Workload, Duty::Write, "a", Width::ONE).await);
        }
        let text = registry.render();
        assert_eq!(held.len(), 4);
        for line in [
            "apiserver_current_inflight_requests{request_kind=\"mutating\"} 4",
            "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0",
            "apiserver_flowcontrol_rejected_requests_total{priority_level=\"workload\",request_kind=\"mutating\"} 1",
            "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"workload\",request_kind=\"mutating\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    });
}

#[test]
fn a_wide_request_takes_the_seats_of_several_and_gives_back_what_it_does_not_need() {
    runtime().block_on(async {
        let pool = Pool::shared(8, 100);
        let mut wide = pool.acquire("a", Width::seats(5), WAIT).await.unwrap();
        let _b = pool.acquire("b", Width::seats(3), WAIT).await.unwrap();
        let mut c = Box::pin(pool.acquire("c", Width::ONE, WAIT));
        let mut d = Box::pin(pool.acquire("d", Width::ONE, WAIT));
        assert!(poll(c.as_mut()).is_none() && poll(d.as_mut()).is_none());
        wide.narrow(Width::seats(3));
        let _held = (poll(c.as_mut()).unwrap(), poll(d.as_mut()).unwrap());
        assert_eq!(pool.read(|state| (state.running, state.seats)), (4, 8));
        drop(wide);
        assert_eq!(pool.read(|state| (state.running, state.seats)), (3, 5));
    });
}

#[test]
fn narrow_requests_do_not_keep_a_wide_one_waiting() {
    runtime().block_on(async {
        let pool = Pool::shared(8, 100);
        let first = pool.acquire("a", Width::seats(4), WAIT).await.unwrap();
        let _second = pool.acquire("a", Width::seats(2), WAIT).await.unwrap();
        let mut wide = Box::pin(pool.acquire("b", Width::seats(5), WAIT));
        assert!(poll(wide.as_mut()).is_none());
        // Two seats are free, but they are kept for the one who came first.
        let mut narrow = Box::pin(pool.acquire("c", Width::ONE, WAIT));
        assert!(poll(narrow.as_mut()).is_none());
        drop(first);
        let _wide = poll(wide.as_mut()).unwrap().unwrap();
        let _narrow = poll(narrow.as_mut()).unwrap().unwrap();
        // One that gives up lets those behind it pass.
        let mut wide = Box::pin(pool.acquire("d", Width::seats(5), WAIT));
        assert!(poll(wide.as_mut()).is_none());
        drop(_narrow);
        let mut narrow = Box::pin(pool.acquire("e", Width::ONE, WAIT));
        assert!(poll(narrow.as_mut()).is_none());
        drop(wide);
        assert!(poll(narrow.as_mut()).unwrap().is_ok());
    });
}

#[test]
fn a_body_wider_than_a_share_runs_alone_rather_than_never() {
    runtime().block_on(async {
        let pool = Pool::shared(8, 100);
        let _held = pool.acquire("a", Width::of_body(3 << 20), WAIT).await.unwrap();
        assert_eq!(pool.read(|state| state.seats), 7);
        assert_eq!(Width::of_body(0), Width::ONE);
        assert_eq!(Width::of_body(64 << 10), Width::seats(2));
    });
}

#[test]
fn under_random_traffic_no_pool_exceeds_its_limits() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(64), |(steps in prop::collection::vec((0usize..4, any::<bool>(), 0usize..64, 1usize..5), 0..200))| {
        runtime().block_on(async {
            let pool = Pool::shared(8, 16);
            let users = ["a", "b", "c", "d"];
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (user, take, at, seats) in steps {
                if take {
                    let mut request = Box::pin(pool.acquire(users[user], Width::seats(seats), WAIT));
                    match poll(request.as_mut()) {
                        Some(Ok(permit)) => held.push(permit),
                        Some(Err(_)) => {}
                        None => waiting.push(request),
                    }
                } else if at % 3 == 0 && !waiting.is_empty() {
                    drop(waiting.swap_remove(at % waiting.len()));
                } else if at % 3 == 1 && !held.is_empty() {
                    let at = at % held.len();
                    held[at].narrow(Width::ONE);
                } else if !held.is_empty() {
                    drop(held.swap_remove(at % held.len()));
                }
                let mut still = Vec::new();
                for mut request in waiting.drain(..) {
                    match poll(request.as_mut()) {
                        Some(answer) => held.extend(answer.ok()),
                        None => still.push(request),
                    }
                }
                waiting = still;
                let (running, seats, queued) = pool.read(|state| (state.running, state.seats, state.waiting));
                assert_eq!((running, queued), (held.len(), waiting.len()));
                assert!(seats <= 8 && queued <= 16);
                // Nobody waits while there is room for them: the widest takes four seats, and a share is seven.
                assert!(queued == 0 || seats > 3, "{queued} wait, {seats} seats are taken");
            }
            drop((held, waiting));
            assert_eq!(
                pool.read(|state| (state.running, state.seats, state.waiting, state.known_users())),
                (0, 0, 0, 0)
            );
        });
    });
}
