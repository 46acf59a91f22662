//! How old is it, in the few characters a table has room for?
//!
//! The thresholds are those of Kubernetes (`apimachinery/pkg/util/duration`), because people compare
//! our tables with kubectl's own output.

use crate::value::str_at;
use jiff::Timestamp;
use serde_json::Value;

/// Renders a length of time in two or three significant figures: `90s`, `2m20s`, `3d4h`, `5y12d`.
/// Clocks that differ by less than two seconds are forgiven; anything earlier is `<invalid>`.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// How long ago the time at `path` was; `<unknown>` if there is none.
pub fn since(object: &Value, path: &[&str], now: Timestamp) -> String {
    since_text(str_at(object, path), now)
}

/// How long ago a time was; `<unknown>` if it is none.
pub fn since_text(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => human_duration(now.duration_since(then).as_secs()),
        Err(_) => "<unknown>".into(),
    }
}

fn pair(large: i64, large_unit: char, small: i64, small_unit: char) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_prints_them() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 3600;
        const DAY: i64 = 86_400;
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * MINUTE, "2m"),
            (2 * MINUTE + 20, "2m20s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (3 * DAY + 4 * HOUR, "3d4h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (730 * DAY - 1, "729d"),
            (730 * DAY, "2y"),
            (2 * 365 * DAY + 12 * DAY, "2y12d"),
            (8 * 365 * DAY - HOUR, "7y364d"),
            (8 * 365 * DAY, "8y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds} seconds");
        }
    }

    #[test]
    fn an_absent_or_broken_time_is_unknown() {
        let now: Timestamp = "2024-05-01T10:00:00Z".parse().unwrap();
        let object = serde_json::json!({"a": "2024-05-01T09:59:00Z", "b": "yesterday"});
        assert_eq!(since(&object, &["a"], now), "60s");
        assert_eq!(since(&object, &["b"], now), "<unknown>");
        assert_eq!(since(&object, &["c"], now), "<unknown>");
    }
}
