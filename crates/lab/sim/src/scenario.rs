//! Which runs are there, and which one does a seed stand for?

use fastrand::Rng;
use pointsman_latency_profile::{Catalog, Profile, State, Values};
use std::fmt;

/// What keeps a node alive in the monitor's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heartbeats {
    /// Status reports only, as the profiles' tables have it.
    Status,
    /// Reports, and a lease renewed every 10 s.
    Leases,
}

/// What happens to the profile during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Route {
    Stay(Profile),
    /// The planner's way from one to another on a running cluster.
    Planned(Profile, Profile),
    /// Straight into a state that the tables warn of, which lasts for a while.
    Forbidden(Profile, Profile, Values),
}

/// One kind of run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// What happens to the profile.
    pub route: Route,
    /// What keeps nodes alive.
    pub heartbeats: Heartbeats,
}

impl Scenario {
    /// All of them: each profile, each way between two, each warning, with and without leases.
    pub fn all() -> Vec<Self> {
        let catalog = Catalog::standard();
        let profiles = catalog.profiles();
        let pairs = || {
            let all = profiles
                .iter()
                .flat_map(|from| profiles.iter().map(move |to| (*from, *to)));
            all.filter(|(from, to)| from != to)
        };
        let stay = profiles.iter().copied().map(Route::Stay);
        let planned = pairs().map(|(from, to)| Route::Planned(from, to));
        let forbidden = pairs()
            .filter_map(|(from, to)| Some(Route::Forbidden(from, to, forbidden(from.values, to.values)?)));
        let routes: Vec<Route> = stay.chain(planned).chain(forbidden).collect();
        [Heartbeats::Status, Heartbeats::Leases]
            .into_iter()
            .flat_map(|heartbeats| {
                routes.iter().map(move |route| Self {
                    route: *route,
                    heartbeats,
                })
            })
            .collect()
    }

    /// The scenario of a seed.
    pub fn of_seed(seed: u64) -> (usize, Self) {
        let all = Self::all();
        let index = (seed % all.len() as u64) as usize;
        (index, all[index])
    }

    /// What is in force at the beginning.
    pub fn start(&self) -> Values {
        match self.route {
            Route::Stay(profile) | Route::Planned(profile, _) | Route::Forbidden(profile, ..) => {
                profile.values
            }
        }
    }

    /// Whether living nodes must not be called unreachable.
    pub fn must_be_clean(&self) -> bool {
        // Leases arrive every 10 s whatever the report period, so no state of the tables starves them.
        !matches!(self.route, Route::Forbidden(..)) || self.heartbeats == Heartbeats::Leases
    }
}

/// The state between two profiles that the tables warn of: one component changed too early.
fn forbidden(from: Values, to: Values) -> Option<Values> {
    let nodes_first = Values {
        report: to.report,
        ..from
    };
    let controller_first = Values {
        grace: to.grace,
        ..from
    };
    [nodes_first, controller_first]
        .into_iter()
        .find(|values| !State::from(*values).verdict().is_safe())
}

/// How many nodes a seed's cluster has: most are small, so that 100,000 runs take minutes; one in 300
/// has 100 to 1,000 nodes.
pub fn size(rng: &mut Rng) -> usize {
    match rng.u16(..300) {
        0 => rng.usize(101..=1000),
        1..=15 => rng.usize(13..=100),
        _ => rng.usize(3..=12),
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Stay(profile) => short(profile).to_owned(),
            Self::Planned(from, to) => format!("{} -> {}, planned", short(from), short(to)),
            Self::Forbidden(from, to, through) => format!(
                "{} -> {}, through {}/{}",
                short(from),
                short(to),
                through.report,
                through.grace
            ),
        };
        f.pad(&text)
    }
}

fn short(profile: &Profile) -> &'static str {
    profile.name.split("Update").next().unwrap_or_default()
}

impl fmt::Display for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Status => "status only",
            Self::Leases => "leases",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_has_its_planned_and_its_forbidden_way() {
        let all = Scenario::all();
        assert_eq!(all.len(), 2 * (3 + 6 + 6));
        let through: Vec<String> = all
            .iter()
            .filter(|scenario| scenario.heartbeats == Heartbeats::Status)
            .filter_map(|scenario| match scenario.route {
                Route::Forbidden(_, _, values) => Some(format!("{}/{}", values.report, values.grace)),
                _ => None,
            })
            .collect();
        assert_eq!(
            through,
            ["20s/40s", "1m/40s", "20s/40s", "1m/2m", "1m/40s", "1m/2m"]
        );
    }

    #[test]
    fn most_clusters_are_small_and_some_are_large() {
        let mut rng = Rng::with_seed(7);
        let sizes: Vec<usize> = (0..30_000).map(|_| size(&mut rng)).collect();
        assert!(sizes.iter().filter(|size| **size > 100).count() > 50);
        assert!(sizes.iter().filter(|size| **size <= 12).count() > 27_000);
        assert!(sizes.iter().all(|size| (3..=1000).contains(size)));
    }
}
