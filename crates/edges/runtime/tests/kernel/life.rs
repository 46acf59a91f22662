use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pointsman_runtime::{
    ContainerStatus, ExitCause, Refusal, Runtime, RuntimeError, RuntimeEvent, Signal, StartFailure, User,
};
use pointsman_testkit::require_netns;

use crate::harness::*;

#[tokio::test]
async fn a_container_writes_its_log_and_its_end_is_known() {
    require_netns!();
    let node = Node::new().await;
    let mut events = node.runtime.subscribe();
    let id = node.run("a", "echo out; echo err >&2; printf rest; exit 3").await;
    assert!(matches!(events.recv().await, Some(RuntimeEvent::Started { container, .. }) if container == id));
    let Some(RuntimeEvent::Exited { container, exit }) = events.recv().await else {
        panic!("the end is reported");
    };
    assert_eq!(
        (container, exit.code, exit.signal, exit.cause),
        (id.clone(), 3, None, ExitCause::Ended)
    );
    assert!(exit.started_at <= exit.finished_at && exit.finished_at.elapsed().unwrap() < PATIENCE);
    let lines: BTreeSet<String> = node.log(&id).await.into_iter().collect();
    assert_eq!(
        lines,
        ["stdout F out", "stderr F err", "stdout F rest"]
            .map(str::to_owned)
            .into()
    );
    let state = node.state(&id).await.unwrap();
    assert_eq!(state.labels["restarts"], "0");
    node.remove("a").await;
}

#[tokio::test]
async fn a_program_sees_its_environment_directory_user_and_host_name() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let mut spec = shell(
        "a",
        "main",
        "echo $(id -u) $(id -g) $(id -G); pwd; hostname; echo $GREETING; echo $HOME $HOSTNAME; cat /etc/hostname; \
         grep host-a /etc/hosts; echo again > /dev/stdout",
    );
    spec.env = vec![("GREETING".into(), "hello  world".into())];
    spec.working_dir = Some("/usr".into());
    spec.user = User {
        uid: Some(4001),
        gid: Some(4002),
        groups: vec![4003, 4004],
        never_root: false,
    };
    let id = node.start(spec).await.unwrap().id;
    let log = node.log(&id).await;
    let says: Vec<&str> = log
        .iter()
        .map(|line| line.strip_prefix("stdout F ").unwrap_or(line))
        .collect();
    assert_eq!(
        says,
        [
            "4001 4002 4002 4003 4004",
            "/usr",
            "host-a",
            "hello world",
            "/ host-a",
            "host-a",
            "10.244.7.1\thost-a",
            "fd00:244:7::1\thost-a",
            "again"
        ]
    );
    node.remove("a").await;
}

#[tokio::test]
async fn a_polite_program_ends_by_its_signal_and_a_deaf_one_is_killed_with_all_it_forked() {
    require_netns!();
    let node = Node::new().await;
    let polite = node.run("polite", "exec sleep 71001").await;
    let exit = node.runtime.stop(&polite, Signal::TERM, PATIENCE).await.unwrap();
    assert_eq!((exit.code, exit.signal), (143, Some(15)));
    assert!(matches!(
        node.runtime.signal(&polite, Signal::TERM).await,
        Err(RuntimeError::NotRunning(_))
    ));

    let script = "trap '' TERM; (setsid sleep 71002 &); setsid sh -c 'trap \"\" TERM; sleep 71003; :' & \
                  echo ready; while :; do sleep 71004; done";
    let deaf = node.run("deaf", script).await;
    let log = node.state(&deaf).await.unwrap().log;
    eventually("it is deaf", || {
        std::fs::read_to_string(&log).unwrap().contains("ready")
    })
    .await;
    let before = Instant::now();
    let exit = node
        .runtime
        .stop(&deaf, Signal::TERM, Duration::from_millis(300))
        .await
        .unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    assert_eq!(processes_about(" 7100"), Vec::<String>::new());
    node.remove("polite").await;
    node.remove("deaf").await;
}

#[tokio::test]
async fn what_a_program_leaves_in_the_background_ends_with_it() {
    require_netns!();
    for use_cgroups in [true, false] {
        let node = Node::with(|config| config.use_cgroups = use_cgroups).await;
        assert_eq!(node.runtime.abilities().has_cgroups, use_cgroups);
        let marker = format!("7200{}", u8::from(use_cgroups));
        let id = node
            .run(
                "a",
                &format!("(setsid sh -c 'sleep {marker}; :' &); setsid sleep {marker} & exit 0"),
            )
            .await;
        assert_eq!(node.exit(&id).await.code, 0);
        assert_eq!(processes_about(&format!("sleep {marker}")), Vec::<String>::new());
        node.remove("a").await;
    }
}

