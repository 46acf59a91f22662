//! Talking to programs in pods, as old and new clients of Kubernetes do it.

use crate::lab::{Lab, on_a_node, pod_path};
use pointsman_harness::eventually;
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What kubectl's streams travel in: it spoke SPDY before it spoke WebSocket.
const CARRIERS: [&str; 2] = ["false", "true"];

fn kubectl(lab: &Lab, websocket: &str, arguments: &[&str]) -> Command {
    let mut command = lab.server.kubectl_command();
    command
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websocket)
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websocket)
        .args(arguments);
    command
}

async fn run(lab: &Lab, websocket: &str, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = kubectl(lab, websocket, arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let fed = async {
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), fed);
    output.unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

async fn sleeper(lab: &Lab, name: &str) {
    let program = json!({ "command": ["sleep", "3600"], "env": [{ "name": "COLOUR", "value": "green" }] });
    lab.pod(name, program).await;
    lab.ready(name).await;
}

#[test]
fn a_command_has_its_input_its_outputs_and_its_exit_code() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        // More than fits into all buffers on the way, and no text.
        let large: Vec<u8> = (0..3 << 20)
            .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for websocket in CARRIERS {
            let script = "echo $COLOUR; echo bad >&2; exit 3";
            let output = run(lab, websocket, &["exec", "host", "--", "sh", "-c", script], b"").await;
            let (code, out, errors) = said(&output);
            assert_eq!((code, out.as_str()), (Some(3), "green\n"), "{errors}");
            assert!(errors.starts_with("bad\n"), "{errors}");
            assert!(errors.contains("exit code 3"), "{errors}");

            let output = run(lab, websocket, &["exec", "-i", "host", "--", "cat"], &large).await;
            assert_eq!(said(&output).2, "");
            assert!(output.status.success());
            assert!(output.stdout == large, "{} bytes came back", output.stdout.len());

            // What a command leaves running does not keep its client.
            let output = run(
                lab,
                websocket,
                &["exec", "host", "--", "sh", "-c", "sleep 60 & echo over"],
                b"",
            )
            .await;
            assert_eq!(said(&output), (Some(0), "over\n".into(), String::new()));

            let output = run(lab, websocket, &["exec", "host", "--", "no-such-program"], b"").await;
            let (code, _, errors) = said(&output);
            assert_eq!(code, Some(1));
            assert!(errors.contains("executable file not found in $PATH"), "{errors}");
            let output = run(lab, websocket, &["exec", "nobody", "--", "true"], b"").await;
            assert!(
                said(&output).2.contains("pods \"nobody\" not found"),
                "{output:?}"
            );
        }
    });
}

#[test]
fn a_command_with_a_terminal_knows_its_size() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        for websocket in CARRIERS {
            // The size comes as a message of its own.
            let inside = "tty >/dev/null || exit 9; i=0; while [ $i -lt 200 ]; do i=$((i+1)); \
                          [ \"$(stty size)\" = \"33 101\" ] && echo as wide as it is && exit 7; sleep 0.05; done; stty size";
            let outside = format!("stty rows 33 cols 101; kubectl exec -it host -- sh -c '{inside}'");
            let mut script = Command::new("script");
            let kubectl = kubectl(lab, websocket, &[]);
            for (name, value) in kubectl.as_std().get_envs() {
                script.env(name, value.unwrap_or_default());
            }
            let output = script
                .args(["-qefc", &outside, "/dev/null"])
                .stdin(Stdio::null())
                .output()
                .await
                .unwrap();
            let (code, out, _) = said(&output);
            assert!(out.contains("as wide as it is\r\n"), "{out}");
            assert_eq!(code, Some(7), "{out}");
        }
    });
}

#[test]
fn a_command_ends_with_its_client() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        for websocket in CARRIERS {
            let seconds = format!("10{}.75", fastrand::u32(1000..9999));
            let mut client = kubectl(lab, websocket, &["exec", "host", "--", "sleep", &seconds]);
            let mut client = client.spawn().unwrap();
            eventually("it runs", async || runs(&["sleep", &seconds]).then_some(())).await;
            client.kill().await.unwrap();
            eventually("it has ended", async || {
                (!runs(&["sleep", &seconds])).then_some(())
            })
            .await;
        }
    });
}

