//! One body in order, from its source to the writer: to the byte that readers want.

use super::extent::ExtentError;
use super::incoming::IncomingBytes;
use super::outcome::Ended;
use super::plan::Failure;
use super::promise::Promise;
use super::ranges::Ranges;
use super::task::{Completed, DownloadTask, Stop, VersionUnderWay};
use super::verify::{Judged, Judging};
use super::writer::{Stage, WriteError, Writer};
use crate::content::ContentError;
use crate::content::blocks::Sink;
use crate::content::form::Form;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A body is held open for so long while no reader reads further.
const HELD_OPEN: Duration = Duration::from_secs(2);

/// Time for which the body of an object in memory is held open: without it all is fetched again.
const HELD_OPEN_IN_MEMORY: Duration = Duration::from_secs(10);

/// A download whose readers have stopped is kept for this many stall timeouts. It ends sooner where more than `RESTING` others are under
/// way.
const REST: u32 = 20;
const RESTING: usize = 16;

/// From this many bytes on, skipping what is here is worth a new request.
const WORTH_SKIPPING: u64 = 4 << 20;

/// A writer that does not write hashes so many bytes at once, at least.
const WORTH_HASHING: u64 = 1 << 20;

/// The mark of what is kept where no validator says that it is of one version. No ETag looks so.
pub(super) const MIXED: &str = "mixed";

