//! Sizes as a person reads them.

/// A size in the unit that fits it, decimal as `ls --si` has it: `999 bytes`, `4.7 kB`, `8.3 GB`.
pub fn size(bytes: u64) -> String {
    let units =
        [(3, "kB"), (6, "MB"), (9, "GB"), (12, "TB"), (15, "PB")].map(|(power, name)| (10_u64.pow(power), name));
    // 999.95 kB would be shown as 1000.0 kB.
    let fits = |(unit, _): &(u64, &str)| bytes >= unit - unit / 20_000;
    match units.into_iter().rfind(fits) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
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
