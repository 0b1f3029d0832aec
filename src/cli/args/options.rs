//! The definition of each option of a mount. Flags, `-o` and the keys of a configuration file are all read by it.

use super::values::{
    SMALLEST_DOCUMENT, SMALLEST_TEXT, callback, choice, connections, contact, depth, glob, host, label, listen,
    max_delete, media_type, number, octal, pair, path, program, rate, revalidate, set, size, size_from, time,
    timestamp,
};
use crate::content::{Fixity, Mirrors, Revalidate, Unannounced, shared_cache_url};
use crate::control::listening;
use crate::document::{Href, Limits, Timestamp, Uri};
use crate::fs::session::Label;
use crate::sync::deletion_guard::MaxDelete;
use crate::sync::selection::{GlobError, Selection};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// The forms of two options, as messages show them.
const MAP: &str = "URI_PREFIX=PATH, such as https://repo.example.org/long/way/=short";
const REWRITE: &str = "FROM=TO, such as http://localhost:8080/=https://repo.example.org/";

/// Values of `mirrors=`.
const MIRRORS: &[(&str, Mirrors)] =
    &[("auto", Mirrors::Auto), ("first", Mirrors::First), ("last", Mirrors::Last), ("off", Mirrors::Off)];

/// Every option of a mount.
#[derive(Clone, Debug, Args)]
#[command(args_override_self = true)]
pub struct Options {
    /// The options that choose resources and their names.
    #[command(flatten, next_help_heading = "What is mounted")]
    pub tree: TreeOptions,
    /// The cache of downloaded bytes.
    #[command(flatten, next_help_heading = "The cache")]
    pub cache: CacheOptions,
    /// The options of verification and refreshes.
    #[command(flatten, next_help_heading = "Verification and refreshes")]
    pub refresh: RefreshOptions,
    /// The options of the network.
    #[command(flatten, next_help_heading = "The network")]
    pub network: NetworkOptions,
    /// Files with secrets and certificates.
    #[command(flatten, next_help_heading = "Credentials and certificates")]
    pub credentials: CredentialOptions,
    /// The limits on lists.
    #[command(flatten, next_help_heading = "Limits on lists")]
    pub limits: LimitOptions,
    /// Owner, modes and who may read.
    #[command(flatten, next_help_heading = "How files are shown")]
    pub files: FileOptions,
    /// The reports of the program.
    #[command(flatten, next_help_heading = "The program")]
    pub program: ProgramOptions,
}

/// The options that choose resources and their names.
#[derive(Clone, Debug, Args)]
pub struct TreeOptions {
    /// Mount only this set, named by its Capability List or by a page that describes it
    #[arg(long, value_name = "URI", value_parser = set)]
    pub set: Option<Uri>,
    /// Host whose resources are shown at the root of the tree (default: the Source's own host)
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host)]
    pub host: Option<Box<str>>,
    /// Show resources whose URI begins with URI_PREFIX in the folder PATH; may be repeated
    #[arg(long, value_name = "URI_PREFIX=PATH", value_parser = pair(MAP))]
    pub map: Vec<(Box<str>, Box<str>)>,
    /// Add the extension of the published media type to names without an extension
    #[arg(long, value_name = "type", hide_possible_values = true, value_parser = choice(&[("type", true)]))]
    pub extension: Option<bool>,
    /// Read landing pages in the background, and show the files that each links to in the folder PAGE%items
    #[arg(long, value_name = "follow", hide_possible_values = true, value_parser = choice(&[("follow", true)]))]
    pub items: Option<bool>,
    /// Mount the Source as it was at this time, such as 2024-05-01T10:00:00Z; the tree then stays as it is
    #[arg(long, value_name = "DATETIME", value_parser = timestamp)]
    pub at: Option<Timestamp>,
    /// Mount only paths that match, such as docs/** or *.pdf; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    pub include: Vec<Box<str>>,
    /// Leave out paths that match, even when another option selects them; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    pub exclude: Vec<Box<str>>,
    /// Mount only resources of this media type, such as application/pdf or image/*; may be repeated
    #[arg(long = "type", value_name = "TYPE", value_parser = media_type)]
    pub media_type: Vec<Box<str>>,
    /// Mount only members of this collection; may be repeated
    #[arg(long, value_name = "URI", value_parser = Href::parse)]
    pub collection: Vec<Href>,
    /// Mount only metadata records of this format and the resources they describe; may be repeated
    #[arg(long, value_name = "URI", value_parser = Href::parse)]
    pub conforms: Vec<Href>,
    /// Also mount the resources that the selected records describe
    #[arg(long, value_name = "describes", hide_possible_values = true, value_parser = choice(&[("describes", true)]))]
    pub with: Option<bool>,
    /// Show the alternate of this media type in place of a resource that has one
    #[arg(long, value_name = "TYPE", value_parser = media_type)]
    pub alternate: Option<Box<str>>,
}

