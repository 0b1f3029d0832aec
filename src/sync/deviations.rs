//! The rules of the standard that the documents break, each document's as of its last reading.

use super::status::DeviationStatus;
use crate::document::{Deviations, Rule};
use crate::source::DocumentLocation;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What was seen, shared with the threads that read documents.
#[derive(Clone, Debug, Default)]
pub struct SeenDeviations(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Documents that break rules, each with the number that tells which was seen first.
    documents: HashMap<DocumentLocation, (u64, Deviations)>,
    next: u64,
}

impl SeenDeviations {
    /// Notes what a document breaks now that it was read to its end.
    pub fn note(&self, location: &DocumentLocation, deviations: &Deviations) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if deviations.is_empty() {
            inner.documents.remove(location);
            return;
        }
        let next = inner.next;
        inner.next += 1;
        let (_, before) = inner.documents.entry(location.clone()).or_insert((next, Deviations::default()));
        *before = deviations.clone();
    }

    /// Forgets all other documents than these.
    pub fn retain(&self, locations: impl IntoIterator<Item = DocumentLocation>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.documents.is_empty() {
            let kept: HashSet<DocumentLocation> = locations.into_iter().collect();
            inner.documents.retain(|location, _| kept.contains(location));
        }
    }

    /// Each rule that is broken, in the rules' order.
    pub fn told(&self) -> Vec<DeviationStatus> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut documents: Vec<_> = inner.documents.iter().collect();
        documents.sort_unstable_by_key(|(_, (number, _))| *number);
        let mut rules: BTreeMap<Rule, (u64, &DocumentLocation)> = BTreeMap::new();
        for (location, (_, deviations)) in documents {
            for (rule, count) in deviations.counts() {
                rules.entry(rule).or_insert((0, location)).0 += count;
            }
        }
        let told = |(rule, (count, location)): (Rule, (u64, &DocumentLocation))| DeviationStatus {
            rule: rule.sentence().to_owned(),
            section: rule.section().to_owned(),
            count,
            location: location.to_string(),
        };
        rules.into_iter().map(told).collect()
    }
}
