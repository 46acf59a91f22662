//! Exec checks through a runner.

use crate::lab::{Lab, quick};
use pointsman_probe_io::{Config, ExecOutcome, ExecRequest, ExecRunner, Started, Verdict};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A runner whose commands are words that it knows.
#[derive(Default)]
struct Words {
    running: AtomicUsize,
    most: AtomicUsize,
    ended: AtomicUsize,
}

impl ExecRunner for Words {
    fn exec(&self, request: ExecRequest) -> Pin<Box<dyn Future<Output = ExecOutcome> + Send + '_>> {
        Box::pin(async move {
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            let outcome = match request.command[0].as_str() {
                "good" => ExecOutcome::Exited {
                    code: 0,
                    output: Vec::new(),
                },
                "bad" => ExecOutcome::Exited {
                    code: 3,
                    output: [b"not today ".to_vec(), vec![b'x'; 50_000]].concat(),
                },
                "slow" => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    ExecOutcome::Exited {
                        code: 0,
                        output: Vec::new(),
                    }
                }
                "broken" => ExecOutcome::Failed("no such container".to_owned()),
                _ => {
                    tokio::time::sleep(request.timeout).await;
                    ExecOutcome::TimedOut
                }
            };
            self.running.fetch_sub(1, Ordering::SeqCst);
            self.ended.fetch_add(1, Ordering::SeqCst);
            outcome
        })
    }
}

fn exec(word: &str) -> Value {
    quick(json!({"exec": {"command": [word]}}))
}

fn lab(concurrency: usize) -> (Lab, Arc<Words>) {
    let words = Arc::new(Words::default());
    let config = Config {
        exec_concurrency: concurrency,
        ..Config::default()
    };
    (Lab::with(config, words.clone()), words)
}

#[tokio::test]
async fn exit_codes_decide_and_output_is_cut_off() {
    let (mut lab, _) = lab(8);
    lab.run("good", json!({"readinessProbe": exec("good")}));
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    lab.run("bad", json!({"livenessProbe": exec("bad")}));
    let (_, _, verdict, message) = lab.verdict().await;
    assert_eq!(verdict, Verdict::Failure);
    assert!(
        message.starts_with("not today xxx") && message.len() == 10 << 10,
        "{}",
        message.len()
    );
}

#[tokio::test]
async fn a_timeout_is_a_failure_and_a_runtime_error_is_not() {
    let (mut lab, _) = lab(8);
    lab.run("broken", json!({"livenessProbe": exec("broken")}));
    let event = lab.next().await.event();
    let text = "Liveness probe errored and resulted in unknown state: no such container";
    assert_eq!(event, Some(("Unhealthy", text.to_owned())));
    let mut hanging = exec("hang");
    hanging["timeoutMilliseconds"] = json!(-900);
    lab.run("hanging", json!({"livenessProbe": hanging}));
    let (uid, _, verdict, message) = lab.verdict().await;
    assert_eq!((uid.as_str(), verdict), ("hanging", Verdict::Failure));
    assert_eq!(message, "command [\"hang\"]: no complete answer within 100ms");
}

#[tokio::test]
async fn only_so_many_commands_run_at_a_time_and_all_get_their_turn() {
    let (mut lab, words) = lab(3);
    for at in 0..20 {
        lab.run(&format!("p{at}"), json!({"readinessProbe": exec("slow")}));
    }
    let mut ready = std::collections::BTreeSet::new();
    while ready.len() < 20 {
        let (uid, _, verdict, _) = lab.verdict().await;
        assert_eq!(verdict, Verdict::Success);
        ready.insert(uid);
    }
    assert_eq!(words.most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_command_outlives_its_container_and_its_answer_is_ignored() {
    let (mut lab, words) = lab(8);
    lab.run("p", json!({"readinessProbe": exec("slow")}));
    lab.until("the command runs", |_| words.running.load(Ordering::SeqCst) == 1)
        .await;
    lab.prober.container_stopped("p", "c");
    lab.until("the command ends", |_| words.ended.load(Ordering::SeqCst) == 1)
        .await;
    lab.silence(Duration::from_millis(100)).await;
    lab.prober.container_started("p", "c", Started::default());
    assert_eq!(lab.verdict().await.2, Verdict::Success);
    lab.prober.remove_pod("p");
    let ended = words.ended.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(words.ended.load(Ordering::SeqCst) <= ended + 1);
}
