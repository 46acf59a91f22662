//! Does the tree still look as ARCHITECTURE.md says?
//!
//! A check is a function from a [`Tree`] to the [`Violation`]s in it, so that each one has a test with a planted
//! violation and one without. `tests/house.rs` runs all of them over this repository.

mod decisions;
mod docs;
mod files;
mod kinds;
mod layers;
mod manifest;
mod references;
mod skips;
mod tokens;
mod tree;
mod words;

pub use tree::Tree;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// A path from the root of the repository.
    pub place: String,
    /// One sentence, with the line if there is one.
    pub what: String,
}

impl Violation {
    fn new(place: &str, what: impl Into<String>) -> Self {
        Self {
            place: place.to_owned(),
            what: what.into(),
        }
    }
}

/// A named rule of the house.
pub type Check = (&'static str, fn(&Tree) -> Vec<Violation>);

pub const CHECKS: &[Check] = &[
    ("layers point down only", layers::point_down),
    (
        "decisions have no runtime, serialization or HTTP",
        decisions::stay_pure,
    ),
    ("decisions read no clock", decisions::read_no_clock),
    ("a watched kind has one definition", kinds::one_definition),
    ("files stay below 600 lines", files::stay_short),
    ("modules are not included by path", files::no_path_attribute),
    ("no package registry is named", files::no_registry),
    (
        "ARCHITECTURE.md names every crate and its question",
        docs::crates_have_questions,
    ),
    ("large crates have a README", docs::large_crates_have_readmes),
    ("documentation says more than the name", docs::no_noise),
    (
        "documents have no marks left to fill in",
        docs::nothing_is_left_to_fill_in,
    ),
    ("messages use words of the field", words::are_plain),
    ("documents name what exists", references::exist),
    ("tests are skipped in one way", skips::go_through_the_testkit),
    (
        "a test that is not run says what it needs",
        skips::name_what_is_needed,
    ),
];
