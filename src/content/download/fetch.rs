//! One fetch from its first request to its verdict: places in their order, resumed after a cut, begun again where the
//! bytes are wrong or of another version.

use super::buffers::{GATHERED, GATHERED_AT_ONCE, Gathered};
use super::held::{Held, Origin, Version};
use super::member::Incoming;
use super::plan::{Failure, Next, Place, Plan, Proof, is_absent, tells_of_bytes};
use super::promise::{Form, Promise, strong};
use super::state::{Download, LARGE};
use super::stripes::Stripes;
use super::verdict::{Judged, Judging};
use super::writer::{Room, WriteError, Writer};
use crate::content::fixity::Expected;
use crate::content::store::ObjectKey;
use crate::content::{Content, ContentError, FetchSpec, Unannounced, Verified};
use crate::document::{Digest, Timestamp, Uri};
use crate::source::http::{self, Body, Requester, Status};
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

/// A shorter object that was cut is rather fetched again than looked for on the disk before every fetch.
const WORTH_RESUMING: u64 = 1 << 20;

/// What a fetch ended with.
pub(super) struct Landed {
    /// The object.
    pub(super) held: Held,
    /// What is known of it.
    pub(super) verified: Verified,
    /// Digest of what a read returns.
    pub(super) digest: Digest,
    /// Where it lies on disk.
    pub(super) key: ObjectKey,
    /// It came in no coding: what went out of the download is of these bytes.
    pub(super) is_plain: bool,
    /// The response it came from.
    pub(super) origin: Provenance,
}

/// What a response's head says of its bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Provenance {
    /// `ETag`, as written.
    pub(super) etag: Option<Box<str>>,
    /// `Last-Modified`, as written.
    pub(super) last_modified: Option<Box<str>>,
    /// Content-Type without parameters.
    pub(super) media_type: Option<Box<str>>,
}

/// Why a fetch ended without object.
pub(super) enum Ended {
    /// Every place failed.
    Failed(ContentError),
    /// The bytes are right and what went out before the verdict was not.
    Poisoned(ContentError),
    /// Nobody follows it; what is here can be gone on with.
    Left,
}

/// What ends an attempt.
pub(super) enum Stop {
    /// The plan says what follows.
    Failure(Failure),
    /// Nothing can follow.
    End(Ended),
    /// There is no room: the object is fetched again, into memory or past all caches.
    Full(WriteError),
    /// A reader asks for what has gone past the cache: it is fetched again.
    Again,
    /// Nobody reads on: the body is let go until somebody does.
    Rest,
}

/// The bytes of the attempt under way.
enum Stage {
    /// Nothing is kept.
    Empty,
    /// The writer waits for more.
    Idle(Box<Writer>),
    /// The writer is at work on a blocking thread.
    Busy(JoinHandle<Result<Box<Writer>, WriteError>>),
}

/// The fetch of one object, driven by [`Fetch::run`].
pub(super) struct Fetch {
    pub(super) content: Arc<Content>,
    pub(super) wanted: FetchSpec,
    pub(super) download: Arc<Download>,
    pub(super) plan: Plan,
    /// The strongest published digest, where fixity counts it.
    pub(super) published: Option<Digest>,
    /// The digest of an earlier complete fetch of this inode.
    pub(super) earlier: Option<Digest>,
    /// The strong ETag under which this version was served earlier.
    pub(super) etag: Option<Box<str>>,
    /// The size that was told before and may be known to the kernel.
    pub(super) told: Option<u64>,
    /// The strong validator of what was received, with its place.
    pub(super) validator: Option<(Uri, Box<str>)>,
    /// Bytes of the version under way, as its first response told.
    pub(super) length: Option<u64>,
    pub(super) provenance: Provenance,
    /// Last-Modified of the response under way, where it comes from `loc` and tells that the list could not know it. When a
    /// mirror was last modified says nothing of the resource.
    pub(super) newer_than_list: Option<Timestamp>,
    stage: Stage,
    /// Bytes received from the first on.
    pub(super) received: u64,
    /// The last of them, not yet with the writer.
    pub(super) rest: Gathered,
    /// Where the bytes go.
    pub(super) room: Room,
    /// Its turn at the host, as long as what it brings is for the cache folder; none where it was begun ahead of every
    /// reader and has not stood still since.
    pub(super) turn: Option<http::Place>,
    /// Leave to hold bytes in memory, where the cache folder has no room.
    pub(super) memory: Option<OwnedSemaphorePermit>,
    /// Leave to have the download hold what came last.
    pub(super) latest: Option<OwnedSemaphorePermit>,
    /// Leave to stand still while nobody reads on.
    pub(super) resting: Option<OwnedSemaphorePermit>,
}

