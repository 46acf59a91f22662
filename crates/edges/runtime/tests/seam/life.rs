//! Containers run, say things, end, are stopped, and see what their spec says.

use crate::for_both;
use crate::place::{PATIENCE, Place, id, mount, volume};
use pointsman_runtime::{
    Capabilities, ContainerStatus, FileContent, FileSet, Medium, Pull, Refusal, RuntimeError, RuntimeEvent,
    Signal, SystemCalls, User, VolumeSource, VolumeSpec,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

for_both! {
    a_container_writes_its_log_and_its_end_is_told,
    a_program_sees_its_environment_directory_user_network_and_files,
    a_polite_program_ends_by_its_signal_and_a_deaf_one_is_killed,
    a_second_start_of_one_run_starts_nothing_and_a_next_run_is_another,
    what_cannot_run_says_why,
    what_a_program_is_kept_from_it_cannot_do,
    a_pod_says_how_much_it_has_on_disk,
    files_of_a_volume_have_an_owner_and_change_while_the_program_runs,
}

async fn a_container_writes_its_log_and_its_end_is_told(place: Place) {
    let mut events = place.runtime.subscribe();
    place.open("a").await;
    let mut spec = place.shell(
        "a",
        0,
        "echo out; echo err >&2; printf why > /dev/end; sleep 0.5; exit 3",
    );
    spec.termination_message = Some("/dev/end".into());
    let id = place.runtime.start(spec).await.unwrap().id;
    let Some(RuntimeEvent::Started { container, .. }) = events.recv().await else {
        panic!("a start")
    };
    assert_eq!(container, id);
    let told = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap();
    let Some(RuntimeEvent::Exited { exit, .. }) = told else {
        panic!("an end")
    };
    assert_eq!((exit.code, exit.message.as_deref()), (3, Some("why")));
    assert!(exit.started_at <= exit.finished_at);
    let log: BTreeSet<String> = place.log_with(&id, "stdout F out").await.into_iter().collect();
    assert_eq!(log, ["stdout F out", "stderr F err"].map(str::to_owned).into());
    let state = place.state(&id).await.unwrap();
    assert_eq!(state.labels["restarts"], "0");
    place.remove("a").await;
    assert!(!state.log.exists());
}

async fn a_program_sees_its_environment_directory_user_network_and_files(place: Place) {
    let mut pod = place.sandbox("a");
    let scratch = |medium| VolumeSource::Scratch {
        medium,
        size_limit: None,
    };
    pod.volumes = vec![
        VolumeSpec {
            name: volume("disk"),
            source: scratch(Medium::Disk),
        },
        VolumeSpec {
            name: volume("memory"),
            source: scratch(Medium::Memory),
        },
    ];
    let sandbox = place.runtime.open_sandbox(pod.clone()).await.unwrap();
    assert_eq!(sandbox.addresses.len(), 1);
    let mut spec = place.shell("a", 0, "exec sleep 76002");
    spec.env = vec![("GREETING".into(), "hello  world".into())];
    spec.working_dir = Some("/tmp".into());
    spec.user = User {
        uid: Some(4001),
        gid: Some(4002),
        groups: vec![4003],
        never_root: true,
    };
    spec.mounts = vec![
        mount("disk", "/data", None),
        mount("disk", "/deep", Some("x/y")),
        mount("memory", "/fast", None),
    ];
    let id = place.runtime.start(spec).await.unwrap().id;
    let says = place
        .says(&id, "echo $(id -u) $(id -G); pwd; echo $GREETING; hostname")
        .await;
    assert_eq!(says, "4001 4002 4003\n/tmp\nhello world\nhost-a");
    let address = sandbox.addresses[0];
    assert!(address.to_string().starts_with("10.244.7."), "{address}");
    assert_eq!(
        place.says(&id, "cat /etc/resolv.conf").await,
        "nameserver 10.0.0.10"
    );
    let hosts = place.says(&id, "cat /etc/hosts").await;
    let names = "host-a.group.default.svc.cluster.local\thost-a";
    assert!(hosts.contains(&format!("{address}\t{names}")), "{hosts}");
    assert_eq!(
        place
            .says(
                &id,
                "echo 1 > /deep/file; echo 2 > /fast/file; cat /data/x/y/file /fast/file"
            )
            .await,
        "1\n2"
    );
    // Asked again, the sandbox is the same.
    assert_eq!(
        place.runtime.open_sandbox(pod).await.unwrap().addresses,
        sandbox.addresses
    );
    place.remove("a").await;
}

async fn a_polite_program_ends_by_its_signal_and_a_deaf_one_is_killed(place: Place) {
    let loops = "while :; do sleep 0.05; done";
    let polite = place
        .run("polite", &format!("trap 'exit 7' TERM; echo ready; {loops}"))
        .await;
    place.log_with(&polite, "stdout F ready").await;
    let exit = place.runtime.stop(&polite, Signal::TERM, PATIENCE).await.unwrap();
    assert_eq!(exit.code, 7);
    assert!(matches!(
        place.runtime.signal(&polite, Signal::TERM).await,
        Err(RuntimeError::NotRunning(_))
    ));

    let other = place
        .run("other", &format!("trap 'exit 8' USR1; echo ready; {loops}"))
        .await;
    place.log_with(&other, "stdout F ready").await;
    place
        .runtime
        .signal(&other, Signal::from_name("SIGUSR1").unwrap())
        .await
        .unwrap();
    assert_eq!(place.exit(&other).await.code, 8);

    let deaf = place
        .run("deaf", &format!("trap '' TERM; echo ready; {loops}"))
        .await;
    place.log_with(&deaf, "stdout F ready").await;
    // The agent asks first and kills when time is up.
    place.runtime.signal(&deaf, Signal::TERM).await.unwrap();
    let before = Instant::now();
    let exit = place
        .runtime
        .stop(&deaf, Signal::TERM, Duration::from_millis(300))
        .await
        .unwrap();
    assert!(before.elapsed() >= Duration::from_millis(300));
    assert_eq!(exit.code, 137);
    for uid in ["polite", "other", "deaf"] {
        place.remove(uid).await;
    }
}

async fn a_second_start_of_one_run_starts_nothing_and_a_next_run_is_another(place: Place) {
    let first = place.run("a", "echo one; exit 1").await;
    assert_eq!(place.exit(&first).await.code, 1);
    let again = place.runtime.start(place.shell("a", 0, "exit 9")).await.unwrap();
    assert!(matches!(again.status, ContainerStatus::Exited(exit) if exit.code == 1));
    let second = place
        .runtime
        .start(place.shell("a", 1, "echo two; exec sleep 76003"))
        .await
        .unwrap();
    assert_eq!(second.id, id("a", 1));
    place.log_with(&second.id, "stdout F two").await;
    let log = place.log_with(&first, "stdout F one").await;
    assert_eq!(log, ["stdout F one"], "each run has a log of its own");
    place.runtime.remove_container(&first).await.unwrap();
    place.runtime.remove_container(&first).await.unwrap();
    assert_eq!(place.state(&first).await, None);
    assert!(matches!(
        place.state(&second.id).await.unwrap().status,
        ContainerStatus::Running { .. }
    ));
    place.remove("a").await;
    place.remove("a").await;
}

async fn what_cannot_run_says_why(place: Place) {
    place.open("a").await;
    let refusal = async |image: &str, pull: Pull| {
        let mut spec = place.shell("a", 0, "true");
        (spec.image, spec.pull) = (image.into(), pull);
        match place.runtime.start(spec).await {
            Err(RuntimeError::Refused { reason, message }) => (reason, message),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        refusal("a b", Pull::IfNotPresent).await.0,
        Refusal::InvalidImageName
    );
    // Nothing listens there, so that it fails at once.
    let (pull, message) = refusal("127.0.0.1:1/no/such:1", Pull::IfNotPresent).await;
    let (never, _) = refusal("127.0.0.1:1/no/such:1", Pull::Never).await;
    if place.containerd.is_some() {
        assert_eq!(
            (pull, never),
            (Refusal::PullFailed, Refusal::NeverPulled),
            "{message}"
        );
        assert!(message.contains("127.0.0.1:1/no/such:1"), "{message}");
    } else {
        assert_eq!(
            (pull, never),
            (Refusal::ImageNotSupported, Refusal::ImageNotSupported)
        );
    }
    let mut rooted = place.shell("a", 0, "true");
    rooted.user.never_root = true;
    assert!(matches!(
        place.runtime.start(rooted).await,
        Err(RuntimeError::Refused {
            reason: Refusal::InvalidSpec,
            ..
        })
    ));
    let mut missing = place.shell("a", 0, "true");
    missing.command = vec!["no-such-program".into()];
    let Err(RuntimeError::CannotStart { message, .. }) = place.runtime.start(missing).await else {
        panic!("it cannot start")
    };
    assert!(message.contains("executable file not found"), "{message}");
    let mut unmounted = place.shell("a", 0, "true");
    unmounted.mounts = vec![mount("none", "/x", None)];
    assert!(matches!(
        place.runtime.start(unmounted).await,
        Err(RuntimeError::Refused { .. })
    ));
    // Nothing of this is in the way of a start that works.
    let state = place.runtime.start(place.shell("a", 0, "exit 0")).await.unwrap();
    assert_eq!(place.exit(&state.id).await.code, 0);
    place.remove("a").await;
}

async fn what_a_program_is_kept_from_it_cannot_do(place: Place) {
    place.open("a").await;
    let mut strict = place.shell("a", 0, "exec sleep 76004");
    strict.security.no_new_privileges = true;
    strict.security.read_only_root = true;
    strict.security.capabilities = Capabilities::of(&["NET_RAW".into()], &["ALL".into()]).unwrap();
    strict.security.system_calls = SystemCalls::Ordinary;
    let id = place.runtime.start(strict).await.unwrap().id;
    let status = place.says(&id, "cat /proc/self/status").await;
    let has = |line: &str| status.lines().any(|known| known.replace('\t', "") == line);
    assert!(
        has("NoNewPrivs:1") && has("CapBnd:0000000000002000") && has("Seccomp:2"),
        "{status}"
    );
    assert_ne!(place.says(&id, "touch /new && echo made").await, "made");
    place.remove("a").await;
}

async fn a_pod_says_how_much_it_has_on_disk(place: Place) {
    let mut pod = place.sandbox("a");
    let scratch = |medium| VolumeSource::Scratch {
        medium,
        size_limit: None,
    };
    let of = |name: &str, medium| VolumeSpec {
        name: volume(name),
        source: scratch(medium),
    };
    pod.volumes = vec![of("data", Medium::Disk), of("ram", Medium::Memory)];
    place.runtime.open_sandbox(pod.clone()).await.unwrap();
    let script = "w() { dd if=/dev/zero bs=1000 count=$1 2>/dev/null; }; \
        w 3000 >/data/file; w 2000 >/ram/file; w 5000 >/own; w 50 | tr '\\0' x; exec sleep 76006";
    let mut spec = place.shell("a", 0, script);
    spec.mounts = vec![mount("data", "/data", None), mount("ram", "/ram", None)];
    let id = place.runtime.start(spec).await.unwrap().id;
    // What programs write besides volumes is in memory with processes, and on disk with a container runtime.
    let layer = if place.containerd.is_some() { 5_000_000 } else { 0 };
    let mut last = None;
    let written = async {
        loop {
            let used = place.runtime.disk_use(&pod.pod).await.unwrap();
            let own = used.containers.get(&id.name).copied().unwrap_or(0);
            last = Some((used.volumes.clone(), own));
            // Of a line without an end the last part, of up to 16 KiB, is not in the log yet.
            if used.volumes[&volume("data")] >= 3_000_000 && own >= 32_768 + layer {
                return (used.volumes, own);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let written = tokio::time::timeout(PATIENCE, written).await;
    let (volumes, own) = written.unwrap_or_else(|_| panic!("it is written: {last:?}"));
    assert_eq!(
        volumes.keys().collect::<Vec<_>>(),
        [&volume("data")],
        "others are not on disk"
    );
    assert!(
        volumes[&volume("data")] < 4_000_000 && own < layer + 1_000_000,
        "{volumes:?} {own}"
    );
    place.remove("a").await;
    assert!(place.runtime.disk_use(&pod.pod).await.is_err());
}

async fn files_of_a_volume_have_an_owner_and_change_while_the_program_runs(place: Place) {
    let files = |text: &str| FileSet {
        files: [(
            "sub/file".to_owned(),
            FileContent {
                bytes: text.into(),
                mode: 0o600,
                owner: Some(1000),
            },
        )]
        .into(),
        in_memory: true,
    };
    let mut pod = place.sandbox("a");
    pod.volume_group = Some(4500);
    pod.volumes = vec![VolumeSpec {
        name: volume("conf"),
        source: VolumeSource::Files(files("old")),
    }];
    place.runtime.open_sandbox(pod.clone()).await.unwrap();
    let mut spec = place.shell("a", 0, "exec sleep 76005");
    spec.mounts = vec![
        mount("conf", "/conf", None),
        mount("conf", "/one", Some("sub/file")),
    ];
    let id = place.runtime.start(spec).await.unwrap().id;
    assert_eq!(place.says(&id, "cat /conf/sub/file /one").await, "oldold");
    let whose = "stat -L -c '%u %g %a' /conf/sub/file";
    assert_eq!(place.says(&id, whose).await, "1000 4500 640");
    place
        .runtime
        .update_files(&pod.pod, &volume("conf"), files("new"))
        .await
        .unwrap();
    // A file that is mounted by itself stays what it was, as everywhere.
    assert_eq!(place.says(&id, "cat /conf/sub/file /one").await, "newold");
    assert_eq!(place.says(&id, whose).await, "1000 4500 640");
    assert_ne!(place.says(&id, "touch /conf/x && echo made").await, "made");
    place.remove("a").await;
}
