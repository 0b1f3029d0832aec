//! Reading ahead of whoever goes through files one after the other (`grep -r`, `rsync`, `tar`, `md5sum *`): which files to fetch
//! before they are asked for, and how many.
//!
//! A pure state machine: it knows inodes, sizes and an opaque cursor `C` into the order of the tree, never the tree itself,
//! the network or a clock. Whoever drives it tells what was read ([`Readahead::read`]), lists what follows a cursor when the
//! answer asks for it ([`Readahead::supply`]), and fetches what [`Readahead::take_next`] gives, one after the other.
//!
//! - A walk is known once [`IN_ORDER`] files were read that each were among the few expected after the one before. Whose reader
//!   has just listed their folder is believed a little sooner: a few files are fetched once two were read of which one follows
//!   the other, or the first of the list. Readers that jump begin walks that are never known, and nothing is fetched for them.
//! - A known walk has a window: files ordered and not read yet. It grows with every file that turns out to be read, in files and
//!   in bytes, so that what an abandoned walk leaves behind is in proportion to what it has used.
//! - What was fetched and never read is counted ([`Ledger`]), and what walks have left that nobody may come back to. Well before
//!   that is a tenth of what was used, walks are known later and go no further ahead than a part of what they have read; from
//!   there their windows grow again.
//! - Processes take turns by what is fetched for each, requests and bytes, and so do the walks of one, so that neither a fast one
//!   nor one of large files keeps another waiting; and each walk leaves as much of the limit free as it takes, to whoever comes next.

mod ledger;
mod outstanding;
#[cfg(test)]
mod tests;
mod turns;
mod walk;

pub use ledger::Ledger;

use crate::content::counting_filter::CountingFilter;
use fuser::INodeNo;
use outstanding::{Ahead, Outstanding};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turns::Turns;
use walk::Walk;

/// Files read in order before others are fetched ahead, while little is wasted.
const IN_ORDER: u32 = 3;

/// Files expected after the last one read: readers leave out what they know, and some sort by inode.
pub const EXPECTED: usize = 8;

/// Walks remembered that something was fetched for, and others, and of these as many of one process; of each kind the one that was
/// not heard of for longest makes room. Whoever jumps begins one with each file: the more are remembered, the more often it comes by
/// chance to a file that one of them expects, and the fewer, the sooner is the walk of another process forgotten that is not known yet.
const WALKS: usize = 16;
const UNKNOWN: usize = 48;
const UNKNOWN_OF_ONE: usize = 16;

/// A walk that was not heard of for so long has ended.
pub const ENDED: Duration = Duration::from_secs(60);

/// Where there was no room nothing is ordered for so long; where there is none again, for twice as long each time.
const FIRST_REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = ENDED;

/// One that was not heard of for so long may have, as may one since which so many others came to be known.
const SILENT: Duration = Duration::from_secs(5);
const OVERTAKEN: usize = 2;

/// What a request costs besides its bytes, as bytes: about as many as come in a round trip over one connection.
const REQUEST: u64 = 64 << 10;

/// Who reads: a thread, and its process (0: not known).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// As the kernel numbers it.
    pub thread: u32,
    /// Likewise.
    pub process: u32,
}

/// Tells apart whom files are asked of: one that does not answer holds up nobody else's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Host(pub u64);

/// A file that could be read next, in the order of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<C> {
    /// The file.
    pub ino: INodeNo,
    /// Who is asked for it.
    pub host: Host,
    /// Its size as far as it is known.
    pub bytes: Option<u64>,
    /// Behind it in this order.
    pub after: C,
}

/// Names a walk for as long as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WalkId(u64);

/// What the driver is to do about a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<C> {
    /// Nothing: it was fetched ahead, and enough is under way.
    Enough,
    /// No walk expected it: tell what follows it ([`Readahead::begin`]).
    Elsewhere,
    /// It belongs to a walk: tell what follows ([`Readahead::supply`]).
    Follows(Wish<C>),
}

/// What is known of whoever reads a file that no walk expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Nothing.
    Stranger,
    /// It has just listed the file's folder.
    HasListed,
    /// It has, and this is the first file of that list.
    AtFirstListed,
}

