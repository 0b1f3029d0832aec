//! The configuration file with every option, commented out, from the definitions of the options.

use super::words::{is_repeatable, options, placeholder};
use clap::Arg;
use toml::de::DeTable;

/// The text of `scripts/package.d/example.toml`.
pub fn example() -> String {
    let mut text = String::from(
        "# A mount by name: as /etc/resyncfs/NAME.toml this file is used by `resyncfs mount NAME` and `systemctl start resyncfs@NAME`,\n\
         # as ~/.config/resyncfs/NAME.toml for one user alone, with `systemctl --user start resyncfs@NAME`.\n\
         # Only the source is required. The command line overrides this file.\n\
         # SIZE is \"500M\", \"10G\" or a number of bytes; TIME is \"30s\", \"5m\", \"1h\" or a number of seconds.\n\
         # Write no secret here: name a file that only its owner can read (chmod 600), or give the service a credential.\n\
         \n\
         # A site, a page, a Source Description, a Capability List, a list, a sitemap, or the path of a list on this machine.\n\
         source = \"https://repo.example.org/\"\n\n\
         # The folder to mount on, unless the command line names one.\n\
         #directory = \"/mnt/repo\"\n",
    );
    let mut heading = String::new();
    for arg in options() {
        let its_heading = arg.get_help_heading().unwrap_or_default();
        if its_heading != heading {
            heading = its_heading.to_owned();
            text.push_str(&format!("\n\n# {heading}\n"));
        }
        text.push_str(&format!("\n# {}: {}\n#{}\n", placeholder(&arg), help(&arg), line(&arg)));
    }
    text
}

/// The help of an option with its default.
pub fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match arg.get_default_values() {
        [default] => format!("{help} (default: {})", default.to_string_lossy()),
        _ => help,
    }
}

/// `key = value`; in quotes what TOML has no type for.
pub(super) fn line(arg: &Arg) -> String {
    let (key, value) = (arg.get_long().unwrap_or_default(), value(arg));
    let bare = format!("{key} = {value}");
    match DeTable::parse(&bare) {
        _ if is_repeatable(arg) => format!("{key} = [\"{value}\"]"),
        Ok(_) => bare,
        Err(_) => format!("{key} = \"{value}\""),
    }
}

/// A value that the option takes.
pub(super) fn value(arg: &Arg) -> String {
    let value = match placeholder(arg) {
        "true|false" => "true",
        "NUMBER" => "16",
        "PERCENT" => "20",
        "SIZE" => "2G",
        "TIME" | "TIME|never" => "15m",
        "OCTAL" => "0o027",
        "DATETIME" => "2024-05-01T10:00:00Z",
        "FILE" => "/etc/resyncfs/example.secret",
        "DIR" => "/srv/cache",
        "GLOB" => "docs/**",
        "TYPE" => "application/pdf",
        "HOST[:PORT]" => "files.example.org:8080",
        "HOST:PORT" => "127.0.0.1:8090",
        "URI" | "URL" => "https://repo.example.org/name",
        "URI_PREFIX=PATH" => "https://repo.example.org/long/way/=short",
        "FROM=TO" => "http://localhost:8080/=https://repo.example.org/",
        "CONTACT" => "mailto:ann@example.org",
        "NAME" => "tumblerd",
        "LABEL" => "system_u:object_r:nfs_t:s0",
        choices => choices.rsplit('|').next().unwrap_or_default(),
    };
    value.to_owned()
}
