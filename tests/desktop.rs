//! What a desktop does with a folder: a file manager shows and copies it, the library beneath file managers asks for types,
//! the daily database of names walks through it.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::screen::FileManager;
use common::source::{Fault, Resource, Source};
use common::transcript::blocks;
use common::tree;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const NAMES: [&str; 3] = ["1851-02-14", "1851-03-02", "1851-03-09"];

/// Letters whose names have this ending, published as text.
fn letters(ending: &str) -> Source {
    let source = Source::start();
    for name in NAMES {
        let letter = Resource::new(format!("Sir,\n\nthis is the letter of {name}.\n"));
        let md = letter.md.clone() + " type=\"text/plain\"";
        source.put(&format!("letters/{name}{ending}"), Resource { md, ..letter });
    }
    source
}

/// The requests for files, not for documents.
fn fetched(source: &Source) -> Vec<String> {
    source.log().into_iter().map(|logged| logged.path).filter(|path| path.starts_with("/letters/")).collect()
}

fn published(source: &Source, ending: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let named = |path: String| PathBuf::from(path.trim_start_matches("letters/").to_owned() + ending);
    source.published().into_iter().map(|(path, bytes)| (named(path), bytes)).collect()
}

/// What a command prints that must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.env("LANG", "C.UTF-8").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_file_manager_fetches_nothing_before_it_copies() {
    let source = letters(".txt");
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let folder = mounted.join("letters");

    let mut manager = FileManager::open(&folder);

    source.wait_for_quiet();
    assert_eq!(fetched(&source), Vec::<String>::new());
    manager.copies(&folder, &published(&source, ""));
}

#[test]
fn names_with_extensions_by_type_are_not_fetched() {
    let source = letters("");
    let mounted = Mounted::new(&source.list_url(), "poll=1h,extension=type");
    let folder = mounted.join("letters");

    let mut manager = FileManager::open(&folder);

    source.wait_for_quiet();
    assert_eq!(fetched(&source), Vec::<String>::new());
    manager.copies(&folder, &published(&source, ".txt"));
}

#[test]
fn a_file_manager_in_a_folder_of_a_silent_source_does_not_hang() {
    let source = letters("");
    let mounted = Mounted::new(&source.list_url(), "poll=1h,timeout=1h");
    for name in NAMES {
        source.fault(&format!("letters/{name}"), Fault::StallHead(Duration::from_secs(3600)), u64::MAX);
    }
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("local.txt"), "on this machine's disk").unwrap();

    // Without extension, so that it reads each to find out its type, and waits.
    let mut manager = FileManager::open(&mounted.join("letters"));

    common::eventually("a file is asked for", || !fetched(&source).is_empty());
    manager.copies(elsewhere.path(), &tree(elsewhere.path()));
}

#[test]
fn only_a_copy_of_the_file_managers_library_fetches() {
    let source = letters(".txt");
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let folder = mounted.join("letters");

    let listed = printed(Command::new("gio").args(["list", "-l", "-a", "standard::content-type"]).arg(&folder));
    let file = folder.join("1851-02-14.txt");
    let attributes = printed(Command::new("gio").args(["info", "-a", "xattr::*"]).arg(&file));

    assert_eq!(listed.matches("standard::content-type=text/plain").count(), NAMES.len(), "{listed}");
    let origin = format!("xattr::xdg.origin.url: {}letters/1851-02-14.txt", source.url());
    assert!(attributes.contains(&origin) && attributes.contains("xattr::mime_type: text/plain"), "{attributes}");
    assert_eq!(fetched(&source), Vec::<String>::new());
    let copy = tempfile::tempdir().unwrap();
    printed(Command::new("gio").arg("copy").arg(&file).arg(copy.path()));
    assert_eq!(fs::read(copy.path().join("1851-02-14.txt")).unwrap(), fs::read(&file).unwrap());
}

/// The names below `folder` that `locate` finds after the daily run of updatedb, with `configuration` for that of the machine, and with
/// `more` arguments.
fn located(folder: &Path, configuration: &Path, more: &[&str]) -> Vec<String> {
    let database = configuration.with_extension("db");
    // The configuration leaves out temporary folders, and this is in one.
    let script = "mount --bind \"$1\" /etc/updatedb.conf && exec updatedb --prunepaths= --require-visibility no -U \"$2\" -o \"$3\" \"${@:4}\"";
    let mut update = Command::new("unshare");
    update.args(["--mount", "bash", "-c", script, "updatedb"]).arg(configuration).arg(folder).arg(&database).args(more);
    printed(&mut update);
    let output = Command::new("plocate").arg("-d").arg(&database).arg(".txt").output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_database_of_locate_skips_a_mount_as_the_manual_says() {
    let source = letters(".txt");
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let parent = mounted.path().parent().unwrap().to_owned();
    let scratch = tempfile::tempdir().unwrap();
    let (configuration, local) = (scratch.path().join("updatedb.conf"), parent.join("local.txt"));
    fs::copy("/etc/updatedb.conf", &configuration).unwrap();
    fs::write(&local, "").unwrap();
    let before = located(&parent, &configuration, &[]);

    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let drop_in = fs::read_to_string(project.join("scripts/systemd/plocate-updatedb.conf")).unwrap();
    let arguments = drop_in.lines().find_map(|line| line.strip_prefix("ExecStart=updatedb ")).unwrap();
    let by_drop_in = located(&parent, &configuration, &arguments.split(' ').collect::<Vec<_>>());
    let manual = fs::read_to_string(project.join("scripts/manual/programs.md")).unwrap();
    let block =
        blocks(&manual).into_iter().find(|block| block.text.contains("PRUNEFS")).expect("the manual names PRUNEFS");
    printed(
        Command::new("sh").args(["-c", &block.text.replace("/etc/updatedb.conf", configuration.to_str().unwrap())]),
    );
    let after = located(&parent, &configuration, &[]);

    assert_eq!(before.len(), 1 + NAMES.len(), "{before:?}");
    assert_eq!(by_drop_in, [local.to_str().unwrap()], "as the package has it");
    assert_eq!(after, [local.to_str().unwrap()]);
    assert_eq!(fetched(&source), Vec::<String>::new());
}

#[test]
fn recoll_finds_text_and_reads_again_only_what_has_changed() {
    let source = letters(".txt");
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let home = tempfile::tempdir().unwrap();
    let configuration = format!("topdirs = {}\nloglevel = 2\n", mounted.path().display());
    fs::write(home.path().join("recoll.conf"), configuration).unwrap();
    let recoll = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        printed(command.arg("-c").arg(home.path()).args(words).env("HOME", home.path()))
    };

    recoll("recollindex", &[]);

    assert_eq!(fetched(&source).len(), NAMES.len());
    assert!(recoll("recollq", &["-b", "letter"]).contains("letters/1851-03-02.txt"));
    mounted.remount();
    source.put("letters/1851-03-02.txt", Resource::new("Sir,\n\nthe herring is late.\n"));
    mounted.try_refresh().unwrap();
    source.take_log();
    recoll("recollindex", &[]);
    assert_eq!(fetched(&source), ["/letters/1851-03-02.txt"]);
    assert!(recoll("recollq", &["-b", "herring"]).contains("letters/1851-03-02.txt"));
    let status = printed(Command::new(PROGRAM).arg("status").arg(mounted.path()));
    assert!(status.contains("in 1 read"), "{status}");
}
