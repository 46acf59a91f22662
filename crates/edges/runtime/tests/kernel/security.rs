//! Is a container kept from what its spec keeps it from?

use pointsman_runtime::{
    Capabilities, CapabilitySet, ContainerId, ContainerSpec, ExitCause, Limits, Medium, Runtime,
    RuntimeError, Security, SystemCalls, VolumeSource,
};
use pointsman_testkit::require_netns;

use crate::harness::*;

fn held(name: &str, security: Security) -> ContainerSpec {
    let mut spec = shell("a", name, "exec sleep 79001");
    spec.security = security;
    spec
}

fn capabilities(add: &[&str], drop: &[&str]) -> Security {
    Security {
        capabilities: Capabilities::of(&words(add), &words(drop)).unwrap(),
        ..Security::default()
    }
}

/// What the kernel says of a process of the container: a line of `/proc/self/status`.
async fn status(node: &Node, id: &ContainerId, field: &str) -> u64 {
    let line = node.says(id, &format!("grep {field}: /proc/self/status")).await;
    let value = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    u64::from_str_radix(&value, 16).unwrap_or_else(|_| panic!("{line}"))
}

#[tokio::test]
async fn a_container_has_the_capabilities_that_its_spec_says_and_no_others() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let usual = node.start(held("usual", Security::default())).await.unwrap().id;
    assert_eq!(
        status(&node, &usual, "CapEff").await,
        CapabilitySet::usual().bits()
    );
    assert!(
        node.says(&usual, "mount -t tmpfs x /mnt 2>&1")
            .await
            .contains("permission denied")
    );
    assert!(
        node.says(&usual, "ip link set lo mtu 60000 2>&1")
            .await
            .contains("not permitted")
    );

    let more = capabilities(&["NET_ADMIN"], &["CHOWN"]);
    let more = node.start(held("more", more)).await.unwrap().id;
    let net_admin = CapabilitySet::named("NET_ADMIN").unwrap();
    let chown = CapabilitySet::named("CHOWN").unwrap();
    let expected = CapabilitySet::usual().with(net_admin).without(chown);
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(status(&node, &more, set).await, expected.bits(), "{set}");
    }
    assert_eq!(
        node.says(&more, "ip link set lo mtu 60000 2>&1 && echo made")
            .await,
        "made"
    );
    assert!(
        node.says(&more, "touch /x; chown 1 /x 2>&1")
            .await
            .contains("not permitted")
    );

    let none = node
        .start(held("none", capabilities(&[], &["ALL"])))
        .await
        .unwrap()
        .id;
    assert_eq!(status(&node, &none, "CapBnd").await, 0);
    assert!(
        node.says(&none, "cat /etc/shadow > /dev/null && chown 1 /etc/hosts 2>&1")
            .await
            .contains("not permitted")
    );

    // One that is not root has what was asked for by name, and nothing else.
    let mut user = held("user", capabilities(&["NET_BIND_SERVICE"], &["ALL"]));
    user.user.uid = Some(4001);
    let user = node.start(user).await.unwrap().id;
    let bind = CapabilitySet::named("NET_BIND_SERVICE").unwrap().bits();
    for set in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
        assert_eq!(status(&node, &user, set).await, bind, "{set}");
    }
    let mut plain = held("plain", Security::default());
    plain.user.uid = Some(4001);
    let plain = node.start(plain).await.unwrap().id;
    assert_eq!(status(&node, &plain, "CapEff").await, 0);
    assert!(
        node.says(&plain, "cat /etc/shadow 2>&1")
            .await
            .contains("Permission denied")
    );

    let privileged = Security {
        capabilities: Capabilities::ALL,
        all_devices: true,
        ..Security::default()
    };
    let mut privileged = held("privileged", privileged);
    privileged.termination_message = Some("/dev/made-up-log".into());
    let privileged = node.start(privileged).await.unwrap().id;
    assert!(
        !std::path::Path::new("/dev/made-up-log").exists(),
        "made on the host"
    );
    let all = node.runtime.abilities().capabilities;
    assert_eq!(status(&node, &privileged, "CapEff").await, all.bits());
    assert_eq!(
        node.says(&privileged, "mount -t tmpfs x /mnt 2>&1 && echo mounted")
            .await,
        "mounted"
    );
    assert_eq!(
        node.says(&privileged, "[ -e /dev/kmsg ] && echo there").await,
        "there"
    );
    assert_eq!(
        node.says(&usual, "[ -e /dev/kmsg ] || echo missing").await,
        "missing"
    );
    node.remove("a").await;
}

#[tokio::test]
async fn a_read_only_root_can_be_written_nowhere_but_in_volumes() {
    require_netns!();
    let node = Node::new().await;
    let mut spec = sandbox("a");
    let source = VolumeSource::Scratch {
        medium: Medium::Disk,
        size_limit: None,
    };
    spec.volumes = vec![volume("data", source)];
    node.runtime.open_sandbox(spec).await.unwrap();
    let mut spec = held(
        "main",
        Security {
            read_only_root: true,
            ..Security::default()
        },
    );
    spec.mounts = vec![mount("data", "/made-up/data")];
    spec.termination_message = Some("/dev/termination-log".into());
    let id = node.start(spec).await.unwrap().id;
    for place in ["/", "/etc", "/tmp", "/run", "/usr/bin", "/made-up", "/var/tmp"] {
        let said = node.says(&id, &format!("touch {place}/mine 2>&1")).await;
        assert!(said.contains("Read-only file system"), "{place}: {said}");
    }
    let allowed = "echo x > /made-up/data/mine && echo x > /dev/null && echo x > /dev/termination-log \
                   && touch /dev/shm/mine && echo fine";
    assert_eq!(node.says(&id, allowed).await, "fine");
    node.remove("a").await;
    assert_eq!(node.traces(), ["lo"]);
}

