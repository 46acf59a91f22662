//! Jobs run pods to their end and count each once.

mod common;

use common::at;
use pointsman_objects::job::{INDEX, TRACKING};
use pointsman_objects::{Job, Pod};
use pointsman_workloads::job::{Indexes, JobPlan, plan};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A cluster that carries plans out.
struct Cluster {
    job: Job,
    pods: Vec<Value>,
    second: i64,
    serial: usize,
}

fn job(spec: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c" }] } });
    let metadata = json!({ "namespace": "ns", "name": "work", "uid": "job" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

impl Cluster {
    fn new(spec: Value) -> Self {
        Self {
            job: job(spec),
            pods: Vec::new(),
            second: 0,
            serial: 0,
        }
    }

    fn read(&self) -> Vec<Pod> {
        self.pods
            .iter()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap())
            .collect()
    }

    fn plan(&self) -> JobPlan {
        let pods = self.read();
        plan(&self.job, &pods.iter().collect::<Vec<_>>(), at(self.second))
    }

    /// Carries a plan out, all of it or, like a program that is stopped, its first writes only.
    fn step(&mut self, writes: usize) -> JobPlan {
        self.second += 1;
        let plan = self.plan();
        let mut left = writes;
        let mut next = || {
            left = left.saturating_sub(1);
            left > 0
        };
        if let Some(status) = &plan.status {
            self.job.status = status.clone();
            if !next() {
                return plan;
            }
        }
        for (_, uid) in plan.count.iter().chain(&plan.discard) {
            self.find(uid)["metadata"]["finalizers"] = json!([]);
            if !next() {
                return plan;
            }
        }
        for index in &plan.create {
            self.serial += 1;
            let mut pod = self.job.new_pod(*index);
            let name = format!("p{}", self.serial);
            pod["metadata"]["name"] = name.as_str().into();
            pod["metadata"]["uid"] = name.into();
            pod["metadata"]["creationTimestamp"] = at(self.second).to_string().into();
            self.pods.push(pod);
        }
        for (_, uid) in plan.fail.iter().chain(&plan.discard) {
            let now = at(self.second).to_string();
            self.find(uid)["metadata"]["deletionTimestamp"] = now.into();
        }
        self.collect();
        plan
    }

    fn find(&mut self, uid: &str) -> &mut Value {
        self.pods
            .iter_mut()
            .find(|pod| pod["metadata"]["uid"] == *uid)
            .unwrap()
    }

    /// Pods that nobody holds are gone once their end was asked for.
    fn collect(&mut self) {
        let stays = |pod: &Value| {
            pod["metadata"]["deletionTimestamp"].is_null() || pod["metadata"]["finalizers"] != json!([])
        };
        self.pods.retain(stays);
    }

    fn end(&mut self, index: usize, phase: &str) {
        let now = at(self.second).to_string();
        let condition = json!({ "type": "Ready", "status": "False", "lastTransitionTime": now });
        self.pods[index]["status"] = json!({ "phase": phase, "conditions": [condition] });
    }

    fn running(&self) -> usize {
        self.read().iter().filter(|pod| pod.is_active()).count()
    }

    /// Waits out what failures hold back; then everything that runs ends like this.
    fn finish_all(&mut self, phase: &str) {
        for _ in 0..100 {
            self.step(usize::MAX);
            if self.ended() {
                return;
            }
            let active = |pod: &Pod| pod.is_active();
            let open: Vec<usize> = (0..self.pods.len())
                .filter(|index| active(&self.read()[*index]))
                .collect();
            for index in open {
                self.end(index, phase);
            }
            self.second += 700;
        }
        panic!("no end: {:?}", self.job.status);
    }

    fn ended(&self) -> bool {
        self.job.condition("Complete").is_some() || self.job.condition("Failed").is_some()
    }

    fn reason(&self) -> String {
        self.job
            .condition("Failed")
            .map(|condition| condition.reason.clone())
            .unwrap_or_default()
    }
}

#[test]
fn a_job_runs_as_many_as_it_may_until_enough_succeeded() {
    let mut cluster = Cluster::new(json!({ "completions": 5, "parallelism": 2 }));
    cluster.step(usize::MAX);
    assert_eq!(cluster.running(), 2);
    assert_eq!(cluster.pods[0]["metadata"]["finalizers"], json!([TRACKING]));
    assert_eq!(
        cluster.pods[0]["metadata"]["ownerReferences"][0]["apiVersion"],
        "batch/v1"
    );
    cluster.finish_all("Succeeded");
    let status = &cluster.job.status;
    assert_eq!((status.succeeded, status.failed, status.active), (5, 0, 0));
    assert_eq!((status.ready, status.terminating), (Some(0), Some(0)));
    assert!(status.completion_time.is_some() && cluster.job.condition("SuccessCriteriaMet").is_some());
    assert!(cluster.plan().is_empty());
    // Without completions one success ends the start of more, and the Job with the last pod.
    let mut queue = Cluster::new(json!({ "parallelism": 3 }));
    queue.step(usize::MAX);
    queue.end(0, "Succeeded");
    queue.step(usize::MAX);
    assert_eq!((queue.running(), queue.ended()), (2, false));
    queue.finish_all("Succeeded");
    assert_eq!(queue.job.status.succeeded, 3);
}

#[test]
fn failures_hold_the_next_pod_back_and_too_many_end_the_job() {
    let mut cluster = Cluster::new(json!({ "completions": 1, "backoffLimit": 2 }));
    cluster.step(usize::MAX);
    cluster.end(0, "Failed");
    let plan = cluster.step(usize::MAX);
    assert!(plan.create.is_empty());
    assert_eq!(plan.look_again, Some(at(1 + 10)));
    cluster.finish_all("Failed");
    assert_eq!(cluster.reason(), "BackoffLimitExceeded");
    assert_eq!((cluster.job.status.failed, cluster.pods.len()), (3, 3));
    // What still ran fails with it.
    let mut many = Cluster::new(json!({ "completions": 3, "parallelism": 3, "backoffLimit": 0 }));
    many.step(usize::MAX);
    many.end(0, "Failed");
    many.finish_all("Running");
    assert_eq!((many.job.status.failed, many.running()), (3, 0));
}

#[test]
fn deadlines_suspension_and_time_to_live_are_kept() {
    let mut late = Cluster::new(json!({ "activeDeadlineSeconds": 30 }));
    assert_eq!(late.step(usize::MAX).look_again, Some(at(1 + 30)));
    late.second = 40;
    late.finish_all("Running");
    assert_eq!(late.reason(), "DeadlineExceeded");

    let mut held = Cluster::new(json!({ "completions": 2, "parallelism": 2, "suspend": true }));
    held.step(usize::MAX);
    assert_eq!((held.running(), held.job.status.start_time), (0, None));
    assert!(held.job.condition("Suspended").is_some());
    held.job.spec.suspend = false;
    held.step(usize::MAX);
    assert_eq!(held.running(), 2);
    held.job.spec.suspend = true;
    held.step(usize::MAX);
    assert_eq!(
        (held.pods.len(), held.job.status.failed),
        (0, 0),
        "taken back, not failed"
    );

    let mut short = Cluster::new(json!({ "completions": 1, "ttlSecondsAfterFinished": 60 }));
    short.finish_all("Succeeded");
    let finished = short
        .job
        .condition("Complete")
        .unwrap()
        .last_transition_time
        .unwrap();
    let due = finished.after(std::time::Duration::from_secs(60));
    assert_eq!(short.plan().look_again, Some(due));
    short.second += 61;
    assert!(short.plan().remove);
}

#[test]
fn every_index_is_done_by_a_pod_of_its_own() {
    let mut cluster =
        Cluster::new(json!({ "completions": 4, "parallelism": 2, "completionMode": "Indexed" }));
    cluster.step(usize::MAX);
    let pod = &cluster.pods[1];
    assert_eq!(pod["metadata"]["generateName"], "work-1-");
    assert_eq!(
        (&pod["metadata"]["labels"][INDEX], &pod["spec"]["hostname"]),
        (&json!("1"), &json!("work-1"))
    );
    assert_eq!(
        pod["spec"]["containers"][0]["env"][0]["name"],
        "JOB_COMPLETION_INDEX"
    );
    cluster.end(1, "Succeeded");
    cluster.step(usize::MAX);
    assert_eq!(cluster.job.status.completed_indexes.as_deref(), Some("1"));
    cluster.finish_all("Succeeded");
    assert_eq!(cluster.job.status.completed_indexes.as_deref(), Some("0-3"));
    assert_eq!((cluster.job.status.succeeded, cluster.pods.len()), (4, 4));
}

#[test]
fn a_job_that_goes_lets_its_pods_go_and_a_foreign_one_is_left_alone() {
    let mut cluster = Cluster::new(json!({ "completions": 2, "parallelism": 2 }));
    cluster.step(usize::MAX);
    cluster.job.metadata.deletion = Some(at(1));
    let plan = cluster.plan();
    assert_eq!((plan.count.len(), plan.create.len()), (2, 0));
    let foreign = job(json!({ "managedBy": "example.com/other" }));
    assert!(self::plan(&foreign, &[], at(0)).is_empty());
    let policy = job(json!({ "podFailurePolicy": { "rules": [] } }));
    let told = self::plan(&policy, &[], at(0)).events;
    assert!(told[0].0 && told[0].2.contains("podFailurePolicy"), "{told:?}");
}

#[test]
fn lists_of_indexes_are_read_as_they_are_written() {
    for text in ["", "0", "0,1", "0-2", "1-3,5,7-9"] {
        assert_eq!(Indexes::parse(text, Some(20)).to_string(), text);
    }
    let odd = Indexes::parse("x,-4,3-1,2-2147483647,9999999999,5-", Some(4));
    assert_eq!(odd.to_string(), "2,3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_end_is_counted_once_whenever_the_program_stops(
        completions in 1i32..6,
        parallelism in 1i32..4,
        indexed in any::<bool>(),
        moves in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..4, 1usize..5), 0..60),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut cluster = Cluster::new(json!({
            "completions": completions, "parallelism": parallelism, "completionMode": mode, "backoffLimit": 1000,
        }));
        let (mut good, mut bad) = (0, 0);
        for (chosen, what, writes) in moves {
            cluster.step(writes);
            cluster.second += 700;
            prop_assert!(cluster.running() <= usize::try_from(parallelism).unwrap());
            let open: Vec<usize> = (0..cluster.pods.len()).filter(|index| cluster.read()[*index].is_active()).collect();
            if open.is_empty() {
                continue;
            }
            let index = open[chosen.index(open.len())];
            match what {
                0 => { cluster.end(index, "Failed"); bad += 1; }
                1 => { cluster.end(index, "Succeeded"); good += 1; }
                // Somebody deletes it.
                2 => { let now = at(cluster.second).to_string(); cluster.pods[index]["metadata"]["deletionTimestamp"] = now.into(); bad += 1; }
                _ => {}
            }
            prop_assert!(good <= completions);
        }
        for _ in 0..4 {
            cluster.step(usize::MAX);
        }
        let status = &cluster.job.status;
        prop_assert_eq!(status.succeeded, good, "{:?}", status);
        prop_assert_eq!(status.failed, bad, "{:?}", status);
        cluster.finish_all("Succeeded");
        prop_assert_eq!(cluster.job.status.succeeded, completions);
        prop_assert_eq!(cluster.job.status.failed, bad);
        prop_assert!(cluster.plan().is_empty());
    }
}
