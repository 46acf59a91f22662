//! How much is `500m`, `1.5Gi` or `2e3`?
//!
//! Quantities are compared by value, because clients rewrite them: `1000m` comes back as `1`.

/// An amount of a resource, exact down to a billionth of its unit; smaller parts round up, and
/// amounts beyond any machine's are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nanos: i128,
}

/// Far above the largest amount upstream keeps exactly, far below overflow.
const LIMIT: i128 = 1 << 120;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0 };

    /// Reads decimal digits with an optional sign, fraction and suffix.
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let scale = Scale::parse(suffix)?;
        let nanos = scale.apply(whole, fraction);
        Some(Self {
            nanos: if negative { -nanos } else { nanos },
        })
    }

    /// The amount in thousandths of a unit, rounded up; none below zero or beyond what fits.
    pub fn to_millis(self) -> Option<u64> {
        u64::try_from((self.nanos + 999_999) / 1_000_000).ok()
    }

    /// The amount in whole units, rounded up; none below zero or beyond what fits.
    pub fn to_units(self) -> Option<u64> {
        u64::try_from((self.nanos + 999_999_999) / 1_000_000_000).ok()
    }

    /// Whether the amount is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.nanos % 1_000_000_000 == 0
    }
}

enum Scale {
    Ten(i64),
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Scale::Ten(0),
            "n" => Scale::Ten(-9),
            "u" => Scale::Ten(-6),
            "m" => Scale::Ten(-3),
            "k" => Scale::Ten(3),
            "M" => Scale::Ten(6),
            "G" => Scale::Ten(9),
            "T" => Scale::Ten(12),
            "P" => Scale::Ten(15),
            "E" => Scale::Ten(18),
            "Ki" => Scale::Two(10),
            "Mi" => Scale::Two(20),
            "Gi" => Scale::Two(30),
            "Ti" => Scale::Two(40),
            "Pi" => Scale::Two(50),
            "Ei" => Scale::Two(60),
            _ => Scale::Ten(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    /// The scaled number in billionths, rounded up.
    fn apply(&self, whole: &str, fraction: &str) -> i128 {
        let (exponent, factor) = match self {
            Scale::Ten(exponent) => (*exponent, 1),
            Scale::Two(bits) => (0, 1_i128 << bits),
        };
        let mut nanos: i128 = 0;
        let mut remainder = false;
        // The place of the first digit: 10^9 billionths make a unit.
        let mut place = exponent
            .saturating_add(9)
            .saturating_add(i64::try_from(whole.len()).unwrap_or(i64::MAX));
        for digit in whole.bytes().chain(fraction.bytes()) {
            let digit = i128::from(digit - b'0');
            place = place.saturating_sub(1);
            if place < 0 && factor == 1 {
                remainder |= digit != 0;
                continue;
            }
            nanos =
                nanos.saturating_add(digit.saturating_mul(at_place(factor, place, &mut remainder, digit)));
            if nanos > LIMIT {
                return LIMIT;
            }
        }
        nanos + i128::from(remainder)
    }
}

/// What one digit at `place` is worth, in billionths. Places below zero occur only with binary
/// suffixes, where the digit still contributes.
fn at_place(factor: i128, place: i64, remainder: &mut bool, digit: i128) -> i128 {
    if place >= 0 {
        let place = u32::try_from(place.min(36)).unwrap_or(36);
        return 10_i128.pow(place).saturating_mul(factor).min(LIMIT);
    }
    let divisor = 10_i128.pow(u32::try_from(place.saturating_neg().min(36)).unwrap_or(36));
    *remainder |= digit != 0 && factor % divisor != 0;
    factor / divisor
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Quantity {
        Quantity::parse(text).unwrap_or_else(|| panic!("{text} should be a quantity"))
    }

    #[test]
    fn equal_amounts_are_equal_however_they_are_written() {
        for (left, right) in [
            ("1", "1000m"),
            ("0.5", "500m"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("2e3", "2k"),
            ("2E3", "2k"),
            (".5", "0.5"),
            ("5.", "5"),
            ("+1", "1"),
            ("0", "-0"),
            ("100u", "0.1m"),
        ] {
            assert_eq!(parsed(left), parsed(right), "{left} and {right}");
        }
        assert!(parsed("900Mi") < parsed("1Gi"));
        assert!(parsed("-1") < Quantity::ZERO);
        assert!(parsed("0.1n") > Quantity::ZERO, "tiny amounts round up");
        assert!(parsed("1e999999") > parsed("1Ei"));
    }

    #[test]
    fn amounts_round_up_to_what_is_asked_for() {
        assert_eq!(parsed("1500m").to_millis(), Some(1500));
        assert_eq!(parsed("1500m").to_units(), Some(2));
        assert_eq!(parsed("64Mi").to_units(), Some(64 << 20));
        assert_eq!(parsed("-2").to_units(), None);
    }

    #[test]
    fn malformed_amounts_are_refused() {
        for text in [
            "", "-", ".", "1.2.3", "1 Gi", "Gi", "1gi", "1ee3", "0x10", "1K", "éè",
        ] {
            assert_eq!(Quantity::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn no_text_makes_parsing_panic(text in "[-+.0-9eEmkMGi]{0,40}|\\PC{0,12}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn whole_numbers_order_as_integers(left in 0..1_000_000_i64, right in 0..1_000_000_i64) {
            prop_assert_eq!(
                parsed(&left.to_string()).cmp(&parsed(&right.to_string())),
                left.cmp(&right)
            );
        }
    }
}
