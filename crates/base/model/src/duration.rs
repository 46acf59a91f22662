//! How are durations read and written?
//!
//! In Go's form, since flags, configuration files and ConfigMaps of Kubernetes use it. Arithmetic is
//! in whole nanoseconds, so that what was written reads back as the same value.

use std::time::Duration;

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads `10s`, `2m`, `1m30s`, `1.5s` or `250ms`, as Go's `time.ParseDuration` does; negative ones are refused.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, tail) = rest.split_at(number);
        let unit = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (name, tail) = tail.split_at(unit);
        let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == name)?;
        nanos = nanos.checked_add(scaled(digits, *scale)?)?;
        rest = tail;
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    (!text.is_empty()).then(|| Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// `digits` may have one decimal point; what is finer than a nanosecond is cut.
fn scaled(digits: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() {
        0
    } else {
        whole.parse::<u128>().ok()?
    };
    let mut total = whole.checked_mul(scale)?;
    let mut unit = scale;
    for digit in fraction.bytes() {
        unit /= 10;
        total = total.checked_add(u128::from(digit - b'0') * unit)?;
    }
    Some(total)
}

/// Writes a duration as short as Go's parser allows: `10s`, `2m`, `1m30s`, `1m30s250ms`.
pub fn short(value: Duration) -> String {
    let seconds = value.as_secs();
    let nanos = value.subsec_nanos();
    let amounts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(nanos / 1_000_000), "ms"),
        (u64::from(nanos / 1_000 % 1_000), "us"),
        (u64::from(nanos % 1_000), "ns"),
    ];
    let text: String = amounts
        .iter()
        .filter(|(amount, _)| *amount > 0)
        .map(|(amount, unit)| format!("{amount}{unit}"))
        .collect();
    if text.is_empty() { "0s".into() } else { text }
}

/// Writes a duration exactly as Go prints one: `10s`, `2m0s`, `1h0m1.5s`, `250ms`.
pub fn go(value: Duration) -> String {
    let (seconds, nanos) = (value.as_secs(), value.subsec_nanos());
    if seconds == 0 {
        return match nanos {
            0 => "0s".into(),
            1..1_000 => format!("{nanos}ns"),
            1_000..1_000_000 => decimal(u64::from(nanos / 1_000), nanos % 1_000, 3) + "µs",
            _ => decimal(u64::from(nanos / 1_000_000), nanos % 1_000_000, 6) + "ms",
        };
    }
    let mut text = String::new();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    text + &decimal(seconds % 60, nanos, 9) + "s"
}

/// A number with `digits` decimals, without the zeros at their end.
fn decimal(whole: u64, fraction: u32, digits: usize) -> String {
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, millis) in [
            ("10s", 10_000),
            ("2m", 120_000),
            ("2m0s", 120_000),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            (".5s", 500),
            ("250ms", 250),
            ("1h0m0s", 3_600_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in [
            "",
            "10",
            "s",
            "1d",
            "-1s",
            ".s",
            "1..5s",
            "10 s",
            "99999999999999999999999999999999999999999h",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_are_written_short_or_as_go_does() {
        for (millis, brief, full) in [
            (0, "0s", "0s"),
            (250, "250ms", "250ms"),
            (1_500, "1s500ms", "1.5s"),
            (120_000, "2m", "2m0s"),
            (90_250, "1m30s250ms", "1m30.25s"),
            (3_600_000, "1h", "1h0m0s"),
            (10_000, "10s", "10s"),
        ] {
            let value = Duration::from_millis(millis);
            assert_eq!((short(value).as_str(), go(value).as_str()), (brief, full));
        }
        assert_eq!(go(Duration::from_nanos(1_500)), "1.5µs");
        assert_eq!(go(Duration::from_nanos(7)), "7ns");
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(seconds in 0u64..10_000_000, nanos in 0u32..1_000_000_000) {
            let value = Duration::new(seconds, nanos);
            prop_assert_eq!(parse(&short(value)), Some(value));
            prop_assert_eq!(parse(&go(value)), Some(value));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.a-zµ]{0,12}") {
            let _ = parse(&text);
        }
    }
}
