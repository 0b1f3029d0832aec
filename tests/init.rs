//! `resyncfs init`: at a terminal without systemd, and under a real systemd as root and as an ordinary user.

mod common;

use common::eventually;
use common::mounted::PROGRAM;
use common::pty::Pty;
use common::source::{Resource, Source};
use common::systemd::{Login, Machine};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn source() -> Source {
    let source = Source::start();
    source.put("letters/1851.txt", Resource::new("the storm of the 12th"));
    source
}

/// The program with its configuration in `folder`, on a machine without systemctl.
fn program(folder: &Path) -> Command {
    let path = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .filter(|folder| !folder.join("systemctl").exists())
        .collect::<Vec<_>>();
    let mut command = Command::new(PROGRAM);
    command.env("CONFIGURATION_DIRECTORY", folder.join("etc")).env("PATH", std::env::join_paths(path).unwrap());
    command
}

/// What the last line of `init` says to do.
fn undo(printed: &str) -> &str {
    let line = printed.lines().find_map(|line| line.strip_prefix("Undo it      "));
    line.unwrap_or_else(|| panic!("{printed}")).trim()
}

#[test]
fn questions_at_a_terminal_make_a_mount_and_its_file() {
    let (source, scratch, pty) = (source(), tempfile::tempdir().unwrap(), Pty::new(24));
    let mount_point = scratch.path().join("repo");
    let cache = format!("cache={}", scratch.path().join("cache").display());
    let mut command = program(scratch.path());
    command.args(["init", "-o", &cache, "-o", "exclude=*.tmp,exclude=*.bak", &source.list_url()]).arg(&mount_point);
    let mut running = pty.spawn(&mut command);

    for (question, answer) in [("How much disk may the cache use", "1G\n"), ("Mount it at", "\n")] {
        eventually(question, || pty.seen().contains(question));
        assert!(!mount_point.exists(), "nothing is changed before the last answer");
        (&pty.outside).write_all(answer.as_bytes()).unwrap();
    }

    assert!(running.wait().unwrap().success(), "{}", pty.seen());
    assert_eq!(fs::read(mount_point.join("letters/1851.txt")).unwrap(), b"the storm of the 12th");
    let file = fs::read_to_string(scratch.path().join("etc/repo.toml")).unwrap();
    for key in [
        format!("source = \"{}\"", source.list_url()),
        format!("directory = \"{}\"", mount_point.display()),
        format!("cache = \"{}\"", scratch.path().join("cache").display()),
        "cache-size = \"1G\"".to_owned(),
        "exclude = [\"*.tmp\",\"*.bak\"]".to_owned(),
        "deny = [\"baloo_file_extr\",\"tracker-extract\",\"localsearch-ext\"]".to_owned(),
    ] {
        assert!(file.lines().any(|line| line == key), "{key} is missing in:\n{file}");
    }
    let printed = pty.seen().replace("\r\n", "\n");
    assert!(printed.contains("has 1 file") && printed.contains("no unit was enabled: "), "{printed}");

    let undo = undo(&printed).replace("resyncfs unmount", &format!("{PROGRAM} unmount"));
    assert!(printed.contains(&format!("too: resyncfs cache clear {} -o {cache}", source.list_url())), "{printed}");
    let undone = Command::new("bash")
        .args(["-c", &undo])
        .env("CONFIGURATION_DIRECTORY", scratch.path().join("etc"))
        .status()
        .unwrap();
    assert!(undone.success() && !mount_point.exists() && !scratch.path().join("etc/repo.toml").exists(), "{undo}");
}

#[test]
fn what_cannot_be_mounted_changes_nothing() {
    let (source, scratch) = (source(), tempfile::tempdir().unwrap());
    let file = scratch.path().join("a file");
    fs::write(&file, "").unwrap();
    let point = scratch.path().join("repo");
    let (point, file) = (point.to_str().unwrap(), file.to_str().unwrap());
    let list = source.list_url();
    let absent = format!("{list}.absent");

    for (arguments, exit, says) in [
        (vec![&*list, point], 2, "there is no terminal"),
        (vec!["--yes", &absent, point], 4, "404"),
        (vec!["--yes", "--name", "a/b", &list, point], 2, "is not a name"),
        (vec!["--yes", "--name", "münchen", &list, point], 2, "is not a name of ASCII letters"),
        (vec!["--yes", point, &list], 2, "the Source comes first"),
        (vec!["--yes", "--name", "x", &list, file], 1, "exists"),
        (vec!["--yes", "-o", "cache-sise=1G", &list, point], 2, "did you mean cache-size?"),
    ] {
        let mut command = program(scratch.path());
        let refused = command.arg("init").args(&arguments).stdin(Stdio::null()).output().unwrap();

        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(exit), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
        assert!(!Path::new(point).exists() && !scratch.path().join("etc").exists(), "{arguments:?}");
    }
}

