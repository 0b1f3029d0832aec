//! A version out of a package: whether that is the cheaper way, and its bytes into the same fetch as any body's.

use super::fetch::{Fetch, Landed, Provenance, Stop};
use super::held::Origin;
use super::plan::{Failure, Place, Turn};
use super::promise::{Form, Promise};
use super::stripes::Stripes;
use super::writer::Room;
use crate::causes::chain;
use crate::content::{Content, ContentError, FetchSpec, Patch};
use crate::document::{PackageMember, Uri};
use crate::source::http::{Body, Line, Price};
use crate::source::zip::{Member, PackageError, Packages};
use bytes::{Bytes, BytesMut};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Packages whose standing is remembered, the least recent forgotten.
const PACKAGES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// How long a package at fault is asked last.
const ASIDE: Duration = Duration::from_secs(600);

/// How long a package is asked first after it had what the resource's own URI had not.
const RELIED_ON: Duration = Duration::from_secs(3600);

/// How often it is looked how much of a package has come.
const LOOK: Duration = Duration::from_secs(1);

/// What a resource of unknown length is taken to have.
const USUAL: u64 = 64 << 10;

/// How packages fared lately.
pub(in crate::content) struct Standings {
    packages: LruCache<Uri, Standing>,
}

impl Default for Standings {
    fn default() -> Self {
        Standings { packages: LruCache::new(PACKAGES) }
    }
}

#[derive(Clone, Copy, Default)]
struct Standing {
    aside_until: Option<Instant>,
    relied_on_until: Option<Instant>,
    /// Its faults have been told.
    is_told: bool,
}

impl Standings {
    fn turn(&mut self, package: &Uri, now: Instant) -> Option<Turn> {
        let standing = self.packages.get(package)?;
        let counts = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match (counts(standing.aside_until), counts(standing.relied_on_until)) {
            (true, _) => Some(Turn::Later),
            (false, true) => Some(Turn::First),
            (false, false) => None,
        }
    }

    fn of(&mut self, package: &Uri) -> &mut Standing {
        self.packages.get_or_insert_mut(package.clone(), Standing::default)
    }
}

impl Content {
    /// When the member of `wanted` is asked for: first where it is cheaper than the resource's own URI, or that failed lately.
    /// `price` is [`Packages::want`] where its bytes are read: the siblings of what is read are to be known.
    pub(super) fn turn_of_member(
        &self,
        wanted: &FetchSpec,
        price: fn(&Packages, &PackageMember) -> Option<Price>,
    ) -> Turn {
        let (Some(packages), Some(member)) = (self.packages.get(), &wanted.member) else { return Turn::Never };
        // Asked for also where it does not decide.
        let price = price(packages, member);
        let standing =
            self.standings.lock().unwrap_or_else(PoisonError::into_inner).turn(&member.package, Instant::now());
        match (standing, price) {
            (Some(turn), _) => turn,
            (None, Some(price))
                if is_cheaper(
                    (price, self.client.line(&member.package)),
                    (wanted.length, self.client.line(&wanted.uri)),
                ) =>
            {
                Turn::First
            }
            (None, _) => Turn::Later,
        }
    }

    /// The right bytes came from `place`; `after_others` that failed.
    pub(super) fn member_served(&self, place: &Place, after_others: bool) {
        let Place::Member(member) = place else { return };
        if after_others {
            let mut standings = self.standings.lock().unwrap_or_else(PoisonError::into_inner);
            standings.of(&member.package).relied_on_until = Some(Instant::now() + RELIED_ON);
        }
    }

    /// A package, or its member, is at fault; told once of each package.
    fn member_failed(&self, member: &PackageMember, error: &PackageError) {
        let is_told = {
            let mut standings = self.standings.lock().unwrap_or_else(PoisonError::into_inner);
            let standing = standings.of(&member.package);
            if !error.is_of_one_member() {
                standing.aside_until = Some(Instant::now() + ASIDE);
            }
            std::mem::replace(&mut standing.is_told, true)
        };
        let error = chain(error);
        if is_told {
            tracing::debug!(package = %member.package, %error, "a member cannot be read");
        } else {
            tracing::warn!(package = %member.package, %error, "a package is at fault; its resources come from their own URIs");
        }
    }

