//! Members of one package that are wanted one after the other: a small package comes as a local copy, of a larger one a window
//! of what follows.

use super::arriving::{Arriving, Feed};
use super::bytes::Place;
use super::directory::{Directory, Found};
use super::remote::Remote;
use super::{PackageError, Packages, Piece};
use crate::document::{PackageMember, Uri};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// So many members that are wanted within this time of each other are read together.
const SEVERAL: usize = 3;
const TOGETHER: Duration = Duration::from_secs(1);

/// A package of at most so many bytes is small: two windows, which a walk through it would fetch anyway. An on-demand reader pays
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

/// What is wanted of packages lately, and the windows.
#[derive(Debug)]
pub(super) struct Walks {
    /// Neither lock is held while the other is taken, nor while anything is waited for.
    demands: Mutex<LruCache<Uri, Demand>>,
    windows: Mutex<LruCache<(Uri, u64), Arc<Arriving>>>,
}

/// What is wanted of one package.
#[derive(Debug, Default)]
struct Demand {
    lately: Vec<Want>,
    /// Bytes that came of it.
    received: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Want {
    member: u64,
    /// Where it lies; 0 where the directory is not known.
    offset: u64,
    at: Instant,
}

impl Demand {
    /// One more member is wanted. The offsets of all that are wanted together, each once.
    fn want(&mut self, path: &str, offset: u64, now: Instant) -> Vec<u64> {
        let member = xxh3_64(path.as_bytes());
        self.lately.retain(|want| want.member != member && now.saturating_duration_since(want.at) <= TOGETHER);
        self.lately.drain(..self.lately.len().saturating_sub(MEMBERS - 1));
        self.lately.push(Want { member, offset, at: now });
        self.lately.iter().map(|want| want.offset).collect()
    }
}

impl Walks {
    pub fn new() -> Walks {
        let (demands, windows) = (LruCache::new(PACKAGES), LruCache::new(WINDOWS));
        Walks { demands: Mutex::new(demands), windows: Mutex::new(windows) }
    }

    fn demand<T>(&self, package: &Uri, of: impl FnOnce(&mut Demand) -> T) -> T {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        of(demands.get_or_insert_mut(package.clone(), Demand::default))
    }

    fn windows(&self) -> MutexGuard<'_, LruCache<(Uri, u64), Arc<Arriving>>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the bytes that come of a package.
    pub fn received(&self, package: &Uri) -> Arc<AtomicU64> {
        self.demand(package, |demand| Arc::clone(&demand.received))
    }

    /// The windows of this version, in no order.
    fn of(&self, directory: &Directory) -> Vec<Arc<Arriving>> {
        let windows = self.windows();
        let of_version = |((package, _), window): &(&(Uri, u64), &Arc<Arriving>)| {
            package == directory.package() && window.version == directory.version
        };
        windows.iter().filter(of_version).map(|(_, window)| Arc::clone(window)).collect()
    }

    /// The window that holds these bytes, or will.
    fn holding(&self, directory: &Directory, extent: &Range<u64>) -> Option<Arc<Arriving>> {
        let mut of_version = self.of(directory).into_iter();
        let window = of_version.find(|window| window.range.start <= extent.start && extent.end <= window.end())?;
        self.windows().promote(&(directory.package().clone(), window.range.start));
        Some(window)
    }
}

impl Packages {
    /// A member is about to be read. Whether its package is the way to it: several of its members are wanted together, its bytes
    /// are here or on their way, or there they are fewer. Nothing is fetched.
    pub fn want(&self, member: &PackageMember) -> bool {
        let (package, path) = (&member.package, &member.path);
        let is_together = |offset, near| self.wanted(package, path, offset, near).len() >= SEVERAL;
        let Some(directory) = self.known(package) else {
            let is_cheap = self.length_of_stand_in(package).is_none_or(|length| length <= SMALL);
            return is_together(0, u64::MAX) && is_cheap && self.failure(package, Piece::Directory).is_none();
        };
        let number = match directory.find(path) {
            Found::Member(number) => number,
            // What the paths have in excess may not be known yet.
            Found::Nothing if directory.excess.get().is_none() => return is_together(0, u64::MAX),
            Found::Nothing | Found::Several => return false,
        };
        let Some(record) = directory.record(number).filter(|record| record.unreadable().is_none()) else {
            return false;
        };
        let extent = directory.extent(number);
        let near = if self.is_small(&directory) { u64::MAX } else { WINDOW };
        is_together(extent.start, near)
            || record.packed < record.length
            || !matches!(directory.place, Place::Server)
            || self.shared.walks.holding(&directory, &extent).is_some()
    }

