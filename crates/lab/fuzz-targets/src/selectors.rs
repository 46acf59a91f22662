//! Label and field selectors of queries.

use pointsman_rules::selector::{FieldSelector, LabelSelector};
use std::borrow::Cow;

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(selector) = LabelSelector::parse(text) {
        let printed = selector.to_string();
        let again = LabelSelector::parse(&printed);
        assert_eq!(
            again.ok().as_ref(),
            Some(&selector),
            "{printed:?} is another selector"
        );
        for value in [None, Some(""), Some("a"), Some("9223372036854775807")] {
            let matches = selector.matches_with(|_| value);
            assert!(matches || !selector.is_everything(), "everything matches");
        }
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let printed = selector.to_string();
        let again = FieldSelector::parse(&printed);
        assert_eq!(
            again.ok().as_ref(),
            Some(&selector),
            "{printed:?} is another selector"
        );
        let matches = selector.matches_with(|_| Some(Cow::Borrowed("a")));
        assert!(matches || !selector.is_everything(), "everything matches");
    }
}
