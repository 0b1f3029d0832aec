//! PackageBytes of packages that were asked for together, handed out as they come.
//!
//! A window that breaks off, that had to make room, or whose reader has left, ends where it has come to: what is here of it stays
//! as good as it was. One of which nothing came is forgotten.

use super::directory::Version;
use super::{PackageError, remote};
use crate::document::Uri;
use crate::source::http::{Client, Priority, Requester};
use bytes::{Bytes, BytesMut};
use lru::LruCache;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// PackageBytes of all windows, those to come included: the least recently used make room. Beyond it are those that somebody reads still.
pub(super) const MEMORY: u64 = 32 << 20;

/// PackageBytes of one version that lie together.
#[derive(Debug)]
pub(super) struct Window {
    version: Version,
    first: u64,
    /// Held for a few instructions, and for the copy of one member.
    state: Mutex<State>,
    moved: Notify,
    /// Who was the first to wait for any of it: until then its request gives way to those of readers.
    awaited: watch::Sender<Option<Requester>>,
}

#[derive(Debug)]
struct State {
    /// Behind the last byte that is here or is to come.
    end: u64,
    /// Behind the last byte that is here.
    here: u64,
    /// What is here: where each piece begins, in order.
    pieces: Vec<(u64, Bytes)>,
    is_ended: bool,
    error: Option<PackageError>,
}

impl Window {
    /// Of these bytes, none of which are here.
    pub fn new(version: &Version, extent: Range<u64>) -> Window {
        let state = State { end: extent.end, here: extent.start, pieces: Vec::new(), is_ended: false, error: None };
        let (first, version) = (extent.start, version.clone());
        Window { version, first, state: Mutex::new(state), moved: Notify::new(), awaited: watch::channel(None).0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of it is here, nor will be.
    fn is_void(&self) -> bool {
        self.state().end == self.first
    }

    fn covers(&self, version: &Version, extent: &Range<u64>) -> bool {
        self.version == *version && self.first <= extent.start && extent.end <= self.state().end
    }

    /// Fetches it; `goes_on` is told the bytes of each piece, and answers whether anybody wants more. Whoever waits for any of it
    /// is told the end, even where what this returns panics or is dropped.
    pub fn bring(
        self: Arc<Self>,
        client: Client,
        package: Uri,
        goes_on: impl Fn(u64) -> bool,
    ) -> impl Future<Output = ()> {
        let end = self.state().end;
        let ending = Ending(self);
        async move {
            let Ending(window) = &ending;
            let outcome = async {
                let awaited = Priority::Prefetch(Requester::default(), window.awaited.subscribe());
                let mut body =
                    remote::ask_range(&client, &package, &window.version, window.first..end, awaited).await?;
                while let Some(piece) = remote::chunk(&package, &mut body).await? {
                    let bytes = piece.len() as u64;
                    window.add(piece);
                    // Whoever asks for its bytes once it had to make room asks for them anew.
                    if !goes_on(bytes) || Arc::strong_count(window) == 1 {
                        tracing::debug!(%package, "nobody reads what was asked for in a package: it is not waited for");
                        break;
                    }
                }
                Ok(())
            };
            let outcome = outcome.await;
            window.end_with(outcome.err());
        }
    }

    fn add(&self, piece: Bytes) {
        // A body may come in frames that hold nothing; that of a place is the one piece that begins there.
        if piece.is_empty() {
            return;
        }
        let mut state = self.state();
        let here = state.here;
        state.here += piece.len() as u64;
        state.pieces.push((here, piece));
        drop(state);
        self.moved.notify_waiters();
    }

    /// The first word counts.
    fn end_with(&self, error: Option<PackageError>) {
        let mut state = self.state();
        if state.is_ended {
            return;
        }
        state.end = state.here;
        state.is_ended = true;
        state.error = error;
        drop(state);
        self.moved.notify_waiters();
    }

    /// These of its bytes, once they are here, for whoever waits by `awaited`. `None`: see
    /// [`Window::bytes`].
    pub async fn bytes_for(&self, extent: &Range<u64>, awaited: Priority) -> Result<Option<Bytes>, PackageError> {
        let mut bytes = pin!(self.bytes(extent));
        let requester = match awaited.reader() {
            Some(requester) => requester,
            None => tokio::select! {
                biased;
                bytes = &mut bytes => return bytes,
                // For whom nobody ever waits it comes when it comes.
                requester = awaited.raised() => requester,
            },
        };
        self.awaited.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(requester);
            is_first
        });
        bytes.await
    }

