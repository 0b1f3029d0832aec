//! Members of one package that are wanted one after another: their octets come together, and all at once where that costs
//! no more than what has been spent on some of them.

use super::directory::{Directory, Found, Version};
use super::octets::Place;
use super::{PackageError, Packages, remote};
use crate::document::{PackageMember, Uri};
use crate::source::http::{Line, Price};
use bytes::Bytes;
use lru::LruCache;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Who is asked for within this time of each other are siblings.
const TOGETHER: Duration = Duration::from_secs(2);

/// So many before it make of a member a sibling.
const ENOUGH: usize = 3;

/// However fast a line, the whole of a package is not fetched for fewer requests than this.
const FEW: u32 = 5;

/// Octets between the first of those and it.
const NEAR: u64 = 4 << 20;

/// Octets that come together: at first, and at most on a short line.
const WINDOW: Range<u64> = 512 << 10..4 << 20;

/// On a long line they are as many as come in so many round trips, up to here; never fewer than come in one.
const ROUND_TRIPS: u64 = 8;
const LARGEST: u64 = 8 << 20;

/// Packages whose members are followed.
const PACKAGES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Windows in memory, each of up to [`LARGEST`] octets.
const WINDOWS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// What is wanted of the packages lately.
#[derive(Debug)]
pub(super) struct Siblings {
    /// Lock order: `demands` before `windows`; neither is held while anything is waited for.
    demands: Mutex<LruCache<Uri, Arc<Demand>>>,
    windows: Mutex<LruCache<(Uri, u64), Window>>,
}

/// Octets of one version that lie together.
#[derive(Clone, Debug)]
struct Window {
    version: Version,
    first: u64,
    octets: Bytes,
}

impl Window {
    fn covers(&self, version: &Version, extent: &Range<u64>) -> bool {
        self.version == *version && self.first <= extent.start && extent.end <= self.first + self.octets.len() as u64
    }

    fn place(&self) -> Place {
        Place::Memory { first: self.first, octets: self.octets.clone() }
    }
}

/// What is wanted of one package.
#[derive(Debug, Default)]
struct Demand {
    lately: Mutex<Lately>,
    /// Held by who fetches a window; the others find it in it.
    fetching: tokio::sync::Mutex<()>,
    /// Who asks the server just now.
    asking: AtomicU32,
    /// The members that are waited for, by their numbers, which are in the order of their octets, and by how many.
    waiting: Mutex<BTreeMap<u32, u32>>,
}

/// One who waits for a member.
struct Waiting<'d> {
    demand: &'d Demand,
    number: u32,
}

impl<'d> Waiting<'d> {
    fn enter(demand: &'d Demand, number: u32) -> Waiting<'d> {
        *demand.waiting.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_default() += 1;
        Waiting { demand, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.demand.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::btree_map::Entry::Occupied(mut who) = waiting.entry(self.number) {
            *who.get_mut() -= 1;
            if *who.get() == 0 {
                who.remove();
            }
        }
    }
}

/// Counts one who asks.
struct AtOnce<'d>(&'d Demand);

impl<'d> AtOnce<'d> {
    fn enter(demand: &'d Demand) -> AtOnce<'d> {
        demand.asking.fetch_add(1, Ordering::Relaxed);
        AtOnce(demand)
    }
}

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Lately {
    /// When and where members were asked for; of an unknown directory all lie at 0.
    asked: VecDeque<(Instant, u64)>,
    /// Windows fetched since the siblings began.
    windows: u32,
    /// Round trips spent on ranges: their octets are wanted anyway.
    spent: Duration,
    /// How many requests those were.
    requests: u32,
    /// Octets of windows.
    brought: u64,
    /// The whole package is on its way, or cannot be had.
    is_settled: bool,
}

impl Lately {
    /// One more is asked for, at this offset; whether it is a sibling of those before.
    fn ask(&mut self, now: Instant, offset: u64) -> bool {
        while self.asked.front().is_some_and(|(then, _)| now.saturating_duration_since(*then) > TOGETHER)
            || self.asked.len() > 64
        {
            self.asked.pop_front();
        }
        let is_sibling = self.has_siblings(offset);
        if !is_sibling {
            self.windows = 0;
        }
        self.asked.push_back((now, offset));
        is_sibling
    }

