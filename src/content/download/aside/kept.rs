//! The windows that are here or on their way, by object and place.

use super::growth;
use crate::content::fixity::BLOCK;
use crate::source::http::Body;
use bytes::Bytes;
use fuser::INodeNo;
use lru::LruCache;
use std::ops::Range;
use std::time::Duration;
use tokio::sync::watch;

/// Bytes of the windows that are kept, of all objects; a short one counts as a block. The least recently used make room, of
/// which those are held on that are under way or that somebody reads still.
const KEPT: u64 = 32 << 20;

/// (inode, attempt)
pub(in crate::content::download) type Whose = (INodeNo, u64);

/// Bytes of an object, as far as they have come.
#[derive(Clone)]
pub(super) struct Window {
    range: Range<u64>,
    /// From its first byte on, without gap.
    bytes: watch::Receiver<Vec<u8>>,
}

impl Window {
    /// Nothing more comes, and it is not whole.
    fn is_broken(&self) -> bool {
        // An error tells that whoever filled it is gone.
        self.bytes.has_changed().is_err() && (self.bytes.borrow().len() as u64) < self.bytes_in_all()
    }

    fn bytes_in_all(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// What counts of it.
    fn counted(&self) -> u64 {
        self.bytes_in_all().max(BLOCK)
    }
}

/// Bytes of a read that lie in one window.
pub(super) struct Part {
    window: Window,
    range: Range<u64>,
}

impl Part {
    /// Waits for these bytes alone.
    pub(super) async fn bytes(mut self) -> Result<Bytes, Cut> {
        // They lie in the window, which is in memory.
        let first = (self.range.start - self.window.range.start) as usize;
        let end = (self.range.end - self.window.range.start) as usize;
        if let Ok(bytes) = self.window.bytes.wait_for(|bytes| bytes.len() >= end).await
            && let Some(bytes) = bytes.get(first..end)
        {
            return Ok(Bytes::copy_from_slice(bytes));
        }
        Err(Cut { is_midway: !self.window.bytes.borrow().is_empty() })
    }
}

/// Bytes that do not come.
#[derive(Debug)]
pub(super) struct Cut {
    /// Others of their window did.
    pub(super) is_midway: bool,
}

/// A window to be fetched. Where this is dropped nothing more comes.
pub(in crate::content::download) struct Coming {
    pub(in crate::content::download) range: Range<u64>,
    bytes: watch::Sender<Vec<u8>>,
}

impl Coming {
    /// Hands on what `body` brings, as it comes, until the window is whole. More bytes than were asked for are an answer to
    /// another question: what goes out then is no more of it.
    pub(in crate::content::download) async fn fill(self, mut body: Body, stall: Duration) {
        // No more than memory can hold.
        let all = (self.range.end - self.range.start) as usize;
        self.bytes.send_modify(|bytes| bytes.reserve_exact(all));
        while let Ok(Ok(Some(chunk))) = tokio::time::timeout(stall, body.chunk()).await {
            if self.bytes.is_closed() {
                // It was forgotten, and nobody waits for it.
                return;
            }
            if self.bytes.borrow().len() + chunk.len() > all {
                return self.bytes.send_modify(Vec::clear);
            }
            self.bytes.send_modify(|bytes| bytes.extend_from_slice(&chunk));
        }
    }
}

/// The windows of all objects.
pub(in crate::content::download) struct Kept {
    windows: LruCache<(Whose, u64), Window>,
    bytes: u64,
}

impl Default for Kept {
    fn default() -> Self {
        Kept { windows: LruCache::unbounded(), bytes: 0 }
    }
}

impl Kept {
    /// The bytes `blocks`, which are whole blocks of an object of `length`, in order; and the windows that must be fetched for them.
    pub(super) fn cover(&mut self, whose: Whose, blocks: &Range<u64>, length: u64) -> (Vec<Part>, Vec<Coming>) {
        self.forget_broken(whose);
        let (mut parts, mut coming) = (Vec::new(), Vec::new());
        let mut at = blocks.start;
        while at < blocks.end {
            let others = self.ranges(whose);
            let Some(found) = others.iter().find(|other| other.contains(&at)) else {
                let next = others.iter().map(|other| other.start).filter(|start| *start > at).min();
                let gap = at..blocks.end.min(next.unwrap_or(length)).min(at + growth::LONGEST);
                coming.push(self.begin(whose, growth::window(&gap, &others, length)));
                continue;
            };
            let end = found.end.min(blocks.end);
            // It was there a moment ago; a window that is only begun may be pushed out by the next.
            let Some(window) = self.windows.get(&(whose, found.start)).cloned() else { continue };
            parts.push(Part { window, range: at..end });
            at = end;
        }
        (parts, coming)
    }

    /// A window that will be fetched.
    pub(in crate::content::download) fn begin(&mut self, whose: Whose, range: Range<u64>) -> Coming {
        let (sender, bytes) = watch::channel(Vec::new());
        let window = Window { range: range.clone(), bytes };
        self.bytes += window.counted();
        if let Some((_, replaced)) = self.windows.push((whose, range.start), window) {
            self.bytes -= replaced.counted();
        }
        while self.bytes > KEPT
            && self.windows.len() > 1
            && let Some((_, least)) = self.windows.pop_lru()
        {
            self.bytes -= least.counted();
        }
        Coming { range, bytes: sender }
    }