    /// These of its bytes, once they are here. `None`: they do not come, which is no fault of theirs. There is no deadline but
    /// those of [`Window::bring`], whose requests and bodies have the client's: whatever ends it ends the wait too.
    pub async fn bytes(&self, extent: &Range<u64>) -> Result<Option<Bytes>, PackageError> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            // Registered before the look: what comes between the two is not missed.
            moved.as_mut().enable();
            {
                let state = self.state();
                if extent.end <= state.here {
                    return Ok(state.bytes(extent));
                }
                match &state.error {
                    // By itself it goes on where it breaks off.
                    Some(error) if error.is_retryable() && !matches!(error, PackageError::Changed { .. }) => {
                        return Ok(None);
                    }
                    Some(error) => return Err(error.clone()),
                    None if state.is_ended => return Ok(None),
                    None => {}
                }
            }
            moved.await;
        }
    }
}

/// Ends a window where its fetch has not: it was dropped, or has panicked.
struct Ending(Arc<Window>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end_with(None);
    }
}

impl State {
    fn bytes(&self, extent: &Range<u64>) -> Option<Bytes> {
        let begin = self.pieces.partition_point(|(first, _)| *first <= extent.start).checked_sub(1)?;
        let mut bytes = BytesMut::new();
        for (first, piece) in &self.pieces[begin..] {
            let from = extent.start.saturating_sub(*first) as usize;
            let until = extent.end.saturating_sub(*first).min(piece.len() as u64) as usize;
            if from == 0 && until == 0 {
                break;
            }
            if until - from == (extent.end - extent.start) as usize {
                return Some(piece.slice(from..until));
            }
            bytes.extend_from_slice(&piece[from..until]);
        }
        Some(bytes.freeze())
    }
}

/// The windows of all packages.
#[derive(Debug)]
pub(super) struct Windows {
    windows: LruCache<(Uri, u64), Arc<Window>>,
}

impl Default for Windows {
    fn default() -> Windows {
        Windows { windows: LruCache::unbounded() }
    }
}

impl Windows {
    /// The one that holds these bytes, or will.
    pub fn find(&mut self, package: &Uri, version: &Version, extent: &Range<u64>) -> Option<Arc<Window>> {
        let covers = |((of, _), window): &(&(Uri, u64), &Arc<Window>)| of == package && window.covers(version, extent);
        let found = self.windows.iter().find(covers).map(|(key, _)| key.clone())?;
        self.windows.get(&found).cloned()
    }

    /// Behind the last byte that is here or on its way without a gap from `from` on.
    pub fn reach(&self, package: &Uri, version: &Version, from: u64) -> u64 {
        let mut reach = from;
        // Each round goes through one of few.
        while let Some(end) = self
            .of(package, version)
            .filter(|window| window.first <= reach)
            .map(|window| window.state().end)
            .find(|end| *end > reach)
        {
            reach = end;
        }
        reach
    }

    /// Where the first begins that begins behind `from`.
    pub fn next(&self, package: &Uri, version: &Version, from: u64) -> Option<u64> {
        self.of(package, version).map(|window| window.first).filter(|first| *first > from).min()
    }

    fn of(&self, package: &Uri, version: &Version) -> impl Iterator<Item = &Arc<Window>> {
        let is_its = move |((of, _), window): &(&(Uri, u64), &Arc<Window>)| {
            of == package && window.version == *version && !window.is_void()
        };
        self.windows.iter().filter(is_its).map(|(_, window)| window)
    }

