//! When do connections really change?
//!
//! A thread in the namespace of each node connects to a Service again and again. A change happened between
//! the last attempt that showed the old state and the first that showed the new one; the later end counts,
//! and the width of the interval is kept. While old and new pods share a Service, half of the connections
//! show each: two attempts at a time keep the interval short.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use pointsman_fabric::Netns;

use pointsman_cluster::claim::Record;

/// Between two attempts; shorter ones would take the processor from those who are measured.
const PAUSE: Duration = Duration::from_micros(300);
/// How long to wait for an answer where there may be none yet.
const SHORT: Duration = Duration::from_millis(2);
/// How long to wait for an answer where there is one still.
const LONG: Duration = Duration::from_millis(10);
/// So many attempts in a row that show new pods only mean that no old one is left.
const SETTLED: u32 = 40;
/// Which kinds of ICMP messages are limited in number.
const RATE_MASK: &str = "ipv4/icmp_ratemask";

/// What probers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A Service begins to answer.
    Answers,
    /// A Service stops to answer.
    Nothing,
    /// New pods join old ones and then take over; either answer and the others refuse.
    TakeOver {
        /// Whether it is the new ones who answer.
        new_answer: bool,
    },
}

/// The moment at which packets changed their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// The first attempt that met the new rules.
    pub at: Timestamp,
    /// How long before that it may have been.
    pub width: Duration,
}

impl Truth {
    fn between(before: Timestamp, at: Timestamp) -> Self {
        let width = Duration::from_micros((at.as_microsecond() - before.as_microsecond()).unsigned_abs());
        Self { at, width }
    }
}

/// What one attempt met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Answer,
    Refusal,
    Silence,
}

struct Order {
    target: SocketAddr,
    wanted: Wanted,
    stop: Arc<AtomicBool>,
    found: mpsc::Sender<(String, Vec<Truth>)>,
}

/// One prober in each node.
pub struct Probers {
    orders: Vec<mpsc::Sender<Order>>,
    nodes: Vec<String>,
}

/// A change that probers wait for.
pub struct Watching {
    stop: Arc<AtomicBool>,
    found: mpsc::Receiver<(String, Vec<Truth>)>,
    nodes: Vec<String>,
}

/// What each node saw: nothing, a change, or two where pods take over from others.
pub type Seen = BTreeMap<String, Vec<Truth>>;

impl Probers {
    /// Starts them; they end with the value.
    pub fn start(record: &Record) -> anyhow::Result<Self> {
        let mut orders = Vec::new();
        for node in &record.nodes {
            let namespace =
                Netns::named(&node.namespace).with_context(|| format!("entering {}", node.namespace))?;
            // Refusals are ICMP messages, of which the kernel sends a thousand a second and drops the rest: a
            // prober would take the silence for a change that has not come yet.
            namespace.set_sysctl(RATE_MASK, "0")?;
            let (sender, receiver) = mpsc::channel::<Order>();
            let name = node.name.clone();
            std::thread::spawn(move || {
                let probing = namespace.run(move || {
                    hurry();
                    for order in receiver {
                        let seen = probe(&order);
                        let _ = order.found.send((name.clone(), seen));
                    }
                });
                if let Err(error) = probing {
                    tracing::error!(%error, "a prober could not enter its node");
                }
            });
            orders.push(sender);
        }
        let nodes = record.nodes.iter().map(|node| node.name.clone()).collect();
        Ok(Self { orders, nodes })
    }

    /// Waits on all nodes for a change.
    pub fn watch(&self, target: SocketAddr, wanted: Wanted) -> Watching {
        let (found, finding) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        for orders in &self.orders {
            // A prober that could not start finds nothing, and coverage says so.
            let _ = orders.send(Order {
                target,
                wanted,
                stop: stop.clone(),
                found: found.clone(),
            });
        }
        Watching {
            stop,
            found: finding,
            nodes: self.nodes.clone(),
        }
    }
}

impl Watching {
    /// What each node saw within this time.
    pub async fn finish(self, patience: Duration) -> Seen {
        let waiting = tokio::task::spawn_blocking(move || {
            let mut seen: Seen = self.nodes.iter().map(|name| (name.clone(), Vec::new())).collect();
            let deadline = Instant::now() + patience;
            for _ in 0..seen.len() {
                let left = deadline.saturating_duration_since(Instant::now());
                match self.found.recv_timeout(left) {
                    Ok((node, truths)) => drop(seen.insert(node, truths)),
                    Err(_) => break,
                }
            }
            self.stop.store(true, Ordering::Relaxed);
            seen
        });
        waiting.await.unwrap_or_default()
    }
}

