//! The options of a mount, one table for every way to give them.
//!
//! `-o name=value,name` as mount(8) passes them, `--name value`, and `name = value` in a configuration file: all become
//! [`Settings`], which the table turns into [`Options`].

mod escape;
mod flags;
mod passed_over;
mod settings;
mod spec;
mod table;
mod value;

pub use flags::Given;
pub use passed_over::secret_place;
pub use settings::{Dialect, Settings};
pub use spec::{Kind, nearest};
pub use table::{OptionSpec, TABLE};

use super::CliError;
use crate::content::{Fixity, Mirrors, Revalidate, Unannounced};
use crate::document::{Limits, Timestamp, Uri};
use crate::sync::deletion_guard::MaxDelete;
use crate::sync::selection::Selection;
use std::path::PathBuf;
use std::time::Duration;

/// What was asked for, option by option; what is `None` gets its default later.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `set=`
    pub set: Option<Uri>,
    /// `host=`
    pub host: Option<Box<str>>,
    /// `map=`
    pub maps: Vec<(Box<str>, Box<str>)>,
    /// `extension=type`
    pub extension_by_type: bool,
    /// `include=`, `exclude=`, `type=`, `collection=`, `conforms=`, `with=`
    pub selection: Selection,
    /// `at=`
    pub at: Option<Timestamp>,
    /// `alternate=`
    pub alternate: Option<Box<str>>,
    /// `cache=`
    pub cache: Option<PathBuf>,
    /// `cache-size=`
    pub cache_size: Option<u64>,
    /// `cache-reserve=`
    pub cache_reserve: Option<u64>,
    /// `readahead=`
    pub readahead: Option<u64>,
    /// `fixity=`
    pub fixity: Fixity,
    /// `mirrors=`
    pub mirrors: Mirrors,
    /// `revalidate=`
    pub revalidate: Revalidate,
    /// `unannounced=`
    pub unannounced: Unannounced,
    /// `poll=`
    pub poll: Option<Duration>,
    /// `max-delete=`
    pub max_delete: MaxDelete,
    /// `websub-listen=`
    pub websub_listen: Option<Box<str>>,
    /// `websub-callback=`, ended by a `/`.
    pub websub_callback: Option<Uri>,
    /// `timeout=`
    pub timeout: Option<Duration>,
    /// `user-agent=`
    pub contact: Option<Box<str>>,
    /// `connect-timeout=`
    pub connect_timeout: Option<Duration>,
    /// `rewrite=`
    pub rewrites: Vec<(Box<str>, Box<str>)>,
    /// `allow-host=`
    pub allowed_hosts: Vec<Box<str>>,
    /// `rate=`
    pub rate: Option<f64>,
    /// `connections=`
    pub connections: Option<usize>,
    /// `netrc=`
    pub netrc: Option<PathBuf>,
    /// `header-file=`
    pub header_file: Option<PathBuf>,
    /// `bearer-file=`
    pub bearer_file: Option<PathBuf>,
    /// `ca=`
    pub ca_bundle: Option<PathBuf>,
    /// `cert=`
    pub client_certificate: Option<PathBuf>,
    /// `max-document=`, `max-text=`, `max-depth=`, `max-links=`
    pub limits: Limits,
    /// `uid=`
    pub uid: Option<u32>,
    /// `gid=`
    pub gid: Option<u32>,
    /// `umask=`
    pub umask: Option<u16>,
    /// `allow_other`
    pub allow_other: bool,
    /// `exec`: off by default.
    pub exec: bool,
    /// `noxattr`
    pub noxattr: bool,
    /// `deny=`
    pub denied: Vec<Box<str>>,
    /// `metrics-listen=`
    pub metrics_listen: Option<std::net::SocketAddr>,
    /// `log=`
    pub log: Option<PathBuf>,
}

