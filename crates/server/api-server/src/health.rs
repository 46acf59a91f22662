//! Is the server alive, and can it serve?

use crate::reply::Reply;
use crate::server::Server;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One named check.
struct Check {
    name: &'static str,
    passed: bool,
}

/// Answers `/healthz`, `/livez` and `/readyz`, whole or for one check.
pub async fn answer(
    server: &Server,
    probe: &str,
    only: Option<&str>,
    excluded: &[&str],
    verbose: bool,
) -> Reply {
    let checks = checks(server, probe).await;
    if let Some(name) = only {
        return match checks.iter().find(|check| check.name == name) {
            Some(check) if check.passed => Reply::text(200, "ok"),
            Some(_) => Reply::text(
                500,
                format!("internal server error: {name} failed: reason withheld\n"),
            ),
            None => Reply::text(404, format!("{probe} has no check {name:?}\n")),
        };
    }
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in &checks {
        if excluded.contains(&check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
        } else if check.passed {
            lines.push_str(&format!("[+]{} ok\n", check.name));
        } else {
            lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
            failed.push(check.name);
        }
    }
    if !failed.is_empty() {
        tracing::info!(probe, failed = failed.join(","), "health check failed");
        return Reply::text(500, format!("{lines}{probe} check failed\n"));
    }
    Reply::text(
        200,
        if verbose {
            format!("{lines}{probe} check passed\n")
        } else {
            "ok".into()
        },
    )
}

async fn checks(server: &Server, probe: &str) -> Vec<Check> {
    let mut checks = vec![Check {
        name: "ping",
        passed: true,
    }];
    if probe == "livez" {
        return checks;
    }
    let asked = tokio::time::timeout(Duration::from_secs(2), server.store.revision()).await;
    checks.push(Check {
        name: "etcd",
        passed: matches!(asked, Ok(Ok(_))),
    });
    checks.push(Check {
        name: "informer-sync",
        passed: server.bootstrapped.load(Ordering::Acquire) && server.cache.is_following(),
    });
    checks.push(Check {
        name: "shutdown",
        passed: !*server.stop.borrow(),
    });
    checks
}
