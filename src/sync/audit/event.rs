//! What an audit reports. A mount sends it over its control socket, one JSON object a line.

use super::super::Stage;
use super::super::status::MissingStatus;
use crate::document::Uri;
use crate::source::http::Pace;
use serde::{Deserialize, Serialize};

/// How a file differs from what the Source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    /// It is listed and not in the tree.
    Missing,
    /// It is in the tree and not listed.
    Extra,
    /// It is listed, or served, with other content.
    Changed,
    /// The bytes in the cache are not the published ones.
    Corrupt,
    /// It is listed, and the Source answers that it does not exist.
    Gone,
    /// It could not be checked.
    Failed,
}

/// One file that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// In which way.
    pub difference: Difference,
    /// Its path in the tree, or the path that it would have.
    pub path: String,
    /// Its resource.
    pub uri: String,
    /// What differs, for a person.
    pub what: String,
}

/// A file as its tree shows it, for fixity runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
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
    /// Of these, served ones with neither a published digest nor a published length.
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

/// What an audit sends while it runs. The last event is a summary, a failure, or that nothing can be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A file differs.
    Finding(Finding),
    /// A file of the tree, where these were requested.
    File(Shown),
    /// The progress.
    Progress(Progress),
    /// Every file was compared.
    Summary(Summary),
    /// What the Source publishes now is not enough to compare with: why.
    Undecided(String),
    /// The audit failed: why.
    Failure(String),
}

/// How far an audit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// It reads the Source's lists.
    Lists(Stage),
    /// It compares files.
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

impl Finding {
    pub(super) fn new(difference: Difference, path: &str, uri: &Uri, what: String) -> Finding {
        Finding { difference, path: path.to_owned(), uri: uri.to_string(), what }
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

    /// Those that differ for sure: an extra file may be listed in a part that is missing.
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