    /// Bytes that came of this package so far: they rise while anything of it is on its way.
    pub fn received(&self, package: &Uri) -> u64 {
        self.shared.walks.received(package).load(Ordering::Relaxed)
    }

    /// Where to read a member from, which is wanted now.
    pub(super) fn place(&self, directory: &Arc<Directory>, number: u32, path: &str) -> Place {
        if !matches!(directory.place, Place::Server) {
            return directory.place.clone();
        }
        let extent = directory.extent(number);
        let is_small = self.is_small(directory);
        let near = if is_small { u64::MAX } else { WINDOW };
        let wanted = self.wanted(directory.package(), path, extent.start, near);
        let is_together = wanted.len() >= SEVERAL;
        let copy = if is_small && is_together { self.begin_local_copy(directory) } else { self.local_copy(directory) };
        // Far behind the front of a large copy a request of its own is sooner there.
        if let Some(copy) = copy.filter(|copy| extent.end <= copy.here().saturating_add(SMALL)) {
            return Place::Arriving(copy);
        }
        let window = self.shared.walks.holding(directory, &extent);
        let window = window.or_else(|| if is_together { self.begin_window(directory, &extent, &wanted) } else { None });
        window.map_or(Place::Server, Place::Arriving)
    }

    /// Whether the whole package costs little, or no more than has come of it already.
    fn is_small(&self, directory: &Directory) -> bool {
        directory.length() <= SMALL || self.received(directory.package()) >= directory.length()
    }

    /// The offsets of the members that are wanted together with this one, and lie as `near`; its own is one of them.
    fn wanted(&self, package: &Uri, path: &str, offset: u64, near: u64) -> Vec<u64> {
        let mut wanted = self.shared.walks.demand(package, |demand| demand.want(path, offset, Instant::now()));
        wanted.retain(|other| other.abs_diff(offset) <= near);
        wanted
    }

    /// Has the bytes of a member fetched, with those of the members that follow and of those before it that are wanted too, as far
    /// as they are in no other window.
    fn begin_window(&self, directory: &Directory, extent: &Range<u64>, wanted: &[u64]) -> Option<Arc<Arriving>> {
        let (package, version, walks) = (directory.package(), &directory.version, &self.shared.walks);
        let others = walks.of(directory);
        let ends = others.iter().map(|window| window.end()).filter(|end| *end <= extent.start);
        let floor = ends.max().unwrap_or_default().max(extent.end.saturating_sub(WINDOW));
        let starts = others.iter().map(|window| window.range.start).filter(|start| *start > extent.start);
        let ceiling = starts.min().unwrap_or(u64::MAX);
        let begin = wanted.iter().copied().filter(|offset| (floor..=extent.start).contains(offset)).min()?;
        let end = directory.last_end(begin.saturating_add(WINDOW).min(ceiling));
        // One member alone is not worth a window.
        if end < extent.end || (begin..end) == *extent {
            return None;
        }
        let reserve = || self.shared.config.budget.try_reserve((end - begin) as usize);
        let memory = reserve().or_else(|| {
            walks.windows().pop_lru();
            reserve()
        })?;
        let (window, feed) = Arriving::window(version, begin..end, memory);
        walks.windows().put((package.clone(), begin), Arc::clone(&window));
        tokio::spawn(self.clone().bring_window(self.remote(package), Arc::clone(&window), feed));
        Some(window)
    }

    async fn bring_window(self, remote: Remote, window: Arc<Arriving>, mut feed: Feed) {
        let (begin, own) = (window.range.start, Arc::downgrade(&window));
        match fill(&remote, window, &mut feed).await {
            Ok(()) => drop(feed),
            Err(error) => {
                tracing::debug!(package = %remote.package, %error, "a window of a package broke off");
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
async fn fill(remote: &Remote, window: Arc<Arriving>, feed: &mut Feed) -> Result<(), PackageError> {
    let mut body = remote.range(&window.version, window.range.clone(), window.priority()).await?;
    drop(window);
    while feed.is_wanted()
        && let Some(piece) = remote.chunk(&mut body).await?
    {
        feed.add(piece);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_wanted_within_a_second_are_together_once_each() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        assert_eq!(demand.want("a", 0, now), [0]);
        assert_eq!(demand.want("b", 10, now), [0, 10]);
        assert_eq!(demand.want("a", 5, now), [10, 5], "asked for again, and its place is known by now");
        assert_eq!(demand.want("c", 20, now + TOGETHER), [10, 5, 20]);
        assert_eq!(demand.want("d", 30, now + TOGETHER + Duration::from_millis(1)), [20, 30]);
        for offset in 0..10_000 {
            demand.want(&offset.to_string(), offset, now + 3 * TOGETHER);
        }
        assert_eq!(demand.lately.len(), MEMBERS);
    }
}
