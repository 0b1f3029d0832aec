//! Sizing ahead: whoever asks for the sizes of a folder's files one after the other is saved the round trips.
//!
//! `ls -l` in a folder of unsized files waits for one size after the other. Once [`IN_ORDER`] of them were asked for in
//! the folder's order, the next [`AHEAD`] are asked for together, and when a quarter of these have been looked at, the
//! next. [`SizingAhead`] only decides; it neither reads the catalog nor asks the Source.

use super::Filesystem;
use super::error::FsError;
use super::links::wanted;
use crate::catalog::{EntryId, Kind};
use crate::causes::chain;
use crate::source::http::Requester;
use fuser::INodeNo;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Files asked for in order before sizes are asked for ahead.
const IN_ORDER: u32 = 3;

/// Sizes asked for together of one host, of all folders.
pub(super) const AHEAD: usize = 64;

/// Where so many are on their way the next are not due. Those asked for together come together, and their reader is through them at
/// once: fewer, and it would wait a round trip for the few behind them.
const ENOUGH: usize = AHEAD - AHEAD / 4;

/// Unsized files read at a time: once a walk is known, one of the first half may be asked for and [`AHEAD`] follow it.
const WINDOW: usize = 2 * AHEAD;

/// How many unsized files a walk may leave out before it is known: some readers sort by inode, and a changed file has
/// a late one.
const NEAR: usize = 8;

/// Children looked at to fill a window: a bound for folders where nearly all have their size.
const LOOKED_AT: usize = 4096;

/// Files asked for out of order, one after the other, that end a walk.
const ASTRAY: u32 = 3;

/// Folders whose walks are remembered.
const FOLDERS: usize = 16;

/// An unsized file in its folder's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    id: EntryId,
    ino: INodeNo,
}

/// The walk of one folder.
#[derive(Debug)]
struct Walk {
    folder: INodeNo,
    /// The last file asked for.
    at: EntryId,
    /// Files asked for in order.
    in_order: u32,
    /// Files asked for out of order since the last one in order: somebody else's, or the walk began anew.
    astray: u32,
    /// The last file whose size was asked for ahead.
    ahead_to: EntryId,
    /// Among those asked for ahead: when it is looked at, [`ENOUGH`] are left, and the next are due.
    trigger: Option<Candidate>,
    /// Those asked for ahead, as far as they were not looked at.
    on_their_way: VecDeque<Candidate>,
}

/// The walks of a mount, shared by all who ask for sizes.
#[derive(Default)]
pub(super) struct Sizing {
    /// Held for a few instructions, with no other lock and never while the catalog or content is asked.
    walks: Mutex<SizingAhead>,
    /// The inodes of [`Walk::trigger`], and 0: who looks at another file goes past the lock. One stays in its place as long as it is
    /// a trigger, and no place is written that does not change.
    triggers: [AtomicU64; FOLDERS],
}

impl Sizing {
    /// While this is held, who takes a lock of what is sized ahead waits.
    #[cfg(test)]
    pub(super) fn locked(&self) -> impl Sized {
        self.walks.lock().unwrap()
    }

    fn with<T>(&self, change: impl FnOnce(&mut SizingAhead) -> T) -> T {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut walks);
        let inodes = || walks.walks.iter().filter_map(|walk| Some(walk.trigger?.ino.0));
        let place_of = |ino: u64| self.triggers.iter().find(|place| place.load(Ordering::Relaxed) == ino);
        for place in &self.triggers {
            let ino = place.load(Ordering::Relaxed);
            if ino != 0 && !inodes().any(|trigger| trigger == ino) {
                place.store(0, Ordering::Relaxed);
            }
        }
        for ino in inodes().filter(|ino| place_of(*ino).is_none()) {
            // There are as many places as walks.
            place_of(0).into_iter().for_each(|place| place.store(ino, Ordering::Relaxed));
        }
        changed
    }

    /// See [`SizingAhead::passed`]. Of nearly every file it takes no lock.
    fn passed(&self, ino: INodeNo) -> Option<INodeNo> {
        let is_trigger = self.triggers.iter().any(|trigger| trigger.load(Ordering::Relaxed) == ino.0);
        if is_trigger { self.with(|walks| walks.passed(ino)) } else { None }
    }
}