impl Fetch {
    pub(super) fn new(
        content: Arc<Content>,
        wanted: FetchSpec,
        download: Arc<Download>,
        turn: Option<http::Place>,
    ) -> Fetch {
        let published = content.vouching_digest(&wanted);
        let observation = content.observed.get(wanted.ino);
        let earlier = observation.as_ref().and_then(|observation| observation.digests.first().copied());
        let told = observation.as_ref().and_then(|observation| observation.size);
        let strong_etag = observation.as_ref().and_then(|observation| strong(observation.etag.as_deref()));
        let etag = strong_etag.map(Box::from);
        let proof = Proof { vouched: published.is_some(), earlier: earlier.is_some() || etag.is_some() };
        let plan = Plan::new(content.places(&wanted, proof, content.turn_of_member(&wanted)));
        let rest = Gathered::new(Arc::clone(&content.buffers));
        Fetch {
            content,
            wanted,
            download,
            plan,
            published,
            earlier,
            etag,
            told,
            validator: None,
            length: None,
            provenance: Provenance::default(),
            newer_than_list: None,
            stage: Stage::Empty,
            received: 0,
            rest,
            room: Room::Store,
            turn,
            memory: None,
            latest: None,
            resting: None,
        }
    }

    /// Who waits for what is asked for next, as far as anybody does.
    pub(super) fn requester(&self) -> Requester {
        self.download.urgency().demanded().unwrap_or_default()
    }

    /// Runs the fetch to its end.
    pub(super) async fn run(mut self) -> Result<Landed, Ended> {
        if let Some(landed) = self.patched().await? {
            return Ok(landed);
        }
        if self.download.is_passing() {
            self.go_past().await?;
        }
        self.adopt_partial().await;
        loop {
            let Some(place) = self.plan.place().cloned() else { return Err(Ended::Failed(self.given_up())) };
            let stop = match self.attempt(&place).await {
                Ok(Some(landed)) => {
                    self.content.cool_down(self.plan.faults(), Some(&place));
                    self.content.member_served(&place, self.plan.has_failed());
                    return Ok(landed);
                }
                Ok(None) => continue,
                Err(stop) => stop,
            };
            let failure = match stop {
                Stop::End(ended) => return Err(ended),
                Stop::Full(error) => {
                    // Others have leave for as much meanwhile.
                    self.rest.clear();
                    self.find_room(error).await?;
                    self.begin_again(false).await;
                    continue;
                }
                Stop::Again => {
                    self.begin_again(false).await;
                    continue;
                }
                Stop::Rest => {
                    self.stand_still().await?;
                    continue;
                }
                Stop::Failure(failure) => failure,
            };
            let doubted = matches!(failure, Failure::Wrong(_));
            tracing::debug!(%place, ?failure, "an attempt failed");
            match self.plan.after(failure, self.validator.is_some()) {
                Next::Resume => {}
                Next::Again => self.begin_again(doubted).await,
                Next::GiveUp => {
                    if doubted {
                        self.begin_again(doubted).await;
                    } else {
                        self.keep().await;
                    }
                    self.content.cool_down(self.plan.faults(), None);
                    return Err(Ended::Failed(self.given_up()));
                }
            }
        }
    }

    /// Why no place had the version.
    fn given_up(&self) -> ContentError {
        let uri = || self.wanted.uri.clone();
        let error = self.plan.error();
        let is_elsewhere = error.as_ref().is_none_or(|error| tells_of_bytes(error) || is_absent(error));
        match (self.wanted.as_of, error) {
            (Some(at), _) if is_elsewhere => ContentError::Unarchived { uri: uri(), at },
            (None, _) if is_elsewhere && self.wanted.is_replaced => ContentError::Changed { uri: uri() },
            (_, error) => error.unwrap_or_else(|| self.stalled()),
        }
    }