impl TreeOptions {
    /// The resources that these options select.
    pub fn selection(&self) -> Result<Selection, GlobError> {
        let mut selection = Selection {
            types: self.media_type.clone(),
            collections: self.collection.clone(),
            formats: self.conforms.clone(),
            with_described: self.with.is_some(),
            ..Selection::default()
        };
        self.include.iter().try_for_each(|pattern| selection.included.add(pattern))?;
        self.exclude.iter().try_for_each(|pattern| selection.excluded.add(pattern))?;
        Ok(selection)
    }
}

/// The cache of downloaded bytes.
#[derive(Clone, Debug, Args)]
pub struct CacheOptions {
    /// Folder of the catalog and of downloaded files (default: the cache folder of the user or the system)
    #[arg(long = "cache", value_name = "DIR", value_parser = path)]
    pub folder: Option<PathBuf>,
    /// Bytes that the cache may use, with K, M, G or T (default: 10G or a tenth of the free space, whichever is smaller)
    #[arg(long = "cache-size", value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Free space that the cache leaves on its filesystem
    #[arg(long = "cache-reserve", value_name = "SIZE", value_parser = size, default_value = "1G")]
    pub reserve: u64,
    /// Bytes to download ahead of programs that read one file after the other; 0 turns it off (default: 256M or an eighth of the cache)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub readahead: Option<u64>,
    /// Object store that machines share, asked before the Source: s3://, gs://, az://, file:/// or, only read, https://
    #[arg(long, value_name = "URL", value_parser = shared_cache_url)]
    pub shared_cache: Option<Url>,
    /// Upload verified files to the shared cache
    #[arg(long, value_name = "yes|no", hide_possible_values = true, default_value = "yes")]
    #[arg(action = clap::ArgAction::Set, value_parser = choice(&[("yes", true), ("no", false)]))]
    pub shared_cache_write: bool,
}

/// The options of verification and refreshes.
#[derive(Clone, Debug, Args)]
pub struct RefreshOptions {
    /// Verify each file before its first byte is read (strict), large files while they are read (stream), or ignore published hashes (off)
    #[arg(long, value_name = "strict|stream|off", hide_possible_values = true, default_value = "stream")]
    #[arg(value_parser = choice(&[("strict", Fixity::Strict), ("stream", Fixity::Stream), ("off", Fixity::Off)]))]
    pub fixity: Fixity,
    /// When to use mirrors: first, last, never (off), or first only for files with a published hash (auto)
    #[arg(long, value_name = "auto|first|last|off", hide_possible_values = true, default_value = "auto")]
    #[arg(value_parser = choice(MIRRORS))]
    pub mirrors: Mirrors,
    /// How often to check a file that is listed without date and hash (default: by its changefreq, or else every hour)
    #[arg(long, value_name = "TIME|never", value_parser = revalidate)]
    pub revalidate: Option<Revalidate>,
    /// Result of a read when the server has a newer file than the list: an error (error), or the newer file, unverified (show)
    #[arg(long, value_name = "error|show", hide_possible_values = true, default_value = "error")]
    #[arg(value_parser = choice(&[("error", Unannounced::Error), ("show", Unannounced::Show)]))]
    pub unannounced: Unannounced,
    /// How often to check for changes, with s, m, h or d (default: at least 5m, longer where the lists take long)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub poll: Option<Duration>,
    /// Wait for confirmation when more than this part of the tree would be deleted within a day
    #[arg(long, value_name = "PERCENT", value_parser = max_delete, default_value = "50")]
    pub max_delete: MaxDelete,
    /// Address where hubs deliver notifications, so that changes show at once; port 0 takes any free port (default: none)
    #[arg(long, value_name = "HOST:PORT", value_parser = listen)]
    pub websub_listen: Option<Box<str>>,
    /// URL by which hubs reach websub-listen, for example through a proxy (default: http://HOST:PORT/)
    #[arg(long, value_name = "URL", value_parser = callback)]
    pub websub_callback: Option<Uri>,
}

/// The options of the network.
#[derive(Clone, Debug, Args)]
pub struct NetworkOptions {
    /// Fail a read after this time without progress
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub timeout: Duration,
    /// Wait up to this time, in addition to timeout, for a host that says when it will answer again
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10m")]
    pub patience: Duration,
    /// Longest time for name lookup, connection and TLS
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub connect_timeout: Duration,
    /// Contact for the operators of a host, added to the User-Agent of each request
    #[arg(long = "user-agent", value_name = "CONTACT", value_parser = contact)]
    pub contact: Option<Box<str>>,
    /// Download URIs that begin with FROM from TO, for a Source that lists http://localhost:8080/; may be repeated
    #[arg(long, value_name = "FROM=TO", value_parser = pair(REWRITE))]
    pub rewrite: Vec<(Box<str>, Box<str>)>,
    /// Connect to this host although its address is private; may be repeated
    #[arg(long, value_name = "HOST[:PORT]", value_parser = host)]
    pub allow_host: Vec<Box<str>>,
    /// Most requests a second to one host (default: no limit)
    #[arg(long, value_name = "NUMBER", value_parser = rate)]
    pub rate: Option<f64>,
    /// Most bytes of files to download until the mount ends; after that, reads of other files fail; 0 means no limit
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    pub max_download: u64,
    /// Most requests at a time to one host; fewer are made when it answers slowly
    #[arg(long, value_name = "NUMBER", value_parser = connections, default_value = "64")]
    pub connections: usize,
}

