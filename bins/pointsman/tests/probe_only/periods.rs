//! How often are pods of a kubelet really asked, and since when?
//!
//! As on a node of our own, what counts is when a question arrives, with bounds halfway to what would be wrong.

use crate::kubelet::{Cluster, Kubelet, status_of};
use pointsman_harness::{Probed, Server, eventually, quiet_port};
use std::time::Duration;

const HALF: Duration = Duration::from_millis(500);
const ALMOST_A_SECOND: Duration = Duration::from_millis(900);
const FAST: &str = "periodSeconds: 1\nperiodMilliseconds: -800\nfailureThreshold: 1000";
/// Two probes whose first checks lie 1.1 s apart, or 2 s if milliseconds do not count.
const DELAY: &str = "initialDelaySeconds: 2\ninitialDelayMilliseconds: -900";

struct Pods {
    cluster: Cluster,
    agent: tokio::process::Child,
    metrics: u16,
    /// The application of pod `fast`.
    application: Probed,
    /// Those of pods that wait for nothing, and for the delay.
    delay: [Probed; 2],
    kubelets: Vec<Kubelet>,
    _server: Server,
}

impl Pods {
    async fn start(flags: &[&str]) -> Self {
        let server = Server::start(&[]).await;
        let cluster = Cluster::connect(&server).await;
        let [application, soon, late] = [(); 3].map(|()| Probed::start("127.0.0.1"));
        let metrics = quiet_port();
        let agent = cluster.process(metrics, flags);
        let mut kubelets = Vec::new();
        for (name, asked, more) in [
            ("fast", &application, FAST),
            ("soon", &soon, ""),
            ("late", &late, DELAY),
        ] {
            let annotation = format!("httpGet: {{port: web}}\n{more}");
            cluster.pod(name, Some(&annotation), asked.port, true).await;
        }
        // All containers start at the same moment, long after the agent has seen their pods.
        eventually("the agent knows the pods", async || {
            status_of(&cluster.get("late").await).map(drop)
        })
        .await;
        let started = jiff::Timestamp::now();
        for name in ["fast", "soon", "late"] {
            kubelets.push(Kubelet::start_at(&cluster, name, started).await);
        }
        Self {
            cluster,
            agent,
            metrics,
            application,
            delay: [soon, late],
            kubelets,
            _server: server,
        }
    }

    /// How long after the other pod the delayed one was first asked.
    async fn apart(&self) -> Duration {
        let [soon, late] = &self.delay;
        late.first_asked().await - soon.first_asked().await
    }

    /// The agent's count of readiness probes that are, or are not, faster than a second.
    async fn workers(&self, sub_second: bool) -> Option<String> {
        let url = format!("http://127.0.0.1:{}/metrics", self.metrics);
        let answer = tokio::process::Command::new("curl").args(["-sS", &url]).output();
        let text = String::from_utf8(answer.await.unwrap().stdout).unwrap();
        let labels = format!(r#"{{probe_type="Readiness",handler="httpGet",sub_second="{sub_second}"}} "#);
        let series = format!("pointsman_probe_workers{labels}");
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.map(str::to_owned)
    }

    async fn stop(mut self) {
        self.agent.kill().await.unwrap();
        for kubelet in self.kubelets {
            kubelet.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_ask_in_milliseconds_until_the_first_success_and_in_whole_seconds_after_it() {
    let pods = Pods::start(&[]).await;
    let pace = pods.application.pace().await;
    assert!(pace < HALF, "it is asked every {pace:?}");
    assert_eq!(pods.workers(true).await.as_deref(), Some("1"));
    pods.application.answer(200);
    eventually("the pod is ready by us", async || {
        (status_of(&pods.cluster.get("fast").await) == Some(true)).then_some(())
    })
    .await;
    let pace = pods.application.pace().await;
    assert!(pace > ALMOST_A_SECOND, "after success still every {pace:?}");
    let apart = pods.apart().await;
    let right = Duration::from_millis(700)..Duration::from_millis(1700);
    assert!(right.contains(&apart), "1.1 s were {apart:?}");
    pods.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_gate_off_milliseconds_of_annotations_have_no_effect() {
    let pods = Pods::start(&["--feature-gates=SubSecondProbes=false"]).await;
    let pace = pods.application.pace().await;
    assert!(pace > ALMOST_A_SECOND, "it is asked every {pace:?}");
    assert_eq!(pods.workers(true).await, None);
    assert_eq!(pods.workers(false).await.as_deref(), Some("3"));
    let apart = pods.apart().await;
    assert!(apart > Duration::from_millis(1700), "2 s were {apart:?}");
    pods.stop().await;
}
