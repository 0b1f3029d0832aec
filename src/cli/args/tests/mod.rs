mod example;

use super::words::{is_repeatable, split};
use super::*;
use crate::sync::deletion_guard::MaxDelete;
use clap::FromArgMatches;
use example::{example, line, value};
use std::path::Path;
use std::time::Duration;
use toml::de::DeTable;

fn parse(text: &str) -> Result<Options, String> {
    Options::parse(&[text.to_owned()]).map_err(|refused| refused.message)
}

fn by_mount_options(text: &str) -> OptionWords {
    let mut words = OptionWords::default();
    words.push_mount_options(text, Caller::Person).unwrap();
    words
}

fn by_mount_8(text: &str, sloppy: bool) -> Result<Options, String> {
    let mut words = OptionWords::default();
    let pushed = words.push_mount_options(text, Caller::Mount8 { sloppy });
    pushed.and_then(|()| words.parse()).map_err(|refused| refused.message)
}

fn by_flags(flags: &[&str]) -> OptionWords {
    let line = ["resyncfs", "mount", "https://h/", "/mnt"].iter().chain(flags);
    let matches = crate::cli::command().try_get_matches_from(line).unwrap();
    let matches = matches.subcommand_matches("mount").unwrap();
    OptionWords::from_arg_matches(matches).unwrap()
}

fn by_keys(text: &str) -> OptionWords {
    let mut words = OptionWords::default();
    for (key, value) in &DeTable::parse(text).unwrap().into_inner() {
        words.push_key(key.get_ref(), value.get_ref(), key.get_ref()).unwrap();
    }
    words
}

fn shown(words: &OptionWords) -> String {
    format!("{:?}", words.parse().unwrap())
}

/// A value that is not the default.
fn other_value(option: &clap::Arg) -> String {
    let other = match placeholder(option) {
        _ if option.get_default_values().is_empty() => return value(option),
        "SIZE" => "2G",
        "TIME" => "7s",
        "OCTAL" => "0o027",
        "NUMBER" | "PERCENT" => "16",
        choices => choices.rsplit('|').find(|choice| *choice != value(option)).unwrap(),
    };
    other.to_owned()
}

#[test]
fn each_option_means_the_same_by_o_by_flag_and_in_a_file() {
    let none = shown(&OptionWords::default());
    for option in options() {
        let (name, value) = (option.get_long().unwrap(), other_value(&option));

        let given = shown(&by_mount_options(&format!("{name}={value}")));

        assert_ne!(given, none, "{name} does something");
        assert_eq!(shown(&by_flags(&[&format!("--{name}={value}")])), given, "--{name}");
        assert_eq!(shown(&by_keys(&line(&option, &value))), given, "{}", line(&option, &value));
        if placeholder(&option) == "true|false" {
            assert_eq!(shown(&by_mount_options(name)), given, "{name}");
            assert_eq!(shown(&by_flags(&[&format!("--{name}")])), given, "--{name}");
        } else {
            assert_eq!(shown(&by_flags(&[&format!("--{name}"), &value])), given, "--{name} {value}");
        }
    }
}

#[test]
fn the_example_holds_every_option() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/package.d/example.toml");
    if std::env::var_os("WRITE_EXAMPLE").is_some() {
        std::fs::write(&file, example()).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept, example(), "write it again: WRITE_EXAMPLE=1 cargo test --lib cli::args");

    let mut keys = kept.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| !line.starts_with(' '));
    assert_eq!(keys.next(), Some("directory = \"/mnt/repo\""));
    by_keys(&keys.collect::<Vec<_>>().join("\n")).parse().unwrap();
}

#[test]
fn each_key_of_the_example_has_a_value_of_its_own() {
    let keys = example();
    let line = |key: &str| keys.lines().find(|line| line.starts_with(&format!("#{key} = "))).unwrap().to_owned();

    for (key, value) in [
        ("fixity", "\"stream\""),
        ("timeout", "\"30s\""),
        ("max-text", "\"64K\""),
        ("connections", "64"),
        ("uid", "1000"),
        ("log", "\"/var/log/resyncfs-example.log\""),
        ("bearer-file", "\"/etc/resyncfs/example.bearer-file\""),
        ("shared-cache", "\"s3://example-bucket/resyncfs\""),
    ] {
        assert_eq!(line(key), format!("#{key} = {value}"));
    }
    let files: Vec<_> = options().into_iter().filter(|arg| placeholder(arg) == "FILE").map(|arg| value(&arg)).collect();
    assert_eq!(files.iter().collect::<std::collections::BTreeSet<_>>().len(), files.len(), "{files:?}");
}

#[test]
fn a_repeatable_option_keeps_every_value() {
    for option in options() {
        let given = format!("{}={}", option.get_long().unwrap(), value(&option));

        let (once, twice) = (shown(&by_mount_options(&given)), shown(&by_mount_options(&format!("{given},{given}"))));

        assert_eq!(is_repeatable(&option), once != twice, "{given}");
    }
}

