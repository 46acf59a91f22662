//! Laws of hollow nodes, over random histories: events that come late, reports that are refused, conditions that others
//! overwrite, pods that go and come back under their name, a process that ends and is started again.

use jiff::Timestamp;
use pointsman_api_client::ObjectKey;
use pointsman_hollow::nodes::{Answer, Nodes, Pods, Task, What};
use pointsman_model::Revision;
use pointsman_objects::pod_manifest::PodManifest;
use pointsman_rules::kinds::POD;
use pointsman_rules::patch::{self, PatchType};
use pointsman_rules::schema;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// An API server with hollow nodes, and whatever is on its way between both.
struct World {
    pods: Pods,
    /// Pods by name.
    objects: BTreeMap<String, Value>,
    version: u64,
    uids: u64,
    /// What was not received yet.
    events: VecDeque<Event>,
    tasks: Vec<Task>,
    reports: usize,
    /// The address that each uid reported.
    addresses: HashMap<String, String>,
}

/// What a watch says.
enum Event {
    ListBegins,
    Applied(Value),
    Deleted(String),
    ListEnds,
}

fn nodes() -> Nodes {
    Nodes::try_new(2).unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("d", name)
}

/// Shapes of pods, from plain to everything that a start can wait for.
fn spec(shape: usize, node: usize) -> Value {
    let probe = json!({ "tcpSocket": { "port": 1 } });
    let hook = json!({ "exec": { "command": ["true"] } });
    let mut spec = json!({
        "nodeName": nodes().at(node).name(),
        "terminationGracePeriodSeconds": 30,
        "containers": [{ "name": "a", "image": "i" }],
    });
    if shape > 0 {
        spec["restartPolicy"] = ["Always", "OnFailure", "Never"][shape % 3].into();
        spec["containers"][0]["readinessProbe"] = probe.clone();
        spec["containers"][0]["lifecycle"] = json!({ "postStart": hook, "preStop": hook });
    }
    if shape > 1 {
        spec["initContainers"] = json!([
            { "name": "init", "image": "i" },
            { "name": "side", "image": "i", "restartPolicy": "Always", "startupProbe": probe },
        ]);
    }
    spec
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
    })
}

impl World {
    fn new() -> Self {
        Self {
            pods: Pods::new(nodes()),
            objects: BTreeMap::new(),
            version: 0,
            uids: 0,
            events: VecDeque::new(),
            tasks: Vec::new(),
            reports: 0,
            addresses: HashMap::new(),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + self.version as i64).unwrap()
    }

    /// Writes an object and says so to whoever watches.
    fn write(&mut self, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(name.to_owned(), object.clone());
        self.events.push_back(Event::Applied(object));
    }

    fn create(&mut self, name: &str, shape: usize, node: usize) {
        if !self.objects.contains_key(name) {
            self.uids += 1;
            let metadata =
                json!({ "name": name, "namespace": "d", "uid": format!("u{}", self.uids), "generation": 1 });
            let object =
                json!({ "metadata": metadata, "spec": spec(shape, node), "status": { "phase": "Pending" } });
            self.write(name, object);
        }
    }

    fn delete(&mut self, name: &str) {
        if let Some(mut object) = self.objects.get(name).cloned() {
            object["metadata"]["deletionTimestamp"] = "2026-11-15T20:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
            self.write(name, object);
        }
    }

    fn remove(&mut self, name: &str) {
        if self.objects.remove(name).is_some() {
            self.version += 1;
            self.events.push_back(Event::Deleted(name.to_owned()));
        }
    }

    /// As the node's controller does when it cannot see a node.
    fn overwrite(&mut self, name: &str) {
        if let Some(mut object) = self.objects.get(name).cloned().filter(is_ready) {
            for condition in object["status"]["conditions"].as_array_mut().unwrap() {
                if condition["type"] == "Ready" {
                    condition["status"] = "False".into();
                }
            }
            self.write(name, object);
        }
    }

    fn receive(&mut self) {
        let now = self.now();
        match self.events.pop_front() {
            None => {}
            Some(Event::ListBegins) => self.pods.list_begins(),
            Some(Event::ListEnds) => {
                for task in self.pods.list_ends(now) {
                    self.asked(Some(task));
                }
            }
            Some(Event::Deleted(name)) => self.pods.removed(&key(&name)),
            Some(Event::Applied(object)) => {
                let pod: PodManifest = serde_json::from_value(object).unwrap();
                let task = self.pods.applied(pod, now);
                self.asked(task);
            }
        }
    }

    fn asked(&mut self, task: Option<Task>) {
        let Some(task) = task else { return };
        let same =
            |other: &Task| (&other.key, &other.uid, kind(other)) == (&task.key, &task.uid, kind(&task));
        assert!(!self.tasks.iter().any(same), "{task:?} is under way already");
        self.reports += 1;
        self.tasks.push(task);
    }

