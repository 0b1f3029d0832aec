//! The bytes shown of one inode, and the promises that bind them.

use super::bodies::Body;
use super::places::Place;
use crate::content::fixity::{WHOLE_LIMIT, WITHHELD};
use crate::content::{FetchSpec, Fixity, Verified};
use crate::document::{Algorithm, Uri};
use crate::platform::ino::Ino;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that the kernel keeps or drops together.
const PAGE: u64 = 4096;

/// A set of the versions of a file, a bit for each.
type Versions = u32;

/// Pages, and the versions that each is of.
pub(super) type Pages = HashMap<u64, Versions>;

/// The bytes shown of an inode.
pub(super) struct Shown {
    pub(super) spec: FetchSpec,
    fixity: Fixity,
    pub(super) bodies: Vec<Arc<Body>>,
    /// The versions that the published length allows.
    allowed: Versions,
    /// The published digest counts: those that have it.
    right: Option<Versions>,
    /// Those that the kernel may keep.
    pages: Pages,
    /// The versions that all of them are of.
    agreed: Versions,
    /// The versions of which one was here whole and verified: it binds what comes later.
    settled: Versions,
    size: Option<u64>,
    /// The kernel was made to drop these.
    dropped: Vec<Range<u64>>,
    pub(super) is_poisoned: bool,
    /// Two versions came under one strong ETag: before the verdict none can be told from another.
    pub(super) is_lied_to: bool,
    /// No announced length says of which version the bytes are.
    pub(super) hides_length: bool,
    /// All servers were without fault and had the published version.
    pub(super) is_honest: bool,
    pub(super) is_pinned: bool,
    /// It passes through memory: each block that is handed out binds by itself where a digest is published.
    pub(super) is_passing: bool,
    /// It was poisoned while it was mounted.
    was_poisoned_here: bool,
    /// Wrong bytes of the same address were shown: nothing is, before the verdict.
    is_doubted: bool,
}

/// A read under way: what was known before it.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    dropped: usize,
    size: Option<u64>,
    pub(super) is_poisoned: bool,
}

impl Shown {
    pub(super) fn new(spec: FetchSpec, fixity: Fixity, bodies: &[Arc<Body>]) -> Shown {
        let digest = spec.hashes.first().copied().filter(|_| fixity != Fixity::Off);
        let mut shown = Shown {
            fixity,
            bodies: bodies.to_vec(),
            allowed: Versions::MAX,
            right: None,
            pages: Pages::new(),
            agreed: Versions::MAX,
            settled: Versions::MAX,
            size: None,
            dropped: Vec::new(),
            is_poisoned: false,
            is_lied_to: false,
            hides_length: false,
            is_honest: false,
            is_pinned: false,
            is_passing: false,
            was_poisoned_here: false,
            is_doubted: false,
            spec,
        };
        shown.allowed = shown.spec.length.map_or(Versions::MAX, |length| shown.of_length(length));
        shown.right = digest.map(|digest| shown.those(|body| body.digest() == digest));
        shown
    }

    /// A name that has no inode yet.
    pub(super) fn of_nothing() -> Shown {
        Shown::new(FetchSpec::new(Ino(0), Uri::parse("http://unnamed.example/").unwrap()), Fixity::Off, &[])
    }

    /// Its places may answer like this from now on.
    pub(super) fn meet(&mut self, place: &Place) {
        self.is_lied_to |= place.is_liar();
        self.hides_length |= place.hides_length();
    }

    /// The inode before it, of which its places have only sent the versions `met`, may have been poisoned by them.
    pub(super) fn follow(&mut self, before: &Shown, met: Versions) {
        let is_wrong = before.right.is_some_and(|right| right & met == 0);
        self.is_doubted = is_wrong && (before.was_poisoned_here || before.is_doubted);
    }

    fn those(&self, is_one: impl Fn(&Body) -> bool) -> Versions {
        (0..).zip(&self.bodies).filter(|(_, body)| is_one(body)).map(|(number, _)| 1 << number).sum()
    }

    fn of_length(&self, length: u64) -> Versions {
        self.those(|body| body.length() == length)
    }

    pub(super) fn begin(&self) -> Begun {
        Begun { dropped: self.dropped.len(), size: self.size, is_poisoned: self.is_poisoned }
    }

    /// The kernel drops these pages.
    pub(super) fn drop_pages(&mut self, range: Range<u64>) {
        self.pages.retain(|page, _| !touches(&range, *page));
        self.agreed = self.pages.values().fold(Versions::MAX, |agreed, versions| agreed & versions);
        self.dropped.push(range);
    }

    pub(super) fn poison(&mut self) {
        assert!(!self.is_honest, "{:?} is poisoned, and nothing was wrong", self.spec);
        self.drop_pages(0..u64::MAX);
        self.was_poisoned_here |= !self.is_poisoned;
        self.is_poisoned = true;
    }

    /// The mount ends, and the kernel's pages with it. `is_orderly`: what was learnt was written down. Before the verdict a digest
    /// counts, not what an earlier mount has shown.
    pub(super) fn restart(&mut self, is_orderly: bool) {
        self.drop_pages(0..u64::MAX);
        self.is_pinned = false;
        (self.was_poisoned_here, self.is_doubted) = (false, false);
        if !is_orderly || self.right.is_some() {
            self.settled = Versions::MAX;
        }
    }

    /// A size is shown: it never is another.
    pub(super) fn size(&mut self, size: u64) {
        let shown = *self.size.get_or_insert(size);
        assert_eq!(shown, size, "the size of {:?} is another than was shown", self.spec.ino);
    }

