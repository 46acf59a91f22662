//! Every call to the real programs, which scripts stand in front of.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pointsman_dataplane::Settings;
use pointsman_iptables::{Inventory, Planner};
use pointsman_testkit::netns::Namespace;
use pointsman_testkit::require_netns;

use super::life::{Checks, Kernel, States, live};
use crate::iptables::{Iptables, Variant};
use crate::outside::Tables;

/// What a script does instead of, before or after the real program.
const WAYS: [&str; 10] = [
    "exit-1",
    "exit-2",
    "exit-3",
    "exit-4",
    "lock",
    "killed",
    "done-killed",
    "done-failed",
    "torn",
    "garbage",
];

/// Counts the call; does what it is told if it is its turn; else becomes the real program.
const SCRIPT: &str = r#"#!/bin/sh
read calls <"$DIR/calls"; calls=$((calls + 1)); echo $calls >"$DIR/calls"
read at <"$DIR/at"; read way <"$DIR/way"
[ $calls = "$at" ] || exec REAL "$@"
case $way in
exit-*) echo 'injected: line 2 failed' >&2; exit ${way#exit-};;
lock) head -c 9 >/dev/null; echo 'Another app is currently holding the xtables lock.' >&2; exit 4;;
killed) head -c 9 >/dev/null; kill -9 $$;;
done-killed) REAL "$@" >/dev/null; kill -9 $$;;
done-failed) REAL "$@" >/dev/null; exit 1;;
torn) REAL "$@" </dev/null | head -n 3; case $0 in *-save) exit 0;; *) exit 1;; esac;;
garbage) head -c 300 /dev/urandom; head -c 300 /dev/urandom >&2; case $0 in *-save) exit 0;; *) exit 255;; esac;;
hang) exec sleep 600;;
esac
"#;

struct Programs {
    variant: Variant,
    infix: &'static str,
    directory: PathBuf,
}

impl Programs {
    fn new(variant: Variant, directory: &Path) -> Self {
        let infix = match variant {
            Variant::Legacy => "legacy",
            _ => "nft",
        };
        for suffix in ["", "-save", "-restore"] {
            let name = format!("iptables-{infix}{suffix}");
            let script = SCRIPT
                .replace("$DIR", &directory.display().to_string())
                .replace("REAL", &format!("/usr/sbin/{name}"));
            // Another process writes the file: a descriptor of ours could leak into a program that another test
            // is just starting, and the kernel refuses to run what is open for writing.
            let written = Command::new("sh")
                .args(["-ec", "printf '%s' \"$SCRIPT\" >\"$FILE\"; chmod 755 \"$FILE\""])
                .env("SCRIPT", script)
                .env("FILE", directory.join(name))
                .status();
            assert!(written.expect("a shell").success());
        }
        Self {
            variant,
            infix,
            directory: directory.to_owned(),
        }
    }

    /// Lets the call of this number fail (none if it is 0); returns the calls of a life and its failures.
    fn live(&self, at: usize, way: &str) -> (usize, usize) {
        let file = |name: &str| self.directory.join(name);
        std::fs::write(file("calls"), "0\n").expect("a file");
        std::fs::write(file("at"), format!("{at}\n")).expect("a file");
        std::fs::write(file("way"), format!("{way}\n")).expect("a file");
        let checks = match at {
            0 => Checks::Always,
            _ => Checks::AfterFailures,
        };
        let tale = live(self, checks);
        let calls = std::fs::read_to_string(file("calls")).expect("the file");
        (calls.trim().parse().expect("a number"), tale.failures)
    }

    fn sh(&self, script: &str) {
        let program = format!("iptables-{}", self.infix);
        let status = Command::new("sh")
            .args(["-ec", &script.replace("IPT", &format!("{program} -w 60"))])
            .status();
        assert!(status.expect("a shell").success(), "{script}");
    }
}

impl Kernel for Programs {
    fn tables(&self) -> Box<dyn Tables<Ipv4Addr>> {
        let programs = Iptables::new(self.variant)
            .in_directory(&self.directory)
            .with_lock_wait(Duration::from_secs(60))
            .with_run_limit(Duration::from_secs(5));
        Box::new(programs)
    }

    fn flush(&self) {
        self.sh("for table in filter nat mangle; do IPT -t $table -F; IPT -t $table -X; done");
    }

    fn meddle(&self) {
        self.sh(
            "IPT -t nat -I KUBE-SERVICES -j RETURN; IPT -t nat -A KUBE-SERVICES-02 -j RETURN;
                 IPT -t nat -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES;
                 IPT -t nat -N KUBE-SVC-XPGD46QRK7WJZT7O; IPT -t filter -D INPUT -j KUBE-FIREWALL",
        );
    }

    fn check(&self, settings: &Settings<Ipv4Addr>, states: States) {
        let real = Iptables::<Ipv4Addr>::new(self.variant);
        let inventory: Inventory = real.inventory().expect("iptables-save");
        let differing = Planner::new(settings.clone()).differences(states, inventory);
        assert_eq!(differing.into_iter().collect::<Vec<_>>(), []);
    }

    fn check_clean(&self) {
        let real = Iptables::<Ipv4Addr>::new(self.variant);
        for table in ["filter", "nat", "mangle"] {
            let saved = real.save(table).expect("iptables-save");
            let mut ours = saved
                .lines()
                .filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
            assert_eq!(ours.next(), None);
        }
    }
}

/// One way to fail for each of so many calls, in turn; with `POINTSMAN_EVERY_FAULT` every way for each.
fn sweep(variant: Variant, step: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    let programs = Programs::new(variant, directory.path());
    let namespace = Namespace::new().expect("a namespace");
    let every = std::env::var_os("POINTSMAN_EVERY_FAULT").is_some();
    namespace.run(move || {
        let (calls, failures) = programs.live(0, "none");
        assert_eq!(failures, 0);
        let mut failed = 0;
        let step = if every { 1 } else { step };
        for at in (1..).step_by(step) {
            let ways: Vec<&str> = match every {
                true => WAYS.to_vec(),
                false => vec![WAYS[at / step % WAYS.len()]],
            };
            let mut reached = false;
            for way in ways {
                let (made, failures) = programs.live(at, way);
                reached |= made >= at;
                failed += usize::from(failures > 0);
            }
            if !reached {
                break;
            }
        }
        eprintln!("{calls} calls in a quiet life, {failed} lives with a failure");
        assert!(failed * step * 10 >= calls * 8, "{failed} of {calls}");
        // Only one, the first restore, as each costs the limit.
        assert_eq!(programs.live(4, "hang").1, 1);
    });
}

#[test]
fn nothing_is_lost_whichever_run_of_iptables_nft_fails() {
    require_netns!();
    sweep(Variant::Nft, 2);
}

#[test]
fn nothing_is_lost_whichever_run_of_iptables_legacy_fails() {
    require_netns!();
    sweep(Variant::Legacy, 4);
}