    /// Changes with whatever comes of a package: into a file where it is needed whole, or in ranges, which its host alone tells.
    pub(super) fn came_of(&self, packages: &Packages, package: &Uri) -> (Option<u64>, u64) {
        (packages.arrived(package), self.client.progress(package))
    }

    /// The size of a member, where its directory is known already.
    pub(super) fn size_in_package(&self, wanted: &FetchSpec) -> Option<u64> {
        let (packages, member) = (self.packages.get()?, wanted.member.as_ref()?);
        packages.known(&member.package)?.length_of(&member.path)
    }
}

/// Whether a member at this price is the cheaper way to a resource of this length than a request for the resource itself, each
/// over the line to its host.
fn is_cheaper((member, packages): (Price, Line), (length, own): (Option<u64>, Line)) -> bool {
    let request = Price { requests: 1, bytes: length.unwrap_or(USUAL) };
    packages.time(member, 1) < own.time(request, 1)
}

/// Bytes as they come.
pub(super) enum Incoming {
    /// Of a response.
    Body(Box<Body>),
    /// Of a response, and of ranges that go on where it is left.
    Stripes(Box<Stripes>),
    /// Of a member of a package, unpacked.
    Member(Box<Member>),
}

impl Incoming {
    /// The next bytes of the version of `uri`; `None` at the end.
    pub(super) async fn chunk(&mut self, uri: &Uri) -> Result<Option<Bytes>, ContentError> {
        match self {
            Incoming::Body(body) => {
                let chunk = body.chunk().await;
                chunk.map_err(|cause| ContentError::Fetch { uri: uri.clone(), cause: Arc::new(cause) })
            }
            Incoming::Stripes(stripes) => stripes.chunk(uri).await,
            Incoming::Member(member) => {
                let chunk = member.chunk().await;
                chunk.map_err(|cause| ContentError::Package { uri: uri.clone(), cause: Arc::new(cause) })
            }
        }
    }

    /// Whether they come of one body or member, and nothing of them waits in memory.
    pub(super) fn is_one(&self) -> bool {
        !matches!(self, Incoming::Stripes(stripes) if stripes.are_under_way())
    }
}

impl Fetch {
    /// The version as a package holds it: its length is held against what is published, its bytes against the digest, as those
    /// of any other place.
    pub(super) async fn unpacked(&mut self, member: &PackageMember) -> Result<Landed, Stop> {
        let unpacked = self.open_member(member).await.map_err(|cause| self.at_fault(member, cause))?;
        let vouched = self.published.is_some();
        let form = Form::of(&self.wanted, None, vouched).map_err(|what| self.wrong(what))?;
        let (expected, length) = (self.expected(form), unpacked.length());
        let shown = self.shown_size().filter(|_| form == Form::Plain);
        match (expected.length, shown) {
            (Some(published), _) if published != length => {
                let what = format!("has {length} bytes where {published} are published");
                let cause = PackageError::Member { package: member.package.clone(), path: member.path.clone(), what };
                return Err(self.at_fault(member, cause));
            }
            (None, Some(told)) if told != length && !vouched => return Err(self.changed()),
            _ => {}
        }
        self.validator = None;
        self.newer_than_list = None;
        self.length = Some(length);
        self.provenance = Provenance::default();
        let origin = unpacked.stored().filter(|_| form == Form::Plain).map(|stored| Origin {
            place: stored.package,
            etag: stored.etag,
            first: stored.first,
            total: stored.total,
            length,
        });
        if let Some(shown) = shown {
            self.download.show(shown);
        }
        self.download.announce(Some(length), form != Form::Plain || self.room == Room::Memory, origin);
        let promise = Promise { form, expected, length: Some(length) };
        let received = match self.receive(Incoming::Member(Box::new(unpacked)), &promise).await {
            Ok(()) => self.verdict(promise).await,
            Err(stop) => Err(stop),
        };
        if let Err(Stop::Failure(Failure::Wrong(_) | Failure::Cut { .. })) = &received {
            let what = "is not what the Source published".into();
            let cause = PackageError::Member { package: member.package.clone(), path: member.path.clone(), what };
            self.content.member_failed(member, &cause);
        }
        // The bytes that went out are compared with those of the next place.
        received.map_err(|stop| match stop {
            Stop::Failure(Failure::Cut { error, .. }) => Stop::Failure(Failure::Wrong(error)),
            stop => stop,
        })
    }

