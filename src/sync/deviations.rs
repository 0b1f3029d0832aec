//! The rules of the standard that the documents break, and the entries that cannot be understood, each document's as of its last
//! reading.

use crate::document::{Deviation, Deviations, Rule};
use crate::source::{DocumentLocation, Missing};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The deviations of all documents, shared with the threads that read them.
#[derive(Clone, Debug, Default)]
pub struct SeenDeviations(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Documents that break rules, or of which some entries cannot be understood.
    documents: BTreeMap<DocumentLocation, ListDeviations>,
    /// Entries that are not shown, by path: too many URIs share it.
    left_out: BTreeMap<String, u64>,
}

/// The deviations of one document.
#[derive(Debug, Default)]
struct ListDeviations {
    deviations: Deviations,
    entries: NotUnderstood,
}

/// Entries of one list that cannot be understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotUnderstood {
    /// All entries of the list.
    pub entries: u64,
    /// The entries that cannot be understood.
    pub skipped: u64,
}

impl NotUnderstood {
    /// True if nothing of the list can be understood: it has failed.
    pub fn is_all(self) -> bool {
        self.skipped > 0 && self.skipped == self.entries
    }

    /// The reason why absence from the list at `location` proves nothing.
    pub fn missing(self, location: &DocumentLocation, example: Option<String>) -> Missing {
        let NotUnderstood { entries, skipped } = self;
        let example = example.map(|example| format!(": {example}")).unwrap_or_default();
        let (entries, why) = match self.is_all() {
            true if entries == 1 => (0, format!("its only entry cannot be understood{example}")),
            true => (0, format!("none of its {entries} entries can be understood{example}")),
            false => (skipped, format!("{skipped} of its {entries} entries cannot be understood{example}")),
        };
        Missing { location: location.clone(), entries, why }
    }
}

impl SeenDeviations {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the rules that a document breaks, read to its end; of a list also how much of it cannot be understood.
    pub fn note(&self, location: &DocumentLocation, deviations: &Deviations, entries: Option<NotUnderstood>) {
        let mut inner = self.lock();
        let seen = inner.documents.entry(location.clone()).or_default();
        seen.deviations = deviations.clone();
        seen.entries = entries.unwrap_or(seen.entries);
        if seen.deviations.is_empty() && seen.entries.skipped == 0 {
            inner.documents.remove(location);
        }
    }

    /// The part of a list that cannot be understood, with a rule that it breaks; `None` where all of it can.
    pub fn not_understood(&self, location: &DocumentLocation) -> Option<(NotUnderstood, Option<String>)> {
        let inner = self.lock();
        let seen = inner.documents.get(location).filter(|seen| seen.entries.skipped > 0)?;
        Some((seen.entries, unusable(seen.deviations.examples())))
    }

    /// Notes the number of entries of each path that are not shown: of all paths after a baseline, else of those with changes.
    pub fn note_left_out(&self, left_out: BTreeMap<String, u64>, is_baseline: bool) {
        let mut inner = self.lock();
        for (path, entries) in left_out.iter().filter(|(path, _)| !inner.left_out.contains_key(*path)) {
            tracing::warn!(path, entries, "too many URIs have the same path; only the first are shown");
        }
        if is_baseline {
            inner.left_out.clear();
        }
        for (path, entries) in left_out {
            let known = inner.left_out.entry(path).or_default();
            *known = entries.max(*known);
        }
    }

    /// Forgets all documents but these.
    pub fn retain(&self, locations: impl IntoIterator<Item = DocumentLocation>) {
        let mut inner = self.lock();
        if !inner.documents.is_empty() {
            let kept: HashSet<DocumentLocation> = locations.into_iter().collect();
            inner.documents.retain(|location, _| kept.contains(location));
        }
    }

    /// Each rule that is broken, in the rules' order: how often, and the first of the documents that break it.
    pub fn rules(&self) -> BTreeMap<Rule, (u64, DocumentLocation)> {
        let mut rules: BTreeMap<Rule, (u64, DocumentLocation)> = BTreeMap::new();
        for (location, seen) in &self.lock().documents {
            for (rule, count) in seen.deviations.counts() {
                rules.entry(rule).or_insert_with(|| (0, location.clone())).0 += count;
            }
        }
        rules
    }

    /// The number of entries of each path that are not shown: too many URIs share it.
    pub fn left_out(&self) -> BTreeMap<String, u64> {
        self.lock().left_out.clone()
    }
}

/// The first example of a rule without which an entry cannot be understood.
fn unusable<'d>(examples: impl IntoIterator<Item = &'d Deviation>) -> Option<String> {
    let is_cause =
        |rule| matches!(rule, Rule::LocMissing | Rule::LocMalformed | Rule::UndefinedEntity | Rule::TextTooLong);
    let mut examples: Vec<&Deviation> = examples.into_iter().filter(|example| example.entry > 0).collect();
    examples.sort_by_key(|example| !is_cause(example.rule));
    let example = examples.first()?;
    let seen = if example.seen.is_empty() { String::new() } else { format!(" ({})", example.seen) };
    Some(format!("{}, as entry {}{seen}", example.rule.name(), example.entry))
}
