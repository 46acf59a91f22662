//! What survives when something breaks?

use std::path::Path;
use std::process::Command;

use pointsman_api_client::Resource;
use serde_json::{Value, json};

use crate::eventually;
use crate::features::{answers, endpoint, ports, web};
use crate::node::{Answer, Network};

const PARTIAL_FAILURES: &str =
    "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"}";
const MEASURED: &str = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";

#[test]
fn rules_outlive_the_api_server_and_changes_of_the_meantime_arrive_afterwards() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    cluster.kill("apiserver");
    assert_eq!(network.ask(&address, 80), Answer::Said("10.0.1.5".into()));
    cluster.start_apiserver();
    cluster.endpoints("web", &ports(), &[endpoint("10.0.1.6")]);
    answers(&network, &address, "10.0.1.6");
}

#[test]
fn a_flushed_ruleset_is_back_within_seconds_and_counted() {
    pointsman_testkit::require_netns!();
    for mode in ["nftables", "iptables"] {
        let network = Network::new();
        let mut cluster = network.start_server();
        cluster.start_proxy(&["--proxy-mode", mode, "--iptables-sync-period=2s"]);
        let address = web(&cluster);
        answers(&network, &address, "10.0.1.5");
        network.node.sh("nft flush ruleset");
        assert!(!network.has_rules());
        answers(&network, &address, "10.0.1.5");
        let disturbed = "pointsman_proxy_disturbances_total{ip_family=\"IPv4\"}";
        eventually("the disturbance is counted", || cluster.metric(disturbed) >= 1.0);
        let repaired = "pointsman_proxy_repairs_total{ip_family=\"IPv4\"}";
        eventually("the repair is counted", || cluster.metric(repaired) >= 1.0);
        if mode == "nftables" {
            network.node.sh("nft flush map ip pointsman backends");
            answers(&network, &address, "10.0.1.5");
            eventually("that, too", || cluster.metric(repaired) >= 2.0);
        }
    }
}

#[test]
fn foreign_rules_in_our_chains_are_found_and_taken_out_within_seconds() {
    pointsman_testkit::require_netns!();
    for variant in ["nft", "legacy"] {
        let network = Network::new();
        let mut cluster = network.start_server();
        let programs = cluster.directory().join("programs");
        std::fs::create_dir(&programs).unwrap();
        for suffix in ["", "-save", "-restore"] {
            let real = format!("/usr/sbin/iptables-{variant}{suffix}");
            std::os::unix::fs::symlink(real, programs.join(format!("iptables{suffix}"))).unwrap();
        }
        cluster.programs = Some(programs);
        cluster.start_proxy(&["--proxy-mode=iptables", "--iptables-sync-period=1s"]);
        let address = web(&cluster);
        answers(&network, &address, "10.0.1.5");
        let tool = format!("iptables-{variant} -w 60 -t nat");
        network.node.sh(&format!("{tool} -I KUBE-SERVICES -j RETURN"));
        assert_ne!(network.ask(&address, 80), Answer::Said("10.0.1.5".into()));
        answers(&network, &address, "10.0.1.5");
        let repaired = "pointsman_proxy_repairs_total{ip_family=\"IPv4\"}";
        eventually("the repair is counted", || cluster.metric(repaired) >= 1.0);
        let rules = network.node.sh(&format!("{tool} -S KUBE-SERVICES"));
        assert!(!rules.contains("-j RETURN"), "{rules}");
        if variant == "nft" {
            // Commits of others that do not concern us lead to a comparison and to nothing else.
            let (disturbed, full) = (
                "pointsman_proxy_disturbances_total{ip_family=\"IPv4\"}",
                "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
            );
            let (noticed, written) = (cluster.metric(disturbed), cluster.metric(full));
            network.node.sh("nft add table ip neighbour");
            eventually("the neighbour is noticed", || cluster.metric(disturbed) > noticed);
            cluster.endpoints("web", &ports(), &[endpoint("10.0.1.6")]);
            answers(&network, &address, "10.0.1.6");
            assert_eq!(cluster.metric(full), written, "nothing was written again");
        }
    }
}

