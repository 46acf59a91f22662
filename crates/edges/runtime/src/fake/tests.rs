use super::*;
use crate::{Limits, Pull, Security, User};

fn sandbox(uid: &str) -> SandboxSpec {
    SandboxSpec {
        pod: PodUid::try_new(uid).unwrap(),
        namespace: "default".into(),
        name: uid.into(),
        hostname: uid.into(),
        domain: None,
        network: Network::Own,
        ports: Vec::new(),
        host_aliases: Vec::new(),
        resolv_conf: None,
        volumes: Vec::new(),
        volume_group: None,
        labels: BTreeMap::new(),
    }
}

fn container(uid: &str, name: &str) -> ContainerSpec {
    ContainerSpec {
        id: ContainerId {
            pod: PodUid::try_new(uid).unwrap(),
            name: ContainerName::try_new(name).unwrap(),
            attempt: 0,
        },
        image: "host".into(),
        pull: Pull::default(),
        args: Vec::new(),
        command: vec!["server".into()],
        env: Vec::new(),
        working_dir: None,
        user: User::default(),
        mounts: Vec::new(),
        limits: Limits::default(),
        security: Security::default(),
        termination_message: None,
        attachable: Default::default(),
        labels: BTreeMap::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_deaf_container_is_killed_after_its_grace_and_a_polite_one_goes_at_once() {
    let fake = FakeRuntime::new();
    fake.ignore_stop("deaf");
    fake.open_sandbox(sandbox("a")).await.unwrap();
    for (name, code, seconds) in [("deaf", 137, 30), ("polite", 143, 0)] {
        let spec = container("a", name);
        fake.start(spec.clone()).await.unwrap();
        let before = Instant::now();
        let exit = fake
            .stop(&spec.id, Signal::TERM, Duration::from_secs(30))
            .await
            .unwrap();
        assert_eq!((exit.code, before.elapsed().as_secs()), (code, seconds), "{name}");
        // Stopping what has stopped says how it ended.
        assert_eq!(
            fake.stop(&spec.id, Signal::TERM, Duration::ZERO).await.unwrap(),
            exit
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_start_of_one_id_starts_nothing() {
    let fake = FakeRuntime::new();
    let mut events = fake.subscribe();
    fake.open_sandbox(sandbox("a")).await.unwrap();
    let spec = container("a", "web");
    let first = fake.start(spec.clone()).await.unwrap();
    assert_eq!(fake.start(spec.clone()).await.unwrap(), first);
    assert!(fake.exit(&spec.id, 3));
    assert!(!fake.exit(&spec.id, 4));
    assert!(matches!(events.recv().await, Some(RuntimeEvent::Started { .. })));
    assert!(matches!(events.recv().await, Some(RuntimeEvent::Exited { exit, .. }) if exit.code == 3));
    assert!(events.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn addresses_come_back_when_a_pod_is_removed() {
    let fake = FakeRuntime::new();
    fake.set_capacity(1);
    let first = fake.open_sandbox(sandbox("a")).await.unwrap();
    assert_eq!(fake.open_sandbox(sandbox("a")).await.unwrap(), first);
    let full = fake.open_sandbox(sandbox("b")).await;
    assert!(matches!(full, Err(RuntimeError::NoAddress { .. })));
    fake.remove_pod(&PodUid::try_new("a").unwrap()).await.unwrap();
    fake.remove_pod(&PodUid::try_new("a").unwrap()).await.unwrap();
    let second = fake.open_sandbox(sandbox("b")).await.unwrap();
    assert_eq!(second.addresses, first.addresses);
}

#[tokio::test(start_paused = true)]
async fn an_exec_runs_into_its_timeout_and_keeps_no_more_output_than_asked() {
    let fake = FakeRuntime::new();
    fake.open_sandbox(sandbox("a")).await.unwrap();
    let spec = container("a", "web");
    fake.start(spec.clone()).await.unwrap();
    let slow = Scripted {
        takes: Duration::from_secs(5),
        end: ExecEnd::Exited(1),
        output: b"four".to_vec(),
    };
    fake.script_exec("web", &["check"], slow);
    let mut request = ExecRequest::new(vec!["check".into()], Some(Duration::from_secs(1)));
    let cut = fake.exec(&spec.id, request.clone()).await.unwrap();
    assert_eq!(cut.end, ExecEnd::TimedOut);
    request.timeout = None;
    request.output_cap = 2;
    let whole = fake.exec(&spec.id, request.clone()).await.unwrap();
    assert_eq!(
        (whole.end, &*whole.output, whole.truncated),
        (ExecEnd::Exited(1), &b"fo"[..], true)
    );
    fake.exit(&spec.id, 0);
    assert!(matches!(
        fake.exec(&spec.id, request).await,
        Err(RuntimeError::NotRunning(_))
    ));
}