impl Options {
    /// Reads the values of all `-o` that a person typed.
    pub fn parse(values: &[String]) -> Result<Options, CliError> {
        let mut settings = Settings::default();
        for value in values {
            settings.push_mount_options(value, Dialect::Person)?;
        }
        settings.options()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Options, String> {
        Options::parse(&[value.to_owned()]).map_err(|refused| refused.message)
    }

    #[test]
    fn sizes_and_times_take_units() {
        let options = parse("cache-size=1.5G,cache-reserve=500MiB,poll=2h,timeout=90,max-delete=10%").unwrap();

        assert_eq!(options.cache_size, Some(3 << 29));
        assert_eq!(options.cache_reserve, Some(500 << 20));
        assert_eq!(options.poll, Some(Duration::from_secs(7200)));
        assert_eq!(options.timeout, Some(Duration::from_secs(90)));
        assert_eq!(Some(options.max_delete), MaxDelete::percent(10));
    }

    #[test]
    fn an_escaped_comma_belongs_to_the_value() {
        let options = parse(r"map=http://h/a\,b/=x\\y,noxattr").unwrap();

        assert_eq!(options.maps, [("http://h/a,b/".into(), r"x\y".into())]);
        assert!(options.noxattr);
    }

    #[test]
    fn what_mount_8_passes_on_is_passed_over() {
        assert!(
            parse("ro,_netdev,nofail,x-systemd.automount,x-gvfs-hide,user,user=me,noatime,comment=a,nodev,suid,")
                .is_ok()
        );
        assert!(parse(r#"context="system_u:object_r:nfs_t:s0:c1,c2",noxattr"#).unwrap().noxattr);
    }

    #[test]
    fn a_mistyped_option_is_named_with_the_nearest_right_one() {
        assert_eq!(
            parse("cachesize=1G").unwrap_err(),
            "-o cachesize=1G: there is no such option; did you mean cache-size?"
        );
        assert!(parse("zzzzzzzzzz").unwrap_err().contains("--help"));
    }

    #[test]
    fn a_writable_mount_is_refused_with_the_reason() {
        assert!(parse("rw").unwrap_err().contains("read-only"));
        assert!(parse("remount").unwrap_err().contains("mount it again"));
    }

    #[test]
    fn mount_8_may_say_rw_and_have_unknown_options_passed_over() {
        let mount_8 = |text: &str, sloppy| {
            let mut settings = Settings::default();
            settings.push_mount_options(text, Dialect::Mount8 { sloppy }).and_then(|()| settings.options())
        };

        assert!(mount_8("rw,noxattr", false).unwrap().noxattr);
        assert!(mount_8("rw,frobnicate", false).is_err());
        assert!(mount_8("rw,frobnicate=1,noxattr", true).unwrap().noxattr);
        assert!(mount_8("poll=soon", true).is_err(), "a known option with a bad value is no unknown one");
        assert!(mount_8("remount", true).is_err());
    }

    #[test]
    fn of_exec_and_noexec_the_later_counts() {
        assert!(!parse("").unwrap().exec);
        assert!(parse("exec").unwrap().exec);
        assert!(parse("noexec,allow_exec").unwrap().exec);
        assert!(!parse("exec,noexec").unwrap().exec);
    }

    #[test]
    fn a_secret_on_the_command_line_is_refused_with_its_place() {
        for (given, place) in [("bearer=x", "bearer-file"), ("password=x", "netrc"), ("headers=x", "header-file")] {
            assert!(parse(given).unwrap_err().contains(place), "{given}");
        }
    }

    #[test]
    fn a_bad_value_says_what_would_be_good() {
        for (given, says) in [
            ("cache-size=much", "500M"),
            ("poll=soon", "5m"),
            ("max-delete=all", "0 to 100"),
            ("max-delete=101%", "0 to 100"),
            ("fixity=maybe", "strict, stream, off"),
            ("umask=9", "octal"),
            ("rate=0", "above 0"),
            ("connections=0", "above 0"),
            ("poll", "poll=TIME"),
            ("noxattr=1", "no value"),
            ("map=x", "URI_PREFIX=PATH"),
            ("set=ftp://h/", "http"),
            ("metrics-listen=0.0.0.0:9464", "no loopback address"),
            ("metrics-listen=9464", "127.0.0.1:9464"),
            ("deny=", "tumblerd"),
            ("include=[", "docs/**"),
            ("conforms=dc", "no URI of its own"),
            ("with=all", "describes"),
            ("alternate=pdf", "application/pdf"),
            ("at=yesterday", "2024-05-01T10:00:00Z"),
            ("at=2024-13-01", "2024-05-01T10:00:00Z"),
            ("max-depth=2", "three elements"),
            ("max-text=0", "256 octets"),
            ("max-document=0", "1024 octets"),
        ] {
            let refused = parse(given).unwrap_err();

            assert!(refused.contains(says), "{given}: {refused}");
        }
    }
}
