use std::time::{Duration, Instant};

use pointsman_runtime::{ExecEnd, ExecRequest, Runtime, RuntimeError, StartFailure, User};
use pointsman_testkit::require_netns;

use crate::harness::*;

#[tokio::test]
async fn a_command_runs_as_the_container_does_and_its_end_and_output_are_reported() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let mut spec = shell("a", "main", "echo private > /tmp/only-here; exec sleep 77001");
    spec.env = vec![("GREETING".into(), "hello".into())];
    spec.working_dir = Some("/usr".into());
    spec.user = User {
        uid: Some(4001),
        gid: Some(4002),
        groups: vec![4003],
        never_root: false,
    };
    let id = node.start(spec).await.unwrap().id;
    let says = node
        .says(
            &id,
            "echo $(id -u) $(id -G); pwd; echo $GREETING; hostname; ls /sys/class/net",
        )
        .await;
    assert_eq!(says, "4001 4002 4003\n/usr\nhello\nhost-a\neth0\nlo");
    let wait = "while ! [ -s /tmp/only-here ]; do sleep 0.01; done; cat /tmp/only-here";
    assert_eq!(node.says(&id, wait).await, "private");
    assert!(!std::path::Path::new("/tmp/only-here").exists());
    let failed = node.exec(&id, "echo a; echo b >&2; exit 7").await;
    assert_eq!(
        (failed.end, &*failed.output, failed.truncated),
        (ExecEnd::Exited(7), &b"a\nb\n"[..], false)
    );
    assert_eq!(node.exec(&id, "kill -KILL $$").await.end, ExecEnd::Signaled(9));
    node.remove("a").await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_with_all_it_forked() {
    require_netns!();
    let node = Node::new().await;
    let id = node.run("a", "exec sleep 77101").await;
    let script = "trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; sleep 77102; :' &); \
                  setsid sleep 77103 & echo begun; while :; do sleep 77104; done";
    let request = ExecRequest::new(words(&["sh", "-c", script]), Some(Duration::from_millis(400)));
    let before = Instant::now();
    let outcome = node.runtime.exec(&id, request).await.unwrap();
    assert_eq!(
        (outcome.end, &*outcome.output),
        (ExecEnd::TimedOut, &b"begun\n"[..])
    );
    assert!(before.elapsed() >= Duration::from_millis(400));
    for marker in ["77102", "77103", "77104"] {
        eventually("all it forked is gone", || {
            processes_about(&format!("sleep {marker}")).is_empty()
        })
        .await;
    }
    // The container itself goes on, and so do commands in it.
    assert_eq!(node.says(&id, "echo still here").await, "still here");
    node.remove("a").await;
}

#[tokio::test]
async fn a_command_that_floods_its_output_is_cut_and_not_stuck() {
    require_netns!();
    let node = Node::new().await;
    let id = node.run("a", "exec sleep 77201").await;
    let outcome = node
        .exec(&id, "head -c 3000000 /dev/zero | tr '\\0' x; exit 4")
        .await;
    assert_eq!(
        (outcome.end, outcome.output.len(), outcome.truncated),
        (ExecEnd::Exited(4), 10_240, true)
    );
    let request = ExecRequest::new(words(&["sh", "-c", "yes"]), Some(Duration::from_millis(300)));
    let endless = node.runtime.exec(&id, request).await.unwrap();
    assert_eq!((endless.end, endless.output.len()), (ExecEnd::TimedOut, 10_240));
    // What a command leaves behind with its output open does not hold up the answer.
    let before = Instant::now();
    assert_eq!(node.exec(&id, "sleep 77202 & echo done").await.output, b"done\n");
    assert!(before.elapsed() < Duration::from_secs(5));
    node.remove("a").await;
    assert_eq!(processes_about("sleep 7720"), Vec::<String>::new());
}

#[tokio::test]
async fn many_commands_run_at_once_and_end_with_their_container() {
    require_netns!();
    let node = Node::new().await;
    let id = node.run("a", "exec sleep 77301").await;
    let answers = (0..30).map(|number| {
        let (runtime, id) = (node.runtime.clone(), id.clone());
        tokio::spawn(async move {
            let script = format!("sleep 0.{:02}; exit {number}", 30 - number);
            let request = ExecRequest::new(words(&["sh", "-c", &script]), Some(PATIENCE));
            (number, runtime.exec(&id, request).await.unwrap().end)
        })
    });
    for answer in answers.collect::<Vec<_>>() {
        let (number, end) = answer.await.unwrap();
        assert_eq!(end, ExecEnd::Exited(number));
    }
    let (runtime, waiting) = (node.runtime.clone(), id.clone());
    let cut_short = tokio::spawn(async move {
        runtime
            .exec(&waiting, ExecRequest::new(words(&["sleep", "77302"]), None))
            .await
    });
    eventually("it runs", || !processes_about("sleep 77302").is_empty()).await;
    node.runtime
        .stop(&id, pointsman_runtime::Signal::KILL, PATIENCE)
        .await
        .unwrap();
    let outcome = cut_short.await.unwrap();
    assert!(
        matches!(&outcome, Ok(outcome) if outcome.end == ExecEnd::Signaled(9))
            || matches!(outcome, Err(RuntimeError::NotRunning(_))),
        "{outcome:?}"
    );
    let late = node
        .runtime
        .exec(&id, ExecRequest::new(words(&["true"]), None))
        .await;
    assert!(matches!(late, Err(RuntimeError::NotRunning(_))));
    node.remove("a").await;
}

#[tokio::test]
async fn a_command_that_is_not_there_cannot_be_started() {
    require_netns!();
    let node = Node::new().await;
    let id = node.run("a", "exec sleep 77401").await;
    let missing = node
        .runtime
        .exec(&id, ExecRequest::new(words(&["no-such-check"]), None))
        .await;
    let Err(RuntimeError::CannotStart { reason, message }) = missing else {
        panic!("{missing:?}");
    };
    assert_eq!(reason, StartFailure::NotFound);
    assert!(
        message.contains("\"no-such-check\": executable file not found in $PATH"),
        "{message}"
    );
    node.remove("a").await;
}
