//! How much of a zone is in trouble, and how fast may we react there?

use crate::settings::Settings;

/// The state of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneState {
    /// Never looked at.
    #[default]
    Initial,
    /// Most nodes are fine.
    Normal,
    /// A large share of the nodes is not ready.
    PartialDisruption,
    /// No node is ready.
    FullDisruption,
}

impl ZoneState {
    /// The name for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initial => "Initial",
            Self::Normal => "Normal",
            Self::PartialDisruption => "PartialDisruption",
            Self::FullDisruption => "FullDisruption",
        }
    }
}

/// How many nodes of a zone are ready and how many are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub ready: usize,
    pub not_ready: usize,
}

impl Census {
    /// All nodes that count.
    pub fn size(self) -> usize {
        self.ready + self.not_ready
    }

    /// Percentage of nodes that are ready.
    pub fn health_percent(self) -> f64 {
        if self.size() == 0 {
            100.0
        } else {
            100.0 * self.ready as f64 / self.size() as f64
        }
    }

    /// The zone's state: full when nobody is ready, partial when more than two nodes and at least the
    /// threshold's share are not.
    pub fn state(self, settings: &Settings) -> ZoneState {
        let share = self.not_ready as f64 / self.size().max(1) as f64;
        if self.ready == 0 && self.not_ready > 0 {
            ZoneState::FullDisruption
        } else if self.not_ready > 2 && share >= settings.unhealthy_threshold {
            ZoneState::PartialDisruption
        } else {
            ZoneState::Normal
        }
    }
}

/// Nodes per second that may be tainted for eviction.
pub fn eviction_rate(state: ZoneState, size: usize, settings: &Settings) -> f64 {
    match state {
        ZoneState::PartialDisruption if size > settings.large_zone_threshold => {
            settings.secondary_eviction_rate
        }
        ZoneState::PartialDisruption => 0.0,
        ZoneState::Initial | ZoneState::Normal | ZoneState::FullDisruption => settings.eviction_rate,
    }
}

/// Silent nodes per second, and at once, whose pods may be marked not ready.
///
/// Unlike eviction, marking never stops in a zone as long as others work: traffic to dead nodes is
/// lost. But it slows down, because a zone that we cannot reach may still serve.
pub fn marking_rate(state: ZoneState, settings: &Settings) -> (f64, f64) {
    match state {
        ZoneState::Initial | ZoneState::Normal => (settings.marking_rate, settings.marking_burst.max(1.0)),
        ZoneState::PartialDisruption | ZoneState::FullDisruption => (settings.disrupted_marking_rate, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_the_share_of_nodes_not_ready() {
        let settings = Settings::default();
        for (ready, not_ready, state) in [
            (0, 0, ZoneState::Normal),
            (0, 1, ZoneState::FullDisruption),
            (1, 2, ZoneState::Normal),
            (2, 3, ZoneState::PartialDisruption),
            (9, 11, ZoneState::PartialDisruption),
            (10, 11, ZoneState::Normal),
        ] {
            assert_eq!(
                Census { ready, not_ready }.state(&settings),
                state,
                "{ready} ready, {not_ready} not"
            );
        }
    }

    #[test]
    fn small_zones_stop_evicting_and_large_ones_slow_down() {
        let settings = Settings::default();
        assert_eq!(eviction_rate(ZoneState::PartialDisruption, 50, &settings), 0.0);
        assert_eq!(eviction_rate(ZoneState::PartialDisruption, 51, &settings), 0.01);
        assert_eq!(eviction_rate(ZoneState::FullDisruption, 5, &settings), 0.1);
    }
}
