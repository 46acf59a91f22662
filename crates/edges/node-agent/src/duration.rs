//! Go's durations, as ConfigMaps and configuration files carry them.

use std::time::Duration;

/// Reads `1h30m`, `90s`, `1.5s` or `500ms`.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        seconds += number
            * match &rest[..letters] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// Writes a duration as Go does, to the millisecond.
pub(crate) fn render(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 {
        return match millis {
            0 => "0s".into(),
            millis => format!("{millis}ms"),
        };
    }
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    let fraction = format!("{millis:03}");
    match fraction.trim_end_matches('0') {
        "" => text.push_str(&format!("{rest}s")),
        fraction => text.push_str(&format!("{rest}.{fraction}s")),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_go_in_and_come_out() {
        for (text, millis) in [
            ("10s", 10_000),
            ("1m0s", 60_000),
            ("1h0m0s", 3_600_000),
            ("1.5s", 1500),
            ("250ms", 250),
            ("0s", 0),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(text), Some(duration), "{text}");
            assert_eq!(render(duration), text);
        }
        for bad in ["", "10", "s", "1d", "-1s", "1s2", "é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
