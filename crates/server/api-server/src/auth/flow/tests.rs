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
            let mut request =
                Box::pin(async move { flow.acquire(Class::Workload, Duty::Write, "noisy").await });
            match poll(request.as_mut()) {
                Some(Ok(permit)) => running.push(permit),
                Some(Err(error)) => assert_eq!((error.code(), error.retry_after_seconds()), (429, Some(1))),
                None => waiting.push(request),
            }
        }
        assert_eq!((running.len(), waiting.len()), (7, 32));
        // The heartbeat runs at once, without anything of the flood finishing.
        let heartbeat = pin!(flow.acquire(Class::NodeHigh, Duty::Write, "system:node:n1"));
        assert!(poll(heartbeat).is_some_and(|answer| answer.is_ok()));
        // So does another user of the same class, from the slots nobody may hold alone.
        let other = pin!(flow.acquire(Class::Workload, Duty::Write, "alice"));
        assert!(poll(other).is_some_and(|answer| answer.is_ok()));
        // And when those are taken too, there is room to wait.
        let _held = flow.acquire(Class::Workload, Duty::Write, "bob").await.unwrap();
        let mut carol = pin!(flow.acquire(Class::Workload, Duty::Write, "carol"));
        assert!(poll(carol.as_mut()).is_none());
        running.pop();
        assert!(poll(carol).is_some_and(|answer| answer.is_ok()));
        let read = pin!(flow.acquire(Class::Workload, Duty::Read, "noisy"));
        assert!(poll(read).is_some_and(|answer| answer.is_ok()));
    });
}

#[test]
fn a_freed_slot_goes_to_the_waiting_user_who_holds_the_fewest() {
    runtime().block_on(async {
        let pool = Pool::shared(8, 100);
        let mut noisy: Vec<_> = Vec::new();
        for _ in 0..7 {
            noisy.push(pool.acquire("noisy", WAIT).await.unwrap());
        }
        let _other = pool.acquire("other", WAIT).await.unwrap();
        let mut again = Box::pin(pool.acquire("noisy", WAIT));
        let mut alice = Box::pin(pool.acquire("alice", WAIT));
        let mut bob = Box::pin(pool.acquire("bob", WAIT));
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
        let held = pool.acquire("a", WAIT).await.unwrap();
        let mut first = Box::pin(pool.acquire("b", WAIT));
        let mut second = Box::pin(pool.acquire("c", WAIT));
        assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none());
        assert_eq!(pool.acquire("d", WAIT).await.unwrap_err(), Refusal::QueueFull);
        // A caller that hangs up leaves the queue.
        drop(first);
        assert_eq!(pool.read(|state| (state.waiting, state.known_users())), (1, 2));
        // The clock is paused, so waiting takes no time here.
        assert_eq!(second.await.unwrap_err(), Refusal::WaitedTooLong);
        assert_eq!(pool.read(|state| (state.waiting, state.rejected)), (0, 2));
        drop(held);
        assert_eq!(pool.read(|state| (state.in_flight, state.known_users())), (0, 0));
    });
}

#[test]
fn a_permit_given_to_a_caller_that_just_left_moves_on() {
    runtime().block_on(async {
        let pool = Pool::shared(1, 10);
        let held = pool.acquire("a", WAIT).await.unwrap();
        let mut leaver = Box::pin(pool.acquire("b", WAIT));
        let mut stayer = Box::pin(pool.acquire("c", WAIT));
        assert!(poll(leaver.as_mut()).is_none() && poll(stayer.as_mut()).is_none());
        drop(held);
        drop(leaver);
        let permit = poll(stayer.as_mut()).unwrap().unwrap();
        assert_eq!(pool.read(|state| (state.in_flight, state.waiting)), (1, 0));
        drop(permit);
        assert_eq!(pool.read(|state| (state.in_flight, state.known_users())), (0, 0));
    });
}

#[test]
fn long_running_requests_are_limited_per_user_and_exempt_ones_are_not() {
    runtime().block_on(async {
        let flow = FlowControl::new(Limits {
            long_running_per_user: 2,
            ..limits(1, 1)
        });
        let watch = |user: &'static str| flow.acquire(Class::Workload, Duty::LongRunning, user);
        let _open = (watch("a").await.unwrap(), watch("a").await.unwrap());
        assert_eq!(watch("a").await.unwrap_err().code(), 429);
        let _other = watch("b").await.unwrap();
        let mut admin = Vec::new();
        for _ in 0..100 {
            admin.push(flow.acquire(Class::Exempt, Duty::Write, "root").await.unwrap());
        }
    });
}

#[test]
fn zero_means_no_limit_and_every_class_has_at_least_one_slot() {
    runtime().block_on(async {
        let unlimited = FlowControl::new(limits(0, 0));
        let mut held = Vec::new();
        for _ in 0..1000 {
            held.push(
                unlimited
                    .acquire(Class::CatchAll, Duty::Write, "a")
                    .await
                    .unwrap(),
            );
        }
        let tiny = FlowControl::new(limits(1, 1));
        for class in Class::SHARING {
            held.push(tiny.acquire(class, Duty::Write, "a").await.unwrap());
        }
    });
}

#[test]
fn metrics_show_what_runs_waits_and_was_refused() {
    runtime().block_on(async {
        let flow = FlowControl::new(Limits { queue_per_slot: 0, ..limits(10, 10) });
        let registry = Registry::new();
        flow.register(&registry);
        let mut held = Vec::new();
        for _ in 0..5 {
            held.extend(flow.acquire(Class::Workload, Duty::Write, "a").await);
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
fn under_random_traffic_no_pool_exceeds_its_limits() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(64), |(steps in prop::collection::vec((0usize..4, any::<bool>(), 0usize..64), 0..200))| {
        runtime().block_on(async {
            let pool = Pool::shared(8, 16);
            let users = ["a", "b", "c", "d"];
            let (mut held, mut waiting) = (Vec::new(), Vec::new());
            for (user, take, at) in steps {
                if take {
                    let mut request = Box::pin(pool.acquire(users[user], WAIT));
                    match poll(request.as_mut()) {
                        Some(Ok(permit)) => held.push(permit),
                        Some(Err(_)) => {}
                        None => waiting.push(request),
                    }
                } else if at % 3 == 0 && !waiting.is_empty() {
                    drop(waiting.swap_remove(at % waiting.len()));
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
                let (running, queued) = pool.read(|state| (state.in_flight, state.waiting));
                assert_eq!((running, queued), (held.len(), waiting.len()));
                assert!(running <= 8 && queued <= 16);
                // Nobody waits while a slot is free for them: all waiters are at their own limit.
                assert!(queued == 0 || running >= 7, "{queued} wait, {running} run");
            }
            drop((held, waiting));
            assert_eq!(pool.read(|state| (state.in_flight, state.waiting, state.known_users())), (0, 0, 0));
        });
    });
}