fn runs(line: &[&str]) -> bool {
    let wanted: Vec<u8> = line
        .iter()
        .flat_map(|word| [word.as_bytes(), b"\0"].concat())
        .collect();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| line == wanted)
}

#[test]
fn files_are_copied_to_a_pod_and_back() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(path("there")).unwrap();
        let content: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(path("there/numbers"), &content).unwrap();
        for websocket in CARRIERS {
            let copy = async |from: &str, to: &str| {
                let output = run(lab, websocket, &["cp", from, to], b"").await;
                assert!(output.status.success(), "{output:?}");
            };
            let (there, back) = (format!("host:/tmp/{websocket}"), path(websocket));
            copy(&path("there"), &there).await;
            copy(&there, &back).await;
            assert!(std::fs::read(format!("{back}/numbers")).unwrap() == content);
        }
    });
}

#[test]
fn ports_of_a_pod_are_forwarded() {
    on_a_node(async |lab| {
        let script = "import http.server,socketserver\n\
                      class H(http.server.BaseHTTPRequestHandler):\n\
                      \x20def do_POST(s):\n\
                      \x20 b=s.rfile.read(int(s.headers['Content-Length'])); s.send_response(200)\n\
                      \x20 s.send_header('Content-Length',str(len(b))); s.end_headers(); s.wfile.write(b[::-1])\n\
                      \x20def log_message(*a): pass\n\
                      http.server.ThreadingHTTPServer(('127.0.0.1',8081),H).serve_forever()";
        let program = json!({
            "command": ["python3", "-c", script],
            "readinessProbe": { "exec": { "command": ["sh", "-c", "ss -ltn | grep -q 127.0.0.1:8081"] } },
        });
        lab.pod("web", program).await;
        lab.ready("web").await;
        for websocket in CARRIERS {
            let mut client = kubectl(lab, websocket, &["port-forward", "pod/web", ":8081", ":8082"]);
            let mut client = client
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines =
                tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(client.stdout.take().unwrap()));
            let mut ports = Vec::new();
            while ports.len() < 2 {
                let line = lines.next_line().await.unwrap().expect("two lines about ports");
                // Forwarding from 127.0.0.1:PORT -> 8081
                if let Some(rest) = line.strip_prefix("Forwarding from 127.0.0.1:") {
                    ports.push(rest.split(' ').next().unwrap().to_owned());
                }
            }
            let text = "0123456789".repeat(30_000);
            let url = format!("http://127.0.0.1:{}/", ports[0]);
            let reversed: String = text.chars().rev().collect();
            let ask = async || {
                let mut curl = Command::new("curl");
                curl.args([
                    "-sS",
                    "--fail",
                    "--max-time",
                    "20",
                    "--data-binary",
                    "@-",
                    "-H",
                    "Expect:",
                    &url,
                ]);
                let mut curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                let mut stdin = curl.stdin.take().unwrap();
                stdin.write_all(text.as_bytes()).await.unwrap();
                drop(stdin);
                let output = curl.wait_with_output().await.unwrap();
                String::from_utf8(output.stdout).unwrap() == reversed
            };
            let (one, two, three) = tokio::join!(ask(), ask(), ask());
            assert!(one && two && three, "{}", lab.server.log());
            // Nobody listens on the other one: its client is told, and this one still works.
            let refused = Command::new("curl")
                .args([
                    "-sS",
                    "--max-time",
                    "20",
                    &format!("http://127.0.0.1:{}/", ports[1]),
                ])
                .output()
                .await
                .unwrap();
            assert!(!refused.status.success());
            client.start_kill().unwrap();
            let errors = client.wait_with_output().await.unwrap();
            let errors = String::from_utf8_lossy(&errors.stderr).into_owned();
            assert!(
                errors.contains("connect to port 8082 inside of the pod"),
                "{errors}"
            );
        }
    });
}