/// The walks under way, the most recent first.
#[derive(Debug, Default)]
struct SizingAhead {
    walks: VecDeque<Walk>,
}

impl SizingAhead {
    /// After which entry of `folder` the window for [`SizingAhead::asked`] begins; `None`: nobody walks there yet.
    fn position(&self, folder: INodeNo) -> Option<EntryId> {
        self.walks.iter().find(|walk| walk.folder == folder).map(|walk| walk.at)
    }

    /// The size of `ino` is waited for. `window` is what follows the position. Answers which sizes to ask for ahead.
    fn asked(&mut self, folder: INodeNo, ino: INodeNo, window: &[Candidate]) -> Vec<INodeNo> {
        let known = self.walks.iter().any(|walk| walk.folder == folder && walk.in_order >= IN_ORDER);
        let near = if known { AHEAD } else { NEAR };
        let Some(place) = window.iter().take(near).position(|candidate| candidate.ino == ino) else {
            if let Some(place) = self.walks.iter().position(|walk| walk.folder == folder) {
                self.walks[place].astray += 1;
                if self.walks[place].astray >= ASTRAY {
                    self.walks.remove(place);
                }
            }
            return Vec::new();
        };
        let walk = self.walk(folder);
        walk.astray = 0;
        walk.at = walk.at.max(window[place].id);
        walk.in_order = walk.in_order.saturating_add(1);
        if walk.in_order < IN_ORDER { Vec::new() } else { walk.go_ahead(&window[place + 1..]) }
    }

    /// The size of `ino` is waited for: whether it is on its way, and enough behind it. Nothing is to be looked up then.
    fn follows(&mut self, ino: INodeNo) -> bool {
        for walk in &mut self.walks {
            let Some(place) = walk.on_their_way.iter().position(|candidate| candidate.ino == ino) else { continue };
            let is_enough = walk.on_their_way.len() - place > ENOUGH;
            if is_enough {
                walk.at = walk.at.max(walk.on_their_way[place].id);
                walk.astray = 0;
                walk.on_their_way.drain(..=place);
            }
            return is_enough;
        }
        false
    }

    /// A file sized before is looked at. If the next sizes are due now, answers its folder.
    fn passed(&mut self, ino: INodeNo) -> Option<INodeNo> {
        let walk = self.walks.iter_mut().find(|walk| walk.trigger.is_some_and(|trigger| trigger.ino == ino))?;
        let trigger = walk.trigger.take()?;
        walk.at = walk.at.max(trigger.id);
        Some(walk.folder)
    }

    /// The walk of `folder` goes on over `window`. Answers which sizes to ask for ahead.
    fn due(&mut self, folder: INodeNo, window: &[Candidate]) -> Vec<INodeNo> {
        self.walk(folder).go_ahead(window)
    }

    /// The walk of `folder`, a new one where there is none; the one not seen for longest makes room.
    fn walk(&mut self, folder: INodeNo) -> &mut Walk {
        let walk = match self.walks.iter().position(|walk| walk.folder == folder) {
            Some(place) => self.walks.remove(place),
            None => None,
        };
        self.walks.truncate(FOLDERS - 1);
        self.walks.push_front(walk.unwrap_or(Walk {
            folder,
            at: EntryId(0),
            in_order: 0,
            astray: 0,
            ahead_to: EntryId(0),
            trigger: None,
            on_their_way: VecDeque::new(),
        }));
        &mut self.walks[0]
    }
}

impl Walk {
    fn go_ahead(&mut self, following: &[Candidate]) -> Vec<INodeNo> {
        let next: Vec<_> =
            following.iter().take(AHEAD).filter(|candidate| candidate.id > self.ahead_to).copied().collect();
        self.on_their_way.retain(|candidate| candidate.id > self.at);
        if let Some(last) = next.last() {
            self.ahead_to = last.id;
            self.on_their_way.extend(&next);
            self.trigger = self.on_their_way.get(self.on_their_way.len().saturating_sub(ENOUGH)).copied();
        }
        next.into_iter().map(|candidate| candidate.ino).collect()
    }
}

