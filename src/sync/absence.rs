//! Absence from lists of several parts, which is no proof of a deletion by itself.
//!
//! The parts are of different times: one is kept since an earlier poll, another is published again while the lists are read. A resource
//! that moves from part to part meanwhile is in none of them, although each is whole.
//!
//! So a commit that would delete by such an absence is given up, and the refresh asks for every part once more, conditionally. Two reads
//! in a row that lack the same resources prove that these are gone. A Source whose parts never agree keeps its files: their deletions are
//! held back, and all else is applied.

use super::position::Position;
use super::read_set::ReadSet;
use crate::catalog::{Departure, Losses, SetId};
use crate::source::Missing;
use crate::source::crawl::Crawled;
use std::collections::BTreeSet;

/// Reads that are compared. The two after a torn one agree, unless the parts change again.
const MOST_READS: usize = 3;

/// The absences that the reads of one refresh have found.
#[derive(Debug, Default)]
pub struct Absence {
    /// Reads whose absences were not proved.
    reads: usize,
    /// The resources that the last of them lacked.
    last: Vec<Departure>,
}

/// What a commit needs to tell whether an absence is proved.
#[derive(Default)]
pub struct AbsenceProof {
    /// The sets whose absences are to be proved.
    doubted: BTreeSet<SetId>,
    /// The resources that the read before lacked.
    before: Vec<Departure>,
}

impl Absence {
    /// True if an earlier read of this refresh lacked resources: now each part of the lists is asked for.
    pub fn is_doubted(&self) -> bool {
        self.reads > 0
    }

    /// Notes the resources that a read lacked which the read before did not.
    pub fn note(&mut self, absent: Vec<Departure>) {
        tracing::info!(
            resources = absent.iter().map(|departure| departure.files).sum::<u64>(),
            "lists of several parts do not list these any more: the parts are asked for once more"
        );
        (self.reads, self.last) = (self.reads + 1, absent);
    }

    /// The proof that a commit of `read` over `shown` is to give. Lists that are those of before prove what they did not prove then.
    pub fn proof(&self, read: &[ReadSet], shown: &Position) -> AbsenceProof {
        if self.is_hopeless() {
            return AbsenceProof::default();
        }
        AbsenceProof { doubted: doubted(read, shown).map(|it| it.id).collect(), before: self.last.clone() }
    }

    /// The lists of `read` that never agreed with themselves: absence from them proves nothing at this refresh.
    pub fn unproved(&self, read: &[ReadSet], shown: &Position) -> Vec<Missing> {
        let sets = doubted(read, shown).filter(|_| self.is_hopeless());
        let roots = sets.filter_map(|it| it.walks.iter().flat_map(Crawled::documents).next());
        let why = "its parts were published again each time that they were read";
        roots.map(|root| Missing { location: root.location.clone(), entries: 0, why: why.to_owned() }).collect()
    }

    /// True if the parts change faster than they can be read.
    fn is_hopeless(&self) -> bool {
        self.reads >= MOST_READS
    }
}

/// The sets whose lists have several parts, and are others than those that are `shown`.
fn doubted<'r>(read: &'r [ReadSet], shown: &Position) -> impl Iterator<Item = &'r ReadSet> {
    read.iter().filter(|it| it.has_parts() && !shown.is_made_of(it))
}

impl AbsenceProof {
    /// The resources among `losses` that are not proved to be gone, together with those that are; `None` if all are proved.
    pub fn lacks(&self, losses: &Losses) -> Option<Vec<Departure>> {
        let is_doubted = |departure: &&Departure| departure.set.is_some_and(|set| self.doubted.contains(&set));
        let absent: Vec<Departure> = losses.departures.iter().filter(is_doubted).cloned().collect();
        Some(absent).filter(|absent| !absent.is_empty() && *absent != self.before)
    }
}
