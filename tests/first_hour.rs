//! README and the manual as a newcomer follows them: on a fresh machine, README from its first line to its last, then each topic.
//! Each block of commands must succeed, and print what is shown. Root follows them, and `ann` those of an ordinary user.
//!
//! The machine is an overlay of this one with a systemd of its own, with the program as its package installs it. For
//! `https://repo.example.org/` stands the Source of `resyncfs demo` at its address on loopback, for `https://odd.example.org/` the
//! one below; the addresses are exchanged in commands and files, and back in what is printed.

mod common;

use common::mounted::PROGRAM;
use common::source::{Resource, Source, URLSET};
use common::systemd::{Login, Machine};
use common::transcript::{Block, agrees, blocks};
use resyncfs::cli::help::TOPICS;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Blocks that are not run, by their first lines, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("git clone ADDRESS", "builds the program; what it runs is run here"),
    ("for kind in mount mount.fuse", "links to a program that cargo would build; the package has the same links"),
    ("https://repo.example.org/data/2024/report 1.pdf", "an address and a path"),
    ("device = os.open(", "part of a program; tests/unprivileged.rs runs one like it"),
    ("Linux  Adds", "a table"),
    ("abi <abi/4.0>,", "a profile of AppArmor"),
    ("apparmor_parser --replace", "tests/security_modules.rs runs it, under a kernel with AppArmor"),
    ("mount -t resyncfs -o 'context=", "tests/security_modules.rs mounts so, under a kernel with SELinux"),
    ("df -x fuse.resyncfs", "programs that this machine may not have; tests/mount.rs runs df"),
    ("podman run", "scripts/test-container runs it"),
];

/// The Source that the program carries, at an address of loopback, in a mount namespace of its own.
struct Demo {
    process: Child,
    address: String,
    _scratch: tempfile::TempDir,
}

impl Demo {
    fn start() -> Demo {
        let scratch = tempfile::tempdir().unwrap();
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", PROGRAM, "demo"])
            .arg(scratch.path().join("office"))
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("http://"));
        let address = address.unwrap_or_else(|| panic!("the demo printed: {line}")).to_owned();
        Demo { process, address, _scratch: scratch }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A Source as many are: a Resource List without `at`, with times, hashes and lengths that the standard does not know.
fn odd_source() -> Source {
    let source = Source::start();
    let base = source.url();
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\"/>\n");
    for number in 1..=40 {
        let md = match number {
            1 => "hash=\"md5:1B2M2Y8AsgTpgAmY7PhCfg==\" length=\"1048576\"",
            2 => "hash=\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\" length=\"12 kB\"",
            _ => "",
        };
        let md = if md.is_empty() { String::new() } else { format!("<rs:md {md}/>") };
        let lastmod = if number % 4 == 0 { "<lastmod>2024-03-01 12:00:00</lastmod>" } else { "" };
        let host = if number % 10 == 0 { "https://files.example.net/" } else { &base };
        let _ = writeln!(list, "<url><loc>{host}item/{number}</loc>{lastmod}{md}</url>");
        let page = Resource { media_type: "text/html".into(), ..Resource::bare(format!("<html>{number}</html>")) };
        source.page(&format!("item/{number}"), page);
    }
    source.document("resourcelist.xml", list + "</urlset>\n");
    source
}

/// What README calls a Source, and what stands for it here: both with the slash at the end.
struct Addresses(Vec<(&'static str, String)>);

impl Addresses {
    fn real(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    /// Back again: whole addresses, then hosts alone.
    fn shown(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, real)| {
            text.replace(real.as_str(), shown).replace(host(real), host(shown))
        })
    }
}

fn host(address: &str) -> &str {
    address.split("://").nth(1).unwrap_or(address).trim_end_matches('/')
}

/// Who follows a block.
struct Reader<'m> {
    machine: &'m Machine,
    ann: Login<'m>,
}