#[test]
fn streams_are_for_those_who_may_create_them() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        let http = &lab.http;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "reader" },
            "rules": [{ "apiGroups": [""], "resources": ["pods", "pods/exec", "pods/portforward"], "verbs": ["get"] }],
        });
        let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        http.post(&format!("{roles}/roles"), &role).await.expect(201);
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "reader" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
            "subjects": [{ "kind": "User", "name": "jane" }],
        });
        http.post(&format!("{roles}/rolebindings"), &binding)
            .await
            .expect(201);
        for websocket in CARRIERS {
            for arguments in [
                ["exec", "host", "--as=jane", "--", "true"].as_slice(),
                &["port-forward", "host", ":80", "--as=jane"],
            ] {
                let (code, _, errors) = said(&run(lab, websocket, arguments, b"").await);
                assert_eq!(code, Some(1), "{errors}");
                let what = if arguments[0] == "exec" {
                    "pods/exec"
                } else {
                    "pods/portforward"
                };
                let expected = format!("User \"jane\" cannot create resource \"{what}\"");
                assert!(errors.contains(&expected), "{errors}");
            }
        }
        // And without an upgrade nobody gets one.
        let path = format!("{}/exec?command=true&stdout=1", pod_path("host"));
        http.get(&path).await.refused(400, "BadRequest");
    });
}

#[test]
fn clients_attach_to_a_program_that_reads_and_to_one_that_does_not() {
    on_a_node(async |lab| {
        for websocket in CARRIERS {
            let name = format!("reader-{websocket}");
            let script = "while read line; do echo got $line; done; echo bye >&2; sleep 0.5; exit 4";
            let program = json!({ "command": ["sh", "-c", script], "stdin": true, "stdinOnce": true });
            lab.pod(&name, program).await;
            lab.ready(&name).await;
            let output = run(lab, websocket, &["attach", "-i", &name], b"one\ntwo\n").await;
            let (code, out, errors) = said(&output);
            assert_eq!((code, out.as_str()), (Some(0), "got one\ngot two\n"), "{errors}");
            assert!(errors.contains("bye\n"), "{errors}");
            // Its output is in the log all the same.
            let log = lab.kubectl(&["logs", &name, "--previous"]).await;
            assert!(log.contains("got two\n"), "{log}");

            let name = format!("shell-{websocket}");
            let program = json!({ "command": ["sh"], "stdin": true, "tty": true });
            lab.pod(&name, program).await;
            lab.ready(&name).await;
            let mut script = Command::new("script");
            for (name, value) in kubectl(lab, websocket, &[]).as_std().get_envs() {
                script.env(name, value.unwrap_or_default());
            }
            script.args(["-qefc", &format!("kubectl attach -it {name}"), "/dev/null"]);
            let mut script = script
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = script.stdin.take().unwrap();
            stdin.write_all(b"echo $((6*7)) $TERM\nexit\n").await.unwrap();
            let output = script.wait_with_output().await.unwrap();
            assert!(said(&output).1.contains("42 xterm\r\n"), "{output:?}");
        }
        sleeper(lab, "deaf").await;
        let output = run(lab, "true", &["attach", "-i", "deaf"], b"hello").await;
        let errors = said(&output).2;
        assert!(
            errors.contains("reads no input: its spec does not have stdin"),
            "{errors}"
        );
        // Ephemeral containers are another matter.
        let output = run(lab, "true", &["debug", "deaf", "--image=host", "--", "true"], b"").await;
        let errors = said(&output).2;
        assert!(
            errors.contains("ephemeral containers are disabled for this cluster"),
            "{errors}"
        );
    });
}

#[test]
fn the_audit_log_says_when_a_stream_began_and_when_it_ended() {
    on_a_node(async |lab| {
        sleeper(lab, "host").await;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        lab.server
            .set_flags(&[&format!("--audit-log-path={}", path.display())]);
        lab.server.restart().await;
        for (websocket, verb) in CARRIERS.into_iter().zip(["create", "get"]) {
            let output = run(lab, websocket, &["exec", "host", "--", "true"], b"").await;
            assert!(output.status.success(), "{output:?}");
            let stages = eventually("the end is written", async || {
                let log = std::fs::read_to_string(&path).unwrap();
                let events = log
                    .lines()
                    .filter_map(|line| serde_json::from_str::<Value>(line).ok());
                let events = events.filter(|event| {
                    event["objectRef"]["subresource"] == "exec"
                        && event["verb"] == verb
                        && event["responseStatus"]["code"] == 101
                });
                let stages: Vec<String> = events.map(|event| event["stage"].to_string()).collect();
                (stages.len() == 2).then_some(stages)
            })
            .await;
            assert_eq!(stages, ["\"ResponseStarted\"", "\"ResponseComplete\""]);
        }
    });
}
