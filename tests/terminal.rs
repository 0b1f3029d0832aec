//! What a person sees at a terminal of 60 columns, and in a browser.

mod common;

use common::eventually;
use common::mounted::{Mounted, PROGRAM};
use common::pty::Pty;
use common::source::{Fault, Resource, Source};
use std::fs;
use std::process::Command;

const COLUMNS: usize = 60;

/// What the program writes to a terminal.
fn shown(arguments: &[&str], pager: &str) -> String {
    let pty = Pty::new(24);
    let mut command = Command::new(PROGRAM);
    let status = pty.spawn(command.args(arguments).env("PAGER", pager)).wait().unwrap();
    assert!(status.success(), "{arguments:?}: {}", pty.seen());
    eventually("all is read", || {
        let before = pty.seen();
        std::thread::sleep(std::time::Duration::from_millis(50));
        !before.is_empty() && before == pty.seen()
    });
    pty.seen().replace("\r\n", "\n")
}

/// A Source with a good file and one that always fails.
fn source() -> Source {
    let source = Source::start();
    source.put("letters/good.txt", Resource::new("Sir, the beacon stands.\n"));
    source.put("letters/bad.txt", Resource::new("lost"));
    source.fault("letters/bad.txt", Fault::Status(500, String::new()), u64::MAX);
    source
}

#[test]
fn no_word_is_broken_at_the_edge_of_a_terminal() {
    let source = source();
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    fs::read(mounted.join("letters/good.txt")).unwrap();
    fs::read(mounted.join("letters/bad.txt")).unwrap_err();

    for arguments in [vec!["status", mounted.path().to_str().unwrap()], vec!["explore", &source.list_url()]] {
        let text = shown(&arguments, "");

        // The progress is on the same terminal: each picture of it clears its line.
        for line in text.lines().filter(|line| !line.contains('\x1b')) {
            let behind_title: String = line.chars().skip(13).collect();
            let is_one_long_word = !behind_title.trim().contains(' ');
            assert!(line.chars().count() <= COLUMNS || is_one_long_word, "{arguments:?}: {line:?} in\n{text}");
        }
        assert!(text.lines().any(|line| line.starts_with("             ")), "{text}");
    }
}

#[test]
fn watch_shows_an_error_to_its_end() {
    let source = source();
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    fs::read(mounted.join("letters/bad.txt")).unwrap_err();
    let pty = Pty::new(60);
    let mut watch = pty.run(&["status", "--watch", mounted.path().to_str().unwrap()]);

    eventually("the reason is shown", || {
        let screen: String = pty.seen().split(['\r', '\n', '\x1b']).map(str::trim).collect::<Vec<_>>().concat();
        screen.contains("bad.txt") && screen.contains("500")
    });

    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_long_topic_goes_through_the_pager() {
    let numbered = shown(&["help", "errors"], "cat -n");
    let plain = shown(&["help", "errors"], "/nonexistent/pager");

    assert!(numbered.lines().next().unwrap().trim_start().starts_with("1\tWHERE TO LOOK"), "{numbered:.200}");
    assert!(plain.starts_with("WHERE TO LOOK"), "a pager that is not installed: {plain:.200}");
}

#[test]
fn the_page_for_a_browser_needs_nothing_else() {
    let source = source();
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    fs::read(mounted.join("letters/good.txt")).unwrap();
    fs::read(mounted.join("letters/bad.txt")).unwrap_err();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("status.html");
    fs::write(&file, "of yesterday").unwrap();

    let output = Command::new(PROGRAM).args(["status", "--html"]).arg(&file).arg(mounted.path()).output().unwrap();

    assert!(output.status.success(), "{output:?}");
    let page = fs::read_to_string(&file).unwrap();
    for shown in [
        &format!("<a href=\"{0}\" rel=\"noreferrer\">{0}</a>", source.list_url()),
        "2 files in 2 folders",
        "Cache use",
        "bad.txt",
        "500",
        "prefers-color-scheme: dark",
        "<th>Host</th>",
    ] {
        assert!(page.contains(shown), "{shown} is missing in {page}");
    }
    assert!(page.matches("<svg").count() >= 3, "a bar and two curves: {page}");
    for foreign in ["<script", "src=", "@import", "url(", "<link"] {
        assert!(!page.contains(foreign), "{foreign} in {page}");
    }
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "nothing else is left");

    let refused =
        Command::new(PROGRAM).args(["status", "--html"]).arg(scratch.path()).arg(mounted.path()).output().unwrap();

    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let message = String::from_utf8_lossy(&refused.stderr);
    let folder = scratch.path().to_str().unwrap();
    assert!(message.contains(&format!("{folder}: the page cannot be written: ")), "{message}");
}