    fn has_siblings(&self, offset: u64) -> bool {
        self.asked.iter().filter(|(_, other)| other.abs_diff(offset) <= NEAR).count() >= ENOUGH
    }

    /// Octets of the next window.
    fn window(&self, line: &Line) -> u64 {
        let most = line.octets_in_round_trip().saturating_mul(ROUND_TRIPS).clamp(WINDOW.end, LARGEST);
        (WINDOW.start << self.windows.min(8)).max(line.octets_in_round_trip()).min(most)
    }

    /// One more window is asked for; whether the whole package would have cost no more by now. Its round trip is lost where fewer
    /// octets come than in that time; where as many do a walk through windows is as good as the whole, unless it goes to and fro.
    fn spend_on_window(&mut self, octets: u64, whole: u64, line: &Line, at_once: u32) -> bool {
        self.brought = self.brought.saturating_add(octets);
        if octets < line.octets_in_round_trip() {
            return self.spend(whole, line, at_once);
        }
        let is_due = !self.is_settled && self.brought > whole.saturating_add(whole / 2);
        self.is_settled |= is_due;
        is_due
    }

    /// One more range is asked for at the server; whether the whole package would have cost no more by now.
    fn spend(&mut self, whole: u64, line: &Line, at_once: u32) -> bool {
        self.spent = self.spent.saturating_add(line.time(Price { requests: 1, octets: 0 }, at_once));
        self.requests = self.requests.saturating_add(1);
        let whole = line.time(Price { requests: 1, octets: whole }, 1);
        let is_due = !self.is_settled && self.requests >= FEW && self.spent >= whole;
        self.is_settled |= is_due;
        is_due
    }
}

impl Siblings {
    pub fn new() -> Siblings {
        Siblings { demands: Mutex::new(LruCache::new(PACKAGES)), windows: Mutex::new(LruCache::new(WINDOWS)) }
    }

    fn demand(&self, package: &Uri) -> Arc<Demand> {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(demands.get_or_insert(package.clone(), Arc::default))
    }

    fn window(&self, package: &Uri, version: &Version, extent: &Range<u64>) -> Option<Place> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let covers = |((of, _), window): &(&(Uri, u64), &Window)| of == package && window.covers(version, extent);
        let found = windows.iter().find(covers).map(|(key, _)| key.clone())?;
        windows.get(&found).map(Window::place)
    }

    /// Where the first window of that version begins that begins behind `from`.
    fn next_window(&self, package: &Uri, version: &Version, from: u64) -> Option<u64> {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let behind =
            windows.iter().filter(|((of, first), window)| of == package && *first > from && window.version == *version);
        behind.map(|((_, first), _)| *first).min()
    }
}

impl Packages {
    /// What a member would take to be read now, which is to be asked for each that is wanted: siblings make it cheaper. `None`:
    /// it cannot be had as far as is known. Nothing is waited for.
    pub fn price(&self, member: &PackageMember) -> Option<Price> {
        let demand = self.shared.siblings.demand(&member.package);
        let ask = |offset| demand.lately.lock().unwrap_or_else(PoisonError::into_inner).ask(Instant::now(), offset);
        let Some(directory) = self.known(&member.package) else {
            if self.has_failed(&member.package) {
                return None;
            }
            if let Some(octets) = self.octets_of_preview(&member.package).filter(|_| !self.has_ranges(&member.package))
            {
                // One member is as dear as all: it is the number of those who want one that brings the package here.
                ask(0);
                self.spend(&demand, &member.package, octets);
                return Some(Price { requests: 1, octets });
            }
            // Its directory serves all of them; who is alone pays for it.
            let requests = if ask(0) { 1 } else { 3 };
            return Some(Price { requests, octets: remote::END });
        };
        let extent = match directory.find(&member.path) {
            Found::Member(number) if directory.record(number)?.unreadable().is_none() => directory.extent(number),
            // What the paths have in excess may not be known yet.
            Found::Nothing if directory.excess.get().is_none() => return Some(Price { requests: 2, octets: 0 }),
            Found::Member(_) | Found::Nothing | Found::Several => return None,
        };
        let is_sibling = ask(extent.start);
        let is_here = !matches!(directory.place, Place::Server)
            || self.shared.siblings.window(&member.package, &directory.version, &extent).is_some();
        Some(match (is_here, is_sibling) {
            (true, _) => Price::default(),
            (false, true) => Price { requests: 0, octets: extent.end - extent.start },
            (false, false) => Price { requests: 1, octets: extent.end - extent.start },
        })
    }