#[test]
fn each_option_has_a_heading_and_a_help_text() {
    for option in options() {
        assert!(option.get_help_heading().is_some() && option.get_help().is_some(), "{option}");
        assert!(!option.get_long().unwrap().contains('_'), "{option}");
    }
}

#[test]
fn values_take_the_types_of_toml() {
    let keys = by_keys(
        "cache_size = 2_000\ntimeout = 1.5\nconnections = 4\numask = 0o027\nallow_other = true\nexec = false\n\
         at = 2024-05-01\ninclude = [\"a/**\", \"b, c\"]\nallow-host = \"h\"\npoll = \"2h\"\nmax-depth = 0x10\nmax-delete = 20\n",
    );
    let options = keys.parse().unwrap();

    assert_eq!((options.cache.size, options.network.connections, options.files.umask), (Some(2000), 4, 0o027));
    assert_eq!(options.network.timeout, Duration::from_millis(1500));
    assert_eq!(options.refresh.poll, Some(Duration::from_secs(7200)));
    assert_eq!((options.files.allow_other, options.files.exec), (Some(true), Some(false)));
    assert_eq!(options.network.allow_host, ["h".into()]);
    assert_eq!(options.limits.max_depth, 16);
    let by_mount_options = by_mount_options(r"include=a/**,include=b\, c,at=2024-05-01").parse().unwrap();
    assert_eq!(options.tree.include, by_mount_options.tree.include);
    assert_eq!(options.tree.at, by_mount_options.tree.at);
}

#[test]
fn the_command_line_overrides_the_file() {
    let file = || by_keys("poll = \"1h\"\nnoxattr = true\nexec = true\ninclude = [\"a\", \"b\"]\n");

    let mount_options = by_mount_options("poll=5m,noexec,include=c").over(file());
    let flags = by_flags(&["--poll", "5m", "-o", "noexec", "--include", "c"]).over(file());

    let options = mount_options.parse().unwrap();
    assert_eq!(options.refresh.poll, Some(Duration::from_secs(300)));
    assert_eq!((options.files.noxattr, options.files.exec), (Some(true), Some(false)));
    assert_eq!(options.tree.include, ["c".into()]);
    assert_eq!(shown(&mount_options), shown(&flags));
    let switched_off = by_flags(&["--noxattr=false"]).over(file()).parse().unwrap();
    assert_eq!(switched_off.files.noxattr, Some(false));
}

#[test]
fn flags_and_mount_options_count_in_their_order() {
    let poll = |flags: &[&str]| by_flags(flags).parse().unwrap().refresh.poll;

    assert_eq!(poll(&["-o", "poll=5m", "--poll", "6m"]), Some(Duration::from_secs(360)));
    assert_eq!(poll(&["--poll", "6m", "-opoll=5m"]), Some(Duration::from_secs(300)));
    let both = by_flags(&["--include", "a", "-o", "include=b", "--include", "c"]).parse().unwrap();
    assert_eq!(both.tree.include, ["a".into(), "b".into(), "c".into()]);
}

#[test]
fn sizes_and_times_take_units() {
    let options = parse("cache-size=1.5G,cache-reserve=500MiB,poll=2h,timeout=90,patience=2h,max-delete=10%").unwrap();

    assert_eq!(options.cache.size, Some(3 << 29));
    assert_eq!(options.cache.reserve, 500 << 20);
    assert_eq!(options.refresh.poll, Some(Duration::from_secs(7200)));
    assert_eq!(options.network.timeout, Duration::from_secs(90));
    assert_eq!(options.network.patience, Duration::from_secs(7200));
    assert_eq!(Some(options.refresh.max_delete), MaxDelete::percent(10));
}

#[test]
fn an_escaped_comma_belongs_to_the_value() {
    let options = parse(r"map=http://h/a\,b/=x\\y,noxattr").unwrap();

    assert_eq!(options.tree.map, [("http://h/a,b/".into(), r"x\y".into())]);
    assert_eq!(options.files.noxattr, Some(true));
}

#[test]
fn options_for_mount_8_and_systemd_are_ignored() {
    let given = "ro,_netdev,nofail,x-systemd.automount,smackfsdef=_,nostrictatime,quiet,x-gvfs-hide,user,user=me,noatime,comment=a,nodev,suid,";
    assert!(parse(given).is_ok());
}

