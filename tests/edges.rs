//! What is printed, named and kept of hostile or careless input, and what a stalled client costs.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::source::{Source, URLSET};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn all_said(output: &Output) -> String {
    [&*output.stdout, &*output.stderr].map(|said| String::from_utf8_lossy(said).into_owned()).concat()
}

/// A Resource List of these entries, as written, at the Source's own.
fn publish(source: &Source, entries: &str) {
    let md = "<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/>";
    source.document("resourcelist.xml", format!("{URLSET}{md}{entries}</urlset>"));
}

fn entry(loc: &str) -> String {
    format!("<url><loc>{loc}</loc><rs:md length=\"5\"/></url>")
}

/// What a person cannot see in a name stays escaped, and the name leads back to its address.
#[test]
fn invisible_characters_stay_escaped_in_names() {
    let source = Source::start();
    let hidden = [
        "%C2%AD",
        "%D8%9C",
        "%E1%A0%8E",
        "%E2%80%A8",
        "%E2%80%A9",
        "%E2%81%A0",
        "%E2%81%AA",
        "%E3%85%A4",
        "%EF%B8%8F",
        "%EF%BF%B9",
        "%EF%BF%BB",
        "%F0%9D%85%B3",
        "%F3%A0%80%81",
        "%F3%A0%81%81",
        "%F3%A0%81%BF",
        "%F3%A0%84%80",
    ];
    let shown = [("%C2%A0", "\u{a0}"), ("%C3%A9", "é"), ("%F0%9F%98%80", "\u{1f600}")];
    let entries = hidden.iter().copied().chain(shown.map(|(escape, _)| escape));
    publish(&source, &entries.map(|it| entry(&format!("{}a{it}b", source.url()))).collect::<String>());

    let mounted = Mounted::new(&source.list_url(), "");

    let names: BTreeSet<String> =
        fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<String> =
        hidden.iter().copied().chain(shown.map(|(_, it)| it)).map(|it| format!("a{it}b")).collect();
    assert_eq!(names, expected);
    for escape in hidden {
        let uri = format!("{}a{escape}b", source.url());
        let path = mounted.join(&format!("a{escape}b"));
        let told = run(&["uri", path.to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim(), uri, "{}", all_said(&told));
    }
}

/// JSON keeps its meaning; its text shows no control and nothing invisible.
#[test]
fn json_output_escapes_controls_and_invisible_characters() {
    let source = Source::start();
    let odd = "\u{9b}31m\u{85}\u{ad}\u{2028}\u{202e}\u{e0041}";
    publish(&source, &(entry(&format!("{}a", source.url())) + &entry(&format!("{}b{odd}", source.url()))));

    let mounted = Mounted::new(&source.list_url(), "");
    let directory = mounted.path().display().to_string();
    let list = source.list_url();

    for arguments in [
        &["explore", "--json", &list][..],
        &["status", "--json", &directory],
        &["list", "--json"],
        &["audit", "--json", &directory],
        &["audit", "--manifest=jsonl", &directory],
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(
            !text.is_empty() && text.is_ascii() | !odd.chars().any(|c| text.contains(c)),
            "{arguments:?}: {text:?}"
        );
        for line in text.lines().filter(|_| !arguments.contains(&"audit")) {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
    let explored = String::from_utf8(run(&["explore", "--json", &list]).stdout).unwrap();
    assert!(explored.contains("\\u009b31m\\u0085\\u00ad\\u2028\\u202e\\udb40\\udc41"), "{explored}");
}

/// A user name and password are repeated nowhere, also where they stand in what is no address.
#[test]
fn no_output_repeats_user_and_password() {
    let source = Source::start();
    let addresses = [
        "http://user:secretpw@127.0.0.1:1/x",
        "http:/user:secretpw@h/",
        "http:user:secretpw@h/",
        "user:secretpw@h/x",
        "http://user:sec/retpw@h/x",
        "http://user:secret pw@h/x",
        "ftp://user:secretpw@h/",
        "//user:secretpw@h/",
        "http://user:secretpw@h:99999/",
        "http://user:secretpw@/x",
        "http://user:secretpw@[::1",
        "http:\\\\user:secretpw@h\\x",
        "file://user:secretpw@h/x",
    ];
    // The others are references to paths of the Source's own host, or names.
    let published = || addresses.into_iter().filter(|address| address.contains("//"));
    let links: String = published().map(|it| format!("<rs:ln rel=\"collection\" href=\"{it}\"/>")).collect();
    let entries: String = published().chain(["user:secretpw@h/x"]).map(entry).collect();
    publish(&source, &format!("{}<url><loc>{}a</loc>{links}</url>{entries}", entry("b"), source.url()));
    let list = source.list_url();
    let mounted = Mounted::new(&list, "");
    let directory = mounted.path().display().to_string();

    let mut runs: Vec<Vec<String>> = Vec::new();
    for address in addresses {
        for option in ["set", "map", "collection", "rewrite", "allow-host", "host", "websub-callback", "nonsense"] {
            runs.push(["explore", "-o", &format!("{option}={address}"), &list].map(str::to_owned).into());
        }
        for command in ["explore", "path", "mount", "audit", "status", "refresh", "uri", "unmount", "list", "evict"] {
            runs.push([command, address].map(str::to_owned).into());
        }
        runs.push(["path", "--json", "--in", &directory, address].map(str::to_owned).into());
    }
    for arguments in
        [&["explore", &list][..], &["explore", "--json", &list], &["status", &directory], &["status", "--json"]]
    {
        runs.push(arguments.iter().map(|&it| it.to_owned()).collect());
    }

    for arguments in runs {
        let said = all_said(&run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
        assert!(!said.contains("secret") && !said.contains("retpw"), "{arguments:?}: {said}");
    }
    assert!(!mounted.said().contains("secretpw"), "{}", mounted.said());
}
