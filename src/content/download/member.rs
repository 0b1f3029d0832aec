//! A version out of a package: whether the package is asked first, and its member as an ordered body.

use super::attempt::{Fetch, Landed, Provenance, Stop};
use super::object::Origin;
use super::plan::{Failure, Place, Turn};
use super::promise::{Disagreement, Form, Head};
use super::source::Source;
use crate::causes::chain;
use crate::content::{Content, ContentError, FetchSpec};
use crate::document::{PackageMember, Uri};
use crate::source::penalty_box::PenaltyBox;
use crate::source::zip::{Member, PackageError};
use std::num::NonZeroUsize;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Penalties that are remembered, the least recent forgotten.
const PENALTIES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// How long a package at fault is asked last.
const FAULT: Duration = Duration::from_secs(600);

/// How long the resources' own URIs are asked after their package, once only that had one of them. So long a fault is reported once.
const ABSENCE: Duration = Duration::from_secs(3600);

/// How often the progress of a package is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What a package is remembered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::content) enum Fault {
    /// It is at fault.
    Package,
    /// The own URIs of the resources in it are.
    OwnUris,
    /// A fault of it was reported.
    Reported,
}

/// How packages fared lately.
pub(in crate::content) struct PackagePenalties(PenaltyBox<(Uri, Fault)>);

impl Default for PackagePenalties {
    fn default() -> Self {
        PackagePenalties(PenaltyBox::new(PENALTIES))
    }
}

impl PackagePenalties {
    fn is_punished(&self, package: &Uri, fault: Fault, now: Instant) -> bool {
        self.0.is_punished(&(package.clone(), fault), now)
    }

    fn punish(&mut self, package: &Uri, fault: Fault, now: Instant) {
        let length = if fault == Fault::Package { FAULT } else { ABSENCE };
        self.0.punish((package.clone(), fault), length, (), now);
    }
}

impl Content {
    /// When the member of `wanted`, which is about to be read, is asked for: first where its package is the way to it, or the
    /// resource's own URI failed lately.
    pub(super) fn turn_of_member(&self, wanted: &FetchSpec) -> Turn {
        let (Some(packages), Some(member)) = (self.packages.get(), &wanted.member) else { return Turn::Never };
        // Counted also where it does not decide.
        let is_way = packages.want(member);
        let (penalties, now) = (self.package_penalties(), Instant::now());
        let is_punished = |fault| penalties.is_punished(&member.package, fault, now);
        match !is_punished(Fault::Package) && (is_way || is_punished(Fault::OwnUris)) {
            true => Turn::First,
            false => Turn::Later,
        }
    }

    fn package_penalties(&self) -> MutexGuard<'_, PackagePenalties> {
        self.package_penalties.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right bytes came from `place`; `after_others` that failed.
    pub(super) fn member_served(&self, place: &Place, after_others: bool) {
        if let Place::Member(member) = place
            && after_others
        {
            self.package_penalties().punish(&member.package, Fault::OwnUris, Instant::now());
        }
    }

    /// A package, or its member, is at fault; reported once for each package.
    fn member_failed(&self, member: &PackageMember, error: &PackageError) {
        let is_reported = {
            let (mut penalties, now) = (self.package_penalties(), Instant::now());
            if !error.is_of_one_member() {
                penalties.punish(&member.package, Fault::Package, now);
            }
            let is_reported = penalties.is_punished(&member.package, Fault::Reported, now);
            penalties.punish(&member.package, Fault::Reported, now);
            is_reported
        };
        let error = chain(error);
        if is_reported {
            tracing::debug!(package = %member.package, %error, "a member cannot be read");
        } else {
            tracing::warn!(package = %member.package, %error, "a package is at fault; its resources come from their own URIs");
        }
    }

    /// The size of a member, where its directory is known already.
    pub(super) fn size_in_package(&self, wanted: &FetchSpec) -> Option<u64> {
        let (packages, member) = (self.packages.get()?, wanted.member.as_ref()?);
        packages.known(&member.package)?.length_of(&member.path)
    }
}

impl Fetch {
    /// The version as a package holds it: its length is held against what is published, its bytes against the digest, as those
    /// of any other place.
    pub(super) async fn unpacked(&mut self, member: &PackageMember) -> Result<Landed, Stop> {
        let unpacked = self.open_member(member).await.map_err(|cause| self.at_fault(member, cause))?;
        self.validator = None;
        self.newer_than_list = None;
        self.provenance = Provenance::default();
        let length = unpacked.length();
        let head = Head { length: Some(length), ..Head::default() };
        let shown = self.shown_size();
        let agreed = head.agree(&self.wanted, self.published.is_some(), shown);
        let (form, _) = agreed.map_err(|disagreement| match disagreement {
            Disagreement::Wrong(what) => {
                let (package, path) = (member.package.clone(), member.path.clone());
                self.at_fault(member, PackageError::Member { package, path, what })
            }
            other => self.disagreed(other),
        })?;
        self.length = Some(length);
        let origin = unpacked.stored().filter(|_| form == Form::Plain).map(|stored| Origin {
            place: stored.package,
            etag: stored.etag,
            first: stored.first,
            total: stored.total,
            length,
        });
        let promise = self.promised(form, Some(length), origin);
        let received = match self.receive(Source::Member(Box::new(unpacked)), &promise).await {
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

    async fn open_member(&self, member: &PackageMember) -> Result<Member, PackageError> {
        let (package, path) = (&member.package, &member.path);
        let gone = || PackageError::Changed { package: package.clone() };
        let packages = self.content.packages.get().ok_or_else(gone)?;
        let opened = async {
            packages.directory(package).await?;
            if self.published.is_none() && packages.is_contradicted(package) {
                // It may be another resource's by now.
                return Err(gone());
            }
            packages.member_for(package, path, self.download.priority()).await
        };
        tokio::pin!(opened);
        // While bytes of its package come its readers wait for it.
        let budget = self.content.head_budget(self.plan.len());
        let (mut received, mut moved) = (packages.received(package), Instant::now());
        loop {
            let look = budget.saturating_sub(moved.elapsed()).min(LOOK);
            if let Ok(opened) = tokio::time::timeout(look, &mut opened).await {
                return opened;
            }
            let now = packages.received(package);
            if now != received {
                (received, moved) = (now, Instant::now());
                self.download.state().touch();
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
