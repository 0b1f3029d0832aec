//! Counts over all lists of a Source.

use crate::document::{Deviation, Deviations, DocumentError, Href, Limits, Rule, Uri, believed_length};
use crate::platform::userinfo::without_userinfo;
use crate::source::crawl::Crawled;
use crate::source::documents::DocumentCache;
use crate::source::zip::{Listed, Manifest, Reading};
use crate::source::{DocumentLocation, Missing, is_resource};
use crate::sync::Stage;
use crate::sync::deviations::NotUnderstood;
use crate::sync::status::MissingStatus;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_64;

/// Resources that are requested to measure the pace of their host.
const SAMPLE: usize = 8;
/// Different types, collections and formats that are counted; further ones are left out.
const MOST_VALUES: usize = 1000;
/// Resources that are recognized where they are listed again: some 70 MB.
const MOST_SEEN: usize = 3_500_000;
/// Examples of each deviation.
const EXAMPLES: usize = 2;
/// Entries between two reports of progress.
const PROGRESS_STEP: u64 = 1000;

/// Counts over every list of a Source.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// The lists and dumps that were walked.
    #[serde(skip)]
    pub walked: Vec<DocumentLocation>,
    /// Lists whose documents say nothing of ResourceSync.
    #[serde(skip)]
    pub sitemaps: Vec<DocumentLocation>,
    /// A few resources from different parts of the lists.
    #[serde(skip)]
    pub sample: Vec<Uri>,
    /// Offered documents that are missing, and lists with entries that cannot be understood.
    #[serde(serialize_with = "missing")]
    pub missing: Vec<Missing>,
    /// The time since when a mount may lack changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_since: Option<String>,
    /// The resources seen so far, by hashes of their addresses, each with the number of the list that names it first.
    #[serde(skip)]
    seen: HashMap<u64, u64>,
    /// Lists and packages of which something can be understood.
    #[serde(skip)]
    understood: u64,
    /// Packages of dumps whose manifests were read in place of lists.
    pub packages: u64,
    /// Packages of dumps next to lists whose manifests name no file that the lists have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_to_lists: Option<NextToLists>,
    /// Lists read.
    pub documents: u64,
    /// Their bytes.
    pub document_bytes: u64,
    /// Entries.
    pub resources: u64,
    /// Entries with `length`.
    pub with_length: u64,
    /// Sum of the published lengths.
    pub bytes: u64,
    /// Entries with `lastmod`.
    pub with_lastmod: u64,
    /// Entries with at least one digest.
    pub with_hash: u64,
    /// Digests by algorithm.
    pub hash_algorithms: BTreeMap<&'static str, u64>,
    /// Entries by `type`.
    pub types: BTreeMap<String, u64>,
    /// Entries by `collection`.
    pub collections: BTreeMap<String, u64>,
    /// Entries by `profile`, or `describedby` of a record.
    pub formats: BTreeMap<String, u64>,
    /// Entries by host.
    pub hosts: BTreeMap<String, u64>,
    /// Deviations by the rule of the standard.
    #[serde(serialize_with = "deviations")]
    pub deviations: BTreeMap<Rule, Broken>,
}

/// Files that only packages name.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct NextToLists {
    /// The packages.
    pub packages: u64,
    /// Packages whose manifests were read.
    pub read: u64,
    /// The files that these name.
    pub resources: u64,
}

/// How often a rule is broken.
#[derive(Clone, Debug, Default)]
pub struct Broken {
    /// How often.
    pub count: u64,
    /// The first few cases, with their documents.
    pub examples: Vec<(DocumentLocation, Deviation)>,
}

impl Survey {
    /// The reason why what was read cannot be mounted, where nothing of it can be understood.
    pub fn unusable(&self) -> Option<String> {
        let Missing { location, why, .. } = self.missing.last().filter(|_| self.understood == 0)?;
        Some(format!("{location} cannot be used: {why}"))
    }

