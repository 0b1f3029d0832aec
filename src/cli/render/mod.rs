//! How numbers, sizes and times are shown to a person. JSON keeps bytes and RFC 3339.

mod printable;
mod times;

pub use crate::platform::units::size;
pub use printable::{printable, printable_value};
pub use times::{Clock, show_utc};

use std::time::Duration;

/// `1 file`, `12,345 files`.
pub fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// A duration in the largest unit that is exact enough: `90 ms`, `119 s`, `3 min`, `5 h`, `4 days`.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_unit_that_fits_it() {
        let shown = [0.09, 1.5, 119.0, 120.0, 7200.0, 172_800.0].map(|it| duration(Duration::from_secs_f64(it)));

        assert_eq!(shown, ["90 ms", "1 s", "119 s", "2 min", "2 h", "2 days"]);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 654_832].map(thousands), ["0", "999", "1,000", "654,832"]);
    }
}