    /// Goes on where an earlier fetch of this inode was cut, if its bytes belong to a strong validator of the first place.
    async fn adopt_partial(&mut self) {
        let length = self.wanted.length.or(self.told);
        if self.room != Room::Store || length.is_some_and(|length| length < WORTH_RESUMING) {
            return;
        }
        let content = Arc::clone(&self.content);
        let (key, algorithm, download) =
            (self.key(), self.expected(Form::Plain).algorithm(), Arc::clone(&self.download));
        let Some(first) = self.plan.place().map(|place| place.uri().clone()) else { return };
        let is_plain = Form::published(&self.wanted) == Form::Plain;
        let announced = Arc::clone(&self.download);
        let is_first = move |validator: &str, kept: Option<u64>| {
            let (etag, place) = validator.split_once(' ')?;
            let etag = strong(Some(etag)).filter(|_| place == first.as_str())?.into();
            let version: Version = (first, etag);
            if is_plain && kept.is_some_and(|kept| length.is_none_or(|length| length == kept)) {
                announced.announce_kept(kept, &version);
            }
            Some(version)
        };
        let resumed = tokio::task::spawn_blocking(move || {
            Writer::resume(&content.disk, &key, algorithm, content.block_digests, download, is_first)
        });
        let Ok(Some((writer, version))) = resumed.await else { return };
        self.validator = Some(version);
        self.received = writer.length();
        self.stage = Stage::Idle(Box::new(writer));
    }

    /// What the transferred bytes must be, given in `form`.
    pub(super) fn expected(&self, form: Form) -> Expected {
        match form {
            Form::Plain => Expected { length: self.wanted.length, published: self.published, earlier: self.earlier },
            Form::Published(_) | Form::Unasked(_) => {
                Expected { length: self.wanted.length, published: self.published, earlier: None }
            }
        }
    }

    /// The name under which bytes are kept until the verdict.
    fn key(&self) -> ObjectKey {
        let ino = self.wanted.ino.0;
        match Form::published(&self.wanted) {
            Form::Published(_) => ObjectKey::inode(&format!("{} coded", self.content.config.source), ino),
            _ => ObjectKey::inode(&self.content.config.source, ino),
        }
    }

    pub(super) fn wrong(&self, what: impl Into<String>) -> Stop {
        let (uri, what) = (self.wanted.uri.clone(), what.into());
        let shown = self.content.config.unannounced == Unannounced::Show;
        Stop::Failure(Failure::Wrong(match self.newer_than_list {
            Some(modified) => ContentError::Unannounced { uri, modified, what, shown },
            None => ContentError::Mismatch { uri, what },
        }))
    }

    pub(super) fn changed(&self) -> Stop {
        Stop::Failure(Failure::Wrong(ContentError::Changed { uri: self.wanted.uri.clone() }))
    }

    pub(super) fn stalled(&self) -> ContentError {
        ContentError::Stalled { uri: self.wanted.uri.clone() }
    }

    fn panicked(&self) -> Stop {
        let cause = Arc::new(io::Error::other("writing the object was interrupted"));
        Stop::End(Ended::Failed(ContentError::Cache { path: self.content.config.folder.clone(), cause }))
    }

    /// One request and its body: the whole, or the rest where bytes of a strong validator are here. `None`: the place only
    /// led to others, which are in the plan now.
    async fn attempt(&mut self, place: &Place) -> Result<Option<Landed>, Stop> {
        if let Place::TimeMap(map) = place {
            let listed =
                self.content.listed_mementos(&self.wanted, map, self.plan.len(), self.published.is_some()).await;
            self.plan.leads_to(listed.map_err(|error| Stop::Failure(Failure::Refused(error)))?);
            return Ok(None);
        }
        if let Place::Member(member) = place {
            return self.unpacked(member).await.map(Some);
        }
        let from = self.received;
        let window = self.far_window(place);
        if window.is_none() {
            self.look_for_room().await.map_err(Stop::End)?;
        }
        let asked = Instant::now();
        let response = self.ask_where_it_is_read(place, window).await?;
        let round_trip = asked.elapsed();
        let resumed = match response.status {
            Status::Partial { first, total, .. } if from > 0 => {
                // Without a total the rest might be cut short unnoticed.
                let is_rest = first == from && total.is_some() && (self.length.is_none() || total == self.length);
                if !is_rest || !self.is_same_version(&response) {
                    return Err(self.changed());
                }
                true
            }
            Status::Full => {
                // The server has another version, or knows no ranges: never a mix, this body is the whole.
                let is_other = |(from, _): &(Uri, _)| from != place.uri() || !self.is_same_version(&response);
                if from > 0 || self.validator.as_ref().is_some_and(is_other) {
                    self.begin_again(false).await;
                }
                false
            }
            Status::Partial { .. } | Status::NotModified => {
                return Err(self.wrong("the answer is not the whole although the whole was asked for"));
            }
        };
        let promise = self.promise(place, &response, resumed)?;
        let has_ranges = resumed || response.accepts_ranges;
        let incoming = self.incoming(Box::new(response.body), has_ranges, round_trip);
        self.receive(incoming, &promise).await?;
        self.verdict(promise).await.map(Some)
    }

