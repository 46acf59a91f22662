//! What does the slice controller do next, given every event so far?
//!
//! One state machine ties the parts together: events go in with the time they came, jobs come
//! out, results go back in. The edge only moves bytes: it reads watches, sends the job's requests in
//! order, and reports what the server answered.

use crate::index::{Index, NodeChange, ServiceChange, Touched};
use crate::pack::EndpointChange;
use crate::plan::{Settings, SlicePlan, plan};
use crate::queue::{Outcome, Pace, Tick, WorkQueue};
use crate::service::ServiceKey;
use crate::settled::Settled;
use crate::topology::TopologyRecord;
use crate::tracker::SliceTracker;
use crate::trigger::TriggerTracker;

use pointsman_model::{Began, Moment, Text};
use pointsman_objects::{EndpointSlice, Node, Pod, Service};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// An event of a watch.
#[derive(Clone, Debug)]
pub enum Event {
    /// A pod as it is now.
    Pod(Arc<Pod>),
    /// A pod is gone: namespace and name.
    PodGone(Text, Text),
    /// A Service as it is now.
    Service(Arc<Service>),
    /// A Service is gone.
    ServiceGone(ServiceKey),
    /// A slice as it is now.
    Slice(Box<EndpointSlice>),
    /// A slice is gone: namespace and name.
    SliceGone(Text, Text),
    /// A node as it is now.
    Node(Arc<Node>),
    /// A node is gone.
    NodeGone(Text),
    /// Nodes whose endpoints get no traffic from now on, or get it again.
    Withdrawn(Vec<(Text, bool)>),
    /// The first lists are complete; nothing is handed out before.
    Listed,
}

/// The time of one step, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Wall clock, for trigger times.
    pub moment: Moment,
    /// Monotonic clock, for waiting.
    pub tick: Tick,
}

/// The work for one Service. Send creates, updates and deletes in this order, stop at the first
/// failure, and hand the job back to [`Controller::finish`].
#[derive(Clone, Debug)]
pub struct Job {
    pub key: ServiceKey,
    /// What to write. May be empty; the job has to be finished all the same.
    pub plan: SlicePlan,
    /// The trigger time of each create, in order.
    pub create_times: Vec<Option<Moment>>,
    /// The trigger time of each update, in order.
    pub update_times: Vec<Option<Moment>>,
    /// The trigger time for an object that shows all endpoints at once.
    pub oldest: Option<Moment>,
    /// Topology-aware hints are on now and were not before.
    pub hints_enabled: bool,
    /// How many pods were looked at: all of the Service's, or those that share a slice with one that changed.
    pub looked_at: usize,
}

/// What the server answered to one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A create or an update went through.
    Slice {
        /// The slice's uid.
        uid: Text,
        /// The slice's generation after the write.
        generation: i64,
    },
    /// A delete went through, or found nothing to delete.
    Deleted {
        /// The slice's uid.
        uid: Text,
    },
}

/// Why a key was not handed out as a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is a job.
    Job,
    /// The cache of slices lacks our own last write; tried again when it arrives.
    Stale,
    /// The Service is gone or not ours; nothing to do.
    Nothing,
}

/// The slice controller without its connections.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    index: Index,
    queue: WorkQueue<ServiceKey>,
    triggers: TriggerTracker,
    slices: SliceTracker,
    topology: TopologyRecord,
    stale: HashSet<ServiceKey>,
    /// Large Services that need not be looked at as a whole.
    settled: HashMap<ServiceKey, Settled>,
    /// Slice events of Services whose job is out: they may be echoes of writes whose answer is still
    /// on its way, so they are judged when the job is back.
    in_flight: HashMap<ServiceKey, Vec<(SliceSight, Moment)>>,
    /// Services whose pods or spec changed, kept for somebody who asked for them.
    touched: Option<Vec<Touched>>,
    listed: bool,
}