    /// Keeps one, for as long as there is room.
    pub fn put(&mut self, package: &Uri, window: Arc<Window>) {
        let void: Vec<_> =
            self.windows.iter().filter(|(_, window)| window.is_void()).map(|(key, _)| key.clone()).collect();
        for key in void {
            self.windows.pop(&key);
        }
        self.windows.put((package.clone(), window.first), window);
        let bytes = |windows: &Windows| windows.windows.iter().map(|(_, it)| it.state().end - it.first).sum::<u64>();
        while bytes(self) > MEMORY && self.windows.len() > 1 {
            self.windows.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn version(etag: &str) -> Version {
        let final_uri = Uri::parse("http://example.org/dump.zip").unwrap();
        let etag = Some(etag.into());
        Version { final_uri, etag, weak_etag: None, last_modified: None, length: 1 << 30 }
    }

    #[tokio::test]
    async fn bytes_are_handed_out_as_they_come_whatever_their_pieces() {
        let window = Window::new(&version("a"), 100..110);
        window.add(Bytes::new());
        window.add(Bytes::from_static(b"01"));
        window.add(Bytes::new());
        window.add(Bytes::from_static(b"234"));
        window.add(Bytes::new());
        window.add(Bytes::from_static(b"5"));
        assert_eq!(window.bytes(&(102..105)).await.unwrap().unwrap(), "234");
        assert_eq!(window.bytes(&(101..106)).await.unwrap().unwrap(), "12345");
        assert!(window.bytes(&(105..107)).now_or_never().is_none(), "not here yet");

        window.end_with(None);
        assert_eq!(window.bytes(&(100..106)).await.unwrap().unwrap(), "012345", "what is here stays");
        assert!(window.bytes(&(105..107)).await.unwrap().is_none());
        assert!(!window.covers(&version("a"), &(105..107)) && window.covers(&version("a"), &(105..106)));
    }

    #[tokio::test]
    async fn a_window_is_waited_for_as_soon_as_somebody_waits_for_any_of_it() {
        let (window, extent) = (Window::new(&version("a"), 0..10), 0..2);
        let (tell, told) = watch::channel(None);
        let mut bytes = Box::pin(window.bytes_for(&extent, Priority::Prefetch(Requester::default(), told)));
        assert!((&mut bytes).now_or_never().is_none() && window.awaited.borrow().is_none());

        tell.send_replace(Some(Requester(5)));

        assert!((&mut bytes).now_or_never().is_none() && *window.awaited.borrow() == Some(Requester(5)));
        window.add(Bytes::from_static(b"012"));
        assert_eq!(bytes.await.unwrap().unwrap(), "01");
    }

    #[tokio::test]
    async fn a_window_that_failed_says_so_where_that_tells_of_the_package() {
        let window = Window::new(&version("a"), 0..10);
        window.end_with(Some(PackageError::Changed { package: Uri::parse("http://example.org/a.zip").unwrap() }));
        assert!(window.bytes(&(0..1)).await.is_err());
    }

    #[test]
    fn windows_of_which_nothing_came_are_no_border_and_are_not_kept() {
        let (package, a) = (Uri::parse("http://example.org/a.zip").unwrap(), version("a"));
        let mut windows = Windows::default();
        for number in 1..=100 {
            let window = Arc::new(Window::new(&a, number << 20..(number + 1) << 20));
            windows.put(&package, Arc::clone(&window));
            window.end_with(None);
        }
        assert_eq!(windows.next(&package, &a, 0), None);

        windows.put(&package, Arc::new(Window::new(&a, 0..10)));
        assert_eq!(windows.windows.len(), 1);
    }

    #[test]
    fn windows_that_meet_reach_on_and_the_least_recent_makes_room() {
        let (package, a, b) = (Uri::parse("http://example.org/a.zip").unwrap(), version("a"), version("b"));
        let mut windows = Windows::default();
        for first in [0, 8 << 20, 20 << 20] {
            windows.put(&package, Arc::new(Window::new(&a, first..first + (8 << 20))));
        }
        assert_eq!(windows.reach(&package, &a, 5), 16 << 20);
        assert_eq!((windows.reach(&package, &a, 17 << 20), windows.reach(&package, &b, 5)), (17 << 20, 5));
        assert_eq!(windows.next(&package, &a, 9 << 20), Some(20 << 20));
        assert!(windows.find(&package, &a, &(0..10)).is_some());
        windows.put(&package, Arc::new(Window::new(&a, 40 << 20..52 << 20)));
        assert!(windows.find(&package, &a, &(9 << 20..10 << 20)).is_none());
        assert!(windows.find(&package, &a, &(0..10)).is_some());
    }
}
