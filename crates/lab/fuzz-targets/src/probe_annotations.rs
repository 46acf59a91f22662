//! The annotation by which a pod of a real kubelet asks for probes.

use pointsman_objects::probe::{Handler, Millis};
use pointsman_probe_only::annotation::{self, WHOLE_POD};

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let containers = ["app", "sidecar"];
    let Ok(probes) = annotation::parse(text, &containers) else {
        return;
    };
    assert!(
        !probes.is_empty(),
        "an annotation that asks for nothing is a mistake"
    );
    for (container, probe) in probes {
        assert!(container == WHOLE_POD || containers.contains(&container.as_str()));
        // Nobody else has checked it.
        let (timing, least) = (probe.effective(), Handler::HttpGet.shortest());
        assert!(
            timing.period >= least.period
                && timing.timeout >= least.timeout
                && timing.initial_delay >= Millis(0),
            "{timing:?}"
        );
    }
}
