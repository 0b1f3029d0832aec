//! Counting what lists say.

use crate::document::{
    Algorithm, Deviation, Deviations, DocumentError, Href, Limits, Rule, Uri, believed_length, without_userinfo,
};
use crate::source::crawl::Crawled;
use crate::source::documents::DocumentCache;
use crate::source::zip::Manifest;
use crate::source::{DocumentLocation, Missing, is_resource};
use crate::sync::deviations::NotUnderstood;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Resources whose host is asked for its pace.
const SAMPLE: usize = 8;
/// Different types, collections and formats that are count; the rest goes unnamed.
const MOST_VALUES: usize = 1000;

/// Sums over every list of a Source.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    walked: Vec<DocumentLocation>,
    sample: Vec<Uri>,
    /// What is offered and missing, and lists with entries that cannot be understood.
    pub missing: Vec<Missing>,
    /// Packages of dumps whose manifests were read in place of lists.
    pub packages: u64,
    /// Lists read.
    pub documents: u64,
    /// Their octets.
    pub document_octets: u64,
    /// Entries.
    pub entries: u64,
    /// With `length`, and the sum of it.
    pub with_length: u64,
    /// Sum of the published lengths.
    pub octets: u64,
    /// With `lastmod`.
    pub with_lastmod: u64,
    /// With at least one digest.
    pub with_hash: u64,
    /// By algorithm.
    pub algorithms: BTreeMap<Algorithm, u64>,
    /// By `type`.
    pub types: BTreeMap<String, u64>,
    /// By `collection`.
    pub collections: BTreeMap<String, u64>,
    /// By `profile`, or `describedby` of a record.
    pub formats: BTreeMap<String, u64>,
    /// By host.
    pub hosts: BTreeMap<String, u64>,
    /// How often each rule was broken.
    pub deviations: BTreeMap<Rule, u64>,
    /// The first few breaches, with their document.
    pub examples: Vec<(DocumentLocation, Deviation)>,
}

impl Survey {
    /// Whether `root` was walked already.
    pub fn has_walked(&self, root: &DocumentLocation) -> bool {
        self.walked.contains(root)
    }

    /// A few resources from different places of the lists.
    pub fn sample(&self) -> &[Uri] {
        &self.sample
    }

    /// Reads every leaf below `root`, or where it is a dump the manifests of its packages.
    pub fn add(
        &mut self,
        root: &DocumentLocation,
        walked: &Crawled,
        manifests: &[Manifest],
        spool: &DocumentCache,
        limits: Limits,
    ) -> Result<(), DocumentError> {
        self.walked.push(root.clone());
        let leaves = walked.leaves.iter().filter(|leaf| leaf.lists_resources());
        let lists = leaves.map(|leaf| {
            let reader = spool.reader(&leaf.document, limits).map_err(std::io::Error::other);
            (leaf.document.location.clone(), Some(leaf.document.size), reader)
        });
        let packages = manifests.iter().map(|manifest| {
            let reader = manifest.reader().map_err(std::io::Error::other);
            (DocumentLocation::Uri(manifest.package().clone()), None, reader)
        });
        for (location, size, reader) in lists.chain(packages) {
            let mut reader = reader?;
            self.documents += u64::from(size.is_some());
            self.packages += u64::from(size.is_none());
            self.document_octets += size.unwrap_or(0);
            while let Some(entry) = reader.next_entry()? {
                if !is_resource(&entry) {
                    continue;
                }
                self.entries += 1;
                self.with_lastmod += u64::from(entry.lastmod.is_some());
                if let Some(length) = believed_length(entry.length, &entry.hashes) {
                    self.with_length += 1;
                    self.octets = self.octets.saturating_add(length);
                }
                self.with_hash += u64::from(!entry.hashes.is_empty());
                for digest in &entry.hashes {
                    *self.algorithms.entry(digest.algorithm()).or_default() += 1;
                }
                if let Some(media_type) = &entry.media_type {
                    count(&mut self.types, media_type);
                }
                for link in &entry.links {
                    match &*link.rel {
                        "collection" => count(&mut self.collections, &shown(&link.href)),
                        "profile" | "describedby" => count(&mut self.formats, &shown(&link.href)),
                        _ => {}
                    }
                }
                count(&mut self.hosts, entry.loc.authority());
                // What lies in a package need not lie at its own address.
                if size.is_some() {
                    self.take_sample(&entry.loc);
                }
            }
            self.add_deviations(&location, reader.deviations());
            let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() };
            if entries.skipped > 0 {
                self.missing.push(entries.missing(&location, None));
            }
        }
        for of_index in &walked.deviations {
            self.add_deviations(&of_index.location, &of_index.deviations);
        }
        Ok(())
    }

    /// Counts the rules that a document breaks.
    pub fn add_deviations(&mut self, location: &DocumentLocation, deviations: &Deviations) {
        for (rule, breaches) in deviations.counts() {
            *self.deviations.entry(rule).or_default() += breaches;
        }
        for example in deviations.examples() {
            if self.examples.iter().filter(|(_, kept)| kept.rule == example.rule).count() < 2 {
                self.examples.push((location.clone(), example.clone()));
            }
        }
    }

    /// The 1st, 2nd, 4th, 8th … entry in place of the sample's oldest, so that it spreads over any number of entries.
    fn take_sample(&mut self, uri: &Uri) {
        if !self.entries.is_power_of_two() {
            return;
        }
        if self.sample.len() == SAMPLE {
            self.sample.remove(0);
        }
        self.sample.push(uri.clone());
    }
}

/// Where a link leads; a name such as `urn:` has no host and no user before it.
fn shown(href: &Href) -> Cow<'_, str> {
    let href = href.as_str();
    if href.contains("://") { without_userinfo(href) } else { href.into() }
}

fn count(values: &mut BTreeMap<String, u64>, value: &str) {
    if let Some(known) = values.get_mut(value) {
        *known += 1;
    } else if values.len() < MOST_VALUES {
        values.insert(value.to_owned(), 1);
    }
}