impl Reader<'_> {
    /// Runs commands as at a terminal after login: what they print on both outputs, and whether they succeed.
    fn run(&self, block: &Block, commands: &str) -> (String, bool) {
        let shell = ["bash", "-euo", "pipefail", "-c"];
        let mut command = match block.is_of_a_user() {
            true => self.ann.command(&shell),
            false => {
                let root = ["env", "-i", "HOME=/root", "LANG=C.UTF-8", "TZ=UTC", "TERM=dumb"];
                let mut command = self.machine.command(&root);
                command.arg("PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").args(shell);
                command
            }
        };
        let output = command.arg(format!("exec 2>&1; cd; {commands}")).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
    }

    fn write(&self, file: &str, text: &str) {
        match file.strip_prefix("~/") {
            Some(file) => self.ann.write(file, text),
            None => self.machine.write(file, text),
        }
    }
}

/// What is wrong with a block of `path`; empty where nothing is.
fn follow(reader: &Reader<'_>, addresses: &Addresses, path: &str, block: &Block) -> String {
    let mut wrong = String::new();
    if let Some((file, text)) = block.file() {
        reader.write(file, &addresses.real(text));
        return wrong;
    }
    match block.kind.as_str() {
        "sh" => {
            let (printed, is_well) = reader.run(block, &addresses.real(&block.text));
            if !is_well {
                let _ = writeln!(wrong, "{path}:{}: failed:\n{}{printed}", block.line, block.text);
            }
        }
        "console" => {
            for exchange in block.exchanges() {
                let (printed, _) = reader.run(block, &addresses.real(exchange.command));
                let printed = addresses.shown(&printed);
                if !agrees(&exchange.shown, &printed) {
                    let _ = writeln!(wrong, "{path}:{}: $ {}\n{printed}", block.line, exchange.command);
                }
            }
        }
        other => {
            let _ = writeln!(wrong, "{path}:{}: a block of {other:?} cannot be run", block.line);
        }
    }
    wrong
}

/// README and every topic of the manual, each by its path below the project's folder.
fn texts() -> Vec<(String, String)> {
    let topics = TOPICS.iter().map(|topic| format!("scripts/manual/{}.md", topic.name));
    let paths = ["README.md".to_owned()].into_iter().chain(topics);
    let read = |path: &String| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    paths.map(|path| (path.clone(), read(&path))).collect()
}

#[test]
fn every_command_succeeds_and_prints_what_is_shown() {
    let (demo, odd) = (Demo::start(), odd_source());
    let addresses =
        Addresses(vec![("https://repo.example.org/", demo.address.clone()), ("https://odd.example.org/", odd.url())]);
    let machine = Machine::boot();
    let reader = Reader { machine: &machine, ann: machine.login("ann") };

    let mut wrong = String::new();
    let mut left: Vec<&str> = NOT_RUN.iter().map(|(first, _)| *first).collect();
    for (path, text) in texts() {
        for block in blocks(&text) {
            if let Some((first, _)) = NOT_RUN.iter().find(|(first, _)| block.text.starts_with(first)) {
                left.retain(|it| it != first);
                continue;
            }
            let found = follow(&reader, &addresses, &path, &block);
            eprint!("{found}");
            wrong += &found;
        }
    }

    assert!(wrong.is_empty(), "{wrong}");
    assert!(left.is_empty(), "no block begins with {left:?} any more");
}

#[test]
fn a_session_is_held_to_its_words_and_the_kind_of_the_rest() {
    let shown = ["Mounted  2024-01-01T00:00:00Z (3 s ago) by process 7", "…", "files … of 12"];

    let printed = "Mounted 2026-11-21T19:57:14.9Z (a second or less ago) by process 4711\n\nmore\nfiles a b c of 12\n";
    assert!(agrees(&shown, printed));
    assert!(!agrees(&shown, "Mounted 2026-11-21T19:57:14.9Z (2 s ago) by process 4711\nfiles a b c of 13\n"));
    assert!(agrees(&["at 2026-01-01 00:00:00 (3 s ago), so"], "at 2026-11-21 19:57:14 UTC (now), so\n"));
    assert!(!agrees(&["at 2026-01-01 00:00:00"], "at 2026-11-21 other\n"));
    assert!(!agrees(&["a", "b"], "a\n"));
    assert!(!agrees(&["a"], "a\nb\n"));
}