    /// How the bytes come of which `body` is the next. Where something failed before one connection is enough.
    fn incoming(&mut self, body: Box<Body>, has_ranges: bool, round_trip: Duration) -> Incoming {
        let left = |origin: &Origin| origin.length.saturating_sub(self.received);
        let origin = self.download.origin().filter(|origin| left(origin) >= LARGE);
        // What may be in another coding than published has none, and is not waited for either.
        let has_ranges = has_ranges && self.validator.is_some();
        match origin.filter(|_| has_ranges && self.room != Room::Memory && !self.plan.has_failed()) {
            Some(origin) => {
                if self.room == Room::Store {
                    self.hold_latest();
                }
                let (content, download) = (&self.content, &self.download);
                let stripes = Stripes::new(content, download, origin, body, self.received, round_trip);
                Incoming::Stripes(Box::new(stripes))
            }
            None => Incoming::Body(body),
        }
    }

    /// Waits until the writer has done what it was given. May be dropped while it waits.
    pub(super) async fn written(&mut self) -> Result<(), Stop> {
        let Stage::Busy(task) = &mut self.stage else { return Ok(()) };
        let done = task.await;
        self.stage = Stage::Empty;
        let writer = done.map_err(|_| self.panicked())?.map_err(|error| self.unwritten(error))?;
        self.stage = Stage::Idle(writer);
        Ok(())
    }

    /// Takes the writer, when it has done what it was given; `None` where nothing was written.
    async fn writer(&mut self) -> Result<Option<Box<Writer>>, Stop> {
        self.written().await?;
        match std::mem::replace(&mut self.stage, Stage::Empty) {
            Stage::Idle(writer) => Ok(Some(writer)),
            _ => Ok(None),
        }
    }

    fn unwritten(&self, error: WriteError) -> Stop {
        match error {
            WriteError::Coding(_) => Stop::Failure(Failure::Wrong(self.unkept(error))),
            error if error.is_full() => Stop::Full(error),
            error => Stop::End(Ended::Failed(self.unkept(error))),
        }
    }

    pub(super) fn unkept(&self, error: WriteError) -> ContentError {
        error.into_content(&self.wanted.uri, &self.content.config.folder)
    }

    /// Receives a body to its end and hands it to the writer, whole blocks at a time.
    pub(super) async fn receive(&mut self, mut incoming: Incoming, promise: &Promise) -> Result<(), Stop> {
        let uri = self.wanted.uri.clone();
        loop {
            if self.room == Room::Nowhere {
                self.wait_for_readers(promise).await?;
            } else {
                self.wait_to_be_followed(promise).await?;
            }
            let is_written_at_once = self.latest.is_some() && self.room == Room::Store && incoming.is_one();
            let most = if is_written_at_once { GATHERED_AT_ONCE } else { GATHERED };
            let chunk = tokio::time::timeout(self.patience(), incoming.chunk(&uri));
            tokio::pin!(chunk);
            // What is here goes on to the readers while the server is silent.
            let chunk = loop {
                tokio::select! {
                    biased;
                    written = self.written(), if self.rest.has_blocks() => {
                        written?;
                        self.write_blocks(promise).await?;
                    }
                    chunk = &mut chunk => break chunk,
                }
            };
            let chunk = match chunk {
                Ok(Ok(chunk)) => chunk,
                Ok(Err(error)) => {
                    return Err(self.cut(error, promise).await?);
                }
                Err(_) => {
                    let error = self.stalled();
                    return Err(self.cut(error, promise).await?);
                }
            };
            let Some(chunk) = chunk else { return Ok(()) };
            self.content.freed.working(&self.content.runtime);
            self.received += chunk.len() as u64;
            self.download.came(self.received);
            let has_leave = self.rest.push(chunk);
            if let Some(length) = promise.length.filter(|length| self.received > *length) {
                let only_told = promise.expected.length.is_none() && self.told == Some(length);
                let error =
                    if only_told { self.changed() } else { self.wrong(format!("more than {length} bytes came")) };
                return Err(error);
            }
            if self.rest.len() >= most || !has_leave {
                self.write_blocks(promise).await?;
            }
            if !has_leave {
                self.written().await?;
            }
        }
    }

