//! Does `explain` find out by itself what it needs to know, and say so where it cannot?

use crate::cluster::{Cluster, eventually, program};
use pointsman_testkit::require_netns;
use serde_json::Value;
use std::process::{Command, Output};

/// Runs `explain` on the host, knowing nothing but how the cluster is reached.
fn explain(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(program());
    command.args(["explain", "--output=json"]).args(arguments);
    command.env("KUBECONFIG", cluster.data_dir().join("admin.kubeconfig"));
    read(command.output().unwrap())
}

/// Runs it on a node, knowing nothing at all.
fn explain_on(cluster: &Cluster, node: &str, question: &str) -> (Option<i32>, Value) {
    let program = program();
    let command = [
        "env",
        "-u",
        "KUBECONFIG",
        &program,
        "explain",
        "--output=json",
        question,
    ];
    read(cluster.pointsman("exec", &[&[node, "--"][..], &command[..]].concat()))
}

fn read(output: Output) -> (Option<i32>, Value) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = serde_json::from_slice(&output.stdout);
    (output.status.code(), said.unwrap_or_else(|_| panic!("{errors}")))
}

#[test]
fn explain_needs_no_flags_and_its_exit_code_tells() {
    require_netns!();
    for mode in ["nftables", "iptables"] {
        let cluster = Cluster::start(&["--nodes=2", "--proxy-mode", mode]);
        cluster.kubectl(&[
            "create",
            "service",
            "nodeport",
            "web",
            "--tcp=80:8080",
            "--node-port=30080",
        ]);
        let said = eventually("every kernel has the Service", || {
            let (code, said) = explain_on(&cluster, "n2", "default/web");
            (code == Some(0) && said["kernel"]["agrees"] == true).then_some(said)
        });
        assert_eq!(
            (&said["node"], &said["mode"]),
            (&"n2".into(), &mode.into()),
            "{said:#}"
        );
        assert_eq!(
            said["notes"],
            Value::Array(Vec::new()),
            "nothing is unknown: {said:#}"
        );

        // The host is no node: the first one is meant, and its kernel is asked all the same.
        let (code, said) = explain(&cluster, &["default/web"]);
        assert_eq!(
            (code, &said["node"], &said["kernel"]["agrees"]),
            (Some(0), &"n1".into(), &true.into()),
            "{said:#}"
        );
        assert!(
            said["notes"][0].as_str().unwrap().contains("no node was named"),
            "{said:#}"
        );
        let (code, said) = explain(&cluster, &["default/web", "--node=n2"]);
        assert_eq!(
            (code, &said["node"], &said["mode"]),
            (Some(0), &"n2".into(), &mode.into()),
            "{said:#}"
        );

        // Node ports are found by the address of any node, and by their number.
        let address = cluster.facts["nodes"][1]["address"].as_str().unwrap();
        for (code, said) in [
            explain(&cluster, &[&format!("{address}:30080")]),
            explain_on(&cluster, "n1", &format!("{address}:30080")),
            explain_on(&cluster, "n2", "default/web:30080"),
        ] {
            assert_eq!((code, &said["node"]), (Some(0), &"n2".into()), "{said:#}");
            assert_eq!(said["ports"][0]["service"], "default/web", "{said:#}");
        }

        for (question, node, code) in [
            ("default/other", "n1", 4),
            ("default/other:80", "n1", 4),
            ("default/web:81", "n1", 5),
            ("default/web", "n9", 6),
        ] {
            let (said, answer) = explain(&cluster, &[question, "--node", node]);
            assert_eq!(said, Some(code), "{question} on {node}: {answer:#}");
        }
    }
}