impl Reader {
    /// In files read in order.
    fn counts_for(self) -> u32 {
        match self {
            Reader::Stranger => 0,
            Reader::HasListed => 1,
            Reader::AtFirstListed => 2,
        }
    }
}

/// What a walk wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish<C> {
    /// The walk.
    pub walk: WalkId,
    /// Behind the last file that was read or ordered.
    pub from: C,
    /// So many files are to be fetched ahead; none while the walk is not known.
    pub files: usize,
    /// And so many bytes; the first file may be larger.
    pub bytes: u64,
    /// What a file whose size nobody knows is to be counted as.
    pub usual_bytes: u64,
    /// Who read the last file.
    pub hand: Hand,
}

/// Whether whoever goes through files is one, or one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hand {
    /// The last file was read by who read the one before.
    #[default]
    Same,
    /// By another, and the one before had read no more than one: somebody has programs run that read a file each.
    Next,
    /// By another: that tells nothing of where the walk goes beyond its folder.
    Other,
}

impl<C> Wish<C> {
    /// Only what comes next is asked for.
    fn expecting(walk: WalkId, from: C) -> Wish<C> {
        Wish { walk, from, files: 0, bytes: 0, usual_bytes: 0, hand: Hand::Same }
    }
}

/// All walks of a mount.
#[derive(Debug)]
pub struct Readahead<C> {
    /// The most recent first.
    walks: VecDeque<Walk<C>>,
    ahead: Outstanding,
    /// What is fetched ahead, what the walks expect, and what the driver looks out for besides.
    looked_out_for: Arc<CountingFilter>,
    ledger: Ledger,
    /// Bytes that all walks together may have ordered and not read.
    limit: u64,
    last_walk: u64,
    turns: Turns,
    /// Nothing is ordered before: there was no room.
    resting: Option<Instant>,
    /// How long it rests when there is none again.
    next_rest: Duration,
}

impl<C: Copy + PartialEq> Readahead<C> {
    /// No walks; all together may have `limit` bytes fetched ahead.
    pub fn new(limit: u64) -> Readahead<C> {
        let looked_out_for = Arc::<CountingFilter>::default();
        Readahead {
            walks: VecDeque::new(),
            ahead: Outstanding::new(Arc::clone(&looked_out_for)),
            looked_out_for,
            ledger: Ledger::default(),
            limit,
            last_walk: 0,
            turns: Turns::default(),
            resting: None,
            next_rest: FIRST_REST,
        }
    }

    /// Files that are under way or here and were not read yet.
    #[cfg(test)]
    fn outstanding(&self) -> usize {
        self.ahead.len()
    }

    /// Of whatever is not in it [`Readahead::expects`] is `false`, and [`Readahead::read`] answers [`Seen::Elsewhere`].
    pub fn looked_out_for(&self) -> &Arc<CountingFilter> {
        &self.looked_out_for
    }

    /// What was fetched ahead and what of it was read.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether `ino` is fetched ahead, or the next that somebody who reads one file after the other is expected to read.
    pub fn expects(&self, ino: INodeNo) -> bool {
        self.ahead.contains(ino) || self.walks.iter().any(|walk| walk.expected(ino).is_some())
    }

    /// The first bytes of `ino` are read, of `bytes` in all as far as that is known.
    pub fn read(&mut self, ino: INodeNo, bytes: Option<u64>, by: By, now: Instant) -> Seen<C> {
        if let Some(ahead) = self.ahead.remove(ino) {
            self.ledger.used(ahead.bytes);
            let Some(walk) = self.touch(ahead.walk, now) else { return Seen::Elsewhere };
            let before = walk.by;
            walk.passed(ino, ahead.bytes, ahead.is_queued, by);
            self.hand_on(ahead.walk, before, by);
            return self.wish(ahead.walk, now).map_or(Seen::Enough, Seen::Follows);
        }
        let found = self.walks.iter().find_map(|walk| Some((walk.id, walk.expected(ino)?)));
        let Some((id, candidate)) = found else { return Seen::Elsewhere };
        let bytes = bytes.or(candidate.bytes);
        let Some(walk) = self.touch(id, now) else { return Seen::Elsewhere };
        let before = walk.by;
        let hand = walk.followed(candidate, bytes, by);
        self.hand_on(id, before, by);
        let wish = self.wish(id, now).unwrap_or(Wish::expecting(id, candidate.after));
        Seen::Follows(Wish { hand, ..wish })
    }

