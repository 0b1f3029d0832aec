//! The reports of an audit. A mount sends them over its control socket, one JSON object a line.

use super::super::Stage;
use super::super::status::MissingStatus;
use crate::document::Uri;
use crate::source::http::Pace;
use serde::{Deserialize, Serialize};

/// The kind of a difference between a file and its Source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    /// A file that is listed and not in the tree.
    Missing,
    /// A file that is in the tree and not listed.
    Extra,
    /// A file that is listed, or served, with other content.
    Changed,
    /// A file whose bytes in the cache are not the published ones.
    Corrupt,
    /// A file that is listed, and the Source answers that it does not exist.
    Gone,
    /// A file that could not be checked.
    Failed,
}

/// One file that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFinding {
    /// The kind of the difference.
    pub difference: Difference,
    /// Its path in the tree, or the path that it would have.
    pub path: String,
    /// Its resource.
    pub uri: String,
    /// The difference, for a person.
    pub what: String,
}

/// A file as its tree shows it, for fixity runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownFile {
    /// Its path in the tree.
    pub path: String,
    /// Its resource.
    pub uri: String,
    /// Bytes, where that is published or learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// `lastmod`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lastmod: Option<String>,
    /// `type`
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The published digests of what a read returns, as `ALGORITHM:HEX`, strongest first.
    pub hashes: Vec<String>,
}

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Files compared, missing ones included.
    pub files: u64,
    /// Files without a finding.
    pub in_sync: u64,
    /// See [`Difference`].
    pub missing: u64,
    /// See [`Difference`].
    pub extra: u64,
    /// See [`Difference`].
    pub changed: u64,
    /// See [`Difference`].
    pub corrupt: u64,
    /// See [`Difference`].
    pub gone: u64,
    /// See [`Difference`].
    pub failed: u64,
    /// Cached objects that were read.
    pub objects_read: u64,
    /// Resources that were requested.
    pub requested: u64,
    /// The served ones of these with neither a published digest nor a published length.
    pub unverifiable: u64,
    /// The time of the Source's lists.
    pub at: Option<String>,
    /// Reasons why absence from the lists proves nothing: missing parts of the Source, and lists with entries that are not understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<MissingStatus>,
    /// The time since when changes may be missing that nothing published contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_since: Option<String>,
}

/// A message of a running audit. The last one is a summary, a failure, or that nothing can be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A file that differs.
    Finding(AuditFinding),
    /// A file of the tree, where these were requested.
    File(ShownFile),
    /// The progress.
    Progress(Progress),
    /// The summary: every file was compared.
    Summary(Summary),
    /// The reason why the Source's present lists are not enough to compare with.
    Undecided(String),
    /// The cause of a failed audit.
    Failure(String),
}

/// The progress of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// Reading the Source's lists.
    Lists(Stage),
    /// Comparing files.
    Files {
        /// Files compared so far.
        compared: u64,
        /// Files in the tree, or in the lists where these have more.
        of: u64,
        /// Bytes that the Source served for it.
        bytes: u64,
        /// The bytes of all files that are requested, where every size is published.
        of_bytes: Option<u64>,
        /// The host whose limit paces it.
        #[serde(default)]
        pace: Option<Pace>,
    },
}

impl AuditFinding {
    pub(super) fn new(difference: Difference, path: &str, uri: &Uri, what: String) -> AuditFinding {
        AuditFinding { difference, path: path.to_owned(), uri: uri.to_string(), what }
    }
}

impl Difference {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Difference::Missing => "missing",
            Difference::Extra => "extra",
            Difference::Changed => "changed",
            Difference::Corrupt => "corrupt",
            Difference::Gone => "gone",
            Difference::Failed => "failed",
        }
    }
}

impl Summary {
    /// Files that differ.
    pub fn differences(&self) -> u64 {
        self.missing + self.extra + self.changed + self.corrupt + self.gone + self.failed
    }

    /// Files that differ for sure: an extra one may be listed in a part that is missing.
    pub fn proven(&self) -> u64 {
        self.differences() - if self.unread.is_empty() { 0 } else { self.extra }
    }

    pub(super) fn count(&mut self, difference: Difference) {
        *match difference {
            Difference::Missing => &mut self.missing,
            Difference::Extra => &mut self.extra,
            Difference::Changed => &mut self.changed,
            Difference::Corrupt => &mut self.corrupt,
            Difference::Gone => &mut self.gone,
            Difference::Failed => &mut self.failed,
        } += 1;
    }
}
