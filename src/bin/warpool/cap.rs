//! `--cap`: bytes, or a multiple of a trace's peak.

use std::str::FromStr;

/// The most physical memory a pool may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// So many bytes.
    Bytes(u64),
    /// `numerator / denominator` times the peak of live bytes; exact, as it was written.
    Times { numerator: u64, denominator: u64 },
}

impl Cap {
    /// The bytes for a trace of `peak` live bytes, rounded up to a multiple of `granule`; at most
    /// `u64::MAX`.
    pub fn bytes(self, peak: u64, granule: u64) -> u64 {
        let granule = u128::from(granule.max(1));
        let bytes = match self {
            Self::Bytes(bytes) => u128::from(bytes),
            Self::Times {
                numerator,
                denominator,
            } => {
                (u128::from(peak) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)))
            }
        };
        u64::try_from(bytes.div_ceil(granule) * granule).unwrap_or(u64::MAX)
    }
}

/// Digits after the point that a multiple may have.
const MAX_DECIMALS: usize = 9;

impl FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cap = match text.strip_suffix('x') {
            Some(times) => multiple(times),
            None => bytes(text).map(Self::Bytes),
        };
        match cap {
            Some(Self::Bytes(0) | Self::Times { numerator: 0, .. }) => {
                Err("must be more than 0".to_owned())
            }
            Some(cap) => Ok(cap),
            None => Err(
                "expected bytes (4294967296, 4GiB) or a multiple of the trace's peak live bytes \
                 (1.02x)"
                    .to_owned(),
            ),
        }
    }
}

/// The digits of `1.02` as 102 / 100.
fn multiple(text: &str) -> Option<Cap> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{decimals}");
    if decimals.len() > MAX_DECIMALS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let denominator = 10u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    Some(Cap::Times {
        numerator: digits.parse().ok()?,
        denominator,
    })
}

fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    digits
        .trim_end()
        .parse::<u64>()
        .ok()?
        .checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 2 << 20;

    #[test]
    fn bytes_are_rounded_up_to_one_granule() {
        for (text, bytes) in [
            ("1", GRANULE),
            ("2097152", GRANULE),
            ("2097153", 2 * GRANULE),
            ("4GiB", 4 << 30),
            ("5 MiB", 6 << 20),
        ] {
            let cap: Cap = text.parse().expect(text);
            assert_eq!(cap.bytes(0, GRANULE), bytes, "{text}");
        }
    }

    #[test]
    fn a_multiple_is_exact_and_then_rounded_up() {
        let times = |text: &str, peak| text.parse::<Cap>().expect(text).bytes(peak, GRANULE);
        assert_eq!(times("1x", 10 * GRANULE), 10 * GRANULE);
        assert_eq!(times("1.00x", 10 * GRANULE), 10 * GRANULE);
        assert_eq!(
            times("1.1x", 10 * GRANULE),
            11 * GRANULE,
            "1.1 in binary is more than 1.1"
        );
        assert_eq!(times("1.02x", 100 * GRANULE + 1), 103 * GRANULE);
        assert_eq!(times("0.5x", 3 * GRANULE), 2 * GRANULE);
        assert_eq!(times(".5x", 2 * GRANULE), GRANULE);
        assert_eq!(times("1000000x", u64::MAX), u64::MAX);
    }

    #[test]
    fn anything_else_is_refused_in_words() {
        for wrong in [
            "",
            "x",
            "-1",
            "1.5",
            "1,5x",
            "1e3x",
            "4GB",
            "99999999999999999999",
            "1.0000000001x",
        ] {
            let why = wrong.parse::<Cap>().expect_err(wrong);
            // "x" has no digits at all.
            assert!(why.contains("expected bytes"), "{wrong}: {why}");
        }
        assert_eq!("0".parse::<Cap>(), Err("must be more than 0".to_owned()));
        assert_eq!("0.0x".parse::<Cap>(), Err("must be more than 0".to_owned()));
    }
}