impl DownloadTask {
    /// Receives a body to its end and hands it to the writer, whole blocks at a time; `ranges` continue it where they are faster.
    pub(super) async fn receive(
        &mut self,
        mut source: IncomingBytes,
        mut ranges: Option<Ranges>,
        promise: &Promise,
    ) -> Result<(), Stop> {
        let uri = self.spec.uri.clone();
        loop {
            if let Some(ranges) = &mut ranges {
                // Its lock is not held while a range begins, which takes that of the state.
                let wanted = *self.download.limit().borrow();
                ranges.begin(self.intake.received, wanted);
                match ranges.replace_body(self.intake.received) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => return Err(self.range_failed(error).await),
                }
            }
            if self.skip_what_is_here(promise).await? {
                return Ok(());
            }
            self.wait_for_demand().await?;
            let silence = ranges.as_ref().and_then(Ranges::silence);
            let begun = Instant::now();
            let chunk = tokio::time::timeout(silence.unwrap_or_else(|| self.patience()), source.next(&uri));
            tokio::pin!(chunk);
            // Readers get what is here while the server is silent.
            let chunk = loop {
                tokio::select! {
                    biased;
                    written = self.written(), if self.intake.batch.has_block() => {
                        written?;
                        self.write_blocks().await?;
                    }
                    chunk = &mut chunk => break chunk.unwrap_or_else(|_| Err(self.stalled())),
                }
            };
            let chunk = match chunk {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(()),
                Err(_) if silence.is_some() => break,
                Err(error) => {
                    // What is here is written, so that it can be resumed.
                    if self.intake.batch.has_block() {
                        self.write_blocks().await?;
                    }
                    return Err(Stop::Failure(Failure::Cut { received: self.intake.received, error }));
                }
            };
            self.content.allocator_watch.working(&self.content.runtime);
            let left = promise.length.map(|length| length.saturating_sub(self.intake.received));
            self.intake.received += chunk.len() as u64;
            if let Some(ranges) = &mut ranges {
                ranges.measure(chunk.len() as u64, begun.elapsed(), self.intake.received);
            }
            self.download.state().note_received(self.intake.received);
            self.intake.batch.push(&chunk, left, &self.content.memory);
            if promise.length.is_none() {
                self.bound_unsized()?;
            }
            if let Some(length) = promise.length.filter(|length| self.intake.received > *length) {
                let is_only_shown = promise.expected.length.is_none() && self.shown == Some(length);
                return Err(match is_only_shown {
                    true => self.changed(),
                    false => self.wrong(format!("the server sent more than {length} bytes")),
                });
            }
            if self.intake.batch.is_full() {
                self.write_blocks().await?;
            }
        }
        drop(source);
        match ranges {
            Some(ranges) => self.receive_ranges(ranges, promise).await,
            None => Ok(()),
        }
    }

    /// Receives the rest of a body by ranges. The writer hashes what they bring.
    async fn receive_ranges(&mut self, mut ranges: Ranges, promise: &Promise) -> Result<(), Stop> {
        if self.intake.batch.has_block() {
            self.write_blocks().await?;
        }
        self.written().await?;
        // The rest of a block comes with it again.
        self.intake.batch.clear();
        ranges.leave_body();
        let (mut limit, mut changes) = (self.download.limit(), self.download.changes());
        loop {
            changes.borrow_and_update();
            self.intake.received = self.download.state().frontier();
            self.download.state().note_received(self.intake.received);
            if promise.length == Some(self.intake.received) {
                return Ok(());
            }
            if self.download.state().is_damaged() {
                return Err(self.unwritten(WriteError::Damaged(io::ErrorKind::InvalidData.into())));
            }
            let wanted = *limit.borrow_and_update();
            ranges.begin(self.intake.received, wanted);
            self.wait_for_demand().await?;
            self.hash_what_is_here();
            tokio::select! {
                biased;
                ended = ranges.ended() => if let Err(error) = ended {
                    return Err(self.range_failed(error).await);
                },
                written = self.written(), if matches!(self.intake.stage, Stage::Busy(_)) => written?,
                // The senders are part of the download.
                _ = changes.changed() => {}
                _ = limit.changed() => {}
            }
        }
    }

    /// Has an idle writer hash what others have written.
    fn hash_what_is_here(&mut self) {
        self.intake.stage = match std::mem::take(&mut self.intake.stage) {
            Stage::Idle(mut writer) if writer.lag() >= WORTH_HASHING => {
                Stage::Busy(tokio::task::spawn_blocking(move || {
                    writer.catch_up().inspect_err(|_| writer.discard())?;
                    Ok(writer)
                }))
            }
            stage => stage,
        };
    }

    async fn range_failed(&mut self, error: ExtentError) -> Stop {
        let received = self.intake.received;
        match error {
            ExtentError::Refused => Stop::Failure(Failure::Cut { received, error: self.stalled() }),
            ExtentError::Cut(error) => Stop::Failure(Failure::Cut { received, error }),
            // A writer that has failed has dropped the blocks, and knows why.
            ExtentError::Write(error) => match self.written().await {
                Err(stop) => stop,
                Ok(()) => self.unwritten(error),
            },
            ExtentError::Interrupted => self.panicked(),
        }
    }

    /// Passes over blocks that extents brought. Whether all is here; [`Stop::Rest`]: the rest is requested from there on.
    async fn skip_what_is_here(&mut self, promise: &Promise) -> Result<bool, Stop> {
        let (frontier, received) = (self.download.state().frontier(), self.intake.received);
        let is_whole = frontier > received && promise.length == Some(frontier);
        let is_worth_a_request = frontier >= received.saturating_add(WORTH_SKIPPING) && self.can_be_resumed();
        if is_whole || is_worth_a_request {
            self.written().await?;
            self.intake.batch.clear();
            self.intake.received = frontier;
        }
        if is_worth_a_request && !is_whole { Err(Stop::Rest) } else { Ok(is_whole) }
    }

    /// How long a silent body is waited for: where others can be asked, no longer than leaves its readers the time for one of them.
    fn patience(&self) -> Duration {
        if self.plan.has_others() { self.content.config.stall.mul_f32(0.45) } else { self.content.config.stall }
    }

    /// A body whose length is unknown may have no end: it is bounded, and more so where nothing waits for it.
    fn bound_unsized(&self) -> Result<(), Stop> {
        let state = self.download.state();
        let most = state.bounds.unsized_body;
        let is_left = state.demand.is_left(self.content.config.stall * REST, Instant::now());
        drop(state);
        let error = match self.intake.received {
            received if received > most => ContentError::Endless { uri: self.spec.uri.clone(), bytes: most },
            _ if is_left => self.stalled(),
            _ => return Ok(()),
        };
        Err(Stop::End(Ended::Failed(error)))
    }

    /// Waits as long as no reader follows.
    async fn wait_for_demand(&mut self) -> Result<(), Stop> {
        let mut limit = self.download.limit();
        let is_in_memory = self.sink() == Sink::Memory;
        // Others would be requested again, or be withheld from then on: they come further and are held open for longer.
        let is_cheap = self.if_range().is_some() || self.version.shared_copy.is_some() || is_in_memory;
        let slack = if is_cheap { 0 } else { self.download.state().bounds.unread };
        let is_wanted = |received: u64, limit: u64| received < limit.saturating_add(slack);
        if is_wanted(self.intake.received, *limit.borrow()) {
            return Ok(());
        }
        if self.intake.batch.has_block() {
            self.write_blocks().await?;
        }
        self.written().await?;
        let patience = match is_cheap {
            true if is_in_memory => HELD_OPEN_IN_MEMORY.min(self.content.config.stall),
            true => HELD_OPEN,
            false => self.content.config.stall,
        };
        loop {
            if is_wanted(self.intake.received, *limit.borrow_and_update()) {
                // It stood still for want of a reader.
                self.download.state().touch();
                return Ok(());
            }
            if self.download.state().demand.is_behind() {
                return Err(Stop::Again);
            }
            match tokio::time::timeout(patience, limit.changed()).await {
                Ok(_) => {}
                Err(_) if is_in_memory || !self.can_be_resumed() => {
                    return Err(Stop::End(Ended::Yielded(self.stalled())));
                }
                Err(_) => return Err(Stop::Rest),
            }
        }
    }

    /// Waits without a body until a reader reads further; not for ever, and while many others are under way not for long. For a reader
    /// whose bytes have left the window all is fetched again.
    pub(super) async fn rest(&mut self) -> Result<(), Ended> {
        let mut limit = self.download.limit();
        loop {
            if self.intake.received < *limit.borrow_and_update() {
                self.download.state().touch();
                return Ok(());
            }
            let is_behind = self.download.state().demand.is_behind();
            if is_behind {
                self.receive_again().await;
                return Ok(());
            }
            let others = self.content.table.len();
            let patience = if others <= RESTING { self.content.config.stall * REST } else { HELD_OPEN };
            let until = self.download.state().last_read + patience;
            if Instant::now() >= until {
                self.keep().await;
                return Err(Ended::Yielded(self.stalled()));
            }
            let _ = tokio::time::timeout_at(until.into(), limit.changed()).await;
        }
    }

    /// Returns whether the rest can be requested.
    pub(super) fn can_be_resumed(&self) -> bool {
        let version = &self.version;
        version.validator.is_some() || version.is_joinable || version.shared_copy.is_some()
    }

    /// Waits until the writer has done what it was given. May be dropped while it waits.
    pub(super) async fn written(&mut self) -> Result<(), Stop> {
        let Stage::Busy(task) = &mut self.intake.stage else { return Ok(()) };
        let done = task.await;
        self.intake.stage = Stage::Empty;
        let writer = done.map_err(|_| self.panicked())?.map_err(|error| self.unwritten(error))?;
        self.intake.stage = Stage::Idle(writer);
        Ok(())
    }

    /// Takes the writer, when it has done what it was given; `None` where nothing was written.
    async fn writer(&mut self) -> Result<Option<Box<Writer>>, Stop> {
        self.written().await?;
        match std::mem::take(&mut self.intake.stage) {
            Stage::Idle(writer) => Ok(Some(writer)),
            _ => Ok(None),
        }
    }

    fn unwritten(&mut self, error: WriteError) -> Stop {
        match error {
            WriteError::Coding(_) => Stop::Failure(Failure::Wrong(self.unkept(error))),
            // Once may be chance. A disk that cannot be read back would have it fetched for ever.
            WriteError::Damaged(_) if !std::mem::replace(&mut self.was_damaged, true) => Stop::Again,
            WriteError::Damaged(_) => Stop::Full(error),
            error if error.is_of_sink() => Stop::Full(error),
            error => Stop::End(Ended::Failed(self.unkept(error))),
        }
    }

    pub(super) fn unkept(&self, error: WriteError) -> ContentError {
        error.into_content(&self.spec.uri, &self.content.config.folder)
    }

    /// Gives the whole blocks received to the writer, when it is done with those before.
    async fn write_blocks(&mut self) -> Result<(), Stop> {
        let writer = self.writer().await?;
        let start = self.intake.received - self.intake.batch.len();
        let (blocks, reservation) = self.intake.batch.take_blocks();
        let begin = self.begin();
        self.intake.stage = Stage::Busy(tokio::task::spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => writer,
                None => Box::new(begin()?),
            };
            let absorbed = writer.absorb(start, blocks);
            drop(reservation);
            absorbed.inspect_err(|_| writer.discard())?;
            Ok(writer)
        }));
        Ok(())
    }

    /// The mark under which a later download finds what is here, if that can be resumed.
    pub(super) fn mark(&self) -> Option<String> {
        match &self.version.validator {
            Some((place, etag)) if !self.version.is_mixed => Some(format!("{etag} {place}")),
            _ => self.version.is_joinable.then(|| MIXED.to_owned()),
        }
    }

    /// From now on bytes of other nodes or other versions are with those that are here: the verdict on the whole tells which.
    pub(super) async fn mix(&mut self) -> Result<(), Stop> {
        self.version.is_mixed = true;
        self.written().await?;
        if let Stage::Idle(writer) = &self.intake.stage {
            writer.keep_under(self.mark().as_deref(), self.version.length);
        }
        Ok(())
    }

    /// How a writer of this attempt is begun, on a blocking thread.
    fn begin(&self) -> impl FnOnce() -> Result<Writer, WriteError> + Send + use<> {
        let (content, key, ino) = (Arc::clone(&self.content), self.key(), self.spec.ino);
        let algorithm = self.expected(Form::Plain).algorithm();
        let download = Arc::clone(&self.download);
        let attempt = download.state().attempt();
        move || {
            let map = download.open_map(&content, &key, ino, attempt)?;
            Ok(Writer::new(map, algorithm, content.block_hasher, download, attempt))
        }
    }

    /// The body is here: are these the bytes? Everything is done on one blocking thread, for a small object all of it.
    pub(super) async fn verdict(&mut self, promise: Promise) -> Result<Completed, Stop> {
        let writer = self.writer().await?;
        let start = self.intake.received - self.intake.batch.len();
        let (last, reservation) = self.intake.batch.take();
        let begin = self.begin();
        let is_plain = promise.form == Form::Plain;
        let judging = Judging {
            content: Arc::clone(&self.content),
            download: Arc::clone(&self.download),
            ino: self.spec.ino.0,
            promise,
            earlier: self.earlier,
            shown: self.shown_size(),
            contradicted: self.content.failures().contradicted.cause(&self.spec.uri, Instant::now()).copied(),
        };
        let task = tokio::task::spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => *writer,
                None => begin()?,
            };
            writer.absorb(start, last)?;
            drop(reservation);
            judging.judge(writer)
        });
        let judged = task.await.map_err(|_| self.panicked())?.map_err(|error| self.unwritten(error))?;
        match judged {
            Judged::Right { object, key, verified, digest } => Ok(Completed {
                object,
                verified,
                digest,
                key,
                is_plain,
                origin: self.version.provenance.clone(),
                is_shared: false,
            }),
            Judged::Wrong(what) => Err(self.wrong(what)),
            Judged::Other => Err(self.changed()),
            Judged::Final => Err(Stop::End(Ended::Failed(ContentError::Changed { uri: self.spec.uri.clone() }))),
            Judged::Poison => {
                let what = "bytes that were read before the check were wrong".into();
                let error = ContentError::Mismatch { uri: self.spec.uri.clone(), what };
                Err(Stop::End(Ended::Poisoned(error)))
            }
        }
    }

    /// Drops what is here; the next attempt begins at the first byte.
    pub(super) async fn begin_again(&mut self, is_doubted: bool) {
        self.version = VersionUnderWay::default();
        let writer = match std::mem::take(&mut self.intake).stage {
            Stage::Empty => None,
            Stage::Idle(writer) => Some(writer),
            Stage::Busy(task) => task.await.ok().and_then(Result::ok),
        };
        let map = self.download.publish(|state| state.restart(is_doubted));
        if writer.is_some() || map.is_some() {
            // Waited for, so that the next attempt finds the name free. The store reports a failure.
            let dropped = tokio::task::spawn_blocking(move || {
                map.iter().for_each(|map| map.discard());
                if let Some(writer) = writer {
                    writer.discard();
                }
            });
            let _ = dropped.await;
        }
    }

    /// Drops what is here to receive it again, which counts as progress.
    pub(super) async fn receive_again(&mut self) {
        self.begin_again(false).await;
        self.download.state().count_again();
    }

    /// Keeps what is here for a later download.
    pub(super) async fn keep(&mut self) {
        if let Stage::Busy(task) = std::mem::take(&mut self.intake.stage) {
            // What could not be written is not there to be resumed.
            let _ = task.await;
        }
    }
}
