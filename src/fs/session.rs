//! The options of the mount, and its readahead.

use fuser::{Config, MountOption, SessionACL};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::io;

/// The type in /proc/mounts is `fuse.resyncfs`.
pub const SUBTYPE: &str = "resyncfs";

/// FUSE threads. Measured on two processors: more gain nothing, and one answers half as many stats.
pub(super) const THREADS: usize = 2;

/// Characters that would end the source column of the mount table, or begin another option (`fusermount3 -o`).
const NOT_IN_A_SOURCE: &AsciiSet = &CONTROLS.add(b',').add(b'\\').add(b' ');

/// Options of a mount that the user may choose.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The Source, for the first column of the mount table; credentials in it are removed.
    pub source: String,
    /// The users who may enter: `Owner`, or `All` (`allow_other`).
    pub acl: SessionACL,
    /// True if files may be executed where their mode allowed it; where the user says nothing they may not, if that is permitted.
    pub exec: Option<bool>,
    /// Labels of SELinux for the kernel.
    pub labels: Vec<Label>,
}

/// A label of SELinux for a whole mount.
#[derive(Clone, Debug)]
pub struct Label {
    /// `context`, `fscontext`, `defcontext` or `rootcontext`.
    pub option: &'static str,
    /// Without a quote; it may have commas.
    pub label: Box<str>,
}

/// How fuser mounts.
pub fn mount_options(options: &SessionOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        // The kernel checks modes, and with that open(2) asks GETATTR for a size that is not known yet.
        MountOption::DefaultPermissions,
        MountOption::FSName(shown_source(&options.source)),
        // `MountOption::Subtype` is lost where root mounts without fusermount3.
        MountOption::CUSTOM(format!("subtype={SUBTYPE}")),
    ];
    if !options.exec.unwrap_or_default() {
        config.mount_options.push(MountOption::NoExec);
    }
    // In quotes the kernel takes commas for a part of the label.
    let labels = options.labels.iter().map(|Label { option, label }| format!("{option}=\"{label}\""));
    config.mount_options.extend(labels.map(MountOption::CUSTOM));
    config.acl = options.acl;
    config.n_threads = Some(THREADS);
    config
}

/// `source` without user and password, escaped for the mount table and for a list of options.
fn shown_source(source: &str) -> String {
    let without_credentials = match source.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let host = rest[..authority].rfind('@').map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[host..])
        }
        None => source.to_owned(),
    };
    utf8_percent_encode(&without_credentials, NOT_IN_A_SOURCE).to_string()
}

/// Lets the kernel read `kilobytes` ahead on the filesystem whose device is `MAJOR:MINOR`: without it a READ is at
/// most 128 KiB. Needs root.
pub fn raise_readahead(device: &str, kilobytes: u32) -> io::Result<()> {
    std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kilobytes.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(source: &str) -> SessionOptions {
        SessionOptions { source: source.into(), acl: SessionACL::All, exec: None, labels: Vec::new() }
    }

    #[test]
    fn a_mount_is_read_only_and_shows_its_type_and_source() {
        let config = mount_options(&options("https://example.org/"));
        for option in [
            MountOption::RO,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoExec,
            MountOption::DefaultPermissions,
            MountOption::FSName("https://example.org/".into()),
            MountOption::CUSTOM("subtype=resyncfs".into()),
        ] {
            assert!(config.mount_options.contains(&option), "{option:?}");
        }
        assert_eq!((config.acl, config.n_threads), (SessionACL::All, Some(2)));
        let config = mount_options(&SessionOptions { exec: Some(true), ..options("s") });
        assert!(!config.mount_options.contains(&MountOption::NoExec));
    }

    #[test]
    fn a_label_is_an_option_in_quotes() {
        let labels = vec![Label { option: "context", label: "u:r:t:s0:c1,c2".into() }];
        let config = mount_options(&SessionOptions { labels, ..options("s") });
        assert_eq!(config.mount_options.last(), Some(&MountOption::CUSTOM("context=\"u:r:t:s0:c1,c2\"".into())));
    }

    #[test]
    fn the_source_column_has_no_credentials_and_makes_no_options() {
        for (source, shown) in [
            ("https://u:p@example.org/a", "https://example.org/a"),
            ("https://u:p@w@example.org", "https://example.org"),
            ("https://example.org/a@b", "https://example.org/a@b"),
            ("https://example.org/a,suid,dev", "https://example.org/a%2Csuid%2Cdev"),
            ("/srv/my list.xml", "/srv/my%20list.xml"),
            ("a\\,b\nc", "a%5C%2Cb%0Ac"),
        ] {
            assert_eq!(shown_source(source), shown);
        }
    }
}
