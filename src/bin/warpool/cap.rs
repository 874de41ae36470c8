//! `--cap`: a size, or a fraction of a trace's peak.

use std::str::FromStr;

use warpool::observe::Bytes;

/// The most physical memory that a pool may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cap {
    /// A number of bytes.
    Bytes(u64),
    /// `numerator / denominator` times the peak of live bytes, exactly as it was written.
    Times { numerator: u64, denominator: u64 },
}

impl Cap {
    /// The bytes for a trace of `peak` live bytes, rounded up to a multiple of `granule`; at most
    /// `u64::MAX`.
    ///
    /// # Errors
    /// If the bytes are less than a granule: no pool can hold memory under such a cap.
    pub fn bytes(self, peak: u64, granule: u64) -> Result<u64, String> {
        let granule = granule.max(1);
        let bytes = match self {
            Self::Bytes(bytes) if bytes < granule => {
                return Err(format!(
                    "{bytes} bytes are less than one granule of the device, {}: write 4G for 4 GiB, or \
                     50% or 1.02x for a part of the trace's peak",
                    Bytes(granule)
                ));
            }
            Self::Bytes(bytes) => u128::from(bytes),
            Self::Times {
                numerator,
                denominator,
            } => {
                (u128::from(peak) * u128::from(numerator)).div_ceil(u128::from(denominator.max(1)))
            }
        };
        let granule = u128::from(granule);
        Ok(u64::try_from(bytes.div_ceil(granule) * granule).unwrap_or(u64::MAX))
    }
}

/// Most digits after the point of a multiple.
const MAX_DECIMALS: usize = 9;

impl FromStr for Cap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let cap = match (text.strip_suffix('x'), text.strip_suffix('%')) {
            (Some(times), _) => fraction(times.trim_end(), 1),
            (None, Some(percent)) => fraction(percent.trim_end(), 100),
            (None, None) => bytes(text).map(Self::Bytes),
        };
        match cap {
            Some(Self::Bytes(0) | Self::Times { numerator: 0, .. }) => {
                Err("must be more than 0".to_owned())
            }
            Some(cap) => Ok(cap),
            None => Err(
                "expected a size (4G, 1.5GiB, 4294967296) or a part of the trace's peak live bytes \
                 (50%, 1.02x)"
                    .to_owned(),
            ),
        }
    }
}

/// The digits of `1.02` as 102 and 100.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let digits = format!("{whole}{decimals}");
    if decimals.len() > MAX_DECIMALS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let denominator = 10u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    Some((digits.parse().ok()?, denominator))
}

/// `text` divided by `whole`, as a fraction of the peak.
fn fraction(text: &str, whole: u64) -> Option<Cap> {
    let (numerator, denominator) = decimal(text)?;
    Some(Cap::Times {
        numerator,
        denominator: denominator.checked_mul(whole)?,
    })
}

/// A size: units of powers of 1024 by their letter, alone or as `GiB`; of powers of 1000 as `GB`.
fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = unit.trim_start().to_ascii_lowercase();
    let power = "kmgt".find(unit.chars().next().unwrap_or(' '));
    let one = match (power, unit.get(1..).unwrap_or_default()) {
        (Some(power), "" | "ib") => 1024u64.pow(power as u32 + 1),
        (Some(power), "b") => 1000u64.pow(power as u32 + 1),
        (None, "") if unit.is_empty() || unit == "b" => 1,
        _ => return None,
    };
    let (numerator, denominator) = decimal(number)?;
    let bytes = u128::from(numerator) * u128::from(one);
    let whole = bytes.is_multiple_of(u128::from(denominator)) || one > 1;
    whole.then(|| u64::try_from(bytes / u128::from(denominator)).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 2 << 20;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("2097152", GRANULE),
            ("2097153", 2 * GRANULE),
            ("4G", 4 << 30),
            ("4g", 4 << 30),
            ("4GiB", 4 << 30),
            ("1.5GiB", 3 << 29),
            ("1.5 G", 3 << 29),
            ("5 MiB", 6 << 20),
            ("1T", 1 << 40),
            ("8192K", 8 << 20),
            ("4194304B", 4 << 20),
            ("4GB", 4_000_000_000u64.next_multiple_of(GRANULE)),
        ] {
            let cap: Cap = text.parse().expect(text);
            assert_eq!(cap.bytes(0, GRANULE), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn less_than_a_granule_is_refused_in_words_that_say_what_to_write() {
        for text in ["1", "2", "1024", "2097151", "1M"] {
            let why = text.parse::<Cap>().expect(text).bytes(0, GRANULE);
            let why = why.expect_err(text);
            assert!(
                why.contains("less than one granule of the device, 2.00 MiB"),
                "{why}"
            );
            assert!(why.contains("write 4G for 4 GiB"), "{why}");
        }
        assert_eq!(
            "0.1x".parse::<Cap>().expect("a cap").bytes(1, GRANULE),
            Ok(GRANULE)
        );
    }

    #[test]
    fn a_part_of_the_peak_is_exact_and_then_rounded_up() {
        let part = |text: &str, peak| {
            let cap: Cap = text.parse().expect(text);
            cap.bytes(peak, GRANULE).expect("bytes")
        };
        assert_eq!(part("1x", 10 * GRANULE), 10 * GRANULE);
        assert_eq!(part("1.00x", 10 * GRANULE), 10 * GRANULE);
        assert_eq!(
            part("1.1x", 10 * GRANULE),
            11 * GRANULE,
            "1.1 in binary is more than 1.1"
        );
        assert_eq!(part("1.02x", 100 * GRANULE + 1), 103 * GRANULE);
        assert_eq!(part("0.5x", 3 * GRANULE), 2 * GRANULE);
        assert_eq!(part("50%", 3 * GRANULE), 2 * GRANULE);
        assert_eq!(part("102.5 %", 40 * GRANULE), 41 * GRANULE);
        assert_eq!(part(".5x", 2 * GRANULE), GRANULE);
        assert_eq!(part("1000000x", u64::MAX), u64::MAX);
    }

    #[test]
    fn anything_else_is_refused_in_words() {
        for wrong in [
            "",
            "x",
            "%",
            "G",
            "-1",
            "1.5",
            "1,5x",
            "1e3x",
            "4Gx",
            "4GiBs",
            "4 elephants",
            "99999999999999999999",
            "99999999T",
            "1.0000000001x",
        ] {
            let why = wrong.parse::<Cap>().expect_err(wrong);
            assert!(why.contains("expected a size"), "{wrong}: {why}");
        }
        assert_eq!("0".parse::<Cap>(), Err("must be more than 0".to_owned()));
        assert_eq!("0.0x".parse::<Cap>(), Err("must be more than 0".to_owned()));
    }
}
