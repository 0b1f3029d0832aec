//! Trust in the bytes of one download: which of them may be handed out before the verdict. Pure.
//!
//! Bytes are handed out early where the whole is large and what is known of it allows that. [`Trust::withheld`] names the reason where it does
//! not. A verdict comes once, on the whole of one attempt; all that was handed out before must agree with it. So each block handed out is
//! recorded, every later attempt is compared with the record, and the last block that is missing in it waits for the verdict.

use super::Fixity;
use super::fixity::{BLOCK, BlockDigests, WHOLE_LIMIT, releasable};
use crate::document::Uri;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ETag if it is strong: of two responses that carry it the bytes are equal (RFC 9110, 8.8.3).
pub(super) fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| etag.starts_with('"') && etag.len() > 2)
}

/// A version by the place and the strong ETag under which it is served.
pub(super) type VersionId = (Uri, Box<str>);

/// Constraints from earlier downloads of the inode, besides the blocks that were handed out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PriorServes {
    /// The recorded blocks are those of a whole that was verified: each block can be checked alone.
    pub(super) is_proved: bool,
    /// An earlier download was whole: any of its blocks may have been handed out, though none is recorded.
    pub(super) is_known: bool,
    /// A published digest says which bytes are right.
    pub(super) is_vouched: bool,
}

/// The reason why nothing new is handed out before the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withheld {
    /// [`Trust::bind`] has not been called.
    Unbound,
    /// Wrong bytes of the resource were handed out before, or an attempt of this download was wrong.
    Doubted,
    /// Bytes of another version were handed out, or of one that is not known.
    OtherVersion,
    /// The bytes are coded, or of several versions: what a reader gets is known at the end alone.
    Unjudgeable,
    /// Another size is shown.
    OtherSize,
    /// [`Fixity::Strict`].
    Strict,
    /// A block differs from one that was handed out: no verdict can be good for both.
    Contradicted,
    /// The verdict is under way, or the download has ended.
    Closed,
}

/// The head of an attempt, as far as trust depends on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    /// Bytes of the whole, where known.
    pub(super) length: Option<u64>,
    /// The version, if the body has a strong ETag.
    pub(super) version: Option<VersionId>,
    /// See [`Withheld::Unjudgeable`].
    pub(super) is_unjudgeable: bool,
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Bytes that are here without a gap.
    pub(super) frontier: u64,
    /// The most bytes that the stream of any attempt brought.
    pub(super) received: u64,
    /// Ranges of the version can be requested: blocks behind the frontier are of it.
    pub(super) has_ranges: bool,
}

/// See the module.
///
/// Invariant: every block handed out is compared with `served`, and so is every block of an attempt. Where no attempt is
/// contradicted, the verdict on its bytes is one on all that was handed out.
pub(super) struct Trust {
    fixity: Fixity,
    is_bound: bool,
    is_doubted: bool,
    prior: PriorServes,
    /// The bytes pass through memory: the whole is never here at once.
    is_passing: bool,
    /// Lock order: the state of a download first.
    served: Arc<Mutex<BlockDigests>>,
    /// Blocks were handed out before this attempt.
    had_served: bool,
    /// The version that all of `served` belongs to, where that is known.
    served_version: Option<VersionId>,
    /// The size that is shown since a question for it was answered.
    shown: Option<u64>,
    claim: Claim,
    is_other_size: bool,
    is_contradicted: bool,
    is_closed: bool,
    /// The folder for digests that are too many for memory.
    folder: Arc<Path>,
}

impl Trust {
    /// Trust in nothing yet: nothing is handed out before [`Trust::bind`].
    pub(super) fn new(fixity: Fixity, folder: Arc<Path>) -> Trust {
        Trust {
            fixity,
            is_bound: false,
            is_doubted: false,
            prior: PriorServes::default(),
            is_passing: false,
            served: Arc::default(),
            had_served: false,
            served_version: None,
            shown: None,
            claim: Claim::default(),
            is_other_size: false,
            is_contradicted: false,
            is_closed: false,
            folder,
        }
    }

