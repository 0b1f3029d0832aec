//! From addresses to paths and back, by command.

mod common;

use common::mounted::{Mounted, PROGRAM, run, stderr, stdout};
use common::source::{Resource, Source};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn path(mount: &Path, options: &[&str], uris: &[&str]) -> Output {
    run(&[&["path", "--in", mount.to_str().unwrap()][..], options, uris].concat())
}

fn uri(paths: &[PathBuf]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("uri").args(paths).output().unwrap()
}

#[test]
fn every_address_leads_to_its_path_and_back() {
    let source = Source::start();
    let names = ["plain", "a%20b/c", "d/", "both", "both/below", "q?x=1/2", "a//b", "caf%C3%A9", "s%2Fl", "moved/x/y"];
    for name in names {
        source.put(name, Resource::new(name));
    }
    let long = "l".repeat(300);
    source.put(&long, Resource::new("long"));
    let from = format!("{}moved/", source.url());
    let mounted = Mounted::new(&source.url(), &format!("poll=1h,map={from}=elsewhere"));
    let uris: Vec<String> =
        names.iter().chain([&long.as_str()]).map(|name| format!("{}{name}", source.url())).collect();

    let located = path(&mounted.path(), &[], &uris.iter().map(String::as_str).collect::<Vec<_>>());

    assert!(located.status.success(), "{}", stderr(&located));
    let paths: Vec<PathBuf> = stdout(&located).lines().map(PathBuf::from).collect();
    assert_eq!(paths.len(), uris.len());
    for expected in ["plain", "a b/c", "d/%index", "both%file", "both/below", "a/%/b", "café", "s%2Fl", "elsewhere/x/y"]
    {
        assert!(paths.contains(&mounted.join(expected)), "{expected} in {paths:?}");
    }
    assert!(paths.iter().all(|path| path.is_file()));
    let identified = uri(&paths);
    assert!(identified.status.success(), "{}", stderr(&identified));
    assert_eq!(stdout(&identified).lines().collect::<Vec<_>>(), uris);
}

#[test]
fn a_folder_has_the_address_below_which_its_files_lie() {
    let source = Source::start();
    source.put("a%20b/c/d", Resource::new("d"));
    let mounted = Mounted::new(&source.url(), "poll=1h");

    let folders = uri(&[mounted.path(), mounted.join("a b"), mounted.join("a b/c/../c/")]);
    let absent = uri(&[mounted.join("a b/none/x")]);
    let back = path(&mounted.path(), &[], &[&source.url(), &format!("{}a%20b/c/", source.url())]);

    let url = source.url();
    assert_eq!(stdout(&folders), format!("{url}\n{url}a%20b/\n{url}a%20b/c/\n"), "{}", stderr(&folders));
    let shown = [mounted.path(), mounted.join("a b/c")].map(|it| it.display().to_string());
    assert_eq!(
        stdout(&back).lines().map(|it| it.trim_end_matches('/')).collect::<Vec<_>>(),
        shown,
        "{}",
        stderr(&back)
    );
    assert_eq!(absent.status.code(), Some(1));
    let by_name = format!("is not in the mount; by its name it would be {url}a%20b/none/x\n");
    assert!(stderr(&absent).ends_with(&by_name), "{}", stderr(&absent));
}

#[test]
fn the_option_that_leaves_a_resource_out_is_named() {
    let source = Source::start();
    let typed = |text: &str, media_type: &str| {
        let resource = Resource::new(text);
        Resource { md: format!("{} type=\"{media_type}\"", resource.md), ..resource }
    };
    source.put("docs/a.txt", typed("a", "text/plain"));
    source.put("docs/b.txt", typed("b", "text/html"));
    source.put("docs/c.tmp", typed("c", "text/plain"));
    source.put("other/d.txt", typed("d", "text/plain"));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,include=docs/,exclude=*.tmp,type=text/plain");
    let of = |name: &str| format!("{}{name}", source.url());
    let why = |options: &[&str], name: &str| {
        let output = path(&mounted.path(), options, &[&of(name)]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()), "{name}");
        stderr(&output)
    };

    assert!(path(&mounted.path(), &[], &[&of("docs/a.txt")]).status.success());
    assert!(why(&[], "docs/c.tmp").contains("left out by exclude=*.tmp"));
    assert!(why(&[], "other/d.txt").contains("left out by include=docs/"));
    assert!(why(&[], "docs/b.txt").contains("does not list it, or it is left out by type=text/plain; --ask"));
    assert!(why(&["--ask"], "docs/b.txt").contains("left out by type=text/plain (it would be docs/b.txt)"));
    assert!(why(&["--ask"], "docs/none").contains("the Source does not list it"));
    source.put("docs/new.txt", typed("new", "text/plain"));
    assert!(why(&["--ask"], "docs/new.txt").contains("resyncfs refresh"));
    let relative = path(&mounted.path(), &[], &["docs/a.txt"]);
    assert_eq!(relative.status.code(), Some(2));
    assert!(stderr(&relative).contains("is not an address such as"), "{}", stderr(&relative));
    let address = run(&["uri", &of("docs/b.txt")]);
    assert!(stderr(&address).contains("for its path, use: resyncfs path http"), "{}", stderr(&address));

    let json = path(&mounted.path(), &["--json"], &[&of("docs/a.txt"), &of("docs/c.tmp")]);
    let lines: Vec<serde_json::Value> = stdout(&json).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json.status.code(), Some(1));
    assert_eq!(lines[0]["path"], mounted.join("docs/a.txt").to_str().unwrap());
    assert_eq!((&lines[1]["path"], &lines[1]["hidden_by"][0]), (&serde_json::Value::Null, &"exclude=*.tmp".into()));
}

#[test]
fn without_a_folder_all_mounts_are_looked_through() {
    let source = Source::start();
    source.put("only/here", Resource::new("x"));
    let other = Source::start();
    other.put("b", Resource::new("y"));
    let mounts = [Mounted::new(&source.url(), "poll=1h"), Mounted::new(&other.url(), "poll=1h")];

    let found = run(&["path", &format!("{}only/here", source.url())]);

    assert!(found.status.success(), "{}", stderr(&found));
    assert_eq!(stdout(&found), format!("{}\n", mounts[0].join("only/here").display()));
    let here = uri(&[mounts[1].join("b"), mounts[0].join("only/here"), mounts[1].join("b")]);
    assert_eq!(stdout(&here), format!("{0}b\n{1}only/here\n{0}b\n", other.url(), source.url()));
}
