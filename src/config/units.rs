//! Sizes and durations as people write them.

use core::time::Duration;

const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// The number of bytes that `text` names: `0x` hexadecimal, or decimal with an optional K, M, G or T
/// (powers of 1024; "KiB" and "KB" mean the same as "K").
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let number = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|&(suffix, shift)| Some((number.strip_suffix(suffix)?, shift)))
        .unwrap_or((number, 0));
    let digits = digits.trim_end();
    if digits.starts_with('+') {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The shortest way to write `bytes` that `parse_size` reads back.
pub fn format_size(bytes: u64) -> String {
    SUFFIXES
        .iter()
        .find(|&&(_, shift)| bytes != 0 && bytes.trailing_zeros() >= shift)
        .map_or_else(|| bytes.to_string(), |&(suffix, shift)| format!("{}{suffix}", bytes >> shift))
}

/// The duration that `text` names, for example "500ms", "2s" or "50us".
pub fn parse_duration(text: &str) -> Option<Duration> {
    // "0" alone means the same in every unit.
    if text.trim() == "0" { Some(Duration::ZERO) } else { humantime::parse_duration(text).ok() }
}

/// `duration` as [`parse_duration`] reads it back.
pub fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4K", Some(4096)),
            ("4 KiB", Some(4096)),
            ("256M", Some(256 << 20)),
            ("256MB", Some(256 << 20)),
            ("1G", Some(1 << 30)),
            ("16T", Some(16 << 40)),
            ("0x1B", Some(27)),
            ("12B", Some(12)),
            ("16777216T", None),
            ("", None),
            ("M", None),
            ("-1", None),
            ("+1", None),
            ("1.5G", None),
            ("1X", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn sizes_survive_being_written() {
        for bytes in [0, 1, 4096, 4097, 256 << 20, 3 << 30, 1 << 48, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }
        assert_eq!(format_size(256 << 20), "256M");
    }

    #[test]
    fn durations_survive_being_written() {
        for (text, nanos) in [("500ms", 500_000_000), ("2s", 2_000_000_000), ("50us", 50_000), ("0s", 0)] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration.as_nanos(), nanos);
            assert_eq!(format_duration(duration), text);
        }
        assert_eq!(parse_duration("0"), Some(Duration::ZERO));
        assert_eq!(parse_duration("fast"), None);
        assert_eq!(parse_duration("-1s"), None);
    }
}