    /// Where to read a member from: of siblings the octets come together.
    pub(super) async fn place(&self, directory: &Arc<Directory>, number: u32) -> Result<Place, PackageError> {
        if !matches!(directory.place, Place::Server) {
            return Ok(directory.place.clone());
        }
        let (package, version, extent) = (directory.package(), &directory.version, directory.extent(number));
        let siblings = &self.shared.siblings;
        if let Some(place) = siblings.window(package, version, &extent) {
            return Ok(place);
        }
        let demand = siblings.demand(package);
        let alone = || {
            let lately = demand.lately.lock().unwrap_or_else(PoisonError::into_inner);
            !lately.has_siblings(extent.start)
        };
        let _asking = AtOnce::enter(&demand);
        if alone() {
            self.spend(&demand, package, directory.length());
            return Ok(Place::Server);
        }
        let _waiting = Waiting::enter(&demand, number);
        let _fetching = demand.fetching.lock().await;
        // Those who ask together come in no order: all of them are to be known before it is said where to begin.
        tokio::task::yield_now().await;
        if let Some(place) = siblings.window(package, version, &extent) {
            return Ok(place);
        }
        let size =
            demand.lately.lock().unwrap_or_else(PoisonError::into_inner).window(&self.shared.client.line(package));
        let first = self.first_waited_for(directory, &demand, number, size);
        let begin = directory.extent(first).start;
        // What is here is not asked for again.
        let most = siblings.next_window(package, version, extent.start).unwrap_or(u64::MAX);
        let until = directory.run_end(first, begin.saturating_add(size).min(most)).max(extent.end);
        if until == extent.end && begin == extent.start {
            self.spend(&demand, package, directory.length());
            return Ok(Place::Server);
        }
        let (line, at_once) = (self.shared.client.line(package), demand.asking.load(Ordering::Relaxed));
        let is_due = demand.lately.lock().unwrap_or_else(PoisonError::into_inner).spend_on_window(
            until - begin,
            directory.length(),
            &line,
            at_once,
        );
        if is_due {
            self.fetch_whole(package, directory.length());
        }
        let octets = match remote::range(&self.shared.client, package, version, begin..until).await {
            Ok(octets) => Bytes::from(octets),
            // By itself it goes on where it breaks off.
            Err(error) if error.is_retryable() && !matches!(error, PackageError::Changed { .. }) => {
                return Ok(Place::Server);
            }
            Err(error) => return Err(error),
        };
        demand.lately.lock().unwrap_or_else(PoisonError::into_inner).windows += 1;
        let window = Window { version: version.clone(), first: begin, octets };
        let place = window.place();
        siblings.windows.lock().unwrap_or_else(PoisonError::into_inner).put((package.clone(), begin), window);
        Ok(place)
    }

