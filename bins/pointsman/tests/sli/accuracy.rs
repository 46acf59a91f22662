//! How far is what the collector says from what happened?

use std::time::Duration;

use jiff::Timestamp;
use pointsman_api_client::{Patch, Resource};
use pointsman_scenario::Jitter;
use serde_json::{Value, json};

use crate::programmer::Programmer;
use crate::site::Site;

/// What is allowed besides the machine's own delays, of which a few add up: the programmer's, and those of both ways on
/// which its clock is read.
const ALLOWED: Duration = Duration::from_millis(10);
const DELAYS: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_report_is_off_by_no_more_than_the_machine_is_late() {
    let programmer = Programmer::start("n1").await;
    let site = Site::start(&[&programmer], |_| {}).await;
    site.metric_becomes("pointsman_sli_programmers{state=\"live\"}", 1.0)
        .await;
    let services = site.client.api(Resource::SERVICES, Some("default"));
    let spec = |port: u16| json!({ "spec": { "ports": [{ "port": port }] } });
    let mut service = spec(80);
    service["metadata"]["name"] = "web".into();
    site.create(Resource::SERVICES, service).await;

    let jitter = Jitter::start();
    let mut errors = Vec::new();
    for port in 81..101 {
        let asked = Timestamp::now();
        let patch = Patch::Merge(spec(port).to_string().into_bytes());
        let written: Value = services.patch("web", patch).await.unwrap();
        let answered = Timestamp::now();
        let version: u64 = written["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let before = Timestamp::now();
        programmer.commit(version);
        let after = Timestamp::now();

        let found = |state: &Value| {
            let changes = state["changes"].as_array()?;
            let ours = |it: &&Value| it["revision"] == version && it["allAfterSeconds"].is_number();
            changes.iter().find(ours).cloned()
        };
        let change = site.until("the change is everywhere", found).await;
        errors.push((outside(&change["triggered"], asked, answered), "its beginning"));
        errors.push((outside(&change["nodes"][0]["at"], before, after), "its commit"));
    }
    let (late, (worst, what)) = (jitter.stop(), errors.into_iter().max().unwrap());
    let most = ALLOWED + late * DELAYS;
    assert!(
        worst <= most,
        "{what} is off by {worst:?}; {most:?} are allowed, as threads were {late:?} late"
    );
}

/// How far a reported time lies outside of those between which it happened.
fn outside(reported: &Value, from: Timestamp, to: Timestamp) -> Duration {
    let at: Timestamp = reported.as_str().unwrap().parse().unwrap();
    let [at, from, to] = [at, from, to].map(Timestamp::as_microsecond);
    Duration::from_micros((from - at).max(at - to).max(0).unsigned_abs())
}
