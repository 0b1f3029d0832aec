//! A version out of a package: whether the package is asked first, and its member as an ordered body.

use super::failures::PackageFault;
use super::incoming::IncomingBytes;
use super::object::Origin;
use super::plan::{Failure, Place, Turn};
use super::promise::{Disagreement, Head};
use super::task::{Completed, DownloadTask, Provenance, Stop};
use crate::content::form::Form;
use crate::content::{Content, ContentError, FetchSpec};
use crate::document::{PackageMember, Uri};
use crate::platform::error_chain::chain;
use crate::source::zip::{Member, PackageError, Received};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the progress of a package is looked at.
const LOOK: Duration = Duration::from_secs(1);

impl Content {
    /// When the member of `spec`, which is about to be read, is asked for: first where its package is the way to it, or the
    /// resource's own URI failed lately.
    pub(super) fn turn_of_member(&self, spec: &FetchSpec) -> Turn {
        let (Some(packages), Some(member)) = (self.packages.get(), &spec.member) else { return Turn::Never };
        // Counted also where it does not decide.
        let is_way = packages.want(member);
        let (failures, now) = (self.failures(), Instant::now());
        let is_punished = |fault| failures.packages.is_punished(&(member.package.clone(), fault), now);
        let is_at_fault = is_punished(PackageFault::Unreadable) || is_punished(PackageFault::Unreachable);
        match !is_at_fault && (is_way || is_punished(PackageFault::OwnUris)) {
            true => Turn::First,
            false => Turn::Later,
        }
    }

    /// The right bytes came from `place`; `after_others` that failed.
    pub(super) fn member_served(&self, place: &Place, after_others: bool) {
        let Place::Member(member) = place else { return };
        self.failures().packages.forgive(&(member.package.clone(), PackageFault::Unreachable));
        if after_others {
            self.remember_package(&member.package, PackageFault::OwnUris);
        }
    }

    /// Remembers a fault of a package and returns whether it was remembered already.
    fn remember_package(&self, package: &Uri, fault: PackageFault) -> bool {
        let (mut failures, key, now) = (self.failures(), (package.clone(), fault), Instant::now());
        let is_known = failures.packages.is_punished(&key, now);
        failures.packages.punish_longer(key, fault.penalties(), (), now);
        is_known
    }

    /// A package, or its member, is at fault; reported once for each package.
    fn member_failed(&self, member: &PackageMember, error: &PackageError) {
        let is_reported = self.remember_package(&member.package, PackageFault::of(error));
        let error = chain(error);
        if is_reported {
            tracing::debug!(package = %member.package, %error, "a member cannot be read");
        } else {
            tracing::warn!(package = %member.package, %error, "a package cannot be used; its resources are downloaded from their own addresses");
        }
    }

    /// The size of a member, where its directory is known already.
    pub(super) fn size_in_package(&self, spec: &FetchSpec) -> Option<u64> {
        let (packages, member) = (self.packages.get()?, spec.member.as_ref()?);
        packages.known(&member.package)?.length_of(&member.path)
    }
}

impl DownloadTask {
    /// The version as a package holds it: its length is held against what is published, its bytes against the digest, as those
    /// of any other place.
    pub(super) async fn unpacked(&mut self, member: &PackageMember) -> Result<Completed, Stop> {
        let unpacked = self.open_member(member).await.map_err(|cause| self.at_fault(member, cause))?;
        (self.version.validator, self.version.is_joinable) = (None, false);
        self.version.newer_than_list = None;
        self.version.provenance = Provenance::default();
        let length = unpacked.length();
        let head = Head { length: Some(length), ..Head::default() };
        let shown = self.shown_size();
        let agreed = head.agree(&self.spec, self.published.is_some(), shown);
        let (form, _) = agreed.map_err(|disagreement| match disagreement {
            Disagreement::Wrong(what) => {
                let (package, path) = (member.package.clone(), member.path.clone());
                self.at_fault(member, PackageError::Member { package, path, what })
            }
            other => self.disagreed(other),
        })?;
        self.version.length = Some(length);
        let origin = unpacked.stored().filter(|_| form == Form::Plain).map(|stored| Origin {
            place: stored.package,
            etag: stored.etag,
            first: stored.first,
            total: stored.total,
            length,
            shared: None,
        });
        let promise = self.promised(form, Some(length), origin);
        let received = match self.receive(IncomingBytes::Member(Box::new(unpacked)), None, &promise).await {
            Ok(()) => self.verdict(promise).await,
            Err(stop) => Err(stop),
        };
        if matches!(&received, Err(Stop::Failure(failure)) if failure.is_spent()) {
            return received;
        }
        if let Err(Stop::Failure(Failure::Wrong(_) | Failure::Cut { .. })) = &received {
            let what = "is not what the Source published".into();
            let cause = PackageError::Member { package: member.package.clone(), path: member.path.clone(), what };
            self.content.member_failed(member, &cause);
        }
        // The bytes that were handed out are compared with those of the next place.
        received.map_err(|stop| match stop {
            Stop::Failure(Failure::Cut { error, .. }) => Stop::Failure(Failure::Wrong(error)),
            stop => stop,
        })
    }

    async fn open_member(&self, member: &PackageMember) -> Result<Member, PackageError> {
        loop {
            let was_demanded = self.download.demanded().is_some();
            match self.open_member_once(member).await {
                // The budget was that of a prefetch. The reader that has joined it has its own.
                Err(error) if error.is_retryable() && !was_demanded && self.download.demanded().is_some() => {}
                opened => return opened,
            }
        }
    }

    async fn open_member_once(&self, member: &PackageMember) -> Result<Member, PackageError> {
        let (package, path) = (&member.package, &member.path);
        let changed = || PackageError::Changed { package: package.clone() };
        let packages = self.content.packages.get().ok_or_else(changed)?;
        let received = Received::default();
        let opened = packages.member_for(package, path, self.download.priority(), &received);
        tokio::pin!(opened);
        // While bytes that lead to it come its readers wait for it.
        let budget = self.content.head_budget(self.plan.len());
        let (mut before, mut moved) = (0, Instant::now());
        let member = loop {
            let look = budget.saturating_sub(moved.elapsed()).min(LOOK);
            if let Ok(opened) = tokio::time::timeout(look, &mut opened).await {
                break opened?;
            }
            let now = received.bytes();
            if now != before {
                (before, moved) = (now, Instant::now());
                self.download.state().touch();
            } else if moved.elapsed() >= budget {
                return Err(PackageError::Stalled { package: package.clone() });
            }
        };
        // It may be another resource's by now.
        let is_doubtful = self.published.is_none() && packages.is_contradicted(package);
        if is_doubtful { Err(changed()) } else { Ok(member) }
    }

    fn at_fault(&self, member: &PackageMember, cause: PackageError) -> Stop {
        // A prefetch may have waited in our own queue.
        let may_have_waited = matches!(cause, PackageError::Stalled { .. }) && self.download.demanded().is_none();
        if !may_have_waited && !cause.is_unsent() {
            self.content.member_failed(member, &cause);
        }
        let uri = self.spec.uri.clone();
        Stop::Failure(Failure::Refused(ContentError::Package { uri, cause: Arc::new(cause) }))
    }
}
