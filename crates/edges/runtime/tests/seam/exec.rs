//! Commands of probes and hooks.

use crate::for_both;
use crate::place::{PATIENCE, Place};
use pointsman_runtime::{ContainerId, ExecEnd, ExecRequest, RuntimeError};
use std::time::{Duration, Instant};

for_both! {
    a_command_says_how_it_ended_and_what_it_wrote,
    a_command_that_takes_too_long_ends_early,
}

async fn a_command_says_how_it_ended_and_what_it_wrote(place: Place) {
    let id = place.run("a", "exec sleep 76011").await;
    let failed = place.exec(&id, "echo a; echo b >&2; exit 7", PATIENCE).await;
    assert_eq!((failed.end, failed.truncated), (ExecEnd::Exited(7), false));
    assert_eq!(String::from_utf8_lossy(&failed.output).lines().count(), 2);
    let much = place.exec(&id, "while :; do echo 0123456789; done | while read -r l; do echo $l; i=$((i+1)); [ $i = 2000 ] && exit 4; done", PATIENCE).await;
    assert_eq!(
        (much.output.len(), much.truncated),
        (ExecRequest::OUTPUT_CAP, true)
    );
    let missing = ExecRequest::new(vec!["no-such-program".into()], Some(PATIENCE));
    let missing = place.runtime.exec(&id, missing).await;
    assert!(
        matches!(missing, Err(RuntimeError::CannotStart { .. })),
        "{missing:?}"
    );
    place
        .runtime
        .stop(&id, pointsman_runtime::Signal::KILL, Duration::ZERO)
        .await
        .unwrap();
    let late = ExecRequest::new(vec!["true".into()], Some(PATIENCE));
    assert!(matches!(
        place.runtime.exec(&id, late).await,
        Err(RuntimeError::NotRunning(_))
    ));
    place.remove("a").await;
}

async fn a_command_that_takes_too_long_ends_early(place: Place) {
    let id = place.run("a", "exec sleep 76012").await;
    let mut times = Vec::new();
    // Limits are fractions of seconds and not rounded up; one try in five is undisturbed on a busy machine.
    for _ in 0..5 {
        let begun = Instant::now();
        let outcome = place.exec(&id, "sleep 76013", Duration::from_millis(300)).await;
        assert_eq!(outcome.end, ExecEnd::TimedOut);
        times.push(begun.elapsed());
        if times.iter().any(|took| *took < Duration::from_secs(1)) {
            break;
        }
    }
    assert!(times.iter().all(|took| *took >= Duration::from_millis(300)));
    assert!(
        times.iter().any(|took| *took < Duration::from_secs(1)),
        "{times:?}"
    );
    // It is gone, and the container goes on.
    ends(&place, &id, "76013").await;
    place.remove("a").await;
}

/// On a busy machine the time is over before the command has begun.
#[tokio::test]
async fn a_command_whose_time_is_over_before_it_begins_is_not_left_behind() {
    pointsman_testkit::require_netns!();
    let place = Place::of_containers_with_late_commands(Duration::from_millis(600)).await;
    let id = place.run("a", "exec sleep 76012").await;
    let outcome = place
        .exec(&id, "touch /begun; exec sleep 76014", Duration::from_millis(100))
        .await;
    assert_eq!(outcome.end, ExecEnd::TimedOut);
    let begins = async { while place.says(&id, "ls /begun").await != "/begun" {} };
    let begins = tokio::time::timeout(PATIENCE, begins).await;
    begins.expect("the command begins, if late");
    ends(&place, &id, "76014").await;
    place.remove("a").await;
}

async fn ends(place: &Place, id: &ContainerId, argument: &str) {
    let commands = "cat /proc/[0-9]*/cmdline";
    let ended = async { while place.says(id, commands).await.contains(argument) {} };
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    ended.expect("the command is killed");
}