fn probe(order: &Order) -> Vec<Truth> {
    let mut follow = Follow::new(order.wanted);
    while !order.stop.load(Ordering::Relaxed) {
        for _ in 0..follow.attempts() {
            let at = Timestamp::now();
            if follow.observe(at, connect(order.target, follow.patience())) {
                return follow.seen;
            }
        }
        std::thread::sleep(PAUSE);
    }
    Vec::new()
}

/// Follows attempts until they have shown what is waited for.
struct Follow {
    wanted: Wanted,
    /// The last attempt that showed the old state.
    old: Option<Timestamp>,
    /// The first attempt after it.
    next: Option<Timestamp>,
    in_a_row: u32,
    seen: Vec<Truth>,
}

impl Follow {
    fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            old: None,
            next: None,
            in_a_row: 0,
            seen: Vec::new(),
        }
    }

    fn attempts(&self) -> u32 {
        match self.wanted {
            Wanted::TakeOver { .. } => 2,
            _ => 1,
        }
    }

    fn patience(&self) -> Duration {
        match self.wanted {
            Wanted::Answers => SHORT,
            _ => LONG,
        }
    }

    /// Takes in an attempt; true if nothing more is waited for.
    fn observe(&mut self, at: Timestamp, met: Met) -> bool {
        let is_new = match (self.wanted, met) {
            (Wanted::TakeOver { .. }, Met::Silence) => return false,
            (Wanted::TakeOver { new_answer }, met) => (met == Met::Answer) == new_answer,
            (Wanted::Answers, met) => met == Met::Answer,
            (Wanted::Nothing, met) => met != Met::Answer,
        };
        if !is_new {
            (self.old, self.next, self.in_a_row) = (Some(at), None, 0);
            return false;
        }
        // Without a look at the old state nothing is known about the moment.
        let Some(old) = self.old else { return false };
        let next = *self.next.get_or_insert(at);
        self.in_a_row += 1;
        match self.wanted {
            Wanted::TakeOver { .. } => {
                if self.seen.is_empty() {
                    self.seen.push(Truth::between(old, at));
                }
                if self.in_a_row < SETTLED {
                    return false;
                }
            }
            // One attempt may fail for reasons of its own.
            Wanted::Nothing if self.in_a_row < 2 => return false,
            _ => {}
        }
        self.seen.push(Truth::between(old, next));
        true
    }
}

/// Lets this thread run as soon as it wakes: a prober that waits for a processor would see changes late. It mostly sleeps.
///
/// Beside compilers, a thread that sleeps for 0.3 ms at a time was 3.7 ms late at p99 by niceness alone and 0.1 ms with
/// the real-time policy, which root may set and for which the standard library has no call.
fn hurry() {
    let _ = rustix::process::nice(-10);
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let chrt = Command::new("chrt")
        .args(["--fifo", "--pid", "1", &thread])
        .stderr(Stdio::null())
        .status();
    if !chrt.is_ok_and(|status| status.success()) {
        tracing::info!("a prober runs by niceness alone and may see changes late");
    }
}

fn connect(target: SocketAddr, patience: Duration) -> Met {
    match TcpStream::connect_timeout(&target, patience) {
        Ok(stream) => {
            // Without this every attempt would hold a port for a minute.
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            Met::Answer
        }
        Err(error) if error.kind() == ErrorKind::TimedOut => Met::Silence,
        Err(_) => Met::Refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(wanted: Wanted, met: &[Met]) -> Vec<(i64, u64)> {
        let mut follow = Follow::new(wanted);
        for (micros, met) in (0..).zip(met) {
            let at = Timestamp::from_microsecond(micros).unwrap();
            if follow.observe(at, *met) {
                break;
            }
        }
        let show = |truth: &Truth| (truth.at.as_microsecond(), truth.width.as_micros() as u64);
        follow.seen.iter().map(show).collect()
    }

    #[test]
    fn a_change_lies_between_the_last_old_and_the_first_new_attempt() {
        use Met::{Answer, Refusal, Silence};
        assert_eq!(follow(Wanted::Answers, &[Refusal, Silence, Answer]), [(2, 1)]);
        assert_eq!(
            follow(Wanted::Answers, &[Answer, Answer]),
            [],
            "the old state was never seen"
        );
        let lone_failure = [Answer, Silence, Answer, Refusal, Refusal];
        assert_eq!(follow(Wanted::Nothing, &lone_failure), [(3, 1)]);
    }

    #[test]
    fn taking_over_has_a_beginning_and_an_end() {
        use Met::{Answer, Refusal};
        let mut met = vec![Answer, Answer, Refusal, Answer, Refusal, Refusal, Answer];
        met.extend([Refusal; SETTLED as usize]);
        let wanted = Wanted::TakeOver { new_answer: false };
        assert_eq!(follow(wanted, &met), [(2, 1), (7, 1)]);
    }
}