    /// The bytes of a patch, fewer than `limit`, that lies beside the member in a Change Dump's package (section 14.4).
    pub(super) async fn packed_patch(&self, patch: &Patch, limit: u64) -> Option<Bytes> {
        let package = self.wanted.member.as_ref()?.package.clone();
        let member = PackageMember { package, path: patch.path.clone()? };
        let opened = self.open_member(&member).await;
        let mut packed = opened.inspect_err(|error| self.content.member_failed(&member, error)).ok()?;
        if packed.length() >= limit {
            return None;
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = tokio::time::timeout(self.content.config.stall, packed.chunk()).await.ok()?.ok()? {
            self.download.touch();
            body.extend_from_slice(&chunk);
        }
        Some(body.freeze())
    }

    async fn open_member(&self, member: &PackageMember) -> Result<Member, PackageError> {
        let gone = || PackageError::Changed { package: member.package.clone() };
        let packages = self.content.packages.get().ok_or_else(gone)?.clone();
        let (package, budget) = (member.package.clone(), self.content.head_budget(self.plan.len()));
        let opening = {
            let packages = packages.clone();
            // It goes on when nobody waits any more: the siblings will want it.
            self.content.runtime.spawn(async move { packages.directory(&package).await.map(drop) })
        };
        let opened = async {
            opening.await.map_err(|_| gone())??;
            if self.published.is_none() && packages.is_contradicted(&member.package) {
                // It may be another resource's by now.
                return Err(gone());
            }
            packages.member_for(&member.package, &member.path, self.download.urgency().awaited()).await
        };
        tokio::pin!(opened);
        // As long as its package comes, or its host answers others, its readers wait for it.
        let (mut arrived, mut moved) = (self.content.came_of(&packages, &member.package), Instant::now());
        loop {
            let look = budget.saturating_sub(moved.elapsed()).min(LOOK);
            if let Ok(opened) = tokio::time::timeout(look, &mut opened).await {
                return opened;
            }
            let now = self.content.came_of(&packages, &member.package);
            if now != arrived {
                (arrived, moved) = (now, Instant::now());
                self.download.touch();
            } else if moved.elapsed() >= budget {
                return Err(gone());
            }
        }
    }

    fn at_fault(&self, member: &PackageMember, cause: PackageError) -> Stop {
        self.content.member_failed(member, &cause);
        let uri = self.wanted.uri.clone();
        Stop::Failure(Failure::Refused(ContentError::Package { uri, cause: Arc::new(cause) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_the_one_of_fewer_requests_or_bytes() {
        let length = Some(100_000);
        let is_cheaper = |price, length| is_cheaper((price, Line::TYPICAL), (length, Line::TYPICAL));
        assert!(is_cheaper(Price { requests: 0, bytes: 100_300 }, length), "a sibling");
        assert!(is_cheaper(Price { requests: 1, bytes: 30_000 }, length), "deflated");
        assert!(!is_cheaper(Price { requests: 1, bytes: 100_300 }, length), "stored, alone");
        assert!(!is_cheaper(Price { requests: 3, bytes: 131_072 }, length), "of a directory not known");
        assert!(is_cheaper(Price { requests: 3, bytes: 131_072 }, Some(10_000_000)));
        assert!(is_cheaper(Price::default(), None), "a package that is here");
    }

    #[test]
    fn a_package_at_fault_is_asked_last_and_one_relied_on_first_for_a_while() {
        let package = Uri::parse("http://example.org/dump.zip").unwrap();
        let (mut standings, now) = (Standings::default(), Instant::now());
        assert_eq!(standings.turn(&package, now), None);
        standings.of(&package).relied_on_until = Some(now + RELIED_ON);
        assert_eq!(standings.turn(&package, now), Some(Turn::First));
        standings.of(&package).aside_until = Some(now + ASIDE);
        assert_eq!(standings.turn(&package, now), Some(Turn::Later));
        assert_eq!(standings.turn(&package, now + ASIDE), Some(Turn::First));
        assert_eq!(standings.turn(&package, now + RELIED_ON), None);
    }
}
