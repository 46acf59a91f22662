//! Which programmers does a relay speak for?
//!
//! A relay sends the [watermark lines](crate::watermark) of many programmers over one connection, each
//! line with its node's name. A collector may open several connections, each for a share of the
//! programmers, so that the lines come in parallel.

use std::fmt;
use std::ops::Range;

/// Where a relay answers, before the share.
pub const PATH: &str = "/watermarks";

/// Every `of`-th programmer, beginning with number `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    part: u32,
    of: u32,
}

impl Share {
    pub const ALL: Self = Self { part: 0, of: 1 };

    /// Part `part` of `of` parts, which are counted from 0.
    pub fn try_new(part: u32, of: u32) -> Option<Self> {
        (part < of).then_some(Self { part, of })
    }

    /// Reads the path and query of a question.
    pub fn parse(target: &str) -> Option<Self> {
        let query = match target.strip_prefix(PATH)? {
            "" => "",
            rest => rest.strip_prefix('?')?,
        };
        let (mut part, mut of) = (0, 1);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "part" => part = value.parse().ok()?,
                "of" => of = value.parse().ok()?,
                _ => {}
            }
        }
        Self::try_new(part, of)
    }

    /// Whether a programmer belongs to the share.
    pub fn includes(self, programmer: u32) -> bool {
        programmer % self.of == self.part
    }

    /// The programmers of the share.
    pub fn members(self, all: Range<u32>) -> impl Iterator<Item = u32> {
        all.filter(move |programmer| self.includes(*programmer))
    }
}

impl fmt::Display for Share {
    /// The path and query of the question.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PATH}?part={}&of={}", self.part, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_asked_is_what_is_read(part in 0u32..1000, more in 1u32..1000) {
            let share = Share::try_new(part, part + more).unwrap();
            prop_assert_eq!(Share::parse(&share.to_string()), Some(share));
        }

        #[test]
        fn every_programmer_is_in_exactly_one_share(of in 1u32..20, programmer in 0u32..1000) {
            let shares = (0..of).filter_map(|part| Share::try_new(part, of));
            prop_assert_eq!(shares.filter(|share| share.includes(programmer)).count(), 1);
        }

        #[test]
        fn any_text_is_a_share_or_none(text in "(/watermarks)?[ -~é%]{0,24}") {
            let _ = Share::parse(&text);
        }
    }

    #[test]
    fn a_question_without_a_share_is_for_all() {
        assert_eq!(Share::parse("/watermarks"), Some(Share::ALL));
        for bad in [
            "/",
            "/watermarksx",
            "/watermarks?part=4&of=4",
            "/watermarks?of=0",
            "/watermarks?of=x",
        ] {
            assert_eq!(Share::parse(bad), None, "{bad}");
        }
        let second = Share::try_new(1, 4).unwrap();
        assert_eq!(second.members(0..10).collect::<Vec<_>>(), [1, 5, 9]);
    }
}
