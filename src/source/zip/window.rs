//! Members of one package that are wanted one after the other: a small package comes as a local copy, of a larger one a window
//! of what follows.

use super::arriving::{Arriving, Feed};
use super::bytes::BytesPlace;
use super::directory::{Directory, FoundMember};
use super::remote::{PackageServer, PackageVersion};
use super::{PackageError, Packages, Piece};
use crate::document::{PackageMember, Uri};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// Number of members that are read together if they are wanted within this time of each other.
const SEVERAL: usize = 3;
const TOGETHER: Duration = Duration::from_secs(1);

/// A package of at most so many bytes is small: two windows, which a walk through it would fetch anyway. A reader of a few members pays
/// for it once.
pub(super) const SMALL: u64 = 16 << 20;

/// Bytes of a window.
const WINDOW: u64 = 8 << 20;

/// Windows of all packages; a further one replaces the least recently used.
const WINDOWS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// How long a window stays once it is here.
const LIFETIME: Duration = Duration::from_secs(30);

/// Packages whose members are followed, and members of one.
const PACKAGES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);
const MEMBERS: usize = 256;

/// Recent demands on packages, and the windows.
#[derive(Debug)]
pub(super) struct Walks {
    /// Neither lock is held while the other is taken, nor while anything is waited for.
    demands: Mutex<LruCache<Uri, PackageDemand>>,
    windows: Mutex<LruCache<(Uri, u64), Arc<Arriving>>>,
}

/// Recent demand on one package.
#[derive(Debug, Default)]
struct PackageDemand {
    lately: Vec<Want>,
    /// The version of which members are read, and the bytes that were asked for them.
    version: Option<PackageVersion>,
    asked: u64,
}

#[derive(Debug)]
struct Want {
    member: u64,
    /// Offset of the member; 0 where the directory is not known.
    offset: u64,
    at: Instant,
}

impl PackageDemand {
    /// One more member is wanted. How many are wanted together with it that lie as `near`, itself included.
    fn want(&mut self, path: &str, offset: u64, near: u64, now: Instant) -> usize {
        let member = xxh3_64(path.as_bytes());
        self.lately.retain(|want| want.member != member && now.saturating_duration_since(want.at) <= TOGETHER);
        self.lately.drain(..self.lately.len().saturating_sub(MEMBERS - 1));
        self.lately.push(Want { member, offset, at: now });
        self.lately.iter().filter(|want| want.offset.abs_diff(offset) <= near).count()
    }

    /// Bytes that were asked for members of this version. Those of earlier versions count for nothing.
    fn asked(&mut self, version: &PackageVersion) -> &mut u64 {
        if self.version.as_ref() != Some(version) {
            (self.version, self.asked) = (Some(version.clone()), 0);
        }
        &mut self.asked
    }
}

impl Walks {
    pub fn new() -> Walks {
        let (demands, windows) = (LruCache::new(PACKAGES), LruCache::new(WINDOWS));
        Walks { demands: Mutex::new(demands), windows: Mutex::new(windows) }
    }

    fn demand<T>(&self, package: &Uri, of: impl FnOnce(&mut PackageDemand) -> T) -> T {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        of(demands.get_or_insert_mut(package.clone(), PackageDemand::default))
    }

    fn windows(&self) -> MutexGuard<'_, LruCache<(Uri, u64), Arc<Arriving>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The window of this version that holds these bytes, or will; else where the next window begins.
    fn holding(&self, directory: &Directory, extent: &Range<u64>) -> Result<Arc<Arriving>, u64> {
        let (mut windows, mut next) = (self.windows(), u64::MAX);
        let mut held = None;
        for (key, window) in windows.iter() {
            if key.0 != *directory.package() || window.version != directory.version {
                continue;
            }
            if window.range.start <= extent.start && extent.end <= window.end() {
                held = Some((key.clone(), Arc::clone(window)));
            } else if window.range.start > extent.start {
                next = next.min(window.range.start);
            }
        }
        let (key, window) = held.ok_or(next)?;
        windows.promote(&key);
        Ok(window)
    }
}

impl Packages {
    /// A member is about to be read. Whether its package is the way to it: several of its members are wanted together, its bytes
    /// are here or on their way, or there they are fewer. Nothing is fetched.
    pub fn want(&self, member: &PackageMember) -> bool {
        let (package, path) = (&member.package, &member.path);
        let is_together = |offset, near| self.are_several_wanted(package, path, offset, near);
        let Some(directory) = self.known(package) else {
            let is_cheap = self.stand_in_of(package).is_none_or(|stand_in| stand_in.length() <= SMALL);
            return is_together(0, u64::MAX) && is_cheap && self.failure(package, Piece::Directory).is_none();
        };
        let number = match directory.find(path) {
            FoundMember::Member(number) => number,
            // The folder on the publisher's disk may not be known yet.
            FoundMember::Nothing if directory.folder.get().is_none() => return is_together(0, u64::MAX),
            FoundMember::Nothing | FoundMember::Several => return false,
        };
        let Some(record) = directory.record(number).filter(|record| record.unreadable().is_none()) else {
            return false;
        };
        let extent = directory.extent(number);
        is_together(extent.start, self.near(&directory))
            || record.packed < record.length
            || !matches!(directory.place, BytesPlace::Server)
            || self.shared.walks.holding(&directory, &extent).is_ok()
    }

