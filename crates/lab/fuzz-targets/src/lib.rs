//! What must hold for every input from outside?
//!
//! One [`Target`] per reader of bytes that others write: it reads them and asserts its laws. No target
//! may panic, and none may hold more memory than [`Target::allowance`] gives it for the length of its input.
//!
//! The same functions run in two ways: a test replays the inputs in `corpora`, and `make fuzz` searches for new
//! ones with libFuzzer (the project in `/fuzz`).

mod dns;
mod iptables_save;
mod kubeconfigs;
mod links;
mod memory;
mod netlink;
mod patches;
mod probe_annotations;
mod protobuf;
mod requests;
mod runtime;
mod selectors;
mod spdy;
mod tokens;
mod watermarks;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// One reader of bytes from outside, with its laws.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target::new("requests", requests::run),
    Target::new("patches", patches::run),
    Target::new("selectors", selectors::run),
    Target::new("protobuf", protobuf::run),
    Target::new("netlink", netlink::run),
    Target::new("iptables-save", iptables_save::run),
    Target::new("watermarks", watermarks::run),
    Target::new("probe-annotations", probe_annotations::run),
    Target::new("kubeconfigs", kubeconfigs::run),
    Target::new("tokens", tokens::run),
    Target::new("dns", dns::run),
    Target::new("spdy", spdy::run),
    Target::new("links", links::run),
    Target::new("runtime", runtime::run),
];

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run }
    }

    /// The target of that name.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }

    /// Runs an input; panics where a law is broken.
    pub fn check(self, input: &[u8]) {
        let held = memory::peak(|| (self.run)(input));
        let allowed = Self::allowance(input.len());
        assert!(
            held <= allowed,
            "{}: an input of {} bytes held {held} bytes, {allowed} are allowed",
            self.name,
            input.len()
        );
    }

    /// The most memory that reading so many bytes may hold at once: tables that are made once, and a multiple
    /// of the input. A body of 3 MiB, the largest that is accepted, may so hold less than a gigabyte whatever
    /// is done to it here, which is several times what the server does.
    pub fn allowance(length: usize) -> usize {
        (8 << 20) + 256 * length
    }
}
