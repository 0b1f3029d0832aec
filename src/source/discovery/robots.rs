//! `Sitemap:` lines of robots.txt (section 6.3.4).

use std::collections::HashSet;

/// The values of the `Sitemap:` lines, in file order, without repetitions, up to `most` of them.
///
/// The field name may be in any letter case, written `Site-map`, and have blanks around it; a `#` that follows a blank begins a comment.
/// The lines belong to no `User-agent` group, so the groups do not matter.
pub(super) fn sitemaps(robots: &str, most: usize) -> Vec<&str> {
    let (mut values, mut seen) = (Vec::new(), HashSet::new());
    for line in robots.trim_start_matches('\u{feff}').split(['\n', '\r']) {
        let Some((field, value)) = line.split_once(':') else { continue };
        if !["sitemap", "site-map"].iter().any(|name| field.trim().eq_ignore_ascii_case(name)) {
            continue;
        }
        let value = value.trim();
        let comment = value.find([' ', '\t']).filter(|at| value[*at..].trim_start().starts_with('#'));
        let value = comment.map_or(value, |at| &value[..at]);
        if !value.is_empty() && !value.starts_with('#') && seen.insert(value) {
            values.push(value);
        }
        if values.len() >= most {
            break;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_any_case_and_among_others() {
        let robots = "\u{feff}User-agent: *\r\nDisallow: /tmp/\r\nSITEMAP: http://a/1.xml\rsitemap : http://a/2.xml # two\n\
            Sitemap:\nSitemap: # none\n#Sitemap: http://a/3.xml\n  Sitemap:\thttp://a/x#y.xml\nSite-map: http://a/1.xml\nno colon";
        assert_eq!(sitemaps(robots, 2), ["http://a/1.xml", "http://a/2.xml"]);
        assert_eq!(sitemaps(robots, 9), ["http://a/1.xml", "http://a/2.xml", "http://a/x#y.xml"]);
    }

    #[test]
    fn very_many_lines_are_read_in_one_pass() {
        let robots: String = (0..200_000).map(|number| format!("Sitemap:{number}\n")).collect();
        assert_eq!(sitemaps(&robots, usize::MAX).len(), 200_000);
    }
}
