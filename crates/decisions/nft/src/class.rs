//! How is one of N endpoints drawn, if the kernel can only draw from a constant range?
//!
//! `numgen random mod N` takes N from the rule. One chain for each N would be created and deleted as
//! Services grow and shrink, and every such change makes the kernel validate the table. So Services are put
//! into a few classes: a class draws from the smallest of a few fixed ranges that holds all N slots, and
//! draws again if it hits an empty slot. Every endpoint is hit with the same probability by each draw, so
//! the shares are equal. A Service changes class by moving one element from one set to another.

/// A range of slots that Services draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// The ranges. Up to 16 at least half of the slots are filled, above that at least a quarter.
    const RANGES: [u32; 11] = [1, 2, 4, 8, 16, 64, 256, 1024, 4096, 16_384, 65_536];

    /// The most endpoints a Service port can use; the rest of a longer list is left out.
    pub const MAX_ENDPOINTS: usize = 65_536;

    /// The class for a number of endpoints; `None` for no endpoints.
    pub fn of(endpoints: usize) -> Option<Self> {
        if endpoints == 0 {
            return None;
        }
        let index = Self::RANGES.partition_point(|range| (*range as usize) < endpoints);
        Some(Self(index.min(Self::RANGES.len() - 1) as u8))
    }

    /// All classes, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..Self::RANGES.len() as u8).map(Self)
    }

    /// Slots are drawn from `0..range`.
    pub fn range(self) -> u32 {
        Self::RANGES[usize::from(self.0)]
    }

    /// The range of the class below: slots under it are filled in every Service of this class.
    pub fn surely_filled(self) -> u32 {
        match self.0 {
            0 => 1,
            index => Self::RANGES[usize::from(index) - 1],
        }
    }

    /// How often to draw before falling back to the slots that are surely filled: the fallback favours
    /// those, so it must be rare. It happens for less than one connection in a thousand in the worst case
    /// (one endpoint more than the class below holds), and for none in the usual ones.
    pub fn draws(self) -> Draws {
        match (self.range(), self.range() / self.surely_filled()) {
            // Full: every Service of these classes has exactly as many endpoints as slots.
            (1 | 2, _) => Draws {
                rounds: 0,
                per_round: 1,
            },
            // Misses are at most one in four, then at most one in two.
            (4, _) => Draws {
                rounds: 2,
                per_round: 3,
            },
            (_, 2) => Draws {
                rounds: 4,
                per_round: 3,
            },
            // Misses are at most three in four.
            _ => Draws {
                rounds: 4,
                per_round: 6,
            },
        }
    }
}

/// How often a class draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    /// How often the chain of draws is run; zero if one draw is enough.
    pub rounds: u32,
    /// The draws in that chain.
    pub per_round: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_its_services_and_the_class_below_does_not() {
        assert_eq!(Class::of(0), None);
        for endpoints in (1..200).chain([1000, 1024, 1025, 65_536]) {
            let class = Class::of(endpoints).unwrap();
            assert!(endpoints as u32 <= class.range(), "{endpoints}");
            assert!(
                endpoints == 1 || endpoints as u32 > class.surely_filled(),
                "{endpoints}"
            );
        }
        assert_eq!(Class::of(1 << 20), Class::all().last());
    }

    #[test]
    fn the_fallback_is_rarer_than_one_in_a_thousand() {
        for endpoints in 1..=20_000usize {
            let class = Class::of(endpoints).unwrap();
            let Draws { rounds, per_round } = class.draws();
            let miss = 1.0 - endpoints as f64 / f64::from(class.range());
            let all_miss = miss.powi((rounds.max(1) * per_round) as i32);
            assert!(all_miss < 0.00101, "{endpoints}: {all_miss}");
        }
    }
}
