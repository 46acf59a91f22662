//! Which node may have which range of pod addresses?
//!
//! Whoever is routed a range gets its packets, so that a claim is believed only where it can do no harm: inside of the
//! cluster's ranges, never the default route, and only where nobody else was before.

use crate::Prefix;
use std::fmt;

/// A range that somebody says is his.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who says so.
    pub holder: String,
    pub range: Prefix,
}

/// Why a claim is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disbelief {
    /// It is the way to everywhere, or not inside of any of the cluster's ranges.
    Outside,
    /// Another holder was first.
    Taken(Claim),
}

impl fmt::Display for Disbelief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside => f.write_str("it is not inside of the cluster's ranges"),
            Self::Taken(first) => write!(
                f,
                "it overlaps {} of {}, which was first",
                first.range, first.holder
            ),
        }
    }
}

/// Decides about claims, the first of which go before later ones. A holder's own claims may overlap.
pub fn settle(claims: Vec<Claim>, cluster: &[Prefix]) -> (Vec<Claim>, Vec<(Claim, Disbelief)>) {
    let (mut believed, mut others): (Vec<Claim>, Vec<_>) = (Vec::new(), Vec::new());
    for claim in claims {
        let is_inside = cluster.iter().any(|range| claim.range.is_within(*range));
        let taken = believed
            .iter()
            .find(|first| first.holder != claim.holder && first.range.overlaps(claim.range));
        match (is_inside && claim.range.length() > 0, taken) {
            (false, _) => others.push((claim, Disbelief::Outside)),
            (true, Some(first)) => {
                let first = first.clone();
                others.push((claim, Disbelief::Taken(first)));
            }
            (true, None) => believed.push(claim),
        }
    }
    (believed, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(holder: &str, range: &str) -> Claim {
        Claim {
            holder: holder.to_owned(),
            range: range.parse().unwrap(),
        }
    }

    #[test]
    fn only_ranges_of_the_cluster_that_nobody_had_before_are_believed() {
        let cluster = ["10.244.0.0/16".parse().unwrap(), "fd01::/48".parse().unwrap()];
        let good = vec![
            claim("n1", "10.244.1.0/24"),
            claim("n1", "fd01:0:0:1::/64"),
            claim("n2", "10.244.2.0/24"),
        ];
        let bad = [
            claim("n3", "0.0.0.0/0"),
            claim("n3", "::/0"),
            claim("n3", "10.0.0.0/8"),
            claim("n3", "10.245.0.0/24"),
            claim("n3", "10.244.1.128/25"),
            claim("n3", "10.244.0.0/22"),
            claim("n3", "10.244.2.0/24"),
        ];
        let all: Vec<Claim> = good.iter().chain(&bad).cloned().collect();
        let (believed, others) = settle(all, &cluster);
        assert_eq!(believed, good);
        assert_eq!(
            others.iter().map(|(claim, _)| claim.clone()).collect::<Vec<_>>(),
            bad
        );
        assert_eq!(
            others[4].1.to_string(),
            "it overlaps 10.244.1.0/24 of n1, which was first"
        );
        // A cluster of everything has no default route either.
        let everything = ["0.0.0.0/0".parse().unwrap()];
        assert!(settle(vec![claim("n3", "0.0.0.0/0")], &everything).0.is_empty());
    }
}