    /// The first member that is waited for and not here, of those from which a window of `size` octets reaches over `number`.
    fn first_waited_for(&self, directory: &Directory, demand: &Demand, number: u32, size: u64) -> u32 {
        let (package, version, end) = (directory.package(), &directory.version, directory.extent(number).end);
        let waiting: Vec<u32> =
            demand.waiting.lock().unwrap_or_else(PoisonError::into_inner).range(..number).map(|(it, _)| *it).collect();
        let is_wanted = |other: &u32| {
            let extent = directory.extent(*other);
            end - extent.start <= size && self.shared.siblings.window(package, version, &extent).is_none()
        };
        waiting.into_iter().find(is_wanted).unwrap_or(number)
    }

    /// Counts what is asked for at the server, and has the whole package fetched when that would have been no dearer.
    fn spend(&self, demand: &Demand, package: &Uri, whole: u64) {
        let (line, at_once) = (self.shared.client.line(package), demand.asking.load(Ordering::Relaxed));
        let is_due = demand.lately.lock().unwrap_or_else(PoisonError::into_inner).spend(whole, &line, at_once);
        if is_due {
            self.fetch_whole(package, whole);
        }
    }

    /// Has the whole of a package fetched, of so many octets, where it may be kept.
    fn fetch_whole(&self, package: &Uri, whole: u64) {
        if whole > self.shared.config.whole {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (packages, package) = (self.clone(), package.clone());
        runtime.spawn(async move {
            if let Err(error) = packages.whole(&package, u64::MAX).await {
                tracing::debug!(%package, error = %crate::causes::chain(&error), "the whole of a package cannot be had");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_asked_for_together_are_siblings_and_get_ever_larger_windows() {
        let (mut lately, now) = (Lately::default(), Instant::now());
        for offset in 0..3 {
            assert!(!lately.ask(now, offset));
        }
        assert!(lately.ask(now, 3));
        assert!(!lately.ask(now, 100 << 20), "far away");
        assert!(!lately.ask(now + 2 * TOGETHER, 4), "long ago");
        lately.windows = 2;
        assert_eq!(lately.window(&Line::TYPICAL), 2 << 20);
        lately.windows = u32::MAX;
        assert_eq!(lately.window(&Line::TYPICAL), WINDOW.end);
        assert_eq!(lately.window(&Line::new(Duration::from_millis(300), 10_000_000)), LARGEST);
    }

    #[test]
    fn windows_that_hold_what_comes_in_a_round_trip_cost_no_more_than_the_whole() {
        let (mut lately, line, whole) = (Lately::default(), Line::TYPICAL, 80_000_000);
        assert_eq!(Lately::default().window(&Line::new(Duration::from_millis(40), 100_000_000)), 4_000_000);
        assert!((0..20).all(|_| !lately.spend_on_window(4_000_000, whole, &line, 1)), "once through it");
        let again = (0..).take_while(|_| !lately.spend_on_window(4_000_000, whole, &line, 1)).count();
        assert_eq!(again, 10, "to and fro");
        assert!(!lately.spend_on_window(4_000_000, whole, &line, 1), "on its way");

        let mut lately = Lately::default();
        let short = (0..).take_while(|_| !lately.spend_on_window(100_000, whole, &line, 1)).count();
        assert_eq!(short, 250, "as single members");
    }

    #[test]
    fn the_whole_is_due_once_when_its_price_has_been_spent() {
        let mut lately = Lately::default();
        let whole = 80_000_000;
        let spent = (0..).take_while(|_| !lately.spend(whole, &Line::TYPICAL, 1)).count();
        assert_eq!(spent, 250, "10.04 s of 40 ms each");
        assert!(!lately.spend(whole, &Line::TYPICAL, 1));

        let mut lately = Lately::default();
        let spent = (0..).take_while(|_| !lately.spend(whole, &Line::TYPICAL, 4)).count();
        assert_eq!(spent, 1003, "four at once");

        let mut lately = Lately::default();
        let slow = Line::new(Duration::from_millis(400), 8_000_000);
        let spent = (0..).take_while(|_| !lately.spend(whole, &slow, 1)).count();
        assert_eq!(spent, 25, "10.4 s of 400 ms each");
    }
}
