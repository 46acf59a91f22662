//! Durations on the command line, in Go's form.

use pointsman_model::duration;
use std::time::Duration;

/// Reads `1h0m0s`, `90s`, `1m30s` or `500ms`, as upstream's flags do.
pub fn parse(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| format!("{text:?} is not a duration such as 1h0m0s, 90s or 500ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_upstream_flags_look_like() {
        assert_eq!(parse("1h0m0s"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "10", "s", "1d", "-1s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
