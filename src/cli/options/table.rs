//! The table of all options.

use super::Options;
use super::value::{choice, host, media_type, number, pair, path, size, size_of_least, time};
use crate::content::{Fixity, Mirrors, Revalidate, Unannounced};
use crate::control::loopback;
use crate::document::{Href, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::sync::deletion_guard::MaxDelete;

/// One option: its name, what its value looks like (empty: none is taken), a line of help, and what it does.
pub struct OptionSpec {
    /// As typed.
    pub name: &'static str,
    /// `SIZE`, `FILE`, …
    pub value: &'static str,
    /// One line.
    pub help: &'static str,
    pub(super) set: fn(&mut Options, &str) -> Result<(), String>,
}

/// Octets below which no list can be read, and below which no text of one.
const LEAST_DOCUMENT: u64 = 1024;
const LEAST_TEXT: u64 = 256;

/// Every option.
pub const TABLE: &[OptionSpec] = &[
    OptionSpec {
        name: "set",
        value: "URI",
        help: "mount this set alone (its Capability List, or what describes it)",
        set: |o, v| match Uri::parse(v) {
            Ok(uri) => {
                o.set = Some(uri);
                Ok(())
            }
            Err(_) => Err(format!("{v:?} is no address such as https://HOST/capabilitylist.xml")),
        },
    },
    OptionSpec {
        name: "host",
        value: "HOST[:PORT]",
        help: "the host whose resources lie below the root (default: the Source's own)",
        set: |o, v| host(v).map(|found| o.host = Some(found)),
    },
    OptionSpec {
        name: "map",
        value: "URI_PREFIX=PATH",
        help: "show what begins with URI_PREFIX below PATH",
        set: |o, v| pair(v, "URI_PREFIX=PATH").map(|found| o.maps.push(found)),
    },
    OptionSpec {
        name: "extension",
        value: "type",
        help: "give names without extension the one of their published type",
        set: |o, v| choice(v, &[("type", true)]).map(|on| o.extension_by_type = on),
    },
    OptionSpec {
        name: "at",
        value: "DATETIME",
        help: "the Source as it was then, such as 2024-05-01T10:00:00Z; it does not change any more",
        set: |o, v| match Timestamp::parse(v) {
            Some(time) => {
                o.at = Some(time);
                Ok(())
            }
            None => Err(format!("{v:?} is no time such as 2024-05-01T10:00:00Z or 2024-05-01")),
        },
    },
    OptionSpec {
        name: "include",
        value: "GLOB",
        help: "only paths such as docs/** or *.pdf; may be repeated",
        set: |o, v| o.selection.included.add(v).map_err(|cause| chain(&cause)),
    },
    OptionSpec {
        name: "exclude",
        value: "GLOB",
        help: "no such paths, whatever else chooses them; may be repeated",
        set: |o, v| o.selection.excluded.add(v).map_err(|cause| chain(&cause)),
    },
    OptionSpec {
        name: "type",
        value: "TYPE",
        help: "only resources of this media type, such as application/pdf or image/*; may be repeated",
        set: |o, v| media_type(v).map(|found| o.selection.types.push(found.into())),
    },
    OptionSpec {
        name: "collection",
        value: "URI",
        help: "only members of this collection; may be repeated",
        set: |o, v| Href::parse(v).map(|uri| o.selection.collections.push(uri)).map_err(|cause| cause.to_string()),
    },
    OptionSpec {
        name: "conforms",
        value: "URI",
        help: "only records of this format (their profile, or what they are describedby) and what they describe; may be repeated",
        set: |o, v| Href::parse(v).map(|uri| o.selection.formats.push(uri)).map_err(|cause| cause.to_string()),
    },
    OptionSpec {
        name: "with",
        value: "describes",
        help: "beside the records chosen by these, whatever they describe",
        set: |o, v| choice(v, &[("describes", true)]).map(|on| o.selection.with_described = on),
    },
    OptionSpec {
        name: "alternate",
        value: "TYPE",
        help: "show a resource that has an alternate of this media type with that one's bytes",
        set: |o, v| media_type(v).map(|found| o.alternate = Some(found.into())),
    },
    OptionSpec {
        name: "cache",
        value: "DIR",
        help: "folder of catalog and objects (default: the system's or the user's cache folder)",
        set: |o, v| path(v).map(|found| o.cache = Some(found)),
    },
    OptionSpec {
        name: "cache-size",
        value: "SIZE",
        help: "octets the cache may take, with K, M, G or T (default: 10G or a tenth of the free space)",
        set: |o, v| size(v).map(|found| o.cache_size = Some(found)),
    },
    OptionSpec {
        name: "cache-reserve",
        value: "SIZE",
        help: "free space the cache leaves on its file system (default: 1G)",
        set: |o, v| size(v).map(|found| o.cache_reserve = Some(found)),
    },
    OptionSpec {
        name: "readahead",
        value: "SIZE",
        help: "octets fetched ahead of readers that go from file to file; 0: none (default: 256M or an eighth of the cache)",
        set: |o, v| size(v).map(|found| o.readahead = Some(found)),
    },
    OptionSpec {
        name: "fixity",
        value: "strict|stream|off",
        help: "verify everything whole first, or stream big files (default), or ignore published hashes",
        set: |o, v| {
            choice(v, &[("strict", Fixity::Strict), ("stream", Fixity::Stream), ("off", Fixity::Off)])
                .map(|found| o.fixity = found)
        },
    },
    OptionSpec {
        name: "mirrors",
        value: "auto|first|last|off",
        help: "where mirrors are asked (default auto: first where a hash is published)",
        set: |o, v| {
            choice(
                v,
                &[("auto", Mirrors::Auto), ("first", Mirrors::First), ("last", Mirrors::Last), ("off", Mirrors::Off)],
            )
            .map(|found| o.mirrors = found)
        },
    },
    OptionSpec {
        name: "revalidate",
        value: "TIME|never",
        help: "ask so often for files whose entry has no date and no hash (default: by changefreq, else 1h)",
        set: |o, v| {
            o.revalidate = if v == "never" { Revalidate::Never } else { Revalidate::Every(time(v)?) };
            Ok(())
        },
    },
    OptionSpec {
        name: "unannounced",
        value: "error|show",
        help: "bytes newer than the list and others than it says: reading fails (default), or shows them unverified",
        set: |o, v| {
            choice(v, &[("error", Unannounced::Error), ("show", Unannounced::Show)]).map(|found| o.unannounced = found)
        },
    },
    OptionSpec {
        name: "poll",
        value: "TIME",
        help: "look for changes this often, with s, m, h or d (default: by the documents' size, 5m at least)",
        set: |o, v| time(v).map(|found| o.poll = Some(found)),
    },
    OptionSpec {
        name: "max-delete",
        value: "PERCENT",
        help: "deletions of more than this part of the tree within a day wait for a person (default: 50)",
        set: |o, v| match v.trim_end_matches('%').parse().ok().and_then(MaxDelete::percent) {
            Some(limit) => {
                o.max_delete = limit;
                Ok(())
            }
            None => Err(format!("{v:?} is no percentage from 0 to 100")),
        },
    },
    OptionSpec {
        name: "websub-listen",
        value: "HOST:PORT",
        help: "let hubs deliver notifications here, so that changes show at once; port 0: any (default: only look)",
        set: |o, v| match v.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                o.websub_listen = Some(v.into());
                Ok(())
            }
            _ => Err(format!("{v:?} is no HOST:PORT such as 0.0.0.0:8090")),
        },
    },
    OptionSpec {
        name: "websub-callback",
        value: "URL",
        help: "where hubs reach websub-listen, behind a proxy or by name (default: http://HOST:PORT/)",
        set: |o, v| {
            let folder = if v.ends_with('/') { v.to_owned() } else { format!("{v}/") };
            match Uri::parse(&folder) {
                Ok(uri) if uri.query().is_none() => {
                    o.websub_callback = Some(uri);
                    Ok(())
                }
                _ => Err(format!("{v:?} is no address such as https://HOST/websub/")),
            }
        },
    },
    OptionSpec {
        name: "timeout",
        value: "TIME",
        help: "a read without progress for so long fails (default: 30s)",
        set: |o, v| time(v).map(|found| o.timeout = Some(found)),
    },
    OptionSpec {
        name: "connect-timeout",
        value: "TIME",
        help: "time for name, connection and TLS (default: 10s)",
        set: |o, v| time(v).map(|found| o.connect_timeout = Some(found)),
    },
    OptionSpec {
        name: "user-agent",
        value: "CONTACT",
        help: "how those who run a host can reach you, added to what requests say of the program",
        set: |o, v| {
            // Checked here, so that the option is named where it is wrong.
            let is_text = !v.trim().is_empty() && v.chars().all(|c| (' '..='~').contains(&c));
            if !is_text {
                return Err(format!("{v:?} is not a line of ASCII text such as mailto:ann@example.org"));
            }
            o.contact = Some(v.trim().into());
            Ok(())
        },
    },
    OptionSpec {
        name: "rewrite",
        value: "FROM=TO",
        help: "fetch URIs that begin with FROM from TO (a Source that published http://localhost:8080/)",
        set: |o, v| pair(v, "FROM=TO").map(|found| o.rewrites.push(found)),
    },
    OptionSpec {
        name: "allow-host",
        value: "HOST[:PORT]",
        help: "reach this host although its address is private",
        set: |o, v| host(v).map(|found| o.allowed_hosts.push(found)),
    },
    OptionSpec {
        name: "rate",
        value: "NUMBER",
        help: "requests a second to one host (default: unbounded)",
        set: |o, v| match v.parse::<f64>() {
            Ok(rate) if rate.is_finite() && rate > 0.0 => {
                o.rate = Some(rate);
                Ok(())
            }
            _ => Err(format!("{v:?} is no number above 0")),
        },
    },
    OptionSpec {
        name: "connections",
        value: "NUMBER",
        help: "requests under way to one host at most; how many is learnt from how it answers (default: 64)",
        set: |o, v| match v.parse() {
            Ok(0) | Err(_) => Err(format!("{v:?} is no whole number above 0")),
            Ok(connections) => {
                o.connections = Some(connections);
                Ok(())
            }
        },
    },
    OptionSpec {
        name: "netrc",
        value: "FILE",
        help: "user names and passwords by host, as curl reads them",
        set: |o, v| path(v).map(|found| o.netrc = Some(found)),
    },
    OptionSpec {
        name: "header-file",
        value: "FILE",
        help: "header fields for the Source's host, one a line",
        set: |o, v| path(v).map(|found| o.header_file = Some(found)),
    },
    OptionSpec {
        name: "bearer-file",
        value: "FILE",
        help: "a bearer token for the Source's host",
        set: |o, v| path(v).map(|found| o.bearer_file = Some(found)),
    },
    OptionSpec {
        name: "ca",
        value: "FILE",
        help: "more trusted certificates, PEM",
        set: |o, v| path(v).map(|found| o.ca_bundle = Some(found)),
    },
    OptionSpec {
        name: "cert",
        value: "FILE",
        help: "client certificate and key, PEM",
        set: |o, v| path(v).map(|found| o.client_certificate = Some(found)),
    },
    OptionSpec {
        name: "max-document",
        value: "SIZE",
        help: "octets of one list after decompression (default: 16G)",
        set: |o, v| size_of_least(v, LEAST_DOCUMENT).map(|found| o.limits.document = found),
    },
    OptionSpec {
        name: "max-text",
        value: "SIZE",
        help: "octets of one text or attribute of a list (default: 64K)",
        set: |o, v| {
            size_of_least(v, LEAST_TEXT).map(|found| o.limits.text = usize::try_from(found).unwrap_or(usize::MAX))
        },
    },
    OptionSpec {
        name: "max-depth",
        value: "NUMBER",
        help: "depth of nested elements of a list (default: 64)",
        set: |o, v| match number(v)? {
            // urlset, url, loc.
            0..3 => Err(format!("{v:?} leaves no room for a list, which is three elements deep")),
            found => {
                o.limits.depth = found as usize;
                Ok(())
            }
        },
    },
    OptionSpec {
        name: "max-links",
        value: "NUMBER",
        help: "links of one entry (default: 1000)",
        set: |o, v| number(v).map(|found| o.limits.links = found as usize),
    },
    OptionSpec {
        name: "uid",
        value: "NUMBER",
        help: "owner of everything (default: you)",
        set: |o, v| number(v).map(|found| o.uid = Some(found)),
    },
    OptionSpec {
        name: "gid",
        value: "NUMBER",
        help: "group of everything (default: yours)",
        set: |o, v| number(v).map(|found| o.gid = Some(found)),
    },
    OptionSpec {
        name: "umask",
        value: "OCTAL",
        help: "bits taken from 0444 and 0555 (default: 0)",
        set: |o, v| match u16::from_str_radix(v, 8) {
            Ok(umask) if umask <= 0o777 => {
                o.umask = Some(umask);
                Ok(())
            }
            _ => Err(format!("{v:?} is no octal number up to 777")),
        },
    },
    OptionSpec {
        name: "allow_other",
        value: "",
        help: "let other users read too (default for root)",
        set: |o, _| {
            o.allow_other = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "exec",
        value: "",
        help: "let programs in the mount be run",
        set: |o, _| {
            o.exec = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "noxattr",
        value: "",
        help: "no extended attributes: ls -l is five times faster on huge folders",
        set: |o, _| {
            o.noxattr = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "deny",
        value: "NAME",
        help: "fetch nothing for programs of this name (as in /proc/PID/comm), such as thumbnailers; may be repeated",
        set: |o, v| match v {
            "" => Err("needs the name of a program, such as tumblerd".to_owned()),
            name => {
                o.denied.push(name.into());
                Ok(())
            }
        },
    },
    OptionSpec {
        name: "metrics-listen",
        value: "HOST:PORT",
        help: "tell Prometheus' metrics on this loopback port too, such as 127.0.0.1:9464; port 0: any",
        set: |o, v| loopback(v).map(|address| o.metrics_listen = Some(address)),
    },
    OptionSpec {
        name: "log",
        value: "FILE",
        help: "where a mount in the background logs (default: in its cache folder)",
        set: |o, v| path(v).map(|found| o.log = Some(found)),
    },
];
