//! Patterns of `include=` and `exclude=` over paths of the tree.

use globset::{GlobBuilder, GlobSet};

/// Patterns of one option; a path matches where one of them matches it or a folder above it.
///
/// `*` and `?` stay within a name, `**` crosses folders, `{a,b}` and `[a-z]` are choices, `\` escapes. A pattern without `/`
/// (but at its end) is a name at any depth; any other begins at the root. One that ends in `/` is a folder alone.
/// The path is the one that [`crate::catalog::Naming::path`] gives: `a` matches the file `a` also where it is shown as `a%file`.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    /// The patterns as written, in the order given.
    patterns: Vec<Box<str>>,
    compiled: GlobSet,
}

/// A pattern that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a pattern such as *.pdf or docs/**")]
pub struct GlobError {
    pattern: Box<str>,
    #[source]
    cause: Option<globset::Error>,
}

impl Globs {
    /// Adds one pattern.
    ///
    /// # Errors
    /// A pattern that is empty or cannot be understood.
    pub fn add(&mut self, pattern: &str) -> Result<(), GlobError> {
        let failed = |cause| GlobError { pattern: pattern.into(), cause };
        if pattern.trim_matches('/').is_empty() {
            return Err(failed(None));
        }
        let mut patterns = self.patterns.clone();
        patterns.push(pattern.into());
        self.compiled = compile(&patterns).map_err(|cause| failed(Some(cause)))?;
        self.patterns = patterns;
        Ok(())
    }

    /// True if there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// True if one of the patterns matches `path` or a folder above it.
    pub fn matches(&self, path: &str) -> bool {
        self.compiled.is_match(path)
    }

    /// The patterns as written, in the order given.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(|pattern| &**pattern)
    }
}

fn compile(patterns: &[Box<str>]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSet::builder();
    let mut add = |glob: &str| {
        // A path is always UTF-8. An empty alternative is `{a,}`: a name with or without an ending.
        set.add(GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).empty_alternates(true).build()?);
        Ok(())
    };
    for pattern in patterns {
        let (name, folder_alone) = match pattern.strip_suffix('/') {
            Some(folder) => (folder, true),
            None => (&**pattern, false),
        };
        let from_root = if name.contains('/') { name.trim_start_matches('/').to_owned() } else { format!("**/{name}") };
        if !folder_alone {
            add(&from_root)?;
        }
        if !from_root.ends_with("/**") && from_root != "**" {
            add(&format!("{from_root}/**"))?;
        }
    }
    set.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let mut globs = Globs::default();
        globs.add(pattern).unwrap();
        globs.matches(path)
    }

    #[test]
    fn a_pattern_without_slash_is_a_name_at_any_depth() {
        for (pattern, path, matched) in [
            ("*.pdf", "a.pdf", true),
            ("*.pdf", "x/y/a.pdf", true),
            ("*.pdf", "a.pdf.txt", false),
            ("*.pdf", "x.pdf/below", true),
            ("tmp", "a/tmp/b", true),
            ("tmp", "a/tmp", true),
            ("tmp/", "a/tmp/b", true),
            ("tmp/", "a/tmp", false),
            ("**", "a/b", true),
            ("{a,b}.txt", "x/b.txt", true),
            ("[ab]?", "x/bc", true),
            (r"\*", "x/*", true),
            (r"\*", "x/a", false),
        ] {
            assert_eq!(matches(pattern, path), matched, "{pattern} {path}");
        }
    }

    #[test]
    fn a_pattern_with_slash_begins_at_the_root() {
        for (pattern, path, matched) in [
            ("docs/*.pdf", "docs/a.pdf", true),
            ("docs/*.pdf", "docs/x/a.pdf", false),
            ("docs/*.pdf", "x/docs/a.pdf", false),
            ("docs/**/*.pdf", "docs/x/y/a.pdf", true),
            ("docs/**/*.pdf", "docs/a.pdf", true),
            ("docs/**", "docs/x/y", true),
            ("/a", "a", true),
            ("/a", "x/a", false),
            ("/a", "a/b/c", true),
            ("**/docs/*", "x/docs/a", true),
            ("%host/*/a", "%host/h:8080/a", true),
        ] {
            assert_eq!(matches(pattern, path), matched, "{pattern} {path}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_and_leaves_the_others() {
        let mut globs = Globs::default();
        globs.add("a").unwrap();

        for refused in ["", "/", "[", "{a", "a{b{c}}}"] {
            assert!(globs.add(refused).is_err(), "{refused}");
        }

        assert_eq!(globs.patterns().collect::<Vec<_>>(), ["a"]);
        assert!(globs.matches("a"));
    }
}
