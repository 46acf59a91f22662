//! What survives when something breaks?

use std::path::Path;
use std::process::Command;

use pointsman_api_client::Resource;
use serde_json::{Value, json};

use crate::eventually;
use crate::features::{answers, endpoint, ports, web};
use crate::node::{Answer, Network};

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
        if mode == "nftables" {
            network.node.sh("nft flush map ip pointsman backends");
            answers(&network, &address, "10.0.1.5");
            let repaired = "pointsman_proxy_repairs_total{ip_family=\"IPv4\"}";
            eventually("the repair is counted", || cluster.metric(repaired) >= 1.0);
        }
    }
}

/// Stands before `iptables-nft-restore` and does what a file says. Another process writes it: a descriptor
/// of ours could leak into a program that another test is just starting.
fn faulty_restore(directory: &Path) {
    let script = format!(
        "#!/bin/sh
case \"$(cat {0}/fault 2>/dev/null)\" in
refuse) cat >/dev/null; echo 'iptables-restore: line 1 failed' >&2; exit 1;;
garbage) head -c 300 /dev/urandom >&2; exit 255;;
die) kill -9 $$;;
lock) cat >/dev/null; echo 'Another app is currently holding the xtables lock.' >&2; exit 4;;
*) exec /usr/sbin/iptables-nft-restore \"$@\";;
esac
",
        directory.display()
    );
    let file = directory.join("iptables-nft-restore");
    let status = Command::new("sh")
        .args(["-ec", "printf '%s' \"$SCRIPT\" >\"$FILE\"; chmod 755 \"$FILE\""])
        .env("SCRIPT", script)
        .env("FILE", file)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn whatever_a_restore_does_no_change_or_time_is_lost_and_health_tells_the_truth() {
    pointsman_testkit::require_netns!();
    let network = Network::new();
    let mut cluster = network.start_server();
    cluster.node_object();
    let programs = cluster.directory().join("programs");
    std::fs::create_dir(&programs).unwrap();
    faulty_restore(&programs);
    cluster.programs = Some(programs.clone());
    cluster.start_proxy(&["--proxy-mode=iptables", "--iptables-sync-period=500ms"]);
    let address = web(&cluster);
    answers(&network, &address, "10.0.1.5");
    let failures = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"}";
    let mut measured = cluster.metric(MEASURED);
    let mut backends = ["10.0.1.6", "10.0.1.5"].into_iter().cycle();
    for fault in ["refuse", "garbage", "die", "lock"] {
        let backend = backends.next().unwrap();
        let failed = cluster.metric(failures);
        std::fs::write(programs.join("fault"), fault).unwrap();
        cluster.endpoints("web", &ports(), &[endpoint(backend)]);
        eventually("the failure is counted", || cluster.metric(failures) > failed);
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
