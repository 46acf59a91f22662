//! Which profiles are there?
//!
//! Each is one line of data. They form a ladder from impatient to patient; on a running cluster a
//! change climbs it rung by rung, which is why Default and LowUpdateSlowReaction are reached from each
//! other through MediumUpdateAverageReaction.

use crate::state::Pool;
use crate::units::Values;
use std::collections::BTreeMap;
use thiserror::Error;

/// A named set of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// As in `spec.workerLatencyProfile`.
    pub name: &'static str,
    /// What it sets.
    pub values: Values,
}

/// What a cluster without a profile has, and what a failed rollout returns to.
pub const DEFAULT: Profile = Profile {
    name: "Default",
    values: Values::new(10, 40, 300),
};
/// For slightly higher latency than usual.
pub const MEDIUM: Profile = Profile {
    name: "MediumUpdateAverageReaction",
    values: Values::new(20, 120, 60),
};
/// For extremely high latency or a bad network.
pub const LOW: Profile = Profile {
    name: "LowUpdateSlowReaction",
    values: Values::new(60, 300, 60),
};
/// Kubespray's fast update and fast reaction; not part of the API, so it has to be asked for.
pub const FAST: Profile = Profile {
    name: "FastUpdateFastReaction",
    values: Values::new(4, 20, 30),
};

/// The profiles in use, from the least to the most patient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog(Vec<Profile>);

/// A name that no profile has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is not a profile; there are {known}")]
pub struct UnknownProfile {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: String,
}

impl Default for Catalog {
    fn default() -> Self {
        Self::standard()
    }
}

impl Catalog {
    /// The three profiles of the API.
    pub fn standard() -> Self {
        Self(vec![DEFAULT, MEDIUM, LOW])
    }

    /// The same and kubespray's fast one.
    pub fn with_fast() -> Self {
        Self::new(vec![FAST, DEFAULT, MEDIUM, LOW])
    }

    /// Any set of profiles.
    pub fn new(mut profiles: Vec<Profile>) -> Self {
        profiles.sort_by_key(|profile| (profile.values.grace, profile.values.report));
        Self(profiles)
    }

    /// Finds a profile; an empty name means Default. Short forms (`medium`, `low`, `fast`) are for people.
    pub fn find(&self, name: &str) -> Result<Profile, UnknownProfile> {
        let known = self.0.iter().find(|profile| {
            let short = profile.name.split("Update").next().unwrap_or_default();
            name == profile.name || name.eq_ignore_ascii_case(short)
        });
        match known {
            Some(profile) => Ok(*profile),
            None if name.is_empty() => Ok(DEFAULT),
            None => Err(UnknownProfile {
                name: name.to_owned(),
                known: self
                    .0
                    .iter()
                    .map(|profile| profile.name)
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// From the least to the most patient.
    pub fn profiles(&self) -> &[Profile] {
        &self.0
    }

    /// The profile that has exactly these values.
    pub fn of_values(&self, values: Values) -> Option<Profile> {
        self.0.iter().copied().find(|profile| profile.values == values)
    }
}

/// What somebody asked for: a profile, and others for single pools of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// For every node that no pool speaks for.
    pub profile: Profile,
    /// For the nodes of a pool.
    pub pools: BTreeMap<Pool, Profile>,
}

impl Wanted {
    /// One profile for all nodes.
    pub fn everywhere(profile: Profile) -> Self {
        Self {
            profile,
            pools: BTreeMap::new(),
        }
    }

    /// The profile of a pool.
    pub fn of_pool(&self, pool: &Pool) -> Profile {
        self.pools.get(pool).copied().unwrap_or(self.profile)
    }

    /// The profile that sets the control plane: that of the slowest pool, since grace periods and
    /// tolerations hold for all nodes.
    pub fn control_plane(&self) -> Profile {
        let all = self.pools.values().copied().chain([self.profile]);
        all.max_by_key(|profile| (profile.values.report, profile.values.grace))
            .unwrap_or(self.profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn every_profile_is_safe_and_the_ladder_is_sorted() {
        let catalog = Catalog::with_fast();
        for profile in catalog.profiles() {
            let Values { report, grace, .. } = profile.values;
            assert!(Verdict::of(report, grace).is_safe(), "{}", profile.name);
        }
        assert!(
            catalog
                .profiles()
                .is_sorted_by_key(|profile| profile.values.report)
        );
    }

    #[test]
    fn the_extra_profile_has_to_be_asked_for() {
        let refused = Catalog::standard().find("FastUpdateFastReaction").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "\"FastUpdateFastReaction\" is not a profile; there are Default, MediumUpdateAverageReaction, \
             LowUpdateSlowReaction"
        );
        assert_eq!(Catalog::with_fast().find("fast"), Ok(FAST));
        assert_eq!(Catalog::standard().find(""), Ok(DEFAULT));
        assert_eq!(Catalog::standard().find("low"), Ok(LOW));
    }

    #[test]
    fn the_slowest_pool_sets_the_control_plane() {
        let mut wanted = Wanted::everywhere(DEFAULT);
        assert_eq!(wanted.control_plane(), DEFAULT);
        wanted.pools.insert(Pool::named("edge"), LOW);
        assert_eq!(wanted.control_plane(), LOW);
        assert_eq!(wanted.of_pool(&Pool::named("rack")), DEFAULT);
    }
}
