//! How are durations read and written?
//!
//! In Go's form, since flags, configuration files and ConfigMaps of Kubernetes use it. Arithmetic is
//! in whole nanoseconds, so that what was written reads back as the same value.

use std::time::Duration;

const UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads `10s`, `2m`, `1m30s`, `1.5s` or `250ms`.
pub fn parse_duration(text: &str) -> Option<Duration> {
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

/// Writes a duration as people and Go's parser read it: `10s`, `2m`, `1m30s`, `250ms`.
pub fn duration(value: Duration) -> String {
    let seconds = value.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    for (amount, unit) in [(hours, "h"), (minutes, "m"), (seconds, "s")] {
        if amount > 0 {
            text.push_str(&format!("{amount}{unit}"));
        }
    }
    let nanos = value.subsec_nanos();
    for (amount, unit) in [
        (nanos / 1_000_000, "ms"),
        (nanos / 1_000 % 1_000, "us"),
        (nanos % 1_000, "ns"),
    ] {
        if amount > 0 {
            text.push_str(&format!("{amount}{unit}"));
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_look_like_gos() {
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
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
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
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
        assert_eq!(duration(Duration::from_secs(300)), "5m");
        assert_eq!(duration(Duration::from_millis(90_250)), "1m30s250ms");
        assert_eq!(duration(Duration::ZERO), "0s");
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(seconds in 0u64..10_000_000, nanos in 0u32..1_000_000_000) {
            let value = Duration::new(seconds, nanos);
            prop_assert_eq!(parse_duration(&duration(value)), Some(value));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.a-zµ]{0,12}") {
            let _ = parse_duration(&text);
        }
    }
}