    /// Where the windows of an object lie.
    fn ranges(&self, whose: Whose) -> Vec<Range<u64>> {
        let its = self.windows.iter().filter(|((other, _), _)| *other == whose);
        its.map(|(_, window)| window.range.clone()).collect()
    }

    /// Nobody reads them any more.
    pub(super) fn forget(&mut self, ino: INodeNo) {
        self.forget_those(|(other, _), _| *other == ino);
    }

    fn forget_broken(&mut self, whose: Whose) {
        self.forget_those(|other, window| *other == whose && window.is_broken());
    }

    fn forget_those(&mut self, go: impl Fn(&Whose, &Window) -> bool) {
        let its = self.windows.iter().filter(|((whose, _), window)| go(whose, window));
        let going: Vec<_> = its.map(|(key, _)| *key).collect();
        for key in going {
            self.bytes -= self.windows.pop(&key).map_or(0, |window| window.counted());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const LENGTH: u64 = 1 << 40;

    fn whose(ino: u64) -> Whose {
        (INodeNo(ino), 7)
    }

    fn blocks(range: Range<u64>) -> Range<u64> {
        range.start * BLOCK..range.end * BLOCK
    }

    fn came(coming: &Coming, bytes: &[u8]) {
        coming.bytes.send_modify(|all| all.extend_from_slice(bytes));
    }

    #[tokio::test]
    async fn a_read_has_its_bytes_when_they_are_here_whatever_else_is_to_come() {
        let mut kept = Kept::default();
        let (mut first, coming) = kept.cover(whose(1), &blocks(8..9), LENGTH);
        let (mut second, goes_on) = kept.cover(whose(1), &blocks(8..10), LENGTH);
        assert_eq!([&coming[..], &goes_on[..]].map(<[Coming]>::len), [1, 1]);
        assert_eq!((coming[0].range.clone(), goes_on[0].range.clone()), (blocks(8..9), blocks(9..11)));
        assert_eq!((first.len(), second.len()), (1, 2));

        let (first, last) = (first.remove(0).bytes(), second.remove(1).bytes());
        tokio::pin!(first, last);
        came(&goes_on[0], &vec![2; BLOCK as usize - 1]);
        assert!((&mut first).now_or_never().is_none() && (&mut last).now_or_never().is_none());
        came(&goes_on[0], &[3; 7]);
        let bytes = last.now_or_never().unwrap().unwrap();
        assert_eq!((bytes.len() as u64, bytes[0], bytes[bytes.len() - 1]), (BLOCK, 2, 3));
        came(&coming[0], &vec![1; BLOCK as usize]);
        assert_eq!(first.now_or_never().unwrap().unwrap(), vec![1; BLOCK as usize]);
    }

    #[tokio::test]
    async fn what_did_not_come_is_asked_for_again_and_what_did_is_not() {
        let mut kept = Kept::default();
        let (mut parts, coming) = kept.cover(whose(1), &blocks(8..9), LENGTH);
        came(&coming[0], &[1; 100]);
        assert_eq!(kept.cover(whose(1), &blocks(8..9), LENGTH).1.len(), 0, "it is under way");
        assert_eq!(kept.cover(whose(2), &blocks(8..9), LENGTH).1.len(), 1, "of another object");
        drop(coming);
        assert!(parts.remove(0).bytes().await.is_err_and(|cut| cut.is_midway));

        let (_, again) = kept.cover(whose(1), &blocks(8..9), LENGTH);
        came(&again[0], &vec![1; BLOCK as usize]);
        drop(again);
        let (mut parts, coming) = kept.cover(whose(1), &blocks(8..9), LENGTH);
        assert!(coming.is_empty() && parts.remove(0).bytes().await.is_ok(), "whole, it stays");
    }

    #[tokio::test]
    async fn what_nobody_reads_any_more_is_let_go_and_who_has_it_has_it() {
        let mut kept = Kept::default();
        let (mut parts, coming) = kept.cover(whose(1), &blocks(8..9), LENGTH);
        came(&coming[0], &vec![1; BLOCK as usize]);
        kept.cover(whose(2), &blocks(8..9), LENGTH);

        kept.forget(whose(1).0);

        assert_eq!((kept.windows.len() as u64, kept.bytes), (1, BLOCK));
        assert_eq!(parts.remove(0).bytes().await.unwrap(), vec![1; BLOCK as usize]);
        assert_eq!(kept.cover(whose(1), &blocks(8..9), LENGTH).1.len(), 1);
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes_however_short_windows_are() {
        let mut kept = Kept::default();
        for ino in 0..3 * KEPT / BLOCK {
            let (parts, _) = kept.cover(whose(ino), &(0..10), 10);
            assert_eq!(parts.len(), 1);
            assert!(kept.bytes <= KEPT && kept.windows.len() as u64 <= KEPT / BLOCK);
        }
        for place in 0..3 * KEPT / growth::MOST {
            let (parts, coming) = kept.cover(whose(0), &blocks(100 * place..100 * place + 20), LENGTH);
            assert!(coming.iter().all(|window| window.range.end - window.range.start <= growth::LONGEST));
            assert_eq!(parts.iter().map(|part| part.range.end - part.range.start).sum::<u64>(), 20 * BLOCK);
            let bytes: u64 = kept.windows.iter().map(|(_, window)| window.counted()).sum();
            assert!(kept.bytes == bytes && bytes <= KEPT);
        }
    }
}