#[tokio::test]
async fn the_default_profile_keeps_programs_from_administering_the_machine() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let security = |add: &[&str]| Security {
        capabilities: Capabilities::of(&words(add), &[]).unwrap(),
        system_calls: SystemCalls::Ordinary,
        ..Security::default()
    };
    let id = node.start(held("main", security(&[]))).await.unwrap().id;
    let free = node.start(held("free", Security::default())).await.unwrap().id;
    assert_eq!(status(&node, &id, "Seccomp").await, 2);
    assert_eq!(
        status(&node, &id, "NoNewPrivs").await,
        0,
        "that is another setting"
    );
    // What no capability of the container's is in the way of.
    for command in ["unshare --user true", "setarch --addr-no-randomize true"] {
        let script = format!("{command} 2>&1 || echo refused");
        assert_eq!(node.says(&free, &script).await, "", "{command}");
        let said = node.says(&id, &script).await;
        assert!(
            said.contains("refused") && said.contains("not permitted"),
            "{command}: {said}"
        );
    }
    // Ordinary programs do not notice: threads, pipes, sockets, locks, new processes.
    let ordinary = "python3 -c 'import threading, subprocess, socket, tempfile, fcntl; \
        t = threading.Thread(target=lambda: None); t.start(); t.join(); \
        s = socket.create_server((\"127.0.0.1\", 0)); socket.create_connection(s.getsockname()); \
        f = tempfile.TemporaryFile(); fcntl.flock(f, fcntl.LOCK_EX); \
        print(subprocess.check_output([\"echo\", \"fine\"]).decode(), end=\"\")' 2>&1";
    assert_eq!(node.says(&id, ordinary).await, "fine");
    // A capability opens the calls it is for.
    let admin = node
        .start(held("admin", security(&["SYS_ADMIN"])))
        .await
        .unwrap()
        .id;
    assert_eq!(
        node.says(&admin, "unshare --mount true 2>&1 && echo fine").await,
        "fine"
    );
    // Set-user-id programs stay what they are unless that is refused, too.
    let mut user = held(
        "user",
        Security {
            no_new_privileges: true,
            ..security(&[])
        },
    );
    user.user.uid = Some(4001);
    let user = node.start(user).await.unwrap().id;
    assert_eq!(status(&node, &user, "NoNewPrivs").await, 1);
    node.remove("a").await;
}

#[tokio::test]
async fn limits_are_enforced_or_refused() {
    require_netns!();
    let node = Node::new().await;
    node.open("a").await;
    let abilities = node.runtime.abilities();
    let mut hungry = shell("a", "hungry", "python3 -c 'x = bytearray(1 << 28)'");
    hungry.limits = Limits {
        cpu_millis: None,
        memory_bytes: Some(64 << 20),
    };
    if abilities.limits_memory {
        let id = node.start(hungry).await.unwrap().id;
        let exit = node.exit(&id).await;
        assert_eq!((exit.cause, exit.code), (ExitCause::OutOfMemory, 137), "{exit:?}");
    } else {
        let refused = node.start(hungry).await;
        assert!(
            matches!(refused, Err(RuntimeError::Refused { .. })),
            "{refused:?}"
        );
    }
    let mut busy = shell("a", "busy", "while :; do :; done");
    busy.limits = Limits {
        cpu_millis: Some(100),
        memory_bytes: None,
    };
    if abilities.limits_cpu {
        let started = std::time::Instant::now();
        let id = node.start(busy).await.unwrap().id;
        node.exec(&id, "sleep 2").await;
        let (used, passed) = (cpu_time(&node, &id).await, started.elapsed().as_secs_f64());
        assert!(used < passed / 3.0, "{used} s of {passed} s, a tenth is allowed");
    } else {
        let refused = node.start(busy).await;
        assert!(
            matches!(refused, Err(RuntimeError::Refused { .. })),
            "{refused:?}"
        );
    }
    // Without cgroups there is nobody to enforce them.
    let bare = Node::with(|config| config.use_cgroups = false).await;
    bare.open("a").await;
    let mut limited = shell("a", "main", "true");
    limited.limits.memory_bytes = Some(64 << 20);
    let refused = bare.start(limited).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Refused { message, .. }) if message.contains("memory limit")),
        "{refused:?}"
    );
    bare.remove("a").await;
    node.remove("a").await;
    assert_eq!(node.traces(), ["lo"]);
}

/// Seconds of CPU that the main process used.
async fn cpu_time(node: &Node, id: &ContainerId) -> f64 {
    let pid = match node.state(id).await.unwrap().status {
        pointsman_runtime::ContainerStatus::Running { pid, .. } => pid,
        other => panic!("{other:?}"),
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}