    /// How long a silent body is waited for: where others can be asked, no longer than leaves its readers the time for one of them.
    fn patience(&self) -> Duration {
        if self.plan.has_others() { self.content.config.stall.mul_f32(0.45) } else { self.content.config.stall }
    }

    /// The body ended too early: what is here is written, so that it can be resumed.
    async fn cut(&mut self, error: ContentError, promise: &Promise) -> Result<Stop, Stop> {
        if self.rest.has_blocks() {
            self.write_blocks(promise).await?;
        }
        Ok(Stop::Failure(Failure::Cut { received: self.received, error }))
    }

    /// Gives the whole blocks received to the writer, when it is done with those before.
    pub(super) async fn write_blocks(&mut self, promise: &Promise) -> Result<(), Stop> {
        let writer = self.writer().await?;
        let blocks = self.rest.take_blocks();
        let begin = self.begin();
        let validator = self.validator.as_ref().map(|(place, etag)| format!("{etag} {place}"));
        let length = promise.length;
        self.stage = Stage::Busy(tokio::task::spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => writer,
                None => {
                    let writer = Box::new(begin()?);
                    writer.set_validator(validator, length);
                    writer
                }
            };
            match writer.absorb(&blocks) {
                Ok(()) => Ok(writer),
                Err(error) => {
                    writer.discard();
                    Err(error)
                }
            }
        }));
        Ok(())
    }

    /// How a writer of this attempt is begun, on a blocking thread.
    fn begin(&self) -> impl FnOnce() -> Result<Writer, WriteError> + Send + use<> {
        let content = Arc::clone(&self.content);
        let key = self.key();
        let (room, length) = (self.room, self.length);
        let algorithm = self.expected(Form::Plain).algorithm();
        let download = Arc::clone(&self.download);
        move || Writer::begin(&content.disk, &key, room, length, algorithm, content.block_digests, download)
    }

    /// The body is here: are these the bytes? Everything is done on one blocking thread, for a small object all of it.
    pub(super) async fn verdict(&mut self, promise: Promise) -> Result<Landed, Stop> {
        let writer = self.writer().await?;
        let last = self.rest.take();
        let begin = self.begin();
        let (told, is_plain) = (self.shown_size(), promise.form == Form::Plain);
        let judging = Judging {
            content: Arc::clone(&self.content),
            download: Arc::clone(&self.download),
            ino: self.wanted.ino.0,
            promise,
            earlier: self.earlier,
            told,
            contradicted: self
                .content
                .failures
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contradicted(&self.wanted.uri),
        };
        let provenance = self.provenance.clone();
        let task = tokio::task::spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => *writer,
                None => begin()?,
            };
            writer.absorb(&last)?;
            drop(last);
            judging.judge(writer)
        });
        let judged = task.await.map_err(|_| self.panicked())?.map_err(|error| self.unwritten(error))?;
        match judged {
            Judged::Right { held, key, verified, digest } => {
                Ok(Landed { held, verified, digest, key, is_plain, origin: provenance })
            }
            Judged::Wrong(what) => Err(self.wrong(what)),
            Judged::Other => Err(self.changed()),
            Judged::Poison => {
                let what = "the bytes handed out before the verdict were wrong".into();
                let error = ContentError::Mismatch { uri: self.wanted.uri.clone(), what };
                Err(Stop::End(Ended::Poisoned(error)))
            }
        }
    }

    /// The size that is shown: a question may have taught it since the fetch began.
    pub(super) fn shown_size(&mut self) -> Option<u64> {
        self.told = self.told.or_else(|| self.content.known_size(self.wanted.ino));
        self.told
    }

    /// Drops what is here; the next attempt begins at the first byte.
    pub(super) async fn begin_again(&mut self, doubted: bool) {
        self.validator = None;
        self.received = 0;
        self.rest.clear();
        let writer = match std::mem::replace(&mut self.stage, Stage::Empty) {
            Stage::Empty => None,
            Stage::Idle(writer) => Some(writer),
            Stage::Busy(task) => task.await.ok().and_then(Result::ok),
        };
        self.download.restart(doubted);
        if let Some(writer) = writer {
            // Priority, so that the next attempt finds the name free. That it failed would be told by the disk.
            let _ = tokio::task::spawn_blocking(move || writer.discard()).await;
        }
    }

    /// Leaves what is here for a later fetch.
    pub(super) async fn keep(&mut self) {
        if let Stage::Busy(task) = std::mem::replace(&mut self.stage, Stage::Empty) {
            // What could not be written is not there to be resumed.
            let _ = task.await;
        }
    }
}