    /// Binds the download to the blocks that were handed out of the inode before, all of them of `version` where that is known, and to what else
    /// is known. `is_doubted`: wrong bytes of the resource were handed out.
    pub(super) fn bind(
        &mut self,
        (served, version): (Arc<Mutex<BlockDigests>>, Option<VersionId>),
        prior: PriorServes,
        is_doubted: bool,
    ) {
        (self.served, self.served_version, self.prior) = (served, version, prior);
        (self.is_bound, self.is_doubted) = (true, is_doubted);
        self.had_served = self.has_served();
    }

    /// From now on the bytes pass through memory. With a published digest each block handed out binds by itself, so that others can
    /// be handed out although the whole is never here.
    pub(super) fn pass(&mut self) {
        self.is_passing = true;
    }

    /// An attempt has its head.
    pub(super) fn claim(&mut self, claim: Claim) {
        self.claim = claim;
        self.compare_size();
    }

    /// From now on this size is shown. A body of another size is withheld: its verdict helps the name's next inode alone.
    pub(super) fn show(&mut self, size: u64) {
        self.shown = Some(size);
        self.compare_size();
    }

    fn compare_size(&mut self) {
        self.is_other_size |= self.shown.zip(self.claim.length).is_some_and(|(shown, length)| shown != length);
    }

    /// Another attempt begins. `is_doubted`: the bytes of the last were wrong.
    pub(super) fn restart(&mut self, is_doubted: bool) {
        self.is_doubted |= is_doubted;
        (self.claim, self.had_served) = (Claim::default(), self.has_served());
        (self.is_other_size, self.is_contradicted, self.is_closed) = (false, false, false);
    }