impl Filesystem {
    /// GETATTR waits for the size of `ino`: are the next ones to be asked for with it?
    pub(super) fn asked_for_size(&self, ino: INodeNo) {
        if self.sizing.with(|walks| walks.follows(ino)) {
            return;
        }
        let next = || -> Result<Vec<INodeNo>, FsError> {
            let Some((folder, entry)) = self.catalog.snapshot()?.place(ino)? else { return Ok(Vec::new()) };
            // A walk may begin behind many files whose sizes are known.
            let position = self.sizing.with(|walks| walks.position(folder));
            let position = position.unwrap_or(EntryId(entry.0.saturating_sub(1)));
            let window = self.window(folder, position)?;
            Ok(self.sizing.with(|walks| walks.asked(folder, ino, &window)))
        };
        self.size_ahead(next());
    }

    /// GETATTR waits for the size of `ino` for long: the next ones are asked for now, whether anybody walks there or not.
    pub(super) fn asked_in_vain(&self, ino: INodeNo) {
        let next = || -> Result<Vec<INodeNo>, FsError> {
            let Some((folder, entry)) = self.catalog.snapshot()?.place(ino)? else { return Ok(Vec::new()) };
            let window = self.window(folder, entry)?;
            Ok(self.sizing.with(|walks| walks.due(folder, &window)))
        };
        self.size_ahead(next());
    }

    /// GETATTR looked at a file whose size was learnt.
    pub(super) fn passed_sized(&self, ino: INodeNo) {
        let Some(folder) = self.sizing.passed(ino) else { return };
        let next = || -> Result<Vec<INodeNo>, FsError> {
            let Some(position) = self.sizing.with(|walks| walks.position(folder)) else { return Ok(Vec::new()) };
            let window = self.window(folder, position)?;
            Ok(self.sizing.with(|walks| walks.due(folder, &window)))
        };
        self.size_ahead(next());
    }

    /// The unsized files of `folder` that follow `after`, at most [`WINDOW`].
    fn window(&self, folder: INodeNo, after: EntryId) -> Result<Vec<Candidate>, FsError> {
        let mut window = Vec::with_capacity(WINDOW);
        let mut left = LOOKED_AT;
        self.catalog.snapshot()?.children(folder, after, &mut |id, _, node| {
            let ino = node.ino;
            if node.kind == Kind::File && node.size.is_none() && self.content.known_size(ino).is_none() {
                window.push(Candidate { id, ino });
            }
            left -= 1;
            left > 0 && window.len() < WINDOW
        })?;
        Ok(window)
    }