#[test]
fn root_gets_a_mount_that_is_there_after_a_restart() {
    let (source, machine) = (source(), Machine::boot());

    let printed = machine.ok(&["resyncfs", "init", "--yes", &source.list_url(), "/mnt/deep/repo"]);

    assert_eq!(machine.ok(&["cat", "/mnt/deep/repo/letters/1851.txt"]), "the storm of the 12th");
    assert_eq!(machine.property("resyncfs@repo.service", "UnitFileState"), "enabled");
    assert_eq!(machine.property("resyncfs@repo.service", "ActiveState"), "active");
    let again = machine.run(&["resyncfs", "init", "--yes", &source.list_url(), "/mnt/deep/repo"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is taken by /etc/resyncfs/repo.toml"), "{again:?}");
    machine.ok(&["bash", "-c", undo(&printed)]);
    assert_eq!(machine.programs(), Vec::<u32>::new());
    for path in ["/mnt/deep/repo", "/etc/resyncfs/repo.toml"] {
        assert!(machine.fails(&["test", "-e", path]), "{path}");
    }
}

#[test]
fn a_user_gets_a_mount_that_is_there_after_a_login() {
    let (source, machine) = (source(), Machine::boot());
    let ann: Login<'_> = machine.login("ann");

    let printed = ann.ok(&["resyncfs", "init", "--yes", "--name", "letters", &source.list_url(), "repo"]);

    assert_eq!(ann.ok(&["cat", "repo/letters/1851.txt"]), "the storm of the 12th");
    assert_eq!(ann.property("resyncfs@letters.service", "UnitFileState"), "enabled");
    let file = ann.ok(&["cat", ".config/resyncfs/letters.toml"]);
    assert!(file.contains("directory = \"/home/ann/repo\""), "{file}");
    assert!(printed.contains("loginctl enable-linger"), "{printed}");
    ann.ok(&["bash", "-c", undo(&printed)]);
    assert_eq!(ann.ok(&["ls", "-A", ".config/resyncfs"]), "");
}

/// As from the archive in a home folder: no unit is installed, and the program is not in /usr/bin.
#[test]
fn a_user_without_an_installed_unit_gets_one() {
    let (source, machine) = (source(), Machine::boot());
    let ann: Login<'_> = machine.login("ann");
    machine.ok(&["rm", "/usr/lib/systemd/user/resyncfs@.service"]);
    ann.ok(&["install", "-D", "/usr/bin/resyncfs", ".local/bin/resyncfs"]);

    let printed = ann.ok(&[".local/bin/resyncfs", "init", "--yes", &source.list_url(), "repo"]);

    assert_eq!(ann.ok(&["cat", "repo/letters/1851.txt"]), "the storm of the 12th");
    assert_eq!(ann.property("resyncfs@repo.service", "UnitFileState"), "enabled");
    let unit = ann.ok(&["cat", ".config/systemd/user/resyncfs@.service"]);
    assert!(unit.contains("ExecStart=/home/ann/.local/bin/resyncfs mount") && !unit.contains("/usr/bin"), "{unit}");
    assert!(printed.contains("rm /home/ann/.config/systemd/user/resyncfs@.service"), "{printed}");
    ann.ok(&["bash", "-c", undo(&printed)]);
    assert_eq!(ann.ok(&["ls", "-A", ".config/resyncfs"]), "");
}

/// `init` says that a Source lists web pages before it mounts it.
#[test]
fn web_pages_are_named_before_the_questions() {
    let (source, scratch) = (Source::start(), tempfile::tempdir().unwrap());
    source.put("about", Resource { media_type: "text/html".into(), ..Resource::bare("<html>") });
    let file = scratch.path().join("a file");
    fs::write(&file, "").unwrap();

    let mut command = program(scratch.path());
    let refused = command.args(["init", "--yes", "--name", "x", &source.list_url()]).arg(&file).output().unwrap();

    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(errors.contains("web pages: pages only; their pictures and PDFs will not appear."), "{errors}");
}

#[test]
fn a_unit_that_does_not_start_names_its_log() {
    let (source, machine) = (source(), Machine::boot());
    machine.write("/etc/systemd/system/resyncfs@.service.d/test.conf", "[Service]\nExecStart=\nExecStart=/bin/false\n");

    let failed = machine.run(&["resyncfs", "init", "--yes", &source.list_url(), "/mnt/repo"]);

    let errors = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the reason: journalctl -n 20 -u resyncfs@repo.service"), "{errors}");
    assert!(String::from_utf8_lossy(&failed.stdout).contains("Undo it      systemctl disable --now"), "{failed:?}");
}