/// Files with secrets and certificates.
#[derive(Clone, Debug, Args)]
pub struct CredentialOptions {
    /// File with user names and passwords by host, in the format of curl
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub netrc: Option<PathBuf>,
    /// File with HTTP header fields for the Source's host, one in each line
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub header_file: Option<PathBuf>,
    /// File with a bearer token for the Source's host
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub bearer_file: Option<PathBuf>,
    /// File with further trusted certificates, PEM
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub ca: Option<PathBuf>,
    /// File with a client certificate and its key, PEM
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub cert: Option<PathBuf>,
    /// File with settings of the shared cache, KEY=VALUE in each line, by the names of their environment variables
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub shared_cache_credentials: Option<PathBuf>,
}

/// The limits on lists.
#[derive(Clone, Copy, Debug, Args)]
pub struct LimitOptions {
    /// Most bytes of one list, decompressed
    #[arg(long, value_name = "SIZE", value_parser = size_from(SMALLEST_DOCUMENT), default_value = "16G")]
    pub max_document: u64,
    /// Most bytes of one text or attribute in a list
    #[arg(long, value_name = "SIZE", value_parser = size_from(SMALLEST_TEXT), default_value = "64K")]
    pub max_text: u64,
    /// Deepest nesting of elements in a list
    #[arg(long, value_name = "NUMBER", value_parser = depth, default_value = "64")]
    pub max_depth: u32,
    /// Most links of one entry in a list
    #[arg(long, value_name = "NUMBER", value_parser = number, default_value = "1000")]
    pub max_links: u32,
}

impl LimitOptions {
    /// The limits as the reader of lists takes them.
    pub fn limits(&self) -> Limits {
        Limits {
            document: self.max_document,
            text: usize::try_from(self.max_text).unwrap_or(usize::MAX),
            depth: self.max_depth as usize,
            links: self.max_links as usize,
        }
    }
}

/// Owner, modes and who may read.
#[derive(Clone, Debug, Args)]
pub struct FileOptions {
    /// Owner of all files (default: you)
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub uid: Option<u32>,
    /// Group of all files (default: yours)
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub gid: Option<u32>,
    /// Bits to take from the modes 0444 of files and 0555 of folders
    #[arg(long, value_name = "OCTAL", value_parser = octal, default_value = "0")]
    pub umask: u16,
    /// Allow other users to read too (default for root)
    #[arg(long, alias = "allow_other", value_name = "true|false", hide_possible_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_other: Option<bool>,
    // mount(8) keeps `exec` for itself, so that a mount helper sees only the other name.
    /// Allow programs in the mount to be run
    #[arg(long, alias = "allow-exec", value_name = "true|false", hide_possible_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub exec: Option<bool>,
    /// Show no extended attributes; ls -l is then five times faster in huge folders
    #[arg(long, value_name = "true|false", hide_possible_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub noxattr: Option<bool>,
    /// Label of SELinux that all files have, such as system_u:object_r:nfs_t:s0; for root
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub context: Option<Box<str>>,
    /// Label of SELinux that the mount as a whole has; for root
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub fscontext: Option<Box<str>>,
    /// Label of SELinux of files without a label; for root
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub defcontext: Option<Box<str>>,
    /// Label of SELinux of the mount's top folder; for root
    #[arg(long, value_name = "LABEL", value_parser = label)]
    pub rootcontext: Option<Box<str>>,
    /// Download nothing for programs of this name, such as thumbnailers (see /proc/PID/comm); may be repeated
    #[arg(long, value_name = "NAME", value_parser = program)]
    pub deny: Vec<Box<str>>,
}

impl FileOptions {
    /// The labels that are given.
    pub fn labels(&self) -> Vec<Label> {
        let given = [
            ("context", &self.context),
            ("fscontext", &self.fscontext),
            ("defcontext", &self.defcontext),
            ("rootcontext", &self.rootcontext),
        ];
        let label = |(option, label): (_, &Option<Box<str>>)| Some(Label { option, label: label.clone()? });
        given.into_iter().filter_map(label).collect()
    }
}

/// The reports of the program.
#[derive(Clone, Debug, Args)]
pub struct ProgramOptions {
    /// Serve Prometheus metrics at this address too, such as 127.0.0.1:9464, or 0.0.0.0:9464 for other machines; port 0 takes any free port
    #[arg(long, value_name = "HOST:PORT", value_parser = listening)]
    pub metrics_listen: Option<SocketAddr>,
    /// File for the log of a mount in the background (default: a file in its cache folder)
    #[arg(long, value_name = "FILE", value_parser = path)]
    pub log: Option<PathBuf>,
}