    /// Place to read a member from, which is wanted now.
    pub(super) fn place(&self, directory: &Arc<Directory>, number: u32, path: &str) -> BytesPlace {
        if !matches!(directory.place, BytesPlace::Server) {
            return directory.place.clone();
        }
        let (extent, near) = (directory.extent(number), self.near(directory));
        let is_together = self.are_several_wanted(directory.package(), path, extent.start, near);
        let is_small = near == u64::MAX;
        let copy = if is_small && is_together { self.begin_local_copy(directory) } else { self.local_copy(directory) };
        // Far behind the front of a large copy a separate request is faster.
        if let Some(copy) = copy.filter(|copy| extent.end <= copy.here().saturating_add(SMALL)) {
            return BytesPlace::Arriving(copy);
        }
        let window = match self.shared.walks.holding(directory, &extent) {
            Ok(window) => Some(window),
            // The whole is on its way: no more than the member is asked for twice.
            Err(next) if is_together && !is_small => self.begin_window(directory, &extent, next),
            Err(_) => None,
        };
        window.map_or_else(
            || {
                self.ask_for(directory, &extent);
                BytesPlace::Server
            },
            BytesPlace::Arriving,
        )
    }

    /// Maximum distance of members that are read as a group; unlimited where the package is small or mostly requested.
    fn near(&self, directory: &Directory) -> u64 {
        let asked = || self.shared.walks.demand(directory.package(), |demand| *demand.asked(&directory.version));
        if directory.length() <= SMALL || asked() + WINDOW >= directory.length() { u64::MAX } else { WINDOW }
    }

    fn ask_for(&self, directory: &Directory, range: &Range<u64>) {
        let bytes = range.end - range.start;
        self.shared.walks.demand(directory.package(), |demand| *demand.asked(&directory.version) += bytes);
    }

    fn are_several_wanted(&self, package: &Uri, path: &str, offset: u64, near: u64) -> bool {
        self.shared.walks.demand(package, |demand| demand.want(path, offset, near, Instant::now())) >= SEVERAL
    }

    /// Has the bytes of a member fetched, with those of the members that follow, up to the `next` window.
    fn begin_window(&self, directory: &Directory, extent: &Range<u64>, next: u64) -> Option<Arc<Arriving>> {
        let (package, walks) = (directory.package(), &self.shared.walks);
        let range = extent.start..directory.last_end(extent.start.saturating_add(WINDOW).min(next));
        // One member alone is not worth a window.
        if range.end <= extent.end {
            return None;
        }
        let reserve = || self.shared.config.budget.try_reserve((range.end - range.start) as usize);
        let memory = reserve().or_else(|| {
            walks.windows().pop_lru();
            reserve()
        })?;
        self.ask_for(directory, &range);
        let remote = self.remote(package);
        let (window, feed) = Arriving::window(&directory.version, range, memory, &remote.received);
        walks.windows().put((package.clone(), extent.start), Arc::clone(&window));
        tokio::spawn(self.clone().bring_window(remote, Arc::clone(&window), feed));
        Some(window)
    }

    async fn bring_window(self, remote: PackageServer, window: Arc<Arriving>, mut feed: Feed) {
        let (begin, own) = (window.range.start, Arc::downgrade(&window));
        match fill(&remote, window, &mut feed).await {
            Ok(()) => drop(feed),
            Err(error) => {
                tracing::debug!(package = %remote.package, %error, "a range of a package ended early");
                feed.fail(error);
            }
        }
        tokio::time::sleep(LIFETIME).await;
        let (mut windows, key) = (self.shared.walks.windows(), (remote.package, begin));
        if windows.peek(&key).is_some_and(|window| Weak::ptr_eq(&Arc::downgrade(window), &own)) {
            windows.pop(&key);
        }
    }
}

/// Brings a window for as long as it is one of the windows or is read.
async fn fill(remote: &PackageServer, window: Arc<Arriving>, feed: &mut Feed) -> Result<(), PackageError> {
    let mut body = remote.range(&window.version, window.range.clone(), window.priority()).await?;
    drop(window);
    while feed.is_wanted() {
        let Some(piece) = remote.chunk(&mut body).await? else { break };
        feed.add(piece);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_wanted_within_a_second_are_together_once_each() {
        let (mut demand, now) = (PackageDemand::default(), Instant::now());
        let mut want = |path, offset, now| demand.want(path, offset, 15, now);
        assert_eq!((want("a", 0, now), want("b", 10, now)), (1, 2));
        assert_eq!(want("a", 5, now), 2, "asked for again, and its place is known by now");
        assert_eq!(want("c", 20, now + TOGETHER), 3);
        assert_eq!(want("d", 30, now + TOGETHER + Duration::from_millis(1)), 2);
        assert_eq!(want("e", 300, now + TOGETHER), 1, "far from the others");
        for offset in 0..10_000 {
            demand.want(&offset.to_string(), offset, 0, now + 3 * TOGETHER);
        }
        assert_eq!(demand.lately.len(), MEMBERS);
    }
}
