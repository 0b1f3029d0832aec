//! What the table says of an option beyond its own line: how it is found, what kind of value it takes, where help puts it.

use super::table::{OptionSpec, TABLE};

/// What stands behind an option's name; by the word that the table has for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: named it is on. `true` or `false` in a file.
    Switch,
    /// `NUMBER`, `PERCENT`
    Number,
    /// `SIZE`: octets, or with a unit.
    Size,
    /// `TIME`: seconds, or with a unit.
    Time,
    /// `OCTAL`
    Octal,
    /// `DATETIME`
    DateTime,
    /// `FILE`, `DIR`
    Path,
    /// Anything else.
    Text,
}

/// The options that may be given several times: each adds to what the others say.
const REPEATABLE: &[&str] =
    &["map", "rewrite", "allow-host", "include", "exclude", "type", "collection", "conforms", "deny"];

/// Other names. mount(8) keeps `exec` for itself and passes nothing on, so that a mount helper never sees it.
const ALIASES: &[(&str, &str)] = &[("allow-exec", "exec")];

/// Under which heading options stand: from this option of the table to the next that is named here.
const HEADINGS: &[(&str, &str)] = &[
    ("set", "What is mounted"),
    ("cache", "The cache"),
    ("fixity", "Trust and freshness"),
    ("timeout", "The network"),
    ("netrc", "Credentials and certificates"),
    ("max-document", "Bounds on what a list may ask of this machine"),
    ("uid", "How it is shown"),
    ("log", "The program"),
];

impl OptionSpec {
    /// The option of this name; `_` and `-` are the same.
    pub fn find(name: &str) -> Option<&'static OptionSpec> {
        let plain = name.replace('_', "-");
        let plain = ALIASES.iter().find(|(alias, _)| *alias == plain).map_or(plain.as_str(), |(_, meant)| meant);
        TABLE.iter().find(|spec| spec.flag() == plain)
    }

    /// The option that a mistyped name is nearest to, where it is near at all.
    pub fn nearest(name: &str) -> Option<&'static str> {
        nearest(name, TABLE.iter().map(|spec| spec.name))
    }

    /// Its long flag, without the two dashes.
    pub fn flag(&self) -> &'static str {
        match self.name {
            "allow_other" => "allow-other",
            name => name,
        }
    }

    /// What its value is.
    pub fn kind(&self) -> Kind {
        match self.value {
            "" => Kind::Switch,
            "NUMBER" | "PERCENT" => Kind::Number,
            "SIZE" => Kind::Size,
            "TIME" | "TIME|never" => Kind::Time,
            "OCTAL" => Kind::Octal,
            "DATETIME" => Kind::DateTime,
            "FILE" | "DIR" => Kind::Path,
            _ => Kind::Text,
        }
    }

    /// Whether it may be given several times.
    pub fn is_repeatable(&self) -> bool {
        REPEATABLE.contains(&self.name)
    }

    /// The heading it stands under in help and in the example configuration.
    pub fn heading(&self) -> &'static str {
        let mut heading = "Options";
        for spec in TABLE {
            heading = HEADINGS.iter().find(|(first, _)| *first == spec.name).map_or(heading, |(_, text)| text);
            if spec.name == self.name {
                break;
            }
        }
        heading
    }

    /// A value that it takes; empty for a switch.
    pub fn example(&self) -> &'static str {
        match self.value {
            "NUMBER" => "16",
            "PERCENT" => "20",
            "SIZE" => "2G",
            "TIME" | "TIME|never" => "15m",
            "OCTAL" => "027",
            "DATETIME" => "2024-05-01T10:00:00Z",
            "FILE" => "/etc/resyncfs/example.secret",
            "DIR" => "/srv/cache",
            "GLOB" => "docs/**",
            "TYPE" => "application/pdf",
            "HOST[:PORT]" => "files.example.org:8080",
            "HOST:PORT" => "127.0.0.1:8090",
            "URI" | "URL" => "https://repo.example.org/name",
            "URI_PREFIX=PATH" => "https://repo.example.org/long/way/=short",
            "FROM=TO" => "http://localhost:8080/=https://repo.example.org/",
            choices => choices.rsplit('|').next().unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for OptionSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The one of `known` that a mistyped name is nearest to, where it is near at all.
pub fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    known
        .map(|known| (distance(name, known), known))
        .min()
        .filter(|(distance, near)| *distance <= near.len().max(name.len()) / 3 + 1)
        .map(|(_, near)| near)
}

/// Levenshtein's distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn an_example_is_a_value_that_the_option_takes() {
        for spec in TABLE {
            if let Err(refused) = (spec.set)(&mut Options::default(), spec.example()) {
                panic!("{}={}: {refused}", spec.name, spec.example());
            }
        }
    }

    #[test]
    fn an_option_is_repeatable_where_a_second_value_leaves_the_first() {
        for spec in TABLE.iter().filter(|spec| spec.kind() != Kind::Switch) {
            let given = |times| {
                let mut options = Options::default();
                (0..times).for_each(|_| (spec.set)(&mut options, spec.example()).unwrap());
                format!("{options:?}")
            };

            assert_eq!(spec.is_repeatable(), given(1) != given(2), "{}", spec.name);
        }
    }

    #[test]
    fn each_option_has_a_heading_and_each_heading_an_option() {
        for (first, text) in HEADINGS {
            assert_eq!(OptionSpec::find(first).map(OptionSpec::heading), Some(*text));
        }
        assert_eq!(TABLE.iter().find(|spec| spec.heading() == "Options").map(|spec| spec.name), None);
        assert_eq!(TABLE.iter().find(|spec| spec.flag().contains('_')).map(|spec| spec.name), None);
    }

    #[test]
    fn an_option_is_found_by_its_other_spellings() {
        for (name, meant) in
            [("cache_size", "cache-size"), ("allow-other", "allow_other"), ("allow_exec", "exec"), ("log", "log")]
        {
            assert_eq!(OptionSpec::find(name).map(|spec| spec.name), Some(meant));
        }
        assert!(OptionSpec::find("").is_none());
    }
}
