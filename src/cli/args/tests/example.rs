//! The configuration file with every option, commented out, from the definitions of the options.

use crate::cli::args::words::{help, is_repeatable, options, placeholder};
use clap::Arg;
use toml::de::DeTable;

/// The text of `scripts/package.d/example.toml`.
pub(super) fn example() -> String {
    let mut text = String::from(include_str!("example_head.toml"));
    let mut heading = String::new();
    for arg in options() {
        let its_heading = arg.get_help_heading().unwrap_or_default();
        if its_heading != heading {
            heading = its_heading.to_owned();
            text.push_str(&format!("\n\n# {heading}\n"));
        }
        text.push_str(&format!("\n# {}: {}\n#{}\n", placeholder(&arg), help(&arg), line(&arg, &value(&arg))));
    }
    text
}

/// `key = value`; in quotes what TOML has no type for.
pub(super) fn line(arg: &Arg, value: &str) -> String {
    let key = arg.get_long().unwrap_or_default();
    let bare = format!("{key} = {value}");
    match DeTable::parse(&bare) {
        _ if is_repeatable(arg) => format!("{key} = [\"{value}\"]"),
        Ok(_) => bare,
        Err(_) => format!("{key} = \"{value}\""),
    }
}

/// The default, or a value that the option takes.
pub(super) fn value(arg: &Arg) -> String {
    if let [default] = arg.get_default_values() {
        return default.to_string_lossy().into_owned();
    }
    let key = arg.get_long().unwrap_or_default();
    let value = match (key, placeholder(arg)) {
        ("cache-size", _) => "10G",
        ("readahead", _) => "256M",
        ("revalidate", _) => "1h",
        ("rate", _) => "5",
        ("ca", _) => "/etc/ssl/certs/example.pem",
        ("log", _) => "/var/log/resyncfs-example.log",
        ("set", _) => "https://repo.example.org/capabilitylist.xml",
        ("conforms", _) => "http://www.openarchives.org/OAI/2.0/oai_dc/",
        ("shared-cache", _) => "s3://example-bucket/resyncfs",
        ("websub-callback", _) => "http://this-machine.example.org:8801/",
        ("websub-listen", _) => "0.0.0.0:8801",
        (_, "true|false") => "true",
        (_, "NUMBER") => "1000",
        (_, "TIME") => "15m",
        (_, "DATETIME") => "2024-05-01T10:00:00Z",
        (key, "FILE") => return format!("/etc/resyncfs/example.{key}"),
        (_, "DIR") => "/srv/cache",
        (_, "GLOB") => "docs/**",
        (_, "TYPE") => "application/pdf",
        (_, "HOST[:PORT]") => "files.example.org:8080",
        (_, "HOST:PORT") => "127.0.0.1:9464",
        (_, "URI") => "https://repo.example.org/collection",
        (_, "URI_PREFIX=PATH") => "https://repo.example.org/long/way/=short",
        (_, "FROM=TO") => "http://localhost:8080/=https://repo.example.org/",
        (_, "CONTACT") => "mailto:ann@example.org",
        (_, "NAME") => "tumblerd",
        (_, "LABEL") => "system_u:object_r:nfs_t:s0",
        (_, only) => only,
    };
    value.to_owned()
}
