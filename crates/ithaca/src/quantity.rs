//! Sizes and durations as people write them: `4k`, `64M`, `2G`; `200ms`, `5s`, `2m`. Counts and sizes as they read them.

use std::time::Duration;

use ithaca_env::limits::BLOCK_BYTES;
use thiserror::Error;

/// Why a text is no size or duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// It does not begin with digits.
    #[error("expected a whole number and a unit, such as {example}")]
    NoNumber {
        /// A text that would do.
        example: &'static str,
    },
    /// The unit is not known.
    #[error("unknown unit `{unit}`: expected {expected}")]
    Unit {
        /// What stands after the digits.
        unit: String,
        /// The units that are known.
        expected: &'static str,
    },
    /// It is smaller than a drive can be.
    #[error("a drive has 4096 bytes at least")]
    TooSmall,
    /// It is nothing.
    #[error("more than 0 is needed")]
    Nothing,
    /// It is larger than 64 bits hold.
    #[error("too large")]
    TooLarge,
}

/// A size in bytes: digits, then nothing, `k`, `M`, `G` or `T` (powers of 1024), with an optional `B` or `iB`.
pub fn size_bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text, "4k, 64M or 2G")?;
    let letter = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let shift = match letter {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(QuantityError::Unit { unit: unit.to_owned(), expected: "k, M, G or T" }),
    };
    number.checked_mul(1 << shift).ok_or(QuantityError::TooLarge)
}

/// The size of a drive, as [`size_bytes`]: a block at least, and brought to whole blocks.
pub fn drive_bytes(text: &str) -> Result<u64, QuantityError> {
    match size_bytes(text)? {
        bytes if bytes < BLOCK_BYTES as u64 => Err(QuantityError::TooSmall),
        bytes => bytes.checked_next_multiple_of(BLOCK_BYTES as u64).ok_or(QuantityError::TooLarge),
    }
}

/// A size, as [`size_bytes`], that is not 0.
pub fn some_bytes(text: &str) -> Result<u64, QuantityError> {
    size_bytes(text).and_then(|bytes| if bytes == 0 { Err(QuantityError::Nothing) } else { Ok(bytes) })
}

/// A duration: digits, then `us`, `ms`, `s`, `m` or `h`; digits alone are seconds.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let (number, unit) = split(text, "200ms or 5s")?;
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "" | "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(QuantityError::Unit { unit: unit.to_owned(), expected: "us, ms, s, m or h" }),
    };
    number.checked_mul(unit_us).map(Duration::from_micros).ok_or(QuantityError::TooLarge)
}

/// A count or a rate, below 1000 T in at most five characters: `0`, `2.5`, `812`, `12.3k`, `4.0M`. The letters are powers of 1000.
pub fn short_count(value: f64) -> String {
    short(value, 1000.0, &["", "k", "M", "G", "T"])
}

/// Bytes in at most five characters: `512B`, `64.0K`, `2.0G`. The letters are powers of 1024.
pub fn short_bytes(bytes: u64) -> String {
    short(bytes as f64, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

fn short(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // What would be rounded up to a step is shown as one of the next unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    // Two digits before the point and one after it, or three before it; bytes and what is whole have no parts.
    let is_whole = unit == 0 && (value.fract() == 0.0 || units[0] == "B");
    let digits = if is_whole || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$}{}", units[unit])
}

fn split<'a>(text: &'a str, example: &'static str) -> Result<(u64, &'a str), QuantityError> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    if digits == 0 {
        return Err(QuantityError::NoNumber { example });
    }
    let number = text[..digits].parse().map_err(|_| QuantityError::TooLarge)?;
    Ok((number, text[digits..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("512", 512), ("4k", 4096), ("64M", 64 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_drive_has_whole_blocks_and_one_at_least() {
        assert_eq!((drive_bytes("4k"), drive_bytes("4097")), (Ok(4096), Ok(8192)));
        assert_eq!(
            (drive_bytes("0"), drive_bytes("4095")),
            (Err(QuantityError::TooSmall), Err(QuantityError::TooSmall))
        );
        assert_eq!(drive_bytes(&u64::MAX.to_string()), Err(QuantityError::TooLarge));
    }

    #[test]
    fn what_is_shown_is_short_at_every_size_and_never_a_thousand_of_a_unit() {
        for (value, shown) in [
            (0.0, "0"),
            (2.5, "2.5"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (999_600.0, "1.0M"),
            (1e18, "1000000T"),
        ] {
            assert_eq!(short_count(value), shown, "{value}");
        }
        for (bytes, shown) in
            [(0, "0B"), (1023, "1023B"), (1024, "1.0K"), (64 << 20, "64.0M"), (u64::MAX, "16.0E")]
        {
            assert_eq!(short_bytes(bytes), shown, "{bytes}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_in_seconds() {
        for (text, ms) in [("200ms", 200), ("5s", 5000), ("5", 5000), ("2m", 120_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_what_would_do() {
        assert_eq!(size_bytes("-4k"), Err(QuantityError::NoNumber { example: "4k, 64M or 2G" }));
        assert!(matches!(size_bytes("4q"), Err(QuantityError::Unit { .. })));
        assert_eq!(size_bytes("99999999999T"), Err(QuantityError::TooLarge));
        assert!(matches!(duration("5 parsecs"), Err(QuantityError::Unit { .. })));
    }
}