#[tokio::test]
async fn a_second_start_of_one_id_starts_nothing() {
    require_netns!();
    let node = Node::new().await;
    let id = node.run("a", "exec sleep 73001").await;
    let first = node.state(&id).await.unwrap();
    assert_eq!(
        node.start(shell("a", "main", "exec sleep 73001")).await.unwrap(),
        first
    );
    eventually("one runs", || processes_about("sleep 73001").len() == 1).await;
    node.remove("a").await;
    assert_eq!(processes_about("sleep 73001").len(), 0);
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let before = node.traces();
    let mut nowhere = container("a", "main", &["true"]);
    nowhere.working_dir = Some("/no/such/place".into());
    let cases = [
        (
            container("a", "main", &["no-such-program"]),
            StartFailure::NotFound,
            "executable file not found in $PATH",
        ),
        (
            container("a", "main", &["/no/such/program"]),
            StartFailure::NotFound,
            "no such file or directory",
        ),
        (
            container("a", "main", &["/etc/hostname"]),
            StartFailure::NotExecutable,
            "permission denied",
        ),
        (
            container("a", "main", &["/etc"]),
            StartFailure::NotExecutable,
            "is a directory",
        ),
        (
            nowhere,
            StartFailure::WorkingDirectory,
            "\"/no/such/place\": no such file",
        ),
    ];
    for (spec, wanted, words) in cases {
        match node.start(spec.clone()).await {
            Err(RuntimeError::CannotStart { reason, message }) => {
                assert_eq!(reason, wanted, "{message}");
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{:?}: {other:?}", spec.command),
        }
        assert_eq!(node.state(&spec.id).await, None);
    }
    let mut foreign = container("a", "main", &["true"]);
    foreign.image = "nginx:1.27".into();
    let refused = node.start(foreign).await;
    assert!(
        matches!(
            &refused,
            Err(RuntimeError::Refused {
                reason: Refusal::ImageNotSupported,
                ..
            })
        ),
        "{refused:?}"
    );
    let lost = node.start(container("other", "main", &["true"])).await;
    assert!(matches!(lost, Err(RuntimeError::NoSuchPod(_))));
    assert_eq!(node.traces(), before);
    node.remove("a").await;
}

#[tokio::test]
async fn the_termination_message_of_a_program_is_kept() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let mut spec = shell("a", "main", "echo no database > /dev/termination-log; exit 1");
    spec.termination_message = Some("/dev/termination-log".into());
    spec.user.uid = Some(4001);
    let id = node.start(spec).await.unwrap().id;
    assert_eq!(node.exit(&id).await.message.as_deref(), Some("no database\n"));
    node.remove("a").await;
}

#[tokio::test]
async fn a_removed_pod_leaves_nothing_however_often_it_is_removed() {
    require_netns!();
    let node = Node::new().await;
    // What is opened once and kept is opened before counting.
    node.run("warm", "exec sleep 74000").await;
    node.remove("warm").await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (before, descriptors_before) = (node.traces(), descriptors());
    for round in 0..3 {
        let id = node.run("a", "(setsid sleep 74001 &); exec sleep 74002").await;
        node.start(shell("a", "done", "exit 0")).await.unwrap();
        node.exec(&id, "sleep 74003 & exit 0").await;
        assert_ne!(node.traces(), before, "round {round}");
        node.remove("a").await;
        node.remove("a").await;
        assert!(node.runtime.list().await.unwrap().is_empty());
    }
    assert_eq!(node.traces(), before);
    assert_eq!(processes_about("sleep 7400"), Vec::<String>::new());
    assert!(!node.cgroups().exists());
    let mut descriptors_after = descriptors();
    eventually("descriptors are closed", || {
        descriptors_after = descriptors();
        descriptors_after <= descriptors_before
    })
    .await;
}

#[tokio::test]
async fn an_old_run_is_forgotten_with_its_log_and_a_running_one_is_killed_first() {
    require_netns!();
    let node = Node::new().await;
    let first = node.run("a", "exit 1").await;
    node.exit(&first).await;
    let log = node.state(&first).await.unwrap().log;
    assert!(log.exists());
    node.runtime.remove_container(&first).await.unwrap();
    node.runtime.remove_container(&first).await.unwrap();
    assert!(!log.exists() && node.state(&first).await.is_none());
    let mut again = shell("a", "main", "exec sleep 75001");
    again.id.attempt = 1;
    let second = node.start(again).await.unwrap();
    assert!(matches!(second.status, ContainerStatus::Running { .. }));
    node.runtime.remove_container(&second.id).await.unwrap();
    assert_eq!(processes_about("sleep 75001"), Vec::<String>::new());
    node.remove("a").await;
}