    /// A write gets to the server, and its answer back.
    fn answer(&mut self, index: usize) {
        if self.tasks.is_empty() {
            return;
        }
        let task = self.tasks.remove(index % self.tasks.len());
        let answer = self.carry_out(&task);
        let next = self.pods.answered(&task, answer, self.now());
        self.asked(next);
    }

    fn carry_out(&mut self, task: &Task) -> Answer {
        let name = task.key.name().to_owned();
        let Some(object) = self.objects.get(&name) else {
            return Answer::Gone;
        };
        if object["metadata"]["uid"] != *task.uid {
            return Answer::Gone;
        }
        let (What::Report(body) | What::End(body)) = &task.what;
        let patched = patch::apply(PatchType::Strategic, body, object, schema::of(&POD))
            .unwrap()
            .object;
        let address = patched["status"]["podIP"].as_str().unwrap_or_default().to_owned();
        let before = self
            .addresses
            .entry(task.uid.to_string())
            .or_insert(address.clone());
        assert_eq!(*before, address, "{name} has another address");
        self.write(&name, patched);
        let version = self.version;
        if let What::End(_) = task.what {
            self.remove(&name);
        }
        Answer::Written(Revision::parse(&version.to_string()).unwrap())
    }

    /// The process ends with everything that it has under way, and another one lists what there is.
    fn restart(&mut self) {
        self.pods = Pods::new(nodes());
        self.tasks.clear();
        let listed = self.objects.values().cloned().map(Event::Applied);
        let begins = std::iter::once(Event::ListBegins);
        self.events = begins.chain(listed).chain([Event::ListEnds]).collect();
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.events.is_empty() && self.tasks.is_empty() {
                return;
            }
            self.receive();
            self.answer(0);
        }
        panic!("it never comes to rest: {:?}", self.tasks);
    }

    fn act(&mut self, choice: &Choice) {
        match choice {
            Choice::Create(name, shape, node) => self.create(name, *shape, *node),
            Choice::Delete(name) => self.delete(name),
            Choice::Force(name) => self.remove(name),
            Choice::Overwrite(name) => self.overwrite(name),
            Choice::Receive => self.receive(),
            Choice::Answer(index) => self.answer(*index),
            Choice::Restart => self.restart(),
        }
    }
}

fn kind(task: &Task) -> bool {
    matches!(task.what, What::End(_))
}

#[derive(Clone, Debug)]
enum Choice {
    Create(&'static str, usize, usize),
    Delete(&'static str),
    /// Deleted without grace, by somebody else.
    Force(&'static str),
    Overwrite(&'static str),
    Receive,
    Answer(usize),
    Restart,
}

fn choices() -> impl Strategy<Value = Choice> {
    let name = || proptest::sample::select(vec!["p", "q", "r"]);
    prop_oneof![
        4 => (name(), 0..4usize, 0..2usize).prop_map(|(name, shape, node)| Choice::Create(name, shape, node)),
        2 => name().prop_map(Choice::Delete),
        1 => name().prop_map(Choice::Force),
        2 => name().prop_map(Choice::Overwrite),
        8 => Just(Choice::Receive),
        6 => (0..4usize).prop_map(Choice::Answer),
        1 => Just(Choice::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn in_the_end_every_pod_is_ready_at_an_address_of_its_own_or_gone(
        history in proptest::collection::vec(choices(), 0..60),
    ) {
        let mut world = World::new();
        for choice in &history {
            world.act(choice);
        }
        world.settle();
        let mut addresses = HashSet::new();
        for (name, object) in &world.objects {
            prop_assert!(object["metadata"].get("deletionTimestamp").is_none(), "{} is still there", name);
            prop_assert!(is_ready(object), "{} is not ready: {}", name, object["status"]);
            prop_assert_eq!(&object["status"]["phase"], "Running");
            let address = object["status"]["podIP"].as_str().unwrap_or_default().to_owned();
            prop_assert!(addresses.insert(address.clone()), "{address} is given twice");
        }
        // Another process finds nothing to do.
        let reports = world.reports;
        world.restart();
        world.settle();
        prop_assert_eq!(world.reports, reports);
    }
}

#[test]
fn a_pod_on_a_node_of_somebody_else_is_left_alone() {
    let mut world = World::new();
    world.create("p", 0, 0);
    let mut object = world.objects["p"].clone();
    object["spec"]["nodeName"] = "worker-1".into();
    world.events.clear();
    world.write("p", object);
    world.settle();
    assert_eq!(world.reports, 0);
}

#[test]
fn a_full_node_gives_no_address_twice_and_lets_go_of_a_pod_all_the_same() {
    let mut world = World::new();
    let names: Vec<String> = (0..255).map(|number| format!("p{number:03}")).collect();
    for name in &names {
        world.create(name, 0, 0);
    }
    world.settle();
    let ready = world.objects.values().filter(|object| is_ready(object)).count();
    let addresses: HashSet<&String> = world.addresses.values().collect();
    assert_eq!((ready, addresses.len()), (254, 254));
    world.delete("p254");
    world.settle();
    assert!(!world.objects.contains_key("p254"));
}
