//! Random reads: ranges of a large object for readers that are far from the stream (archives' directories, `tail`, viewers).
//!
//! They are asked for under a strong ETag only, in blocks, which stay in the block cache: the stream still brings the whole, and its
//! verdict is on what the stream brought. What was handed out of a random read is remembered and must equal it. Several readers of a
//! block share one request, and each waits for its own blocks alone.

use super::AT_HAND;
use super::look::Jump;
use super::object::Origin;
use super::ranges::{RangeBody, RangeClient, RangeError};
use super::shared::Download;
use super::state::whole_blocks;
use crate::content::block_cache::{BlockCache, Key, Version};
use crate::content::fixity::BLOCK;
use crate::content::{Content, Event};
use crate::platform::memory_budget::Budget;
use crate::source::http::{KnownPause, Priority, Requester};
use crate::source::off_the_workers;
use bytes::{Buf, Bytes, BytesMut};
use fuser::INodeNo;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Blocks of one request, at most.
const MOST: u64 = 8;

/// A first read of the end gets at least so many bytes: `tail` reads backwards, and so does a search for an archive's directory.
const END: u64 = 64 << 10;

/// An inode and the attempt to download it.
pub(super) type Object = (INodeNo, u64);

/// A block on its way; the sender is dropped where it does not arrive.
type Coming = watch::Receiver<Option<Bytes>>;

/// The random reads of all objects.
pub(in crate::content) struct RandomReads {
    cache: Arc<BlockCache>,
    budget: Budget,
    /// Locked before the cache: a block is in one of the two from its request on.
    coming: Mutex<HashMap<Key, Coming>>,
}

/// Which blocks to ask for, so that those of `missing` arrive, of an object of `length` bytes. `is_known`: a block is here or on its way.
///
/// A first read gets what it asks for. A reader that goes on, forwards or backwards, gets one block more than it has read so far.
fn window(missing: &Range<u64>, length: u64, is_known: impl Fn(u64) -> bool) -> Range<u64> {
    let lowest = missing.start.saturating_sub(MOST);
    let highest = (missing.end + MOST).min(length.div_ceil(BLOCK));
    let before = (lowest..missing.start).rev().take_while(|block| is_known(*block)).count() as u64;
    let behind = (missing.end..highest).take_while(|block| is_known(*block)).count() as u64;
    let is_short_end = missing.end * BLOCK >= length && length - missing.start * BLOCK < END;
    let backwards = |blocks: u64| {
        let start = missing.end.saturating_sub(blocks.min(MOST)).min(missing.start);
        let known = (start..missing.start).rev().find(|block| is_known(*block));
        known.map_or(start, |known| known + 1)..missing.end
    };
    match (before, behind) {
        (0, 0) if is_short_end => backwards(2),
        (0, 1..) => backwards(behind + 1),
        (1.., 0) => {
            let end = (missing.start + MOST.min(before + 1)).min(highest).max(missing.end);
            missing.start..(missing.end..end).find(|block| is_known(*block)).unwrap_or(end)
        }
        _ => missing.clone(),
    }
}

/// Blocks that are being asked for. Those that have not arrived when this is dropped never do.
pub(super) struct Window {
    reads: Arc<RandomReads>,
    length: u64,
    left: VecDeque<(Key, watch::Sender<Option<Bytes>>)>,
}

impl Window {
    /// The bytes that are still to arrive.
    fn range(&self) -> Range<u64> {
        let first = self.left.front().map_or(0, |(key, _)| key.first);
        let last = self.left.back().map_or(0, |(key, _)| key.first + BLOCK);
        first..last.min(self.length)
    }

    /// Asks for it, and once more for what is missing where it was cut. `body` is the answer, where it was asked for already.
    pub(super) async fn fetch(mut self, client: RangeClient, mut body: Option<RangeBody>) {
        for _ in 0..2 {
            let filled = async {
                let body = match body.take() {
                    Some(body) => body,
                    None => client.ask(&self.range(), false).await?,
                };
                self.fill(body, client.silence).await
            };
            match filled.await {
                Ok(()) => return,
                Err(error) => tracing::debug!(place = %client.origin.place, %error, "a random read failed"),
            }
        }
    }

    /// Hands on each block that `body` brings.
    async fn fill(&mut self, mut body: RangeBody, silence: Duration) -> Result<(), RangeError> {
        let mut chunk = Bytes::new();
        while let Some((key, _)) = self.left.front() {
            let key = *key;
            // At most a block.
            let bytes = (self.length - key.first).min(BLOCK) as usize;
            let mut block = BytesMut::with_capacity(bytes);
            while block.len() < bytes {
                if chunk.is_empty() {
                    let next = timeout(silence, body.chunk()).await.map_err(|_| RangeError::Silent)??;
                    chunk = next.ok_or(RangeError::Other)?;
                }
                let part = chunk.split_to(chunk.len().min(bytes - block.len()));
                block.extend_from_slice(&part);
            }
            if self.left.len() == 1 && chunk.has_remaining() {
                // More than was asked for answers another question.
                return Err(RangeError::Other);
            }
            let mut block = block.freeze();
            // Not waited for, since the permit of the host is held meanwhile: its readers get the block all the same.
            if let Some(reservation) = self.reads.budget.try_reserve(bytes) {
                block = reservation.attach(block);
                self.reads.cache.put(key, block.clone());
            }
            self.reads.coming().remove(&key);
            if let Some((_, sender)) = self.left.pop_front() {
                sender.send_replace(Some(block));
            }
        }
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut coming = self.reads.coming();
        self.left.iter().for_each(|(key, _)| drop(coming.remove(key)));
    }
}