    /// Reads every list below `root`, or the manifests of its packages where it is a dump.
    pub fn add(
        &mut self,
        root: &DocumentLocation,
        walked: &Crawled,
        manifests: &[Manifest],
        spool: &DocumentCache,
        limits: Limits,
        progress: &dyn Fn(Stage),
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
        let mut is_sitemap = true;
        for (location, size, reader) in lists.chain(packages) {
            let mut reader = reader?;
            is_sitemap &= reader.header().capability.is_none();
            self.documents += u64::from(size.is_some());
            self.packages += u64::from(size.is_none());
            self.document_bytes += size.unwrap_or(0);
            let mut repeats = Deviations::default();
            while let Some(entry) = reader.next_entry()? {
                if !is_resource(&entry) {
                    continue;
                }
                let list = self.documents + self.packages;
                match self.first_named_by(&entry.loc, list) {
                    Some(first) if first == list => {
                        repeats.entry = reader.entries();
                        repeats.add(Rule::AddressRepeated, entry.loc.as_str());
                    }
                    Some(_) => {}
                    None => {
                        self.add_resource(&entry);
                        // A member of a package need not be served at its own address.
                        if size.is_some() {
                            self.take_sample(&entry.loc);
                        }
                        if self.resources % PROGRESS_STEP == 0 {
                            progress(Stage::Reading(self.resources));
                        }
                    }
                }
            }
            self.add_deviations(&location, reader.deviations());
            self.add_deviations(&location, &repeats);
            let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() };
            self.understood += u64::from(!entries.is_all());
            if entries.skipped > 0 {
                self.missing.push(entries.missing(&location, None));
            }
        }
        for of_index in &walked.deviations {
            self.add_deviations(&of_index.location, &of_index.deviations);
        }
        self.sitemaps.extend(is_sitemap.then(|| root.clone()));
        Ok(())
    }

    /// Counts what the `readings` of packages next to lists name, some of `all`. Where the lists have any of it they say what exists.
    pub fn add_packages(&mut self, all: u64, readings: Vec<(Reading, Listed)>) -> Result<(), DocumentError> {
        let (mut found, mut missing) = (NextToLists { packages: all, ..NextToLists::default() }, Vec::new());
        for (reading, listed) in readings {
            if let Some(why) = reading.failed {
                missing.push(Missing { location: DocumentLocation::Uri(listed.package), entries: 0, why });
            }
            let Some(manifest) = reading.manifest else { continue };
            let mut reader = manifest.reader().map_err(std::io::Error::other)?;
            found.read += 1;
            while let Some(entry) = reader.next_entry()? {
                if self.seen.contains_key(&xxh3_64(entry.loc.as_str().as_bytes())) {
                    return Ok(());
                }
                found.resources += 1;
            }
        }
        if found.resources > 0 {
            self.next_to_lists = Some(found);
            self.missing.extend(missing);
        }
        Ok(())
    }

    /// The number of the list that has named a resource before; else `list` is remembered to be the first.
    fn first_named_by(&mut self, uri: &Uri, list: u64) -> Option<u64> {
        let hash = xxh3_64(uri.as_str().as_bytes());
        let first = self.seen.get(&hash).copied();
        if first.is_none() && self.seen.len() < MOST_SEEN {
            self.seen.insert(hash, list);
        }
        first
    }

    fn add_resource(&mut self, entry: &crate::document::Entry) {
        self.resources += 1;
        self.with_lastmod += u64::from(entry.lastmod.is_some());
        if let Some(length) = believed_length(entry.length, &entry.hashes) {
            self.with_length += 1;
            self.bytes = self.bytes.saturating_add(length);
        }
        self.with_hash += u64::from(!entry.hashes.is_empty());
        for digest in &entry.hashes {
            *self.hash_algorithms.entry(digest.algorithm().name()).or_default() += 1;
        }
        if let Some(media_type) = &entry.media_type {
            count(&mut self.types, media_type);
        }
        for link in &entry.links {
            match &*link.rel {
                "collection" => count(&mut self.collections, &target(&link.href)),
                "profile" | "describedby" => count(&mut self.formats, &target(&link.href)),
                _ => {}
            }
        }
        count(&mut self.hosts, entry.loc.authority());
    }

    /// Counts the rules that a document breaks.
    pub fn add_deviations(&mut self, location: &DocumentLocation, deviations: &Deviations) {
        for (rule, count) in deviations.counts() {
            self.deviations.entry(rule).or_default().count += count;
        }
        for example in deviations.examples() {
            let examples = &mut self.deviations.entry(example.rule).or_default().examples;
            if examples.len() < EXAMPLES {
                examples.push((location.clone(), example.clone()));
            }
        }
    }

    /// The 1st, 2nd, 4th, 8th … entry replaces the sample's oldest, so that it spreads over any number of entries.
    fn take_sample(&mut self, uri: &Uri) {
        if !self.resources.is_power_of_two() {
            return;
        }
        if self.sample.len() == SAMPLE {
            self.sample.remove(0);
        }
        self.sample.push(uri.clone());
    }
}

/// The target of a link without a user and password; a name such as `urn:` has no host and no user.
fn target(href: &Href) -> Cow<'_, str> {
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

fn missing<S: Serializer>(missing: &[Missing], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(missing.iter().cloned().map(MissingStatus::from))
}

fn deviations<S: Serializer>(deviations: &BTreeMap<Rule, Broken>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(deviations.iter().map(|(rule, broken)| {
        let example = |(location, example): &(DocumentLocation, Deviation)| {
            serde_json::json!({"document": location.to_string(), "entry": example.entry, "seen": example.seen})
        };
        let examples: Vec<_> = broken.examples.iter().map(example).collect();
        let (name, section) = (rule.name(), rule.section());
        serde_json::json!({"rule": name, "section": section, "count": broken.count, "examples": examples})
    }))
}