#[test]
fn without_the_gate_every_sync_overwrites_everything_and_a_restart_switches_it() {
    pointsman_testkit::require_netns!();
    const FULL: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    const PARTIAL: &str = "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
    let network = Network::new();
    let mut cluster = network.start_server();
    let address = web(&cluster);
    let own_chain = || {
        let saved = network.node.sh("iptables -w 60 -t nat -S");
        let chain = saved.lines().find_map(|line| line.strip_prefix("-N KUBE-SEP-"));
        format!("KUBE-SEP-{}", chain.expect("an endpoint's chain"))
    };
    let foreign = |chain: &str| {
        network
            .node
            .sh(&format!("iptables -w 60 -t nat -S {chain}"))
            .contains("foreign")
    };
    // Nothing but a sync would find what another program writes.
    let start = [
        "--proxy-mode=iptables",
        "--iptables-sync-period=1h",
        "--feature-gates",
    ];
    for (gate, partial) in [("false", 0.0), ("true", 1.0), ("false", 0.0)] {
        let gate = format!("MinimizeIPTablesRestore={gate}");
        cluster.start_proxy(&[&start[..], &[gate.as_str()]].concat());
        answers(&network, &address, "10.0.1.5");
        eventually("the first sync is counted", || cluster.metric(FULL) >= 1.0);
        let (full, chain) = (cluster.metric(FULL), own_chain());
        network.node.sh(&format!(
            "iptables -w 60 -t nat -A {chain} -m comment --comment foreign"
        ));
        cluster.service("other", &json!({"ports": [{"port": 81}]}));
        eventually("the change is written", || {
            cluster.metric(FULL) + cluster.metric(PARTIAL) > full
        });
        assert_eq!(cluster.metric(PARTIAL), partial, "{gate}");
        assert_eq!(foreign(&chain), partial > 0.0, "{gate}: an unchanged chain");
        cluster.delete(Resource::SERVICES, Some("default"), "other");
        cluster.kill("proxy");
    }
}

/// Stands before the programs and does what a file says: always, or at the call of that number since it was
/// asked to. Another process writes the scripts: a descriptor of ours could leak into a program that another test
/// is just starting.
fn faulty_programs(directory: &Path) {
    for name in ["iptables-nft", "iptables-nft-save", "iptables-nft-restore"] {
        let script = FAULTY
            .replace("DIR", &directory.display().to_string())
            .replace("REAL", &format!("/usr/sbin/{name}"));
        let status = Command::new("sh")
            .args(["-ec", "printf '%s' \"$SCRIPT\" >\"$FILE\"; chmod 755 \"$FILE\""])
            .env("SCRIPT", script)
            .env("FILE", directory.join(name))
            .status();
        assert!(status.unwrap().success());
    }
}

const FAULTY: &str = r#"#!/bin/sh
fault=; at=; calls=0
[ -e DIR/at ] && { read at fault <DIR/at; read calls <DIR/calls; calls=$((calls + 1)); echo $calls >DIR/calls; }
[ "$calls" = "$at" ] || fault=
[ -e DIR/fault ] && case $0 in *-restore) read fault <DIR/fault;; esac
case $fault in
refuse) head -c 9 >/dev/null; echo 'iptables-restore: line 1 failed' >&2; exit 1;;
garbage) head -c 300 /dev/urandom >&2; exit 255;;
die) kill -9 $$;;
late) REAL "$@" >/dev/null; kill -9 $$;;
lock) cat >/dev/null; echo 'Another app is currently holding the xtables lock.' >&2; exit 4;;
*) exec REAL "$@";;
esac
"#;

