//! Which containers do we follow, and who wants to know?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::record::ContainerRecord;
use crate::{ContainerId, ContainerState, ContainerStatus, Events, Exit, PodUid, RuntimeEvent};

/// The containers of a runtime and their subscribers.
#[derive(Debug, Default)]
pub struct Table {
    containers: Mutex<BTreeMap<ContainerId, Entry>>,
    subscribers: Mutex<Vec<mpsc::UnboundedSender<RuntimeEvent>>>,
}

#[derive(Debug)]
struct Entry {
    status: watch::Sender<ContainerStatus>,
    log: PathBuf,
    labels: BTreeMap<String, String>,
}

impl Table {
    /// Adds a container, without telling anyone.
    pub fn insert(&self, id: &ContainerId, record: ContainerRecord, status: ContainerStatus) {
        let entry = Entry {
            status: watch::Sender::new(status),
            log: record.log,
            labels: record.labels,
        };
        self.containers.lock().insert(id.clone(), entry);
    }

    /// A container as it is now.
    pub fn get(&self, id: &ContainerId) -> Option<ContainerState> {
        self.containers.lock().get(id).map(|entry| entry.state(id))
    }

    /// A container's status, now and later.
    pub fn follow(&self, id: &ContainerId) -> Option<watch::Receiver<ContainerStatus>> {
        self.containers
            .lock()
            .get(id)
            .map(|entry| entry.status.subscribe())
    }

    /// The containers of a pod, in order.
    pub fn of_pod(&self, pod: &PodUid) -> Vec<ContainerState> {
        let containers = self.containers.lock();
        let of_pod = containers.iter().filter(|(id, _)| id.pod == *pod);
        of_pod.map(|(id, entry)| entry.state(id)).collect()
    }

    /// What runs, in order, and since when.
    pub fn running(&self) -> Vec<(ContainerId, SystemTime)> {
        let containers = self.containers.lock();
        let running = containers
            .iter()
            .filter_map(|(id, entry)| match *entry.status.borrow() {
                ContainerStatus::Running { started_at, .. } => Some((id.clone(), started_at)),
                ContainerStatus::Exited(_) => None,
            });
        running.collect()
    }

    /// Tells everyone that a container runs.
    pub fn started(&self, id: &ContainerId) {
        if let Some(state) = self.get(id) {
            self.publish(&RuntimeEvent::Started {
                container: id.clone(),
                at: state.status.started_at(),
            });
        }
    }

    /// Writes down that a container has ended and reports it to every subscriber, once.
    pub fn exited(&self, id: &ContainerId, exit: Exit) {
        let is_news = {
            let containers = self.containers.lock();
            let Some(entry) = containers.get(id) else {
                return;
            };
            entry.status.send_if_modified(|status| {
                let was_running = matches!(status, ContainerStatus::Running { .. });
                if was_running {
                    *status = ContainerStatus::Exited(exit.clone());
                }
                was_running
            })
        };
        if is_news {
            self.publish(&RuntimeEvent::Exited {
                container: id.clone(),
                exit,
            });
        }
    }

    /// Reports a pod whose containers have lost what they share.
    pub fn sandbox_lost(&self, pod: &PodUid) {
        self.publish(&RuntimeEvent::SandboxLost { pod: pod.clone() });
    }

    /// Forgets a container.
    pub fn remove(&self, id: &ContainerId) {
        self.containers.lock().remove(id);
    }

    /// A receiver of everything from now on.
    pub fn subscribe(&self) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.lock().push(sender);
        receiver
    }

    fn publish(&self, event: &RuntimeEvent) {
        self.subscribers
            .lock()
            .retain(|subscriber| subscriber.send(event.clone()).is_ok());
    }
}

impl Entry {
    fn state(&self, id: &ContainerId) -> ContainerState {
        ContainerState {
            id: id.clone(),
            status: self.status.borrow().clone(),
            log: self.log.clone(),
            labels: self.labels.clone(),
        }
    }
}
