//! README says what is so: each promise names tests that exist, each option stands in its table.

use resyncfs::cli::options::TABLE;
use std::fs;
use std::path::Path;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// Every `NAME` between backquotes of `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The text between a heading and the next of its kind.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let begin = readme.find(heading).unwrap_or_else(|| panic!("no section {heading:?}"));
    let rest = &readme[begin + heading.len()..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

#[test]
fn each_promise_names_tests_that_exist() {
    let readme = readme();
    let promises: Vec<_> =
        section(&readme, "## What you can rely on").split("\n\n").filter(|text| text.starts_with("**")).collect();
    assert_eq!(promises.len(), 5);

    for promise in promises {
        let named: Vec<_> = quoted(promise).filter_map(|name| name.strip_prefix("tests/")?.split_once(": ")).collect();
        assert!(!named.is_empty(), "no test carries: {promise}");
        for (file, tests) in named {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
            let source = fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
            for test in tests.split(',').map(str::trim) {
                assert!(source.contains(&format!("fn {test}()")), "{file} has no test {test}");
            }
        }
    }
}

#[test]
fn each_option_stands_in_the_table() {
    let readme = readme();
    let options = section(&readme, "## Options").replace("\\|", "|");
    let missing: Vec<_> = TABLE
        .iter()
        .filter(|spec| !quoted(&options).any(|name| name.split('=').next() == Some(spec.name)))
        .map(|spec| spec.name)
        .collect();

    assert!(missing.is_empty(), "README does not tell of: {missing:?}");
}
