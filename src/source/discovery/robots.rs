//! `Sitemap:` lines of robots.txt (section 6.3.4), and how fast it lets this program ask.

use std::collections::HashSet;
use std::time::Duration;

/// The values of the `Sitemap:` lines, in file order, without repetitions.
///
/// The field name may be in any letter case, written `Site-map`, and have blanks around it; a `#` that follows a blank begins a comment.
/// The lines belong to no `User-agent` group, so the groups do not matter.
pub(super) fn sitemaps(robots: &str) -> Vec<&str> {
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
    }
    values
}

/// The longest `Crawl-delay:` of the groups for this program, else of those for all.
pub(super) fn crawl_delay(robots: &str) -> Option<Duration> {
    let (mut own, mut all) = (None, None);
    let (mut is_own, mut is_all, mut are_agents) = (false, false, false);
    for line in robots.trim_start_matches('\u{feff}').split(['\n', '\r']) {
        let line = line.split('#').next().unwrap_or_default();
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match field.trim().to_ascii_lowercase().as_str() {
            "user-agent" => {
                if !are_agents {
                    (is_own, is_all) = (false, false);
                }
                are_agents = true;
                is_own |= value.eq_ignore_ascii_case("resyncfs");
                is_all |= value == "*";
            }
            field => {
                are_agents = false;
                let delay = value.parse().ok().filter(|_| field == "crawl-delay");
                let delay = delay.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                own = own.max(delay.filter(|_| is_own));
                all = all.max(delay.filter(|_| is_all));
            }
        }
    }
    own.or(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_of_this_program_counts_else_that_of_all() {
        let table = [
            ("User-agent: *\nDisallow: /x\nCrawl-delay: 2.5 # slowly\n", Some(2500)),
            ("User-agent: other\nCrawl-delay: 9\n\nUser-Agent: *\nUser-agent: third\ncrawl-delay : 3", Some(3000)),
            ("User-agent: ReSyncFS\nCrawl-delay: 1\nUser-agent: *\nCrawl-delay: 30", Some(1000)),
            ("User-agent: other\nCrawl-delay: 9", None),
            ("User-agent: *\nCrawl-delay: soon\nCrawl-delay: -1\nCrawl-delay: NaN", None),
            ("Crawl-delay: 7", None),
        ];
        for (robots, expected) in table {
            assert_eq!(crawl_delay(robots), expected.map(Duration::from_millis), "{robots:?}");
        }
    }

    #[test]
    fn lines_are_found_in_any_case_and_among_others() {
        let robots = "\u{feff}User-agent: *\r\nDisallow: /tmp/\r\nSITEMAP: http://a/1.xml\rsitemap : http://a/2.xml # two\n\
            Sitemap:\nSitemap: # none\n#Sitemap: http://a/3.xml\n  Sitemap:\thttp://a/x#y.xml\nSite-map: http://a/1.xml\nno colon";
        assert_eq!(sitemaps(robots), ["http://a/1.xml", "http://a/2.xml", "http://a/x#y.xml"]);
    }

    #[test]
    fn very_many_lines_are_read_in_one_pass() {
        let robots: String = (0..200_000).map(|number| format!("Sitemap:{number}\n")).collect();
        assert_eq!(sitemaps(&robots).len(), 200_000);
    }
}
