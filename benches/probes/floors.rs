//! How short may a period be? KEP-3066 leaves its floors of 200 and 500 ms to a benchmark.
//!
//! A node of 110 pods, the most that Kubernetes plans for, is probed with every handler at every period, alone and
//! beside twice as many busy loops as there are cores. A period is affordable if all pods at once, as when a node
//! starts, take no more than half of what the agent grants its probes, and if no check of a healthy server misses the
//! shortest timeout that is allowed, however busy the machine is.

use crate::Servers;
use crate::probe::{Handler, Load, Sample};
use anyhow::Result;
use pointsman_objects::probe::Handler as Field;
use std::process::{Child, Command};

const HANDLERS: [(Handler, Field); 4] = [
    (Handler::Http, Field::HttpGet),
    (Handler::Tcp, Field::TcpSocket),
    (Handler::Grpc, Field::Grpc),
    (Handler::Exec, Field::Exec),
];
const PODS: usize = 110;
const PERIODS_MS: [i64; 4] = [100, 200, 500, 1000];
/// Half of the half core that all probes of a node may take.
const AFFORDABLE: f64 = 0.25;

/// Both measurements of one handler at one period.
struct Row {
    alone: Sample,
    busy: Sample,
}

impl Row {
    /// CPU of the prober and of the processes that it starts.
    fn whole_cost(&self) -> f64 {
        self.alone.cpu_share + self.alone.children_share
    }

    /// A process counts for its container, as the KEP says, so that only the prober's own part is asked about. A period
    /// that was not kept says nothing.
    fn is_affordable(&self) -> bool {
        let load = &self.alone.load;
        let kept = self.alone.checks_per_second * load.period_ms as f64 > load.count as f64 * 950.0;
        kept && self.alone.cpu_share <= AFFORDABLE && self.alone.failed + self.busy.failed == 0.0
    }
}

pub fn measure_all(quick: bool) -> Result<()> {
    let servers = Servers::start()?;
    let mut rows = Vec::new();
    for (handler, field) in HANDLERS {
        for period_ms in PERIODS_MS {
            let load = Load {
                handler,
                count: if quick { 10 } else { PODS },
                period_ms,
                timeout_ms: field.shortest().timeout.0,
                seconds: if quick { 1 } else { 3 },
                limit: f64::INFINITY,
                cpu_share: 1.0,
                port: servers.port,
            };
            let alone = crate::measure(&load)?;
            let _burners = Burners::start()?;
            let busy = crate::measure(&load)?;
            rows.push(Row { alone, busy });
        }
    }
    print(&rows);
    Ok(())
}

fn print(rows: &[Row]) {
    println!(
        "\n| {} pods | Checks | CPU | with their processes | per check | Jitter p99 | beside busy loops | Missed timeouts | beside busy loops |",
        rows[0].alone.load.count
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for row in rows {
        let Row { alone, busy } = row;
        println!(
            "| {} at {} ms | {:.0}/s | {:.1} % | {:.1} % | {:.2} ms | {:.1} ms | {:.1} ms | {:.0} of {} ms | {:.0} of {} ms |",
            alone.load.handler.name(),
            alone.load.period_ms,
            alone.checks_per_second,
            alone.cpu_share * 100.0,
            row.whole_cost() * 100.0,
            row.whole_cost() / alone.checks_per_second * 1000.0,
            alone.jitter_p99_ms,
            busy.jitter_p99_ms,
            alone.failed,
            alone.load.timeout_ms,
            busy.failed,
            busy.load.timeout_ms,
        );
    }
    println!();
    for (handler, field) in HANDLERS {
        let floor = field.shortest().period.0;
        let mut of = rows.iter().filter(|row| row.alone.load.handler == handler);
        let costs: Vec<String> = of
            .clone()
            .map(|row| {
                format!(
                    "{:.1} % at {} ms",
                    row.alone.cpu_share * 100.0,
                    row.alone.load.period_ms
                )
            })
            .collect();
        let affordable = of.find(|row| row.is_affordable());
        let affordable = affordable.map_or("none".to_owned(), |row| {
            format!("{} ms", row.alone.load.period_ms)
        });
        println!(
            "- {}: {}; the floor is {floor} ms, the shortest affordable period {affordable}",
            handler.name(),
            costs.join(", ")
        );
    }
}

/// Processes that leave the prober only its share of the machine.
struct Burners(Vec<Child>);

impl Burners {
    fn start() -> Result<Self> {
        let cores = std::thread::available_parallelism()?.get();
        let mut burners = Self(Vec::new());
        for _ in 0..cores * 2 {
            let burner = Command::new(std::env::current_exe()?).arg("burn").spawn()?;
            burners.0.push(burner);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for burner in &mut self.0 {
            let _ = burner.kill();
            let _ = burner.wait();
        }
    }
}

/// Never ends by itself, and not without whoever started it.
pub fn burn() -> Result<()> {
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        std::hint::black_box((0..10_000_000_u64).fold(0, |sum, next| sum ^ next));
    }
    Ok(())
}
