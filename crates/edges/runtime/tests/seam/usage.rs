//! What containers use of CPU and memory shows.

use crate::for_both;
use crate::place::{PATIENCE, Place};
use pointsman_runtime::{ContainerUsage, PodUsage, Signal};
use std::time::Duration;

for_both! {
    a_container_that_burns_cpu_and_holds_memory_shows_both_and_one_that_sleeps_neither,
}

const HELD: u64 = 32 << 20;

async fn a_container_that_burns_cpu_and_holds_memory_shows_both_and_one_that_sleeps_neither(place: Place) {
    assert_eq!(place.runtime.usage().await.unwrap(), []);
    let busy = place
        .run("busy", "exec dd if=/dev/zero of=/dev/null bs=33554432")
        .await;
    let idle = place.run("idle", "exec sleep 76007").await;
    let shown = async {
        loop {
            let pods = place.runtime.usage().await.unwrap();
            let [of_busy, of_idle] = pods.as_slice() else {
                panic!("{pods:?}")
            };
            assert_eq!((&of_busy.pod, &of_idle.pod), (&busy.pod, &idle.pod));
            // Both took some to start, on a slow machine seconds.
            let begun = only(of_idle).used.cpu.unwrap_or_default();
            let burnt = only(of_busy).used.cpu >= Some(begun + Duration::from_millis(500));
            if burnt && working_set(only(of_busy)) >= HELD {
                return (of_busy.clone(), of_idle.clone());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (of_busy, of_idle) = tokio::time::timeout(PATIENCE, shown).await.expect("it shows");
    let (container, sleeper) = (only(&of_busy), only(&of_idle));
    assert!(working_set(container) < 3 * HELD, "{container:?}");
    assert!(sleeper.used.cpu.is_some(), "{sleeper:?}");
    assert!(working_set(sleeper) < HELD / 2, "{sleeper:?}");
    // What a pod uses has its containers in it.
    assert!(of_busy.total.cpu >= container.used.cpu, "{of_busy:?}");
    let total = of_busy.total.memory.expect("the pod's memory is counted");
    assert!(total.working_set >= HELD, "{of_busy:?}");
    let state = place.state(&busy).await.unwrap();
    assert_eq!(container.started_at, state.status.started_at());

    // A new agent counts on where the old one was.
    let mut place = place;
    place.reopen().await;
    let again = place.runtime.usage().await.unwrap();
    assert!(only(&again[0]).used.cpu >= container.used.cpu, "{again:?}");
    let stop = |id| place.runtime.stop(id, Signal::KILL, Duration::ZERO);
    stop(&busy).await.unwrap();
    let left = place.runtime.usage().await.unwrap();
    assert!(left.iter().all(|pod| pod.pod == idle.pod), "{left:?}");
    for uid in ["busy", "idle"] {
        place.remove(uid).await;
    }
}

fn only(pod: &PodUsage) -> &ContainerUsage {
    let [container] = pod.containers.as_slice() else {
        panic!("{pod:?}")
    };
    container
}

fn working_set(container: &ContainerUsage) -> u64 {
    container.used.memory.map_or(0, |memory| memory.working_set)
}