    /// Closes the record: nothing more is handed out.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// The reason why no new block is handed out, if there is one.
    pub(super) fn withheld(&self) -> Option<Withheld> {
        let reasons = [
            (self.is_closed, Withheld::Closed),
            (!self.is_bound, Withheld::Unbound),
            (self.is_doubted, Withheld::Doubted),
            (self.claim.is_unjudgeable, Withheld::Unjudgeable),
            (self.is_other_size, Withheld::OtherSize),
            (self.is_passing && self.fixity == Fixity::Strict, Withheld::Strict),
            (self.is_of_other_version(), Withheld::OtherVersion),
            // The last: where it is the reason it is the only one.
            (self.is_contradicted, Withheld::Contradicted),
        ];
        reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason)
    }

    /// Returns whether blocks that were handed out bind a body of another version than theirs.
    fn is_of_other_version(&self) -> bool {
        let PriorServes { is_proved, is_known, is_vouched } = self.prior;
        let can_pass = self.is_passing && is_vouched;
        let is_bound = !is_proved && (is_known || (!can_pass && self.had_served));
        is_bound && (self.claim.version.is_none() || self.claim.version != self.served_version)
    }

    /// Returns whether the bytes pass through memory and are too many to be kept there.
    pub(super) fn does_pass(&self) -> bool {
        self.is_passing && self.claim.length.is_some_and(|length| length > WHOLE_LIMIT)
    }

    /// Returns whether any part of the object can be handed out before the verdict on the whole.
    pub(super) fn is_streamed(&self) -> bool {
        self.fixity != Fixity::Strict && self.claim.length.is_some_and(|length| length > WHOLE_LIMIT)
    }

    /// The first byte that waits for the verdict on the whole; 0 as long as its length is not known.
    pub(super) fn withheld_from(&self) -> u64 {
        self.claim.length.map_or(0, |length| releasable(self.fixity, Some(length), length))
    }

    /// Returns whether a sequential reader is near the withheld end: no reader that jumps gets it then.
    pub(super) fn is_end_closed(&self, received: u64) -> bool {
        self.claim.length.is_some_and(|length| received >= length / 2)
    }

    /// Returns whether blocks may be handed out by their place: in order before the withheld end, or by ranges of the version.
    fn is_open(&self, blocks: &Range<u64>, progress: Progress) -> bool {
        let may_jump = progress.has_ranges && self.is_streamed();
        let is_before_end = blocks.end <= self.withheld_from() || !self.is_end_closed(progress.received);
        blocks.end <= releasable(self.fixity, self.claim.length, progress.frontier) || (may_jump && is_before_end)
    }

    /// Returns whether nothing is known that forbids to hand out blocks: either new ones, or those that were handed out in all of these places.
    pub(super) fn may_hand_out(&self, blocks: &Range<u64>, progress: Progress) -> bool {
        let is_new_allowed = self.withheld().is_none() && self.is_open(blocks, progress);
        is_new_allowed || (self.may_repeat(blocks, progress) && numbers(blocks).all(|block| self.served().has(block)))
    }

    /// Returns whether blocks that were handed out may be so again. Those of a passing stream may before any verdict.
    fn may_repeat(&self, blocks: &Range<u64>, progress: Progress) -> bool {
        let reason = self.withheld().filter(|reason| *reason != Withheld::Contradicted);
        self.does_pass() || (reason.is_none() && self.is_open(blocks, progress))
    }

    /// Records that blocks are handed out. An error: they must not be, and nothing is recorded.
    pub(super) fn record_hand_out(
        &mut self,
        blocks: &Range<u64>,
        digests: &[u128],
        progress: Progress,
    ) -> Result<(), Refusal> {
        let first = blocks.start / BLOCK;
        if self.is_closed {
            return Err(Refusal::Withheld);
        }
        if self.may_repeat(blocks, progress) && self.served().holds(first, digests) {
            return Ok(());
        }
        if self.withheld().is_some() || !self.is_open(blocks, progress) {
            return Err(Refusal::Withheld);
        }
        let length = self.claim.length;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !self.had_served && !self.prior.is_known;
        let is_last = length.is_none_or(|length| served.would_complete(numbers(blocks), length.div_ceil(BLOCK)));
        if is_last || (self.prior.is_proved && !served.holds(first, digests)) {
            return Err(Refusal::NeedsWhole);
        }
        if !served.record(first, digests, &self.folder) {
            return Err(Refusal::Withheld);
        }
        if is_first {
            self.served_version.clone_from(&self.claim.version);
        } else if self.served_version != self.claim.version {
            self.served_version = None;
        }
        Ok(())
    }

    /// Compares blocks of the attempt with those that were handed out.
    pub(super) fn compare(&mut self, first: u64, digests: &[u128]) {
        let is_contradicted = self.served().contradicts(first, digests);
        self.is_contradicted |= is_contradicted;
    }

    /// Two bodies of one version differ.
    pub(super) fn contradict(&mut self) {
        self.is_contradicted = true;
    }

    pub(super) fn is_contradicted(&self) -> bool {
        self.is_contradicted
    }

    /// Closes the record and returns whether all that was handed out agrees with the whole of so many blocks, each of them compared.
    pub(super) fn agrees(&mut self, blocks: u64) -> bool {
        self.is_closed = true;
        !self.is_contradicted && self.served().end() <= blocks
    }

    /// Returns whether a block was handed out at this place.
    pub(super) fn was_served(&self, block: u64) -> bool {
        self.served().has(block)
    }

    /// Returns whether any block was handed out.
    pub(super) fn has_served(&self) -> bool {
        !self.served().is_empty()
    }

    /// Returns whether all that was handed out belongs to a whole that was verified before.
    pub(super) fn is_proved(&self) -> bool {
        self.prior.is_proved
    }

    /// The blocks that were handed out, and the version that all of them belong to, where that is known.
    pub(super) fn record(&self) -> (Arc<Mutex<BlockDigests>>, Option<VersionId>) {
        (Arc::clone(&self.served), self.served_version.clone())
    }

    /// Returns whether the record belongs to a known version, a body of which can go on before a verdict.
    pub(super) fn is_bound_to_version(&self) -> bool {
        self.served_version.is_some()
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.claim.length
    }

    pub(super) fn fixity(&self) -> Fixity {
        self.fixity
    }

    fn served(&self) -> MutexGuard<'_, BlockDigests> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why blocks must not be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Others are known in their place, or nothing new is handed out.
    Withheld,
    /// New blocks wait for the verdict on the whole.
    NeedsWhole,
}