impl RandomReads {
    pub(in crate::content) fn new(cache: &Arc<BlockCache>, budget: &Budget) -> Arc<RandomReads> {
        Arc::new(RandomReads { cache: Arc::clone(cache), budget: budget.clone(), coming: Mutex::default() })
    }

    fn coming(&self) -> MutexGuard<'_, HashMap<Key, Coming>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes to ask for first for a read of `range` of an object of `length` bytes of which nothing is here.
    pub(super) fn first(range: &Range<u64>, length: u64) -> Range<u64> {
        let missing = range.start / BLOCK..range.end.div_ceil(BLOCK).min(range.start / BLOCK + MOST);
        let blocks = window(&missing, length, |_| false);
        blocks.start * BLOCK..(blocks.end * BLOCK).min(length)
    }

    /// The blocks of `range`, which begins with one, are being asked for: readers wait for them from now on.
    pub(super) fn begin(self: &Arc<Self>, object: Object, range: Range<u64>, length: u64) -> Window {
        self.begin_blocks(&mut self.coming(), object, range.start / BLOCK..range.end.div_ceil(BLOCK), length)
    }

    fn begin_blocks(
        self: &Arc<Self>,
        coming: &mut HashMap<Key, Coming>,
        object: Object,
        blocks: Range<u64>,
        length: u64,
    ) -> Window {
        let begin = |block| {
            let (sender, receiver) = watch::channel(None);
            coming.insert(key(object, block), receiver);
            (key(object, block), sender)
        };
        Window { reads: Arc::clone(self), length, left: blocks.map(begin).collect() }
    }

    /// The `blocks` in order, as they are here or on their way, and the windows that must be asked for.
    fn find(self: &Arc<Self>, object: Object, blocks: Range<u64>, length: u64) -> (Vec<Coming>, Vec<Window>) {
        let mut coming = self.coming();
        let (mut found, mut windows) = (Vec::new(), Vec::new());
        for block in blocks.clone() {
            let key_of_it = key(object, block);
            if !coming.contains_key(&key_of_it) {
                if let Some(bytes) = self.cache.get(&key_of_it) {
                    found.push(watch::channel(Some(bytes)).1);
                    continue;
                }
                let is_known = |block: u64| {
                    let key = key(object, block);
                    coming.contains_key(&key) || self.cache.peek(&key).is_some()
                };
                let most = blocks.end.min(block + MOST);
                let end = (block + 1..most).find(|block| is_known(*block)).unwrap_or(most);
                let window = window(&(block..end), length, is_known);
                windows.push(self.begin_blocks(&mut coming, object, window, length));
            }
            found.extend(coming.get(&key_of_it).cloned());
        }
        (found, windows)
    }

    /// The bytes of `blocks`; `None` where one of them does not arrive.
    pub(super) async fn read(
        self: &Arc<Self>,
        object: Object,
        blocks: Range<u64>,
        client: &RangeClient,
    ) -> Option<Bytes> {
        let (found, windows) = self.find(object, blocks, client.origin.length);
        for window in windows {
            tokio::spawn(window.fetch(client.clone(), None));
        }
        let mut bytes = BytesMut::new();
        for mut block in found {
            let block = block.wait_for(Option::is_some).await.ok()?.clone()?;
            bytes.extend_from_slice(&block);
        }
        Some(bytes.freeze())
    }
}

fn key((ino, attempt): Object, block: u64) -> Key {
    Key { ino, version: Version::Attempt(attempt), first: block * BLOCK }
}

impl Content {
    /// How ranges of the version that `origin` names are asked for.
    pub(super) fn range_client(&self, origin: Origin, requester: Requester, pause: &KnownPause) -> RangeClient {
        let priority = Priority::Reader(requester);
        let (head, silence) = (self.head_budget(2), self.config.stall / 6);
        RangeClient {
            client: self.client.clone(),
            origin,
            priority,
            pause: pause.clone(),
            head,
            silence,
            shared_cache: self.shared_cache.as_ref().map(|shared| Arc::clone(shared.remote())),
        }
    }

    /// The bytes of `jump`, recorded as handed out. `None`: the stream must bring them.
    pub(super) async fn random_read(
        self: &Arc<Self>,
        (ino, requester): (INodeNo, Requester),
        download: &Download,
        jump: &Jump,
    ) -> Option<Bytes> {
        let blocks = jump.range.start / BLOCK..jump.range.end.div_ceil(BLOCK);
        let first = blocks.start * BLOCK;
        let client = self.range_client(jump.origin.clone(), requester, download.pause());
        let bytes = self.random_reads.read((ino, jump.attempt), blocks, &client).await?;
        self.freed.working(&self.runtime);
        let digest = || self.block_hasher.digests(&bytes);
        let digests: Vec<u128> = if bytes.len() as u64 > AT_HAND { off_the_workers(digest) } else { digest() };
        let blocks = whole_blocks(&jump.range, jump.origin.length);
        if !download.change(|state| state.hand_out_random(jump.attempt, &blocks, &digests)) {
            return None;
        }
        if jump.range.end > download.state().withheld_from() {
            // Before the answer: the kernel drops a page that is being read as soon as it is answered.
            self.send_event(Event::Recheck(ino, jump.range.clone()));
        }
        Some(bytes.slice((jump.range.start - first) as usize..(jump.range.end - first) as usize))
    }
}
