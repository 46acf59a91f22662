//! Which nodes are gone, as this process finds itself?
//!
//! It follows the controllers' list of withdrawn nodes, which is empty nearly always, and asks those in it for as long as they
//! are. [`Gone`] decides; where a node is asked says its Node, which is read when it is first listed.

use crate::ask::{Sockets, place, since, sleep_until};
use pointsman_api_client::{Client, Event, Resource, Scope, Watcher};
use pointsman_model::Text;
use pointsman_node_health::peers::Gone;
use pointsman_objects::{Lease, Node};
use pointsman_protocol::peers::{FRESH, LIST_ANNOTATION, LIST_LEASE, LIST_NAMESPACE, decode_list};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// All proxies find the same node listed at once; its Node is read by them within this time.
const SPREAD: Duration = Duration::from_secs(1);
/// After a Node could not be read.
const AGAIN: Duration = Duration::from_secs(2);

/// Nodes that are gone, each with the addresses of its own, which are not its pods'.
pub type GoneNodes = BTreeMap<Text, Box<[IpAddr]>>;

/// Reports the nodes that the controllers withdrew and that have not answered this one either, both for as long as the bound.
/// Ends only if this process is not able to ask.
pub async fn follow_gone(client: Client, own: Text, bound: Duration, tell: watch::Sender<GoneNodes>) {
    let Some(sockets) = Sockets::open() else {
        return;
    };
    let scope = Scope {
        namespace: Some(LIST_NAMESPACE.into()),
        ..Scope::all(Resource::LEASES).fields(&format!("metadata.name={LIST_LEASE}"))
    };
    let mut list = Watcher::<Lease>::new(client.clone(), scope);
    let mut follower = Follower {
        client,
        sockets,
        start: Instant::now(),
        gone: Gone::new(own, bound, FRESH),
        addresses: BTreeMap::new(),
        reads: JoinSet::new(),
        tell,
    };
    // Whether the Lease was shown since the watch began, and when it was written last: one that is shown again is no newer.
    let (mut shown, mut renewed) = (false, None);
    loop {
        let alarm = follower
            .gone
            .wake_at(follower.now())
            .map(|at| follower.start + at);
        tokio::select! {
            event = list.next() => match event {
                Event::Init => shown = false,
                Event::Applied { object, .. } => {
                    shown = true;
                    let text = object.metadata.annotations.get(LIST_ANNOTATION);
                    if renewed.replace(object.spec.renew_time) != Some(object.spec.renew_time) {
                        follower.list(text.unwrap_or_default());
                    }
                }
                Event::Deleted { .. } => follower.list(""),
                Event::Synced(_) => if !shown { follower.list("") },
            },
            () = follower.sockets.readable() => follower.read(),
            Some(read) = follower.reads.join_next() => follower.learn(read.ok()),
            () = sleep_until(alarm) => {
                // Answers that are there already are not silence.
                follower.read();
                follower.look();
            }
        }
        follower.report();
    }
}

struct Follower {
    client: Client,
    sockets: Sockets,
    start: Instant,
    gone: Gone,
    /// The addresses of listed nodes; `None` while they are being read. The first of each is asked.
    addresses: BTreeMap<Text, Option<Box<[IpAddr]>>>,
    reads: JoinSet<(Text, Option<Node>)>,
    tell: watch::Sender<GoneNodes>,
}

impl Follower {
    fn now(&self) -> Duration {
        since(self.start)
    }

    fn list(&mut self, text: &str) {
        let now = self.now();
        self.gone.observe_list(decode_list(text), now);
        self.addresses.retain(|name, _| self.gone.is_listed(name));
        self.look();
    }

    fn look(&mut self) {
        let now = self.now();
        for name in self.gone.look(now) {
            match self.addresses.get(&name) {
                Some(Some(addresses)) => {
                    // A node that was not asked is not gone.
                    let asked = addresses.first().is_some_and(|at| self.sockets.ask(*at, now));
                    if asked {
                        self.gone.asked(&name);
                    }
                }
                Some(None) => {}
                None => self.read_node(name),
            }
        }
    }

    fn read_node(&mut self, name: Text) {
        self.addresses.insert(name.clone(), None);
        let client = self.client.clone();
        self.reads.spawn(async move {
            tokio::time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
            let node = client.api(Resource::NODES, None).get(&name).await;
            if node.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
            (name, node.ok())
        });
    }

    fn learn(&mut self, read: Option<(Text, Option<Node>)>) {
        let Some((name, node)) = read else { return };
        let Some(known) = self.addresses.get_mut(&name) else {
            return;
        };
        let Some(node) = node else {
            self.addresses.remove(&name);
            return;
        };
        // The one that is asked comes first.
        let all = place(&node)
            .into_iter()
            .chain(node.addresses.iter().map(|address| address.1));
        *known = Some(all.collect());
    }

    fn read(&mut self) {
        let now = self.now();
        let Self {
            sockets,
            gone,
            addresses,
            ..
        } = self;
        sockets.read(now, |from, _| {
            let asked = addresses.iter().find(|(_, known)| {
                let known = known.as_ref().and_then(|known| known.first());
                known == Some(&from)
            });
            if let Some((name, _)) = asked {
                gone.answered(name, now);
            }
        });
    }

    fn report(&mut self) {
        let gone = self.gone.gone(self.now());
        let with_addresses = |name: Text| Some((name.clone(), self.addresses.get(&name)?.clone()?));
        let gone: GoneNodes = gone.into_iter().filter_map(with_addresses).collect();
        self.tell.send_if_modified(|before| {
            let changed = *before != gone;
            if changed {
                *before = gone;
            }
            changed
        });
    }
}
