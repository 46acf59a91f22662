//! When is an event worth it that kube-proxy is behind?
//!
//! One when somebody is named, and one when nobody is any more. Rules that come and go get one of each in [`QUIET`].

use std::time::{Duration, Instant};

use pointsman_model::ServiceName;

use crate::tracker::Behind;

/// The least time between two events that somebody is behind.
pub const QUIET: Duration = Duration::from_secs(30);

/// What somebody has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// These rules have differed for so long.
    Behind(Behind, Duration),
    /// All rules are right again, so long after those of the last report began to differ.
    CaughtUp(Duration),
}

/// What was reported, and when the next report may come.
#[derive(Debug, Default)]
pub struct Alarm {
    reported: Option<(Option<ServiceName>, Instant)>,
    quiet_until: Option<Instant>,
}

impl Alarm {
    /// To be asked again and again with whose rules have differed for too long.
    pub fn step(&mut self, now: Instant, behind: Option<&Behind>) -> Option<Report> {
        let Some(behind) = behind else {
            let (_, since) = self.reported.take()?;
            return Some(Report::CaughtUp(now.saturating_duration_since(since)));
        };
        let known = self.reported.as_ref();
        if known.is_some_and(|(service, _)| *service == behind.service)
            || self.quiet_until.is_some_and(|until| now < until)
        {
            return None;
        }
        let since = known.map_or(behind.since, |(_, since)| *since);
        self.reported = Some((behind.service.clone(), since));
        self.quiet_until = Some(now + QUIET);
        let so_long = now.saturating_duration_since(behind.since);
        Some(Report::Behind(behind.clone(), so_long))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(name: &str, since: Instant) -> Behind {
        Behind {
            service: Some(ServiceName::new("default", name).unwrap()),
            since,
            differs: "chain x is missing".into(),
            services: 1,
        }
    }

    #[test]
    fn each_time_somebody_is_behind_is_reported_once_and_so_is_its_end() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let (mut alarm, web) = (Alarm::default(), behind("web", began));
        assert_eq!(alarm.step(at(4), None), None);
        let first = alarm.step(at(5), Some(&web));
        assert_eq!(first, Some(Report::Behind(web.clone(), Duration::from_secs(5))));
        assert_eq!(alarm.step(at(6), Some(&web)), None);
        let end = alarm.step(at(12), None);
        assert_eq!(end, Some(Report::CaughtUp(Duration::from_secs(12))));
        assert_eq!(alarm.step(at(13), None), None);
    }

    #[test]
    fn rules_that_come_and_go_are_reported_twice_a_minute() {
        let began = Instant::now();
        let mut alarm = Alarm::default();
        let mut reports = 0;
        for second in 0..600 {
            let now = began + Duration::from_secs(second);
            let web = behind("web", now);
            let found = (second % 2 == 0).then_some(&web);
            reports += usize::from(matches!(alarm.step(now, found), Some(Report::Behind(..))));
        }
        assert_eq!(reports, 20);
    }

    #[test]
    fn another_service_is_named_once_the_last_report_is_old() {
        let began = Instant::now();
        let (mut alarm, web, other) = (Alarm::default(), behind("web", began), behind("other", began));
        assert!(alarm.step(began, Some(&web)).is_some());
        assert_eq!(alarm.step(began + QUIET / 2, Some(&other)), None);
        let named = alarm.step(began + QUIET, Some(&other));
        assert_eq!(named, Some(Report::Behind(other, QUIET)));
    }
}
