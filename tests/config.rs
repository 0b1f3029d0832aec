//! Named mounts, their configuration files, and the files of credentials.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::source::{Resource, Source};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn configure(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(format!("{name}.toml")), text).unwrap();
}

fn refusal(folder: &Path, arguments: &[&str]) -> String {
    let output =
        Command::new(PROGRAM).arg("mount").args(arguments).env("CONFIGURATION_DIRECTORY", folder).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_name_is_mounted_by_its_file_below_the_command_line() {
    let (source, folder) = (Source::start(), tempfile::tempdir().unwrap());
    source.put("a.pdf", Resource::new("bytes"));
    source.put("b.txt", Resource::new("text"));
    let text = format!("source = \"{}\"\numask = 0o077\nuid = 7\ninclude = [\"*.pdf\", \"*.doc\"]\n", source.url());
    configure(folder.path(), "repo", &text);

    let mounted =
        Mounted::prepared("repo", "uid=8").with_environment("CONFIGURATION_DIRECTORY", folder.path().to_str().unwrap());
    mounted.start();

    let found = fs::metadata(mounted.join("a.pdf")).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o400, 8));
    assert!(!mounted.join("b.txt").exists());
}

#[test]
fn a_file_names_the_folder_and_flags_are_options_too() {
    let (source, folder) = (Source::start(), tempfile::tempdir().unwrap());
    source.put("a", Resource::new("bytes"));
    let directory = folder.path().join("mnt");
    fs::create_dir(&directory).unwrap();
    let text = format!("source = \"{}\"\ndirectory = \"{}\"\n", source.url(), directory.display());
    configure(folder.path(), "repo", &text);

    let mounted = Command::new(PROGRAM)
        .args(["mount", "repo", "--umask", "027", "--cache"])
        .arg(folder.path().join("cache"))
        .env("CONFIGURATION_DIRECTORY", folder.path())
        .output()
        .unwrap();
    let mode = fs::metadata(directory.join("a")).map(|found| found.mode() & 0o777);
    let unmounted = Command::new(PROGRAM).arg("unmount").arg(&directory).status().unwrap();

    assert!(mounted.status.success() && unmounted.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    assert_eq!(mode.unwrap(), 0o440);
}

#[test]
fn a_flag_switches_off_an_option_of_the_file() {
    let (source, folder) = (Source::start(), tempfile::tempdir().unwrap());
    source.put("a", Resource::new("bytes"));
    configure(folder.path(), "repo", &format!("source = \"{}\"\nexec = true\n", source.url()));
    let directory = folder.path().join("mnt");
    fs::create_dir(&directory).unwrap();
    for (flags, is_noexec) in [(&[][..], false), (&["--exec=false"][..], true), (&["-o", "noexec"][..], true)] {
        let mounted = Command::new(PROGRAM)
            .args(["mount", "repo", "--cache"])
            .arg(folder.path().join("cache"))
            .args(flags)
            .arg(&directory)
            .env("CONFIGURATION_DIRECTORY", folder.path())
            .output()
            .unwrap();
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(directory.to_str().unwrap())).unwrap_or_default();
        let unmounted = Command::new(PROGRAM).arg("unmount").arg(&directory).status().unwrap();

        assert!(mounted.status.success() && unmounted.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        assert_eq!(line.contains("noexec"), is_noexec, "{flags:?}: {line}");
    }
}

/// Every command takes the NAME that `mount` takes.
#[test]
fn a_name_stands_for_its_mount_and_its_source_everywhere() {
    let (source, folder) = (Source::start(), tempfile::tempdir().unwrap());
    source.put("a", Resource::new("bytes"));
    let directory = folder.path().join("mnt");
    fs::create_dir(&directory).unwrap();
    let keys = |more: &str| {
        let (cache, directory) = (folder.path().join("cache"), directory.display());
        format!("source = \"{}\"\ndirectory = \"{directory}\"\ncache = {cache:?}\n{more}", source.url())
    };
    configure(folder.path(), "repo", &keys("include = [\"a\"]\n"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let output = command.args(arguments).env("CONFIGURATION_DIRECTORY", folder.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    assert!(run(&["mount", "repo"]).0);
    // Lines before that of the folder take it in.
    for broken in ["include = [\"a\n", "[x]\n", "type = \"\"\"a\n"] {
        configure(folder.path(), "repo", &format!("{broken}{}", keys("")));
        assert_eq!(run(&["unmount", "repo"]), (true, String::new(), String::new()), "{broken}");
        configure(folder.path(), "repo", &keys("include = [\"a\"]\n"));
        assert!(run(&["mount", "repo"]).0);
    }

    let said = [
        (&["prefetch", "repo"][..], "1 file downloaded"),
        (&["uri", "repo"], &source.url()),
        (&["evict", "repo"], "1 file removed"),
        (&["audit", "repo"], "names, sizes and times of 1 file agree"),
        (&["explore", "repo"], &source.url()),
    ]
    .map(|(arguments, expected)| (run(arguments), arguments, expected.to_owned()));
    // One key is a mistake, and TOML cannot read another line.
    configure(folder.path(), "repo", &keys("cachesize = 1\npoll = \"5m\nrate = \n"));
    let unmounted = run(&["unmount", "repo"]);

    for ((succeeded, text, error), arguments, expected) in said {
        assert!(succeeded && text.contains(&expected), "{arguments:?}: {text}{error}");
    }
    assert_eq!(unmounted, (true, String::new(), String::new()));
    assert!(run(&["explore", "repo"]).2.contains("repo.toml:"));
    // As the service does after its mount has failed, and has said why.
    configure(folder.path(), "repo", "directory = 5\n");
    assert_eq!(run(&["unmount", "--dead", "repo"]), (true, String::new(), String::new()));
}

#[test]
fn arguments_the_wrong_way_round_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, right) in [
        (["/mnt", "https://repo.example.org/"], "resyncfs mount https://repo.example.org/ /mnt"),
        (["museum", "repo.example.org"], "resyncfs mount repo.example.org museum"),
    ] {
        let refused = refusal(folder.path(), &arguments);

        assert!(refused.contains(&format!("the Source comes first, then the folder: {right}")), "{refused}");
    }
    assert!(refusal(folder.path(), &["museum", "/mnt"]).contains("neither an address nor a path"));
}

#[test]
fn an_error_in_a_name_or_its_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refused = refusal(folder, &["repo", "/tmp"]);
    assert!(refused.contains("neither an address nor a path") && refused.contains("repo.toml"), "{refused}");

    configure(folder, "repo", "source = \"https://h/\"\n\ncachesize = \"1G\"\n");
    let refused = refusal(folder, &["repo", "/tmp"]);
    assert!(refused.contains("repo.toml:3: cachesize: ") && refused.contains("did you mean cache-size?"), "{refused}");

    configure(folder, "repo", "source = \"https://h/\"\n");
    assert!(refusal(folder, &["repo"]).contains("resyncfs mount repo /mnt/repo"));

    fs::set_permissions(folder.join("repo.toml"), Permissions::from_mode(0o666)).unwrap();
    assert!(refusal(folder, &["repo", "/tmp"]).contains("chmod o-w"));
}

#[test]
fn a_client_key_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.pem");
    fs::write(&key, "-----BEGIN PRIVATE KEY-----").unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();

    let refused = refusal(folder.path(), &["--cert", key.to_str().unwrap(), "https://h/", "/tmp"]);

    assert!(refused.contains(&format!("chmod 600 {}", key.display())), "{refused}");
}

#[test]
fn a_services_credentials_are_used_where_nothing_else_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    for (file, token) in [(folder.path().join("bearer"), "of-the-service"), (other.clone(), "named")] {
        fs::write(&file, token).unwrap();
        // As systemd shows them where an access control list lets the service's user read.
        fs::set_permissions(&file, Permissions::from_mode(0o440)).unwrap();
    }
    fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();

    for (options, token) in [(String::new(), "of-the-service"), (format!("bearer-file={}", other.display()), "named")] {
        let source = Source::start();
        source.put("a", Resource::new("bytes"));
        let mounted = Mounted::prepared(&source.url(), &options)
            .with_environment("CREDENTIALS_DIRECTORY", folder.path().to_str().unwrap());
        mounted.start();

        assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
        let asked = source.take_log();
        let expected = format!("bearer {token}");
        assert!(asked.iter().any(|logged| logged.head.to_lowercase().contains(&expected)), "{token}");
    }
}
