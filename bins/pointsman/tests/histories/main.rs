//! Can everything that clients saw be explained, whatever happens to the servers?
//!
//! A short run by default. `HISTORIES_KILLS` makes it longer and `HISTORIES_SEED` another one: `make test-histories`.

use pointsman_histories::run::{Engine, Plan, run};

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