#[test]
fn a_label_of_selinux_may_have_commas() {
    let files = parse(r#"context="system_u:object_r:nfs_t:s0:c1,c2",noxattr"#).unwrap().files;

    assert_eq!(files.context.as_deref(), Some("system_u:object_r:nfs_t:s0:c1,c2"));
    assert_eq!(files.noxattr, Some(true));
    let labels = parse("rootcontext=u:r:a,defcontext=u:r:b,fscontext=u:r:c").unwrap().files.labels();
    let labels: Vec<_> = labels.iter().map(|label| (label.option, &*label.label)).collect();
    assert_eq!(labels, [("fscontext", "u:r:c"), ("defcontext", "u:r:b"), ("rootcontext", "u:r:a")]);
}

#[test]
fn an_unknown_option_is_named_with_the_nearest_one() {
    assert_eq!(
        parse("cachesize=1G").unwrap_err(),
        "-o cachesize=1G: there is no such option; did you mean cache-size?"
    );
    for given in ["zzzzzzzzzz", "help", "=x", "--poll=5m"] {
        assert!(parse(given).unwrap_err().contains("there is no such option"), "{given}");
    }
}

#[test]
fn a_writable_mount_is_refused_with_the_reason() {
    assert!(parse("rw").unwrap_err().contains("read-only"));
    assert!(parse("remount").unwrap_err().contains("mount it again"));
}

#[test]
fn mount_8_may_pass_rw_and_unknown_options() {
    assert_eq!(by_mount_8("rw,noxattr", false).unwrap().files.noxattr, Some(true));
    assert!(by_mount_8("rw,frobnicate", false).is_err());
    assert_eq!(by_mount_8("rw,frobnicate=1,noxattr", true).unwrap().files.noxattr, Some(true));
    assert!(by_mount_8("poll=soon", true).is_err(), "a known option with a bad value is no unknown one");
    assert!(by_mount_8("remount", true).is_err());
    assert!(by_mount_8("password=x", true).is_err());
}

#[test]
fn of_exec_and_noexec_the_later_counts() {
    let exec = |text| parse(text).unwrap().files.exec.unwrap_or_default();

    assert!(!exec(""));
    assert!(exec("exec"));
    assert!(exec("noexec,allow_exec"));
    assert!(!exec("exec,noexec"));
}

#[test]
fn a_secret_is_refused_with_the_option_for_its_file() {
    for (given, place) in [("bearer=x", "bearer-file"), ("password=x", "netrc"), ("headers=x", "header-file")] {
        let refused = parse(given).unwrap_err();

        assert!(refused.contains(place) && !refused.contains("=x"), "{given}: {refused}");
    }
}

#[test]
fn a_bad_value_is_refused_with_a_good_one() {
    for (given, says) in [
        ("cache-size=much", "500M"),
        ("poll=soon", "5m"),
        ("poll=soon,poll=5m", "poll=soon: "),
        ("max-delete=all", "0 to 100"),
        ("max-delete=101%", "0 to 100"),
        ("fixity=maybe", "strict, stream, off"),
        ("umask=9", "octal"),
        ("uid=root", "not a number"),
        ("rate=0", "above 0"),
        ("connections=0", "above 0"),
        ("poll", "poll=TIME"),
        ("noxattr=1", "true, false"),
        ("map=x", "URI_PREFIX=PATH"),
        ("set=ftp://h/", "http"),
        ("metrics-listen=9464", "is not an address and a port"),
        ("metrics-listen=9464", "127.0.0.1:9464"),
        ("deny=", "tumblerd"),
        ("include=[", "docs/**"),
        ("conforms=dc", "is relative"),
        ("with=all", "describes"),
        ("alternate=pdf", "application/pdf"),
        ("at=yesterday", "2024-05-01T10:00:00Z"),
        ("at=2024-13-01", "2024-05-01T10:00:00Z"),
        ("max-depth=2", "three elements"),
        ("max-text=0", "256 bytes"),
        ("max-document=0", "1024 bytes"),
        ("cache=", "path"),
        ("context=nfs_t", "system_u:object_r:nfs_t:s0"),
        ("rootcontext=u:r:t t", "system_u:object_r:nfs_t:s0"),
    ] {
        let refused = parse(given).unwrap_err();

        assert!(refused.contains(says) && refused.starts_with("-o "), "{given}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{given}: {refused}");
    }
}

#[test]
fn commas_blanks_and_quotes_are_split_as_in_fstab() {
    for (text, parts) in [
        ("", vec![""]),
        ("a,b=1,", vec!["a", "b=1", ""]),
        (r"m=x\,y,z", vec!["m=x,y", "z"]),
        (r"m=x\054y\040z\134\043", vec![r"m=x,y z\#"]),
        (r"m=\\,n=\\054", vec![r"m=\", r"n=\054"]),
        (r"m=\[a\]\", vec![r"m=\[a\]\"]),
        (r#"context="u:r:t:s0:c1,c2",ro"#, vec!["context=u:r:t:s0:c1,c2", "ro"]),
        (r#"m=a"b,c"d"#, vec![r#"m=a"b"#, r#"c"d"#]),
        ("m=ä ö,ü", vec!["m=ä ö", "ü"]),
    ] {
        assert_eq!(split(text).unwrap(), parts, "{text}");
    }
    assert!(split(r#"context="u:r"#).is_err());
}

#[test]
fn the_last_key_of_an_option_is_completed() {
    let values =
        |typed: &str| mount_options(typed.as_ref()).iter().map(|it| it.get_value().to_owned()).collect::<Vec<_>>();

    assert_eq!(values("cache-s"), ["cache-size="]);
    assert_eq!(values("poll=5m,noxa"), ["poll=5m,noxattr"]);
    assert_eq!(values("poll=5m,fixity=str"), ["poll=5m,fixity=strict", "poll=5m,fixity=stream"]);
    assert!(values("poll=").is_empty());
}
