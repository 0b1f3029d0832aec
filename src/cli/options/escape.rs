//! How values stand in the text of `-o`, as mount(8) and fstab(5) write it.

/// What fstab(5) writes as an octal number: blank, tab, newline, `#`, comma, backslash.
const OCTAL: &[(&str, char)] = &[("040", ' '), ("011", '\t'), ("012", '\n'), ("043", '#'), ("054", ','), ("134", '\\')];

/// Splits at commas. `\,`, `\\` and fstab's octal numbers stand for themselves; so does everything within a value that is
/// wholly in double quotes.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            ',' => parts.push(std::mem::take(&mut part)),
            '"' if part.ends_with('=') && part.matches('=').count() == 1 => {
                let (quoted, after) = rest.split_once('"').ok_or("a quote is not closed")?;
                part.push_str(quoted);
                rest = after;
            }
            '\\' => match OCTAL.iter().find(|(digits, _)| rest.starts_with(digits)) {
                Some((digits, meant)) => {
                    part.push(*meant);
                    rest = &rest[digits.len()..];
                }
                None if rest.starts_with([',', '\\']) => {
                    part.push_str(&rest[..1]);
                    rest = &rest[1..];
                }
                None => part.push('\\'),
            },
            _ => part.push(character),
        }
    }
    parts.push(part);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_blanks_and_quotes_are_read_as_mount_8_and_fstab_write_them() {
        for (text, parts) in [
            ("", vec![""]),
            ("a,b=1,", vec!["a", "b=1", ""]),
            (r"m=x\,y,z", vec!["m=x,y", "z"]),
            (r"m=x\054y\040z\134\043", vec![r"m=x,y z\#"]),
            (r"m=\\,n=\\054", vec![r"m=\", r"n=\054"]),
            (r"m=\[a\]\", vec![r"m=\[a\]\"]),
            (r#"context="u:r:t:s0:c1,c2",ro"#, vec!["context=u:r:t:s0:c1,c2", "ro"]),
            (r#"m=a"b,c"d"#, vec![r#"m=a"b"#, r#"c"d"#]),
            ("m=ä ö,ü", vec!["m=ä ö", "ü"]),
        ] {
            assert_eq!(split(text).unwrap(), parts, "{text}");
        }
        assert!(split(r#"context="u:r"#).is_err());
    }
}
