//! Did a proxy ever write something else than a full sync would have written?

use super::claim::Record;
use super::nodes::measuring;
use super::plain_http;
use anyhow::{Context, bail};
use std::time::Duration;

/// How long a proxy may take to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counts partial syncs that were refused. Somebody else who flushes rules can be the reason.
pub const PARTIAL_FAILURES: &str = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total";
/// Counts chains in which partial syncs led elsewhere than a full one would.
pub const DIVERGENCES: &str = "pointsman_proxy_divergences_total";

/// The series of these counters that are not 0, as in the text of metrics.
pub fn counted<'a>(metrics: &'a str, counters: &[&str]) -> Vec<&'a str> {
    let of_counters = metrics
        .lines()
        .filter(|line| counters.contains(&line.split('{').next().unwrap_or_default()));
    of_counters.filter(|line| !line.ends_with(" 0")).collect()
}

/// What the proxies of a cluster counted, each with its node; none in a sound cluster. Proxies whose rules somebody
/// flushed are asked for divergences only.
pub async fn of_cluster(record: &Record, flushed: &[String]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for node in &record.nodes {
        let proxy = measuring(&record.data_dir, node.address);
        let (status, metrics) = plain_http::ask(&proxy, "/metrics", PATIENCE)
            .await
            .with_context(|| format!("asking the proxy of {} for its metrics", node.name))?;
        if status != 200 {
            bail!("the proxy of {} answers {status} instead of metrics", node.name);
        }
        let counters: &[&str] = match flushed.contains(&node.name) {
            true => &[DIVERGENCES],
            false => &[PARTIAL_FAILURES, DIVERGENCES],
        };
        let series = counted(&metrics, counters);
        found.extend(
            series
                .iter()
                .map(|series| format!("{} counted {series}", node.name)),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_not_zero_are_found_and_nothing_else() {
        let metrics = format!(
            "# TYPE {DIVERGENCES} counter\n{DIVERGENCES}{{ip_family=\"IPv4\"}} 0\n{DIVERGENCES}{{ip_family=\"IPv6\"}} 10\n\
             {PARTIAL_FAILURES}{{ip_family=\"IPv4\"}} 2\nkubeproxy_other_total{{ip_family=\"IPv4\"}} 3\n"
        );
        let both = counted(&metrics, &[PARTIAL_FAILURES, DIVERGENCES]);
        assert_eq!(both.len(), 2, "{both:?}");
        let one = counted(&metrics, &[DIVERGENCES]);
        assert_eq!(one, [format!("{DIVERGENCES}{{ip_family=\"IPv6\"}} 10")]);
    }
}