    /// A walk begins behind a file that no other expected. Answers it, and what it wants to know.
    pub fn begin(&mut self, after: C, bytes: Option<u64>, reader: Reader, by: By, now: Instant) -> Wish<C> {
        self.retire(by, now);
        self.last_walk += 1;
        let id = WalkId(self.last_walk);
        self.walks.push_front(Walk::new(id, after, bytes, (reader.counts_for(), by), now));
        self.wish(id, now).unwrap_or(Wish::expecting(id, after))
    }

    /// What follows, in answer to `wish`: `ordered` are to be fetched ahead, behind the last of them `expected` come next.
    /// `front` is behind all that was looked at, `is_end` tells that nothing follows there.
    pub fn supply(
        &mut self,
        wish: &Wish<C>,
        ordered: &[Candidate<C>],
        expected: Vec<Candidate<C>>,
        front: C,
        is_end: bool,
    ) {
        let ahead = &mut self.ahead;
        let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == wish.walk) else { return };
        for candidate in ordered.iter().take(wish.files) {
            let bytes = candidate.bytes.unwrap_or(wish.usual_bytes);
            if ahead.insert(candidate.ino, Ahead { walk: wish.walk, bytes, is_queued: true }) {
                walk.order(candidate.ino, candidate.host, bytes);
            }
        }
        expected.iter().for_each(|candidate| self.looked_out_for.add(candidate.ino));
        let before = walk.go_on(front, expected, is_end && wish.files > 0);
        before.iter().for_each(|candidate| self.looked_out_for.remove(candidate.ino));
    }

    /// The next file to fetch, of the walk whose turn it is, among those of hosts that `may_ask` allows; `None`: nothing is to
    /// be fetched now.
    pub fn take_next(&mut self, may_ask: impl Fn(Host) -> bool) -> Option<(INodeNo, Host)> {
        let due = |walk: &Walk<C>| self.turns.due(walk.by.process, walk.due);
        let mut places: Vec<usize> = (0..self.walks.len()).filter(|place| self.walks[*place].has_queued()).collect();
        places.sort_by_key(|place| due(&self.walks[*place]));
        let (place, (ino, host)) =
            places.into_iter().find_map(|place| Some((place, self.walks[place].take_queued(&may_ask)?)))?;
        let mut bytes = 0;
        if let Some(ahead) = self.ahead.get_mut(ino) {
            ahead.is_queued = false;
            bytes = ahead.bytes;
        }
        let walk = &mut self.walks[place];
        walk.due = self.turns.serve(walk.by.process, walk.due, bytes.saturating_add(REQUEST));
        let walks = &self.walks;
        self.turns.forget_but(|process| walks.iter().any(|walk| walk.by.process == process));
        Some((ino, host))
    }

    /// What [`Readahead::take_next`] gave is here, `bytes` long.
    pub fn landed(&mut self, ino: INodeNo, bytes: u64, now: Instant) {
        self.ledger.fetched(bytes);
        // While it rests there was no room for others that were under way with this.
        if !self.is_resting(now) {
            self.next_rest = FIRST_REST;
        }
        let Some(ahead) = self.ahead.get_mut(ino) else { return };
        let before = std::mem::replace(&mut ahead.bytes, bytes);
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == ahead.walk) {
            walk.landed(before, bytes);
        }
    }

    /// What [`Readahead::take_next`] gave cannot be had, or was here already: nobody is charged for it.
    pub fn dropped(&mut self, ino: INodeNo, has_failed: bool) {
        let Some(ahead) = self.ahead.remove(ino) else { return };
        if let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == ahead.walk) {
            walk.dropped(ino, ahead.bytes, has_failed);
        }
    }

    /// What [`Readahead::take_next`] gave has no room: what is ordered and not under way is let go, and nothing is ordered for a while.
    pub fn no_room(&mut self, ino: INodeNo, now: Instant) {
        self.dropped(ino, true);
        if !self.is_resting(now) {
            self.resting = now.checked_add(self.next_rest);
            self.next_rest = (2 * self.next_rest).min(LONGEST_REST);
        }
        while let Some((ino, _)) = self.take_next(|_| true) {
            self.dropped(ino, false);
        }
    }

    fn is_resting(&self, now: Instant) -> bool {
        self.resting.is_some_and(|until| now < until)
    }

    /// How much more of it the walk wants, if that is worth a look at the tree.
    fn wish(&mut self, id: WalkId, now: Instant) -> Option<Wish<C>> {
        if self.is_resting(now) {
            return None;
        }
        let all: u64 = self.walks.iter().map(Walk::outstanding_bytes).sum();
        let caution = self.ledger.caution(self.doubtful(id, now));
        let walk = self.walks.iter_mut().find(|walk| walk.id == id)?;
        let left = self.limit.saturating_sub(all).saturating_sub(walk.outstanding_bytes()) / 2;
        let (files, bytes) = walk.wants(caution, left)?;
        let (from, usual_bytes) = (walk.front, walk.usual_bytes());
        Some(Wish { walk: id, from, files, bytes, usual_bytes, hand: Hand::Same })
    }

    /// Bytes fetched ahead for walks that may have ended; `but` has not.
    fn doubtful(&self, but: WalkId, now: Instant) -> u64 {
        let is_overtaken = |walk: &Walk<C>| {
            let newer = self.walks.iter().filter(|other| other.id.0 > walk.heard_at.0 && other.is_known());
            newer.count() >= OVERTAKEN
        };
        let is_silent = |walk: &Walk<C>| now.saturating_duration_since(walk.heard) > SILENT;
        let fetched_for = self.walks.iter().filter(|walk| walk.id != but && walk.outstanding_bytes() > 0);
        fetched_for.filter(|walk| is_silent(walk) || is_overtaken(walk)).map(Walk::outstanding_bytes).sum()
    }

    /// The walk, now the most recent.
    fn touch(&mut self, id: WalkId, now: Instant) -> Option<&mut Walk<C>> {
        let place = self.walks.iter().position(|walk| walk.id == id)?;
        let mut walk = self.walks.remove(place)?;
        (walk.heard, walk.heard_at) = (now, WalkId(self.last_walk));
        self.walks.push_front(walk);
        self.walks.front_mut()
    }

    /// A walk is taken up by who may be of another process, where it is charged for what was fetched for it as before.
    fn hand_on(&mut self, id: WalkId, before: By, by: By) {
        if before.process != by.process
            && let Some(walk) = self.walks.iter_mut().find(|walk| walk.id == id)
        {
            walk.due = self.turns.hand_on(before.process, by.process, walk.due);
        }
    }

    /// Walks that have ended, and the oldest where there are too many for one of `by` to begin, are forgotten; what was fetched for
    /// them is wasted.
    fn retire(&mut self, by: By, now: Instant) {
        while let Some(place) = self.superfluous(by, now) {
            let Some(ended) = self.walks.remove(place) else { break };
            ended.expects().for_each(|ino| self.looked_out_for.remove(ino));
            let ledger = &mut self.ledger;
            self.ahead.remove_all(ended.id, |ahead| {
                if !ahead.is_queued {
                    ledger.wasted(ahead.bytes);
                }
            });
        }
    }

    /// The place of a walk that is to be forgotten before one of `by` begins.
    fn superfluous(&self, by: By, now: Instant) -> Option<usize> {
        let is_over = |walk: &Walk<C>| now.saturating_duration_since(walk.heard) > ENDED;
        // The oldest, where there are more than `most`.
        let beyond = |most: usize, is_one: &dyn Fn(&Walk<C>) -> bool| {
            let mut its = (0..self.walks.len()).rev().filter(|place| is_one(&self.walks[*place]));
            let oldest = its.next()?;
            (1 + its.count() > most).then_some(oldest)
        };
        let is_own = |walk: &Walk<C>| !walk.is_known() && walk.by.process == by.process;
        match self.walks.back() {
            Some(oldest) if is_over(oldest) => Some(self.walks.len() - 1),
            // What begins is not known.
            _ => beyond(WALKS, &Walk::is_known)
                .or_else(|| beyond(UNKNOWN_OF_ONE - 1, &is_own))
                .or_else(|| beyond(UNKNOWN - 1, &|walk| !walk.is_known())),
        }
    }
}
