//! Imports run one way: a module names only modules to its right.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What each module may name, beside itself.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("causes", vec![]),
        ("inodes", vec![]),
        ("memory", vec![]),
        ("room", vec![]),
        ("priority", vec![]),
        ("document", vec![]),
        ("lmdb", vec![]),
        ("source", vec!["document", "memory", "room"]),
        ("catalog", vec!["document", "source", "lmdb", "inodes", "memory", "room"]),
        ("content", vec!["document", "source", "lmdb", "inodes", "memory"]),
        ("fs", vec!["document", "source", "catalog", "content", "inodes", "priority"]),
        ("sync", vec!["document", "source", "catalog", "content", "memory", "room", "priority"]),
        ("control", vec!["document", "source", "catalog", "content"]),
        (
            "mount",
            vec!["document", "source", "catalog", "content", "control", "fs", "sync", "memory", "room", "priority"],
        ),
        ("cli", vec!["document", "source", "catalog", "content", "control", "fs", "sync", "mount", "room"]),
        ("main", vec!["cli"]),
    ])
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules that a line names: `crate::NAME` (`resyncfs::NAME` in main.rs).
fn named(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let mut names = Vec::new();
    for marker in ["crate::", "resyncfs::"] {
        for rest in code.split(marker).skip(1) {
            let items = rest.strip_prefix('{').map_or(vec![rest], |group| group.split(',').collect());
            names.extend(items.iter().map(|item| {
                item.trim().chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>()
            }));
        }
    }
    names
}

#[test]
fn a_module_names_only_modules_to_its_right() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let allowed = allowed();
    let mut files = Vec::new();
    rust_files(&source, &mut files);
    assert!(files.len() > 20, "the walk found only {} files", files.len());

    let mut breaches = Vec::new();
    for file in files {
        let below = file.strip_prefix(&source).unwrap();
        let module = below.components().next().unwrap().as_os_str().to_string_lossy();
        let module = module.trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let may_name =
            allowed.get(module.as_str()).unwrap_or_else(|| panic!("no room is known for src/{}", below.display()));
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            for name in named(line) {
                let is_free = name == module || name == "causes";
                if allowed.contains_key(name.as_str()) && !is_free && !may_name.contains(&name.as_str()) {
                    breaches.push(format!("src/{}:{}: {}", below.display(), number + 1, line.trim()));
                }
            }
        }
    }

    assert!(breaches.is_empty(), "imports against the current:\n{}", breaches.join("\n"));
}