/// What a slice event showed.
#[derive(Clone, Debug)]
enum SliceSight {
    Seen(Text, i64),
    Gone(Text),
    /// A slice was given to, or taken from, this controller or Service.
    Handed,
}

impl Controller {
    /// A controller that knows nothing yet. For `floor` see [`TriggerTracker::new`].
    pub fn new(settings: Settings, pace: Pace, floor: Option<Moment>) -> Self {
        Self {
            settings,
            index: Index::default(),
            queue: WorkQueue::by_namespace(pace),
            triggers: TriggerTracker::new(floor),
            slices: SliceTracker::default(),
            topology: TopologyRecord::default(),
            stale: HashSet::new(),
            settled: HashMap::new(),
            in_flight: HashMap::new(),
            touched: None,
            listed: false,
        }
    }

    /// From now on, keeps for [`Controller::take_touched`] which Services changed, and when.
    pub fn keep_touched(&mut self) {
        self.touched.get_or_insert_default();
    }

    /// The Services whose pods or spec changed since the last call; for other objects made from them.
    pub fn take_touched(&mut self) -> Vec<Touched> {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes in an event.
    pub fn observe(&mut self, event: Event, now: Now) {
        match event {
            Event::Pod(pod) => {
                let touched = self.index.apply_pod(pod, now.moment);
                self.pod_touched(touched, now);
            }
            Event::PodGone(namespace, name) => {
                let touched = self.index.remove_pod(&namespace, &name, now.moment);
                self.pod_touched(touched, now);
            }
            Event::Service(service) => self.service_seen(service, now),
            Event::ServiceGone(key) => {
                if self.index.remove_service(&key) {
                    self.touch(&key, now.moment);
                    self.queue.add(&key, now.tick);
                }
            }
            Event::Slice(slice) => self.slice_seen(*slice, now),
            Event::SliceGone(namespace, name) => self.slice_gone(&namespace, &name, now),
            Event::Node(node) => {
                let change = self.index.apply_node(&node);
                self.node_changed(change, now);
            }
            Event::NodeGone(name) => {
                let change = self.index.remove_node(&name);
                self.node_changed(change, now);
            }
            Event::Withdrawn(nodes) => {
                for key in self.index.withdraw(&nodes) {
                    self.triggers.service_changed(&key, now.moment);
                    self.touch(&key, now.moment);
                    self.queue.add(&key, now.tick);
                }
            }
            Event::Listed => {
                self.listed = true;
                let mut keys: Vec<ServiceKey> = self
                    .index
                    .services()
                    .map(|service| ServiceKey::of(service))
                    .collect();
                keys.sort();
                keys.iter().for_each(|key| self.queue.add(key, now.tick));
            }
        }
    }

    /// The next job, if one is due. The second value tells what became of keys that gave none.
    pub fn next(&mut self, now: Now) -> (Option<Job>, Vec<(ServiceKey, Step)>) {
        let mut steps = Vec::new();
        while self.listed
            && let Some(key) = self.queue.next(now.tick)
        {
            match self.start(&key, now) {
                Ok(job) => return (Some(job), steps),
                Err(step) => {
                    let outcome = if step == Step::Stale {
                        Outcome::Retry
                    } else {
                        Outcome::Done
                    };
                    self.queue.finish(&key, outcome, now.tick);
                    steps.push((key, step));
                }
            }
        }
        (None, steps)
    }

    /// When [`Controller::next`] may have something, if not now.
    pub fn wake_at(&self) -> Option<Tick> {
        self.queue.wake_at()
    }

    /// How many Services wait for a job.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// What the controller knows.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Takes back a job. `written` holds the answers to the writes that went through, in the order
    /// creates, updates, deletes; it is shorter than the plan when a write failed.
    pub fn finish(&mut self, job: &Job, written: &[Written], now: Now) {
        self.take_back(job, written, written.len() >= job.plan.writes(), now);
    }

    /// Takes back a job whose namespace goes away and takes in nothing new: to try again would only keep writers from
    /// the Services that stay.
    pub fn give_up(&mut self, job: &Job, written: &[Written], now: Now) {
        self.take_back(job, written, true, now);
        self.settled.remove(&job.key);
    }

    fn take_back(&mut self, job: &Job, written: &[Written], complete: bool, now: Now) {
        for answer in written {
            match answer {
                Written::Slice { uid, generation } => self.slices.written(&job.key, uid, *generation),
                Written::Deleted { uid } => self.slices.deleted(&job.key, uid),
            }
        }
        for (sight, at) in self.in_flight.remove(&job.key).unwrap_or_default() {
            self.judge(&job.key, sight, Now { moment: at, ..now });
        }
        match self.index.service(&job.key) {
            None => self.triggers.forget(&job.key),
            Some(_) if complete => self.triggers.finish(&job.key),
            Some(service) => {
                let creates = job.plan.create.iter().map(|create| &*create.changes);
                let updates = job.plan.update.iter().map(|update| &*update.changes);
                let unwritten: Vec<&[EndpointChange]> = creates.chain(updates).skip(written.len()).collect();
                let service = service.clone();
                self.triggers.fail(&service, unwritten, now.moment);
            }
        }
        let done = complete && job.plan.skipped_pods.is_empty();
        let settled = self.settled.remove(&job.key);
        if done
            && let Some(service) = self.index.service(&job.key)
            && let Some(settled) = Settled::after(&job.plan, service, settled)
        {
            self.settled.insert(job.key.clone(), settled);
        }
        self.queue.finish(
            &job.key,
            if done { Outcome::Done } else { Outcome::Retry },
            now.tick,
        );
    }

    fn start(&mut self, key: &ServiceKey, now: Now) -> Result<Job, Step> {
        self.stale.remove(key);
        let Some(service) = self.index.service(key).cloned() else {
            self.triggers.forget(key);
            self.slices.forget(key);
            self.topology.remove(key);
            self.settled.remove(key);
            return Err(Step::Nothing);
        };
        if !service.wants_slices() {
            self.triggers.finish(key);
            self.topology.remove(key);
            self.settled.remove(key);
            return Err(Step::Nothing);
        }
        let ours = || self.index.slices(key).filter(|slice| slice.managed_by_us());
        if self.slices.is_stale(key, ours()) {
            self.stale.insert(key.clone());
            return Err(Step::Stale);
        }
        self.triggers.begin(&service, ours().next().is_some());
        let (plan, looked_at) = self.plan(key)?;
        let time = |changes: &[EndpointChange]| self.triggers.time_of(&service, changes, now.moment);
        let create_times: Vec<_> = plan.create.iter().map(|create| time(&create.changes)).collect();
        let update_times: Vec<_> = plan.update.iter().map(|update| time(&update.changes)).collect();
        let hints_enabled = self.topology.record(key, &plan);
        let times = create_times.iter().chain(&update_times).copied().flatten();
        let oldest = times.chain(self.triggers.oldest(key)).min();
        let oldest = oldest.map(|at| at.min(now.moment));
        self.in_flight.insert(key.clone(), Vec::new());
        Ok(Job {
            key: key.clone(),
            plan,
            create_times,
            update_times,
            oldest,
            hints_enabled,
            looked_at,
        })
    }

    /// Plans a Service, from the slices of the pods that changed if these say it all; also says from how many pods.
    fn plan(&mut self, key: &ServiceKey) -> Result<(SlicePlan, usize), Step> {
        if let Some(settled) = self.settled.get_mut(key)
            && let Some(pods) = self.triggers.only_pods(key)
            && let Some(part) = settled.plan(&self.index, key, pods, &self.settings)
        {
            return Ok(part);
        }
        let inputs = self.index.inputs(key).ok_or(Step::Nothing)?;
        Ok((plan(&inputs, &self.settings), inputs.pods.len()))
    }

    fn pod_touched(&mut self, touched: Vec<Touched>, now: Now) {
        // Before the first lists are complete, nothing is a change: see `TriggerTracker::begin`.
        let listed = self.listed;
        for touched in touched.into_iter().filter(|_| listed) {
            if let Some(pod) = &touched.pod {
                self.triggers.pod_changed(&touched.key, pod, touched.at);
            }
            self.queue.add_batched(&touched.key, now.tick);
            if let Some(kept) = &mut self.touched {
                kept.push(touched);
            }
        }
    }

    fn service_seen(&mut self, service: Arc<Service>, now: Now) {
        let key = ServiceKey::of(&service);
        let (created, stamped) = (service.metadata.created, service.metadata.stamped());
        let change = self.index.apply_service(service);
        if !self.listed || change == ServiceChange::Same {
            return;
        }
        let written_down = stamped.or(created.filter(|_| change == ServiceChange::New));
        let at = Began::of(written_down, now.moment).at;
        self.triggers.service_changed(&key, at);
        self.touch(&key, at);
        self.queue.add(&key, now.tick);
    }

    fn touch(&mut self, key: &ServiceKey, at: Moment) {
        if let Some(touched) = &mut self.touched {
            let (key, pod) = (key.clone(), None);
            touched.push(Touched { key, at, pod });
        }
    }

    fn slice_seen(&mut self, slice: EndpointSlice, now: Now) {
        let (key, ours, uid, generation) = (
            ServiceKey::of_slice(&slice),
            slice.managed_by_us(),
            slice.metadata.uid.clone(),
            slice.metadata.generation,
        );
        let old = self.index.apply_slice(slice);
        let old_key = old
            .as_ref()
            .filter(|old| old.managed_by_us())
            .and_then(|old| ServiceKey::of_slice(old));
        let key = key.filter(|_| ours);
        if key != old_key {
            if let Some(old_key) = old_key {
                self.slices.gone(&old_key, &uid);
                self.slice_event(&old_key, SliceSight::Handed, now);
            }
            if let (Some(key), Some(_)) = (&key, &old) {
                self.slice_event(key, SliceSight::Handed, now);
            }
        }
        if let Some(key) = key {
            self.slice_event(&key, SliceSight::Seen(uid, generation), now);
        }
    }

    fn slice_gone(&mut self, namespace: &str, name: &str, now: Now) {
        let Some(old) = self.index.remove_slice(namespace, name) else {
            return;
        };
        if let Some(key) = ServiceKey::of_slice(&old).filter(|_| old.managed_by_us()) {
            self.slice_event(&key, SliceSight::Gone(old.metadata.uid.clone()), now);
        }
    }

    fn slice_event(&mut self, key: &ServiceKey, sight: SliceSight, now: Now) {
        if self.stale.remove(key) {
            self.queue.add(key, now.tick);
        }
        match self.in_flight.get_mut(key) {
            Some(waiting) => waiting.push((sight, now.moment)),
            None => self.judge(key, sight, now),
        }
    }

    fn judge(&mut self, key: &ServiceKey, sight: SliceSight, now: Now) {
        let foreign = match sight {
            SliceSight::Seen(uid, generation) => self.slices.is_foreign(key, &uid, generation),
            SliceSight::Gone(uid) => self.slices.gone(key, &uid),
            SliceSight::Handed => true,
        };
        if foreign {
            self.repair(key, now);
        }
    }

    /// Somebody else touched the Service's slices.
    fn repair(&mut self, key: &ServiceKey, now: Now) {
        if self.listed && self.index.service(key).is_some() {
            self.triggers.service_changed(key, now.moment);
            self.queue.add(key, now.tick);
        }
    }

    fn node_changed(&mut self, change: NodeChange, now: Now) {
        if !self.listed || !change.capacity {
            return;
        }
        let overloaded = self.topology.overloaded(self.index.zones());
        for key in change.services.into_iter().chain(overloaded) {
            self.triggers.service_changed(&key, now.moment);
            self.queue.add_batched(&key, now.tick);
        }
    }
}
