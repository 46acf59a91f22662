//! Commands of probes and hooks.

use crate::for_both;
use crate::place::{PATIENCE, Place};
use pointsman_runtime::{ExecEnd, ExecRequest, RuntimeError};
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
    let ended = async {
        while place
            .says(&id, "cat /proc/[0-9]*/cmdline")
            .await
            .contains("76013")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("the command is killed");
    place.remove("a").await;
}