#[test]
fn whatever_a_restore_does_no_change_or_time_is_lost_and_health_tells_the_truth() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let programs = cluster.directory().join("programs");
    std::fs::create_dir(&programs).unwrap();
    faulty_programs(&programs);
    cluster.programs = Some(programs.clone());
    cluster.start_proxy(&["--proxy-mode=iptables", "--iptables-sync-period=500ms"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
    let mut measured = cluster.metric(MEASURED);
    let mut backends = ["10.0.1.6", "10.0.1.5"].into_iter().cycle();
    for fault in ["refuse", "garbage", "die", "lock"] {
        let backend = backends.next().unwrap();
        let (failed, partial) = (cluster.metric(failures), cluster.metric(PARTIAL_FAILURES));
        std::fs::write(programs.join("fault"), format!("{fault}\n")).unwrap();
        cluster.endpoints("web", &ports(), &[endpoint(backend)]);
        eventually("the failure is counted", || cluster.metric(failures) > failed);
        // A lock that somebody holds is waited for: nothing was written, so nothing has to be written again.
        match fault {
            "lock" => assert_eq!(cluster.metric(PARTIAL_FAILURES), partial),
            _ => eventually("as one of a partial sync", || {
                cluster.metric(PARTIAL_FAILURES) > partial
            }),
        }
        assert_eq!(
            cluster.metric(MEASURED),
            measured,
            "{fault}: nothing was programmed"
        );
        eventually("a proxy that cannot write says so", || cluster.health() == "503");
        std::fs::remove_file(programs.join("fault")).unwrap();
        answers(&network, &address, backend);
        measured += 1.0;
        eventually("the change is measured once", || {
            cluster.metric(MEASURED) == measured
        });
        eventually("and the proxy is well again", || cluster.health() == "200");
    }
    let diverged = "pointsman_proxy_divergences_total{ip_family=\"IPv4\"}";
    assert_eq!(
        cluster.metric(diverged),
        0.0,
        "failures are not called our own mistakes"
    );
}

#[test]
fn whichever_call_fails_after_a_flush_everything_comes_back_and_is_measured_once() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let programs = cluster.directory().join("programs");
    std::fs::create_dir(&programs).unwrap();
    faulty_programs(&programs);
    cluster.programs = Some(programs.clone());
    cluster.start_proxy(&["--proxy-mode=iptables", "--iptables-sync-period=500ms"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    let mut measured = cluster.metric(MEASURED);
    let mut faults = ["late", "refuse", "die", "garbage"].into_iter().cycle();
    for at in 1.. {
        let fault = faults.next().unwrap();
        std::fs::write(programs.join("calls"), "0\n").unwrap();
        std::fs::write(programs.join("at"), format!("{at} {fault}\n")).unwrap();
        network.node.sh("nft flush ruleset");
        let backend = ["10.0.1.5", "10.0.1.6"][at % 2];
        cluster.endpoints("web", &ports(), &[endpoint(backend)]);
        answers(&network, &address, backend);
        measured += 1.0;
        eventually("the change is measured once", || {
            cluster.metric(MEASURED) == measured
        });
        eventually("the proxy is well", || cluster.health() == "200");
        let calls = std::fs::read_to_string(programs.join("calls")).unwrap();
        std::fs::remove_file(programs.join("at")).unwrap();
        if calls.trim().parse::<usize>().unwrap() < at {
            assert!(at > 6, "a full sync makes more calls than {at}");
            break;
        }
    }
    let diverged = "pointsman_proxy_divergences_total{ip_family=\"IPv4\"}";
    assert_eq!(cluster.metric(diverged), 0.0);
}

#[test]
fn a_cold_start_that_was_killed_in_the_middle_ends_in_the_table_of_a_fresh_one() {
    pointsman_testkit::require_netns!();
    const SERVICES: usize = 2500;
    let network = Network::new();
    let mut cluster = network.start_server();
    fill(&cluster, SERVICES);
    let table = "nft list table ip pointsman 2>/dev/null || true";
    let loaded = || {
        network
            .node
            .sh("nft list set ip pointsman cluster-ips 2>/dev/null || true")
            .matches("10.")
            .count()
    };
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    eventually("the first Services are there", || loaded() > 0);
    cluster.kill("proxy");
    let partial = loaded();
    eprintln!("killed with {partial} of {SERVICES} Services");
    let complete = |cluster: &crate::node::Cluster<'_>| {
        eventually("everything is loaded", || {
            cluster.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}") > 0.0
        });
        let mut lines: Vec<String> = network
            .node
            .sh(table)
            .split([',', '\n', '{', '}'])
            .map(|part| part.trim().to_owned())
            .collect();
        lines.sort();
        lines
    };
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    let repaired = complete(&cluster);
    cluster.kill("proxy");
    network.node.sh("nft delete table ip pointsman");
    cluster.start_proxy(&["--proxy-mode=nftables"]);
    assert_eq!(complete(&cluster), repaired);
    assert!(loaded() > SERVICES, "all Services and that of the API server");
}

/// Makes Services with one endpoint each.
fn fill(cluster: &crate::node::Cluster<'_>, services: usize) {
    let made = cluster.call(async move |client| {
        for first in (0..services).step_by(50) {
            let wave = (first..(first + 50).min(services)).map(|number| {
                let client = client.clone();
                async move {
                    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}")},
                        "spec": {"ports": [{"port": 80, "targetPort": 8080}]}});
                    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                        "metadata": {"name": format!("s{number}-x"), "labels": {"kubernetes.io/service-name": format!("s{number}")}},
                        "addressType": "IPv4", "ports": [{"name": "", "port": 8080}],
                        "endpoints": [{"addresses": [format!("10.0.{}.{}", 100 + number / 250, number % 250 + 1)]}]});
                    client.api(Resource::SERVICES, Some("default")).create::<Value>(service.to_string()).await?;
                    client.api(Resource::ENDPOINT_SLICES, Some("default")).create::<Value>(slice.to_string()).await
                }
            });
            futures::future::try_join_all(wave).await?;
        }
        Ok(())
    });
    made.unwrap();
}
