//! Will nodes that are alive be called unreachable?
//!
//! A node reports once per report period and is called unreachable when nothing came for a grace
//! period, so the grace period holds a certain number of chances to report. The rule behind the
//! transition tables: four chances and more have no major impact (the Default profile has four), fewer
//! raise the odds of a wrong taint, none makes it certain. The tables show 0, 2, 4 and more; three is
//! on neither side there and counts as too few here, since no profile dares it.

use crate::units::{GracePeriod, ReportPeriod};
use pointsman_model::duration;
use std::fmt;
use std::time::Duration;

/// Chances to report within the grace period from which on a state is safe.
pub const ENOUGH: u64 = 4;

/// What a state does to nodes that are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// No report fits into the grace period: every node will be tainted by mistake.
    NoChance,
    /// So few reports fit that one or two lost ones are enough for a wrong taint.
    FewChances {
        /// Reports that fit into the grace period.
        chances: u64,
    },
    /// No major impact on the health of the cluster.
    NoMajorImpact {
        /// Reports that fit into the grace period.
        chances: u64,
    },
}

/// How nodes renew their leases (`kube-node-lease`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Time between two renewals, whatever the profile.
    pub renew: Duration,
}

impl Default for LeaseTerms {
    /// The kubelet's: a quarter of the lease's 40 s.
    fn default() -> Self {
        Self {
            renew: Duration::from_secs(10),
        }
    }
}

impl Verdict {
    /// The specification's verdict: only status reports count.
    pub fn of(report: ReportPeriod, grace: GracePeriod) -> Self {
        Self::of_chances(chances(report.get(), grace))
    }

    /// The verdict for nodes that also renew a lease, as kubelets since 1.14 do: the lifecycle controller
    /// takes a renewal for a sign of life, so the faster of the two signals counts.
    ///
    /// It tells how real the danger of a state is where leases flow. Plans do not rely on it: leases may
    /// be what a bad network loses.
    pub fn with_leases(report: ReportPeriod, grace: GracePeriod, terms: LeaseTerms) -> Self {
        Self::of_chances(chances(report.get().min(terms.renew), grace))
    }

    fn of_chances(chances: u64) -> Self {
        match chances {
            0 => Self::NoChance,
            _ if chances < ENOUGH => Self::FewChances { chances },
            _ => Self::NoMajorImpact { chances },
        }
    }

    /// Whether nodes may see such a state.
    pub fn is_safe(self) -> bool {
        matches!(self, Self::NoMajorImpact { .. })
    }

    /// Reports that fit into the grace period.
    pub fn chances(self) -> u64 {
        match self {
            Self::NoChance => 0,
            Self::FewChances { chances } | Self::NoMajorImpact { chances } => chances,
        }
    }
}

/// Reports at this pace that fit into a grace period.
pub fn chances(period: Duration, grace: GracePeriod) -> u64 {
    let chances = grace.0.as_nanos().checked_div(period.as_nanos());
    chances.map_or(u64::MAX, |chances| u64::try_from(chances).unwrap_or(u64::MAX))
}

/// The longest report period that is safe with this grace period.
pub fn slowest_safe(grace: GracePeriod) -> Duration {
    grace.0 / ENOUGH as u32
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMajorImpact { .. } => f.write_str("no major impact"),
            Self::FewChances { chances: 1 } => {
                f.write_str("only 1 chance to report: nodes are likely to be tainted by mistake")
            }
            Self::FewChances { chances } => write!(
                f,
                "only {chances} chances to report: nodes are likely to be tainted by mistake"
            ),
            Self::NoChance => f.write_str("no chance to report: every node will be tainted by mistake"),
        }
    }
}

/// Why a verdict is what it is, as arithmetic.
pub fn arithmetic(report: ReportPeriod, grace: GracePeriod) -> String {
    format!(
        "{} / {} = {} reports fit",
        duration::short(grace.0),
        report,
        chances(report.get(), grace)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_chances_are_not_enough_and_four_are() {
        let verdict = |report, grace| Verdict::of(ReportPeriod::seconds(report), GracePeriod::seconds(grace));
        assert_eq!(verdict(10, 40), Verdict::NoMajorImpact { chances: 4 });
        assert_eq!(verdict(10, 39), Verdict::FewChances { chances: 3 });
        assert_eq!(verdict(60, 40), Verdict::NoChance);
        assert_eq!(slowest_safe(GracePeriod::seconds(40)), Duration::from_secs(10));
    }

    #[test]
    fn leases_keep_a_slow_reporter_alive_but_not_through_a_short_grace_period() {
        let verdict = |report, grace| {
            let report = ReportPeriod::seconds(report);
            Verdict::with_leases(report, GracePeriod::seconds(grace), LeaseTerms::default())
        };
        assert_eq!(verdict(60, 40), Verdict::NoMajorImpact { chances: 4 });
        assert_eq!(verdict(60, 20), Verdict::FewChances { chances: 2 });
        assert_eq!(verdict(4, 20), Verdict::NoMajorImpact { chances: 5 });
    }
}
