//! Who is asked, where, and what comes of it?

use crate::echo::Echo;
use crate::metrics::Metrics;
use pointsman_model::Text;
use pointsman_node_health::peers::{Observer, Rings, Thresholds};
use pointsman_objects::Node;
use pointsman_protocol::peers;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The nodes of the cluster, our own too, and where each is asked.
pub type Places = BTreeMap<Text, IpAddr>;

/// Where a node is asked; a node without an address neither asks nor is asked.
pub fn place(node: &Node) -> Option<IpAddr> {
    node.internal_addresses().next()
}

/// Remembers where a node is asked; nobody is asked before all nodes are known.
pub fn placed(places: &watch::Sender<Places>, name: &str, place: Option<IpAddr>, synced: bool) {
    places.send_if_modified(|places| {
        let before = match place {
            Some(place) => places.insert(name.into(), place),
            None => places.remove(name),
        };
        synced && before != place
    });
}

/// Asks the peers of the node `own` and reports whom it does not reach, as its Lease should say it. Ends with
/// the sender of the places.
pub async fn ask(
    own: Text,
    mut places: watch::Receiver<Places>,
    mut thresholds: watch::Receiver<Thresholds>,
    opinions: watch::Sender<Option<String>>,
    metrics: Metrics,
) {
    let Some(sockets) = Sockets::open() else {
        return;
    };
    opinions.send_replace(Some(String::new()));
    let mut asker = Asker {
        own,
        sockets,
        rings: Rings::default(),
        places: Places::new(),
        names: BTreeMap::new(),
        observer: Observer::new(*thresholds.borrow_and_update()),
        start: Instant::now(),
        metrics,
    };
    loop {
        let alarm = asker.observer.wake_at().map(|at| asker.start + at);
        let mut changed = false;
        tokio::select! {
            () = asker.sockets.readable() => changed |= asker.read(),
            () = sleep_until(alarm) => {
                // Answers that are there already are not silence.
                changed |= asker.read();
                changed |= asker.look();
            }
            more = places.changed() => {
                if more.is_err() {
                    return;
                }
                let now = places.borrow_and_update().clone();
                changed |= asker.set_places(now);
            }
            more = thresholds.changed() => {
                if more.is_err() {
                    return;
                }
                asker.observer.set_thresholds(*thresholds.borrow_and_update());
            }
        }
        if changed {
            let text = asker.opinions();
            tracing::info!(unreachable = text, "whom this node reaches has changed");
            opinions.send_replace(Some(text));
        }
    }
}

/// The time in whole microseconds, as asks carry it: an answer says by it which ask it is to, and a nanosecond beside that
/// it would be to none, and every ask lost.
pub(crate) fn since(start: Instant) -> Duration {
    let elapsed = start.elapsed();
    Duration::new(elapsed.as_secs(), elapsed.subsec_micros() * 1000)
}

pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// One socket of each family that there is.
pub(crate) struct Sockets {
    v4: Option<Echo>,
    v6: Option<Echo>,
}

impl Sockets {
    pub fn open() -> Option<Self> {
        let (v4, v6) = (Echo::open(false), Echo::open(true));
        if let (Err(error), Err(_)) = (&v4, &v6) {
            tracing::warn!(
                %error,
                "this node does not ask its peers: it needs CAP_NET_RAW, or its group in net.ipv4.ping_group_range"
            );
            return None;
        }
        let (v4, v6) = (v4.ok(), v6.ok());
        Some(Self { v4, v6 })
    }

    pub async fn readable(&self) {
        let wait = async |echo: &Option<Echo>| match echo {
            Some(echo) => echo.readable().await,
            None => std::future::pending().await,
        };
        tokio::select! {
            () = wait(&self.v4) => {}
            () = wait(&self.v6) => {}
        }
    }

    /// Hands over whoever answered, and when it was asked.
    pub fn read(&mut self, now: Duration, mut answered: impl FnMut(IpAddr, Duration)) {
        for echo in [&mut self.v4, &mut self.v6].into_iter().flatten() {
            echo.read(now, &mut answered);
        }
    }

    /// Asks; returns whether there is a socket for that.
    pub fn ask(&mut self, address: IpAddr, now: Duration) -> bool {
        let echo = match address.is_ipv4() {
            true => &mut self.v4,
            false => &mut self.v6,
        };
        echo.as_mut().map(|echo| echo.ask(address, now)).is_some()
    }
}

/// The one task's state.
struct Asker {
    own: Text,
    sockets: Sockets,
    rings: Rings,
    places: Places,
    /// The peers, by where they are asked.
    names: BTreeMap<IpAddr, Vec<Text>>,
    observer: Observer,
    start: Instant,
    metrics: Metrics,
}

impl Asker {
    fn now(&self) -> Duration {
        since(self.start)
    }

    fn opinions(&self) -> String {
        let unreachable = self.observer.opinions();
        let text = peers::encode(unreachable.map(|name| &**name));
        self.metrics.unreachable.set(peers::decode(&text).count() as f64);
        text
    }

    fn set_places(&mut self, places: Places) -> bool {
        for name in self.places.keys().filter(|name| !places.contains_key(*name)) {
            self.rings.remove(name);
        }
        for name in places.keys() {
            self.rings.insert(name);
        }
        self.places = places;
        let peers = match self.places.contains_key(&self.own) {
            true => self.rings.peers(&self.own),
            false => Vec::new(),
        };
        self.names = by_place(&peers, &self.places);
        self.metrics.peers.set(peers.len() as f64);
        self.observer.set_peers(&peers, self.now())
    }

    fn read(&mut self) -> bool {
        let now = self.now();
        let Self {
            sockets,
            names,
            observer,
            metrics,
            ..
        } = self;
        let mut changed = false;
        sockets.read(now, |from, sent| {
            if let Some(names) = names.get(&from) {
                metrics.answers.inc();
                for name in names {
                    changed |= observer.answered(name, sent, now);
                }
            }
        });
        changed
    }

    fn look(&mut self) -> bool {
        let now = self.now();
        let mut due = [0; 64];
        let mut count = 0;
        let changed = self.observer.look(now, |index| {
            if count < due.len() {
                due[count] = index;
                count += 1;
            }
        });
        for index in &due[..count] {
            let peer = self.observer.peers().nth(*index);
            let Some(address) = peer.and_then(|(name, _)| self.places.get(name)) else {
                continue;
            };
            if self.sockets.ask(*address, now) {
                self.metrics.asks.inc();
            }
        }
        changed
    }
}

/// Whose an answer from an address is. A node that says it has another's address gets that one's answers, and must not take
/// them away.
fn by_place(peers: &[Text], places: &Places) -> BTreeMap<IpAddr, Vec<Text>> {
    let mut names: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for name in peers {
        if let Some(place) = places.get(name) {
            names.entry(*place).or_default().push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_claims_the_address_of_another_takes_no_answers_away() {
        let address: IpAddr = [10, 0, 0, 1].into();
        let peers = [Text::from("a"), Text::from("z"), Text::from("unknown")];
        let places = peers[..2].iter().map(|name| (name.clone(), address)).collect();
        assert_eq!(by_place(&peers, &places)[&address], peers[..2]);
    }
}