    /// The inode is here whole, and verified: all that the kernel keeps is of it, and no more is told than was proved.
    pub(super) fn is_here(&mut self, verified: Verified, size: Option<u64>) {
        let ino = self.spec.ino;
        let size = size.unwrap_or_else(|| panic!("{ino:?} is here without a size"));
        let proved = match self.right {
            Some(_) => Verified::Digest(Algorithm::Sha256),
            None if self.spec.length.is_some() => Verified::Length,
            None => Verified::Transfer,
        };
        assert_eq!(verified, proved, "{ino:?} tells of another verdict");
        assert!(self.spec.length.is_none_or(|length| length == size), "{ino:?} has {size} bytes and is verified");
        let right = self.right.unwrap_or(Versions::MAX) & self.of_length(size);
        assert_ne!(right, 0, "{ino:?} was verified ({verified:?}), and no version has {size} bytes");
        let agreed = self.pages.values().fold(self.settled & right, |agreed, versions| agreed & versions);
        assert_ne!(agreed, 0, "{ino:?} was verified ({verified:?}), and what was shown of it is of another version");
        self.settled = agreed;
    }

    /// Nothing that was shown keeps the published version from being read.
    pub(super) fn may_become_right(&self) -> bool {
        let right = self.right.unwrap_or(0) & self.settled & self.agreed;
        right != 0 && !self.is_poisoned && self.size.is_none_or(|size| right & self.of_length(size) != 0)
    }

    /// A read of `length` bytes at `offset` returned `bytes`; `known`: the size as content knows it now. `own` is what its reader has.
    pub(super) fn read(
        &mut self,
        (begun, own): (Begun, &mut Pages),
        (offset, length): (u64, u64),
        bytes: &[u8],
        known: Option<u64>,
    ) {
        let ino = self.spec.ino;
        assert!(!begun.is_poisoned, "{ino:?} is read although it is poisoned");
        let end = offset + bytes.len() as u64;
        assert!(bytes.len() as u64 <= length, "{ino:?}: more than was asked for at {offset}");
        if (bytes.len() as u64) < length {
            let size = known.or(self.spec.length);
            let is_end = match size {
                Some(size) => end == size || (bytes.is_empty() && offset >= size),
                // The kernel would know it: it has it from the head.
                None => self.of_length(end) != 0 || self.hides_length,
            };
            assert!(is_end, "{ino:?}: a short read at {offset}, {end} of {size:?}");
        }
        let allowed = if self.hides_length { Versions::MAX } else { self.allowed };
        let sized = begun.size.filter(|_| !self.hides_length).map_or(Versions::MAX, |size| self.of_length(size));
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            let next = end.min((page + 1) * PAGE);
            let piece = &bytes[(at - offset) as usize..(next - offset) as usize];
            let place = || format!("{ino:?}: the bytes {at}..{next}");
            let found = self.those(|body| body.has(at, piece));
            assert_ne!(found, 0, "{} are of no version", place());
            assert_ne!(found & allowed, 0, "{} are of no version of the published length", place());
            assert_ne!(found & self.settled, 0, "{} are of another version than was verified", place());
            let is_new = !self.pages.contains_key(&page);
            assert!(!is_new || found & sized != 0, "{} are of no version of the size that is shown", place());
            let size = self.size_of(found, known);
            let is_small = size.is_some_and(|size| size <= WHOLE_LIMIT) || self.fixity == Fixity::Strict;
            if let Some(right) = self.right.filter(|_| is_small || self.is_doubted) {
                assert_ne!(found & right, 0, "{} are not those that are published", place());
            }
            // A page that was read in part is not kept.
            let is_whole = at == page * PAGE && (next == at + PAGE || Some(next) == size);
            if is_whole {
                *own.entry(page).or_insert(Versions::MAX) &= found;
            }
            let was_dropped = self.dropped[begun.dropped..].iter().any(|range| touches(range, page));
            if !self.is_poisoned && !was_dropped {
                let agreed = self.agreed & found & allowed;
                let binds_alone = self.is_lied_to || (self.is_passing && self.right.is_some());
                assert!(agreed != 0 || binds_alone, "{} are of another version than was shown", place());
                self.agreed = agreed;
                if is_whole {
                    let shown = self.pages.entry(page).or_insert(Versions::MAX);
                    *shown &= found;
                    assert_ne!(*shown, 0, "{} are others than were shown", place());
                    let is_end = size.is_some_and(|size| next + WITHHELD > size);
                    let is_right = self.right.is_none_or(|right| found & right != 0);
                    assert!(!is_end || is_right, "{ino:?}: the end was shown before the verdict");
                }
            }
            at = next;
        }
        self.is_right(&self.pages, known);
        self.is_right(own, known);
    }

    /// The size that is known or published, else what `versions` have at most.
    fn size_of(&self, versions: Versions, known: Option<u64>) -> Option<u64> {
        let announced = || {
            let bodies = (0..).zip(&self.bodies).filter(|(number, _)| versions >> number & 1 == 1);
            bodies.map(|(_, body)| body.length()).max().filter(|_| !self.hides_length)
        };
        known.or(self.spec.length).or_else(announced)
    }

    /// All of a file is what is published.
    fn is_right(&self, pages: &Pages, known: Option<u64>) {
        let Some(right) = self.right else { return };
        let versions = pages.values().fold(Versions::MAX, |versions, page| versions & page);
        let size = self.size_of(versions, known);
        if size.map(|size| size.div_ceil(PAGE)) == Some(pages.len() as u64) {
            let is_right = pages.values().all(|versions| versions & right != 0);
            assert!(is_right, "{:?}: the whole was shown, and it is not what is published", self.spec.ino);
        }
    }
}

fn touches(range: &Range<u64>, page: u64) -> bool {
    page * PAGE < range.end && range.start < (page + 1) * PAGE
}
