//! What goes wrong with the iptables programs is told apart by what to do next.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pointsman_dataplane::{ProgramError, Recovery};
use pointsman_iptables::name::{ChainName, Table, Top};
use pointsman_iptables::{Rule, Target, Transaction};
use pointsman_kernel::iptables::{InputSize, Iptables, Variant};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

/// A transaction that jumps to a chain which may not exist.
fn jump_to(chain: &str) -> Transaction<Ipv4Addr> {
    let mut transaction = Transaction::default();
    let target = Target::Jump(ChainName::parse(chain).expect("one of our names"));
    let rules = vec![Rule::new(Vec::new(), target)];
    transaction
        .table(Table::Nat)
        .writes
        .insert(ChainName::Top(Top::MarkMasq), rules);
    transaction
}

/// A program that does what the script says.
///
/// Another process writes the file: a descriptor of ours could leak into a program that another test is
/// just starting, and the kernel refuses to run what is open for writing.
fn program(directory: &Path, name: &str, script: &str) {
    let status = Command::new("sh")
        .args([
            "-ec",
            "printf '#!/bin/sh\n%s\n' \"$SCRIPT\" >\"$FILE\"; chmod 755 \"$FILE\"",
        ])
        .env("SCRIPT", script)
        .env("FILE", directory.join(name))
        .status();
    assert!(status.expect("a shell").success());
}

/// Runs a restore with a program that does what the script says.
fn restore_with(script: &str) -> Result<InputSize, ProgramError> {
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path(), "iptables-restore", script);
    let kernel = Iptables::<Ipv4Addr>::new(Variant::System).in_directory(directory.path());
    kernel.restore(&jump_to("KUBE-POSTROUTING"))
}

#[test]
fn a_missing_program_is_named_and_the_change_can_be_retried() {
    let directory = tempfile::tempdir().expect("a directory");
    let kernel = Iptables::<Ipv4Addr>::new(Variant::Nft).in_directory(directory.path());
    let error = kernel
        .restore(&jump_to("KUBE-POSTROUTING"))
        .expect_err("there is no program");
    assert_eq!(error.to_string(), "iptables-nft-restore is missing");
    assert_eq!(error.recovery(), Recovery::Retry);
    assert!(matches!(kernel.inventory(), Err(ProgramError::Missing { .. })));
    assert!(matches!(
        kernel.canary_is_alive(),
        Err(ProgramError::Missing { .. })
    ));
}

#[test]
fn a_refusal_names_the_rule() {
    let error = restore_with("cat >/dev/null; echo 'iptables-restore: line 3 failed' >&2; exit 1")
        .expect_err("refused");
    let ProgramError::Refused { rule, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(rule.as_deref(), Some("-A KUBE-MARK-MASQ -j KUBE-POSTROUTING"));
    assert_eq!(error.recovery(), Recovery::FullResync);
}

#[test]
fn a_held_lock_can_be_retried() {
    let script = "cat >/dev/null; echo 'Another app is currently holding the xtables lock.' >&2; exit 4";
    let error = restore_with(script).expect_err("busy");
    assert!(matches!(error, ProgramError::Busy { .. }), "{error:?}");
    assert_eq!(error.recovery(), Recovery::Retry);
}

#[test]
fn a_killed_program_leaves_an_unknown_state() {
    let error = restore_with("kill -9 $$").expect_err("killed");
    assert!(matches!(error, ProgramError::Interrupted { .. }), "{error:?}");
    assert_eq!(error.recovery(), Recovery::FullResync);
}

#[test]
fn garbage_on_standard_error_is_shortened_and_harmless() {
    let error = restore_with("cat >/dev/null; head -c 100000 /dev/urandom >&2; exit 1").expect_err("refused");
    let ProgramError::Refused { message, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(message.chars().count() <= 300);
}

#[test]
fn garbage_from_a_listing_and_a_torn_one_are_errors_rather_than_empty_tables() {
    for script in [
        "head -c 10000 /dev/urandom",
        "echo '*nat'; echo ':KUBE-SERVICES - [0:0]'",
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        program(directory.path(), "iptables-save", script);
        let kernel = Iptables::<Ipv4Addr>::new(Variant::System).in_directory(directory.path());
        let error = kernel.inventory().expect_err("that is no listing");
        assert!(matches!(error, ProgramError::Interrupted { .. }), "{error:?}");
    }
}

#[test]
fn a_program_that_hangs_leaves_an_unknown_state() {
    let directory = tempfile::tempdir().expect("a directory");
    program(directory.path(), "iptables-restore", "exec sleep 600");
    let kernel = Iptables::<Ipv4Addr>::new(Variant::System)
        .in_directory(directory.path())
        .with_run_limit(Duration::from_millis(300));
    let error = kernel
        .restore(&jump_to("KUBE-POSTROUTING"))
        .expect_err("it hangs");
    assert!(matches!(error, ProgramError::Interrupted { .. }), "{error:?}");
    assert_eq!(error.recovery(), Recovery::FullResync);
}

#[test]
fn the_real_programs_refuse_a_dangling_jump_and_change_nothing() {
    require_netns!();
    for variant in [Variant::Nft, Variant::Legacy] {
        let namespace = Namespace::new().expect("a namespace");
        namespace.run(move || {
            let kernel = Iptables::<Ipv4Addr>::new(variant);
            let error = kernel
                .restore(&jump_to("KUBE-SVC-XPGD46QRK7WJZT7O"))
                .expect_err("the chain is missing");
            assert!(matches!(error, ProgramError::Refused { .. }), "{error:?}");
            let saved = kernel.save("nat").expect("iptables-save");
            assert!(!saved.contains("KUBE-MARK-MASQ"), "{saved}");
        });
    }
}

#[test]
fn the_canary_tells_when_somebody_flushes_the_tables() {
    require_netns!();
    for variant in [Variant::Nft, Variant::Legacy] {
        let namespace = Namespace::new().expect("a namespace");
        let alive = move || {
            Iptables::<Ipv4Addr>::new(variant)
                .canary_is_alive()
                .expect("an answer")
        };
        assert!(!namespace.run(alive));
        namespace.run(move || {
            let mut transaction = Transaction::default();
            transaction
                .table(Table::Mangle)
                .writes
                .insert(ChainName::Top(Top::Canary), Vec::new());
            Iptables::<Ipv4Addr>::new(variant)
                .restore(&transaction)
                .expect("accepted");
        });
        assert!(namespace.run(alive));
        let program = if variant == Variant::Nft {
            "iptables-nft"
        } else {
            "iptables-legacy"
        };
        namespace.sh(&format!(
            "{program} -w 5 -t mangle -F; {program} -w 5 -t mangle -X"
        ));
        assert!(!namespace.run(alive));
    }
}

#[test]
fn the_real_lock_is_waited_for_and_then_reported() {
    require_netns!();
    // iptables-legacy locks this file, whatever the namespace; another test may hold it for a moment.
    let lock = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open("/run/xtables.lock");
    let Ok(lock) = lock else { return };
    lock.lock().expect("the lock");
    let namespace = Namespace::new().expect("a namespace");
    let error = namespace.run(|| {
        let kernel = Iptables::<Ipv4Addr>::new(Variant::Legacy).with_lock_wait(Duration::from_secs(1));
        kernel.restore(&jump_to("KUBE-POSTROUTING")).expect_err("locked")
    });
    drop(lock);
    assert!(matches!(error, ProgramError::Busy { .. }), "{error:?}");
}
