//! Imports run one way: a module names only modules to its right.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What each module may name, beside itself and `platform`.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("platform", vec![]),
        ("document", vec![]),
        ("source", vec!["document"]),
        ("catalog", vec!["document", "source"]),
        ("content", vec!["document", "source"]),
        ("fs", vec!["document", "source", "catalog", "content"]),
        ("sync", vec!["document", "source", "catalog", "content"]),
        ("control", vec!["document", "source", "catalog", "content"]),
        ("mount", vec!["document", "source", "catalog", "content", "control", "fs", "sync"]),
        ("cli", vec!["document", "source", "catalog", "content", "control", "fs", "sync", "mount"]),
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

/// A longer name cannot be read in a list of results.
#[test]
fn a_test_has_a_name_of_at_most_60_characters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    rust_files(&root.join("tests"), &mut files);

    let mut long = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for attribute in ["#[test]", "#[tokio::test"] {
            let names = text.split(attribute).skip(1).filter_map(|after| after.split("fn ").nth(1)?.split('(').next());
            long.extend(names.filter(|name| name.len() > 60).map(|name| format!("{}: {name}", file.display())));
        }
    }

    assert!(long.is_empty(), "{}", long.join("\n"));
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
                let is_free = name == module || name == "platform";
                if allowed.contains_key(name.as_str()) && !is_free && !may_name.contains(&name.as_str()) {
                    breaches.push(format!("src/{}:{}: {}", below.display(), number + 1, line.trim()));
                }
            }
        }
    }

    assert!(breaches.is_empty(), "imports against the current:\n{}", breaches.join("\n"));
}

/// A file of `src` as a path of module names, `["content", "store", "key"]`; `mod.rs` is its folder.
type Module = Vec<String>;

/// The code of each module, without comments and inline tests. Files of tests are left out.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut files = Vec::new();
    rust_files(source, &mut files);
    let mut modules = BTreeMap::new();
    for file in files {
        let below = file.strip_prefix(source).unwrap().with_extension("");
        let mut module: Module = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|name| name == "mod") {
            module.pop();
        }
        if module.iter().any(|name| name == "tests") || module == ["lib"] || module == ["main"] {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
        modules.insert(module, lines.collect::<Vec<_>>().join("\n"));
    }
    modules
}

/// Every path of the `use` trees and of the inline `crate::` and `super::` paths in `code`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_of_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    for marker in ["crate::", "super::"] {
        for (start, _) in code.match_indices(marker) {
            if code[..start].ends_with(is_of_path) {
                continue;
            }
            let rest = &code[start..];
            let end = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
            found.push(rest[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
        }
    }
    for statement in code.split("use ").skip(1) {
        if let Some(tree) = statement.split(';').next() {
            expand(&[], tree, &mut found);
        }
    }
    found
}

/// The paths of a `use` tree below `prefix`.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in tree.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.iter_mut().last().unwrap().push(c),
        }
    }
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        let (head, group) = part.split_once('{').map_or((part, None), |(head, group)| (head, Some(group)));
        let names = head.split(" as ").next().unwrap_or_default().split("::");
        let names = names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let path: Vec<String> = prefix.iter().cloned().chain(names).collect();
        match group {
            Some(group) => expand(&path, group.trim_end().trim_end_matches('}'), found),
            None => found.push(path),
        }
    }
}

/// The module that `path`, written in `from`, belongs to.
fn resolved(from: &Module, path: &[String], modules: &BTreeMap<Module, String>) -> Option<Module> {
    let first = path.first()?;
    let mut full: Module = match first.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => from.iter().chain(&path[1..]).cloned().collect(),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            from.get(..from.len().checked_sub(up)?)?.iter().chain(&path[up..]).cloned().collect()
        }
        _ => {
            let child: Module = from.iter().chain([first]).cloned().collect();
            modules.contains_key(&child).then(|| from.iter().chain(path).cloned().collect())?
        }
    };
    while !full.is_empty() && !modules.contains_key(&full) {
        full.pop();
    }
    (!full.is_empty()).then_some(full)
}

/// All that can be reached from `start` over one import or more.
fn reached(start: &Module, edges: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
    while let Some(module) = open.pop() {
        for next in edges.get(&module).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

/// The import circles: the strongly connected components of two files or more.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Vec<String>> {
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|module| (module, reached(module, edges))).collect();
    let in_circles = edges.keys().filter(|module| reach[module].contains(*module));
    in_circles
        .map(|module| {
            let others =
                reach[module].iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(module)));
            others.map(|other| other.join("::")).collect()
        })
        .collect()
}

/// The import of an enclosing module is that of the folder's own face and makes no circle.
#[test]
fn no_files_import_each_other() {
    let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let edges: BTreeMap<Module, BTreeSet<Module>> = modules
        .iter()
        .map(|(module, code)| {
            let named = paths(code).into_iter().filter_map(|path| resolved(module, &path, &modules));
            (module.clone(), named.filter(|named| !module.starts_with(named)).collect())
        })
        .collect();
    assert!(edges.values().map(BTreeSet::len).sum::<usize>() > 500, "the imports were not found");

    let circles = circles(&edges);

    assert!(circles.is_empty(), "files that import each other, over others or at once: {circles:#?}");
}
