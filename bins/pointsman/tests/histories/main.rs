//! Can everything that clients saw be explained, whatever happens to the servers?
//!
//! A short run by default. `HISTORIES_KILLS` makes it longer and `HISTORIES_SEED` another one: `make test-histories`.

use pointsman_harness::wire::version_of;
use pointsman_harness::{Server, config_map};
use pointsman_histories::run::{Engine, Plan, run};
use pointsman_testkit::etcd::Etcd;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_the_embedded_store_are_explained() {
    explained(Engine::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_on_etcd_are_explained() {
    explained(Engine::Etcd).await;
}

async fn explained(engine: Engine) {
    let setting = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect("a number"))
    };
    let kills = setting("HISTORIES_KILLS");
    let plan = Plan {
        engine,
        seed: setting("HISTORIES_SEED").unwrap_or(1),
        kills: kills.map_or(4, |kills| usize::try_from(kills).expect("a number")),
        faults: 5,
    };
    let report = run(plan, |so_far| {
        if kills.is_some() {
            eprintln!("{so_far}");
        }
    })
    .await;
    eprintln!("{report}");
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n\n"));
    assert!(report.tally.kills >= plan.kills && report.counts.writes > 5 && report.counts.events > 5);
}

/// Found by a history: a server that had yet to see another's write called its version a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_of_the_newest_version_is_not_refused_by_a_server_that_lags() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let etcd = Etcd::start();
    let store = format!("--store=etcd={}", etcd.url());
    let servers = [Server::start(&[&store]).await, Server::start(&[&store]).await];
    let [one, other] = [servers[0].admin().await, servers[1].admin().await];
    for round in 0..100 {
        one.post(MAPS, &config_map("a", "first")).await.expect(201);
        let path = format!("{MAPS}/a");
        // The other server has the object, so that it need not ask the store whether there is one.
        other.get(&path).await.expect(200);
        let changed = one.put(&path, &config_map("a", "second")).await.expect(200);
        let options = json!({"preconditions": {"resourceVersion": version_of(&changed)}});
        let answer = other.delete_with(&path, &options).await;
        assert_eq!(answer.code, 200, "round {round}: {}", answer.text);
    }
}
