//! What a container runtime answers.

use pointsman_runtime::cri::answers;

pub(crate) fn run(input: &[u8]) {
    answers::check(input);
}
