//! Formatting of numbers in reports.

use std::fmt;

/// Reserved over live bytes; 1 if nothing was live.
pub(super) fn ratio(reserved: u64, live: u64) -> f64 {
    if live == 0 {
        return 1.0;
    }
    reserved as f64 / live as f64
}

/// One JSON object on one line. Written field by field, because a map would sort the keys.
#[cfg(feature = "cli")]
pub(super) fn object(fields: &[(&str, serde_json::Value)]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{}: {value}", serde_json::Value::from(*key)))
        .collect();
    format!("{{{}}}", fields.join(", "))
}

/// Rounded to six decimals; further digits are noise.
#[cfg(feature = "cli")]
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// A number, printed with a comma every three digits: `216,551`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouped(
    /// The number.
    pub u64,
);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// `1 stream`, `2 streams`.
pub(super) fn counted(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {what}{ending}", Grouped(count))
}

/// `p50     120 ns   p99   1,204 ns`
pub(super) fn calls(p50: u64, p99: u64) -> String {
    format!("p50 {:>10}   p99 {:>10}", took(p50), took(p99))
}

/// In nanoseconds below 100 µs, otherwise in a larger unit.
fn took(ns: u64) -> String {
    let number = ns as f64;
    match ns {
        ..100_000 => format!("{} ns", Grouped(ns)),
        100_000..10_000_000 => format!("{} us", Grouped(ns.div_ceil(1000))),
        10_000_000..10_000_000_000 => format!("{:.1} ms", number / 1e6),
        _ => format!("{:.1} s", number / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345, "12,345"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(Grouped(value).to_string(), text);
        }
    }

    #[test]
    fn a_long_time_has_a_unit_of_its_own() {
        for (ns, text) in [
            (99_999, "99,999 ns"),
            (830_918, "831 us"),
            (26_493_220, "26.5 ms"),
            (7_200_000_000_000, "7200.0 s"),
        ] {
            assert_eq!(took(ns), text);
        }
    }
}