    /// Asks for sizes in the background. That none is learnt here fails nobody: GETATTR asks again.
    fn size_ahead(&self, next: Result<Vec<INodeNo>, FsError>) {
        let next = match next {
            Ok(next) => next,
            Err(error) => return tracing::debug!("not sized ahead: {}", chain(&error)),
        };
        for ino in next {
            let catalog = Arc::clone(&self.catalog);
            let content = Arc::clone(&self.content);
            let turns = Arc::clone(&self.sizing_turns);
            let options = self.options.clone();
            self.runtime.spawn(async move {
                let wanted = match catalog.snapshot().and_then(|snapshot| wanted(&snapshot, ino, &options)) {
                    Ok(Some(wanted)) => wanted,
                    Ok(None) => return,
                    Err(error) => return tracing::debug!("not sized ahead: {}", chain(&error)),
                };
                // Of nobody: they are asked for in the order of the folder.
                let _turn = turns.take(wanted.uri.authority(), Requester::default()).await;
                // By itself, so that what waits for its turn is small.
                if let Err(error) = Box::pin(content.size_ahead(&wanted)).await {
                    tracing::debug!(ino = ino.0, "not sized ahead: {}", chain(&error));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: INodeNo = INodeNo(2);

    /// The files 1, 2, 3 … of a folder; entry id n has inode 100 + n.
    fn window(after: EntryId, unsized_files: impl Fn(u64) -> bool) -> Vec<Candidate> {
        (after.0 + 1..=1000)
            .filter(|id| unsized_files(*id))
            .take(WINDOW)
            .map(|id| Candidate { id: EntryId(id), ino: ino(id) })
            .collect()
    }

    fn ino(id: u64) -> INodeNo {
        INodeNo(100 + id)
    }

    fn asks(ahead: &mut SizingAhead, id: u64) -> Vec<INodeNo> {
        let window = window(ahead.position(FOLDER).unwrap_or(EntryId(0)), |_| true);
        ahead.asked(FOLDER, ino(id), &window)
    }

    fn inodes(ids: std::ops::RangeInclusive<u64>) -> Vec<INodeNo> {
        ids.map(ino).collect()
    }

    #[test]
    fn the_third_in_order_sizes_the_next_64_and_each_further_one_more() {
        let mut ahead = SizingAhead::default();
        assert_eq!(asks(&mut ahead, 1), []);
        assert_eq!(asks(&mut ahead, 2), []);
        assert_eq!(asks(&mut ahead, 3), inodes(4..=67));
        assert_eq!(asks(&mut ahead, 4), inodes(68..=68));
        assert_eq!(asks(&mut ahead, 6), inodes(69..=70));
    }

    #[test]
    fn files_asked_for_at_random_size_nothing() {
        let mut ahead = SizingAhead::default();
        for id in [900, 500, 1, 2, 40, 80, 60, 800, 4, 50] {
            assert_eq!(asks(&mut ahead, id), []);
        }
    }

    #[test]
    fn a_walk_survives_a_stray_file_and_may_begin_anew() {
        let mut ahead = SizingAhead::default();
        for id in 1..=3 {
            asks(&mut ahead, id);
        }
        assert_eq!(asks(&mut ahead, 900), []);
        assert_eq!(asks(&mut ahead, 4), inodes(68..=68));
        // The sizes could not be had, and all are asked for again from the first.
        let again: Vec<_> = (1..=6).map(|id| asks(&mut ahead, id).len()).collect();
        assert_eq!(again, [0, 0, 0, 0, 0, AHEAD]);
    }

    #[test]
    fn looking_at_the_first_quarter_of_what_was_sized_makes_the_next_due() {
        let mut ahead = SizingAhead::default();
        for id in 1..=3 {
            asks(&mut ahead, id);
        }
        assert_eq!(ahead.passed(ino(4)), None);
        assert_eq!(ahead.passed(ino(20)), Some(FOLDER));
        assert_eq!(ahead.passed(ino(20)), None);
        let following = window(ahead.position(FOLDER).unwrap_or(EntryId(0)), |id| id > 67);
        assert_eq!(ahead.due(FOLDER, &following), inodes(68..=131));
    }

    #[test]
    fn who_waits_for_what_is_on_its_way_makes_nothing_due_before_a_quarter_of_it() {
        let mut ahead = SizingAhead::default();
        for id in 1..=3 {
            assert!(!ahead.follows(ino(id)));
            asks(&mut ahead, id);
        }
        assert!(ahead.follows(ino(4)) && ahead.follows(ino(9)) && ahead.follows(ino(19)));
        assert_eq!(ahead.position(FOLDER), Some(EntryId(19)));
        assert!(!ahead.follows(ino(20)), "a quarter");
        assert_eq!(asks(&mut ahead, 20), inodes(68..=84));
        assert!(ahead.follows(ino(21)) && ahead.follows(ino(36)));
        assert!(!ahead.follows(ino(37)), "a quarter of what is on its way now");
    }

    #[test]
    fn the_end_of_the_folder_sizes_what_is_left_and_then_nothing() {
        let mut ahead = SizingAhead::default();
        let last = |id| (998..=1000).contains(&id);
        assert_eq!(ahead.asked(FOLDER, ino(998), &window(EntryId(0), last)), []);
        assert_eq!(ahead.asked(FOLDER, ino(999), &window(EntryId(998), last)), []);
        assert_eq!(ahead.asked(FOLDER, ino(1000), &window(EntryId(999), last)), []);
    }

    #[test]
    fn walks_of_two_folders_do_not_disturb_each_other_and_old_ones_make_room() {
        let mut ahead = SizingAhead::default();
        for id in 1..=2 {
            for folder in [FOLDER, INodeNo(3)] {
                let window = window(ahead.position(folder).unwrap_or(EntryId(0)), |_| true);
                assert_eq!(ahead.asked(folder, ino(id), &window), []);
            }
        }
        assert_eq!(asks(&mut ahead, 3).len(), AHEAD);
        for folder in 10..10 + FOLDERS as u64 {
            ahead.asked(INodeNo(folder), ino(1), &window(EntryId(0), |_| true));
        }
        assert_eq!(ahead.walks.len(), FOLDERS);
        assert_eq!(ahead.position(FOLDER), None);
    }
}