/// The numbers of blocks.
fn numbers(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / BLOCK..blocks.end.div_ceil(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks of an object whose last block is short.
    const BLOCKS: u64 = WHOLE_LIMIT / BLOCK + 9;
    const LENGTH: u64 = BLOCKS * BLOCK - 77;

    fn version(number: u8) -> VersionId {
        (Uri::parse("http://example.org/a").unwrap(), format!("\"v{number}\"").into())
    }

    fn trust() -> Trust {
        let mut trust = Trust::new(Fixity::Stream, Path::new("/nowhere").into());
        trust.bind((Arc::default(), None), PriorServes::default(), false);
        trust
    }

    fn claim(number: u8) -> Claim {
        Claim { length: Some(LENGTH), version: Some(version(number)), is_unjudgeable: false }
    }

    fn block(number: u64) -> Range<u64> {
        number * BLOCK..((number + 1) * BLOCK).min(LENGTH)
    }

    const ALL_HERE: Progress = Progress { frontier: LENGTH, received: 0, has_ranges: true };

    #[test]
    fn the_reason_for_withholding_is_named() {
        let mut new = Trust::new(Fixity::Stream, Path::new("/nowhere").into());
        assert_eq!(new.withheld(), Some(Withheld::Unbound));
        new.bind((Arc::default(), None), PriorServes::default(), true);
        assert_eq!(new.withheld(), Some(Withheld::Doubted));

        let mut coded = trust();
        coded.claim(Claim { is_unjudgeable: true, ..claim(1) });
        assert_eq!(coded.withheld(), Some(Withheld::Unjudgeable));
        coded.restart(false);
        assert_eq!(coded.withheld(), None, "another attempt may be plain");

        let mut sized = trust();
        sized.claim(claim(1));
        sized.show(LENGTH);
        assert_eq!(sized.withheld(), None);
        sized.show(LENGTH + 1);
        assert_eq!(sized.withheld(), Some(Withheld::OtherSize));

        let mut strict = Trust::new(Fixity::Strict, Path::new("/nowhere").into());
        strict.bind((Arc::default(), None), PriorServes::default(), false);
        strict.claim(claim(1));
        assert!(!strict.may_hand_out(&block(0), ALL_HERE));
    }

    #[test]
    fn a_block_that_went_out_binds_bodies_of_other_versions() {
        let mut trust = trust();
        trust.claim(claim(1));
        assert_eq!(trust.record_hand_out(&block(0), &[7], ALL_HERE), Ok(()));
        assert_eq!(trust.record().1, Some(version(1)));
        trust.restart(false);
        trust.claim(claim(2));
        assert_eq!(trust.withheld(), Some(Withheld::OtherVersion));
        trust.restart(false);
        trust.claim(claim(1));
        assert_eq!(trust.withheld(), None, "its own version may go on");
        trust.compare(0, &[8]);
        assert_eq!((trust.withheld(), trust.agrees(BLOCKS)), (Some(Withheld::Contradicted), false));
    }

    #[test]
    fn the_end_is_closed_to_jumps_from_the_middle_on() {
        let mut trust = trust();
        trust.claim(claim(1));
        let early = Progress { received: LENGTH / 2 - 1, ..ALL_HERE };
        let late = Progress { received: LENGTH / 2, ..ALL_HERE };
        assert!(trust.may_hand_out(&block(BLOCKS - 1), early) && !trust.may_hand_out(&block(BLOCKS - 1), late));
        assert_eq!(trust.record_hand_out(&block(BLOCKS - 1), &[1], late), Err(Refusal::Withheld));
        assert!(trust.may_hand_out(&block(BLOCKS - 3), late), "before it");
        assert!(!trust.may_hand_out(&block(4), Progress { frontier: BLOCK, received: 0, has_ranges: false }));
    }

    /// Steps of an attempt in the property test.
    #[derive(Clone, Debug)]
    enum Step {
        Attempt { version: u8, has_etag: bool, is_doubted: bool },
        Arrive { first: u64, blocks: u64 },
        HandOut { number: u64 },
        Pass,
        Verdict,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => (0..3_u8, any::<bool>(), prop::bool::weighted(0.1))
                .prop_map(|(version, has_etag, is_doubted)| Step::Attempt { version, has_etag, is_doubted }),
            4 => (0..BLOCKS, 1..9_u64).prop_map(|(first, blocks)| Step::Arrive { first, blocks }),
            12 => (0..BLOCKS).prop_map(|number| Step::HandOut { number }),
            1 => Just(Step::Pass),
            1 => Just(Step::Verdict),
        ]
    }

    /// The digest of a block of a version. Versions share every third block.
    fn digest(version: u8, number: u64) -> u128 {
        u128::from(number) * 10 + if number % 3 == 0 { 1 } else { u128::from(version) + 1 }
    }

    proptest! {
        /// No place gets two blocks, no verdict passes what another version's block contradicts, and the whole is never handed out without one.
        #[test]
        fn what_goes_out_agrees_with_every_verdict(steps in prop::collection::vec(step(), 1..300), is_vouched: bool) {
            let mut trust = Trust::new(Fixity::Stream, Path::new("/nowhere").into());
            trust.bind((Arc::default(), None), PriorServes { is_vouched, ..PriorServes::default() }, false);
            let mut out = std::collections::BTreeMap::new();
            let (mut now, mut is_closed, mut is_doubted) = (0, false, false);
            trust.claim(claim(now));
            for step in steps {
                match step {
                    Step::Attempt { version: number, has_etag, is_doubted: doubted } => {
                        (now, is_closed, is_doubted) = (number, false, is_doubted | doubted);
                        trust.restart(doubted);
                        let version = has_etag.then(|| version(number));
                        trust.claim(Claim { length: Some(LENGTH), version, is_unjudgeable: false });
                    }
                    Step::Arrive { first, blocks } => {
                        let digests: Vec<u128> = (first..(first + blocks).min(BLOCKS)).map(|block| digest(now, block)).collect();
                        trust.compare(first, &digests);
                    }
                    Step::HandOut { number } => {
                        let digest = digest(now, number);
                        let is_new = !out.contains_key(&number);
                        if trust.record_hand_out(&block(number), &[digest], ALL_HERE).is_ok() {
                            prop_assert!(!is_closed, "nothing is handed out after the verdict");
                            prop_assert!(!(is_new && is_doubted), "nor of what is doubted");
                            prop_assert_eq!(*out.entry(number).or_insert(digest), digest, "two blocks in one place");
                            prop_assert!((out.len() as u64) < BLOCKS, "the whole without a verdict");
                        }
                    }
                    Step::Pass => trust.pass(),
                    Step::Verdict => {
                        (0..BLOCKS).for_each(|number| trust.compare(number, &[digest(now, number)]));
                        let agrees = out.iter().all(|(number, out)| digest(now, *number) == *out);
                        prop_assert!(agrees || !trust.agrees(BLOCKS), "a verdict for what was not handed out");
                        trust.close();
                        is_closed = true;
                    }
                }
            }
        }
    }
}
