//! Sizes as a person reads them.

/// A size in the unit that fits it, decimal as `ls --si` has it: `999 bytes`, `4.7 kB`, `8.3 GB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        1 => return "1 byte".to_owned(),
        0..1000 => return format!("{bytes} bytes"),
        _ => {}
    }
    let mut value = bytes as f64 / 1e3;
    let mut units = ["kB", "MB", "GB", "TB", "PB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    for larger in units {
        // 999.95 would be shown as 1000.0.
        if value < 999.95 {
            break;
        }
        value /= 1e3;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_unit_that_fits_it() {
        let sizes = [0, 1, 999, 4_730, 999_949, 999_950, 1_048_576, 8_281_700_000, 3_000_000_000_000, u64::MAX];

        let shown = sizes.map(size);

        let expected = [
            "0 bytes",
            "1 byte",
            "999 bytes",
            "4.7 kB",
            "999.9 kB",
            "1.0 MB",
            "1.0 MB",
            "8.3 GB",
            "3.0 TB",
            "18446.7 PB",
        ];
        assert_eq!(shown, expected);
    }
}
