//! Where an object is requested, in which order, and what follows a failure. Pure.

use super::failures::HostFault;
use crate::content::{ContentError, FetchSpec, Mirrors};
use crate::document::{PackageMember, Uri};

/// How often a cut body without progress is restarted at one place.
const RESTARTS: u32 = 2;

/// Progress by fewer bytes than this is little, and a place resumes so often after little progress. A server that sends a byte at a
/// time is not asked once for each.
const LITTLE: u64 = 64 << 10;
const LITTLE_RESUMES: u32 = 8;

/// A location that may have the bytes of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The resource's own URI: its current version.
    Own(Uri),
    /// A mirror of its current version.
    Mirror(Uri),
    /// A past version under its own permanent URI.
    Memento(Uri),
    /// Redirects to the version of a time.
    TimeGate(Uri),
    /// A member of a package that holds exactly this version.
    Member(PackageMember),
    /// The copy of this resource in the shared cache.
    Shared(Uri),
    /// The version before this one, on this machine, and the patches of this resource.
    Patched(Uri),
}

impl Place {
    /// The URI to request.
    pub(super) fn uri(&self) -> &Uri {
        match self {
            Place::Own(uri) | Place::Mirror(uri) | Place::Memento(uri) | Place::TimeGate(uri) => uri,
            Place::Shared(uri) | Place::Patched(uri) => uri,
            Place::Member(member) => &member.package,
        }
    }

    /// Returns whether it has the current version.
    pub(super) fn is_current(&self) -> bool {
        matches!(self, Place::Own(_) | Place::Mirror(_))
    }

    /// Returns whether its host answers for its bytes: a wrong package is not the fault of its host.
    pub(super) fn is_of_host(&self) -> bool {
        !matches!(self, Place::Member(_)) && !self.is_shortcut()
    }

    /// Returns whether it is tried before the Source, which is asked after a failure as if it had not been.
    pub(super) fn is_shortcut(&self) -> bool {
        matches!(self, Place::Shared(_) | Place::Patched(_))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Member(member) => write!(f, "{} in {}", member.path, member.package),
            Place::Shared(uri) => write!(f, "{uri} in the shared cache"),
            Place::Patched(uri) => write!(f, "{uri} by its patches"),
            place => place.uri().fmt(f),
        }
    }
}

/// When the member of a package is requested, where the version has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Before all others: it is the cheaper way, or the only one.
    First,
    /// After the current places.
    Later,
    /// Packages are not read.
    Never,
}

/// Means to distinguish the bytes of a version from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Proof {
    /// A published digest.
    pub(super) vouched: bool,
    /// Digest or strong ETag of an earlier fetch of this version.
    pub(super) earlier: bool,
}

/// The places of a version in the order of requests, none twice. Empty only for a past version without memento that no proof
/// distinguishes from the current one.
///
/// By default mirrors come first only with a published digest. Hosts that are `asked_last` come behind all other current places.
/// Mementos follow: they have the listed version when the resource has changed again.
///
/// The member of a package comes at its `turn`. For a past version it comes first, as it is as certain as any memento.
pub(super) fn places(
    spec: &FetchSpec,
    mirrors: Mirrors,
    proof: Proof,
    turn: Turn,
    asked_last: &dyn Fn(&Uri) -> bool,
) -> Vec<Place> {
    let mirrored: Vec<_> =
        spec.mirrors.iter().filter(|_| mirrors != Mirrors::Off).cloned().map(Place::Mirror).collect();
    let own = vec![Place::Own(spec.uri.clone())];
    let mirrors_first = match mirrors {
        Mirrors::First => true,
        Mirrors::Auto => proof.vouched,
        Mirrors::Last | Mirrors::Off => false,
    };
    let mut current = if mirrors_first { [mirrored, own].concat() } else { [own, mirrored].concat() };
    // The sort is stable. Without a digest `loc` is preferred also after it failed.
    current.sort_by_key(|place| (mirrors_first || matches!(place, Place::Mirror(_))) && asked_last(place.uri()));

    let mut versions: Vec<_> = spec.mementos.iter().cloned().map(Place::Memento).collect();
    if spec.moment().is_some() {
        versions.extend(spec.timegate.iter().cloned().map(Place::TimeGate));
    }
    let member: Vec<_> = spec.member.iter().filter(|_| turn != Turn::Never).cloned().map(Place::Member).collect();
    let ordered = match spec.is_past() {
        true if proof.vouched || proof.earlier => [member, versions, current].concat(),
        true => [member, versions].concat(),
        false if turn == Turn::First => [member, current, versions].concat(),
        false => [current, member, versions].concat(),
    };
    let mut places: Vec<Place> = Vec::with_capacity(ordered.len());
    for place in ordered {
        if !places.iter().any(|before| before.uri() == place.uri()) {
            places.push(place);
        }
    }
    places
}

/// Cause of the end of an attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// No usable head: a status, a timeout, a refused connection.
    Refused(ContentError),
    /// The body ended too early, or stalled.
    Cut {
        /// Bytes received from the object's first on.
        received: u64,
        /// The cause.
        error: ContentError,
    },
    /// The bytes are wrong, or of another version.
    Wrong(ContentError),
}

impl Failure {
    /// Returns whether nothing more may be downloaded, from any place.
    pub(super) fn is_spent(&self) -> bool {
        let (Failure::Refused(error) | Failure::Cut { error, .. } | Failure::Wrong(error)) = self;
        error.is_spent()
    }
}

/// The step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Request the rest from the same place.
    Resume,
    /// Request the whole from the place of the plan, which may be the next one.
    Again,
    /// No place is left: [`Plan::error`] has the cause.
    GiveUp,
}

/// The state of one download between its attempts.
#[derive(Debug, Default)]
pub(super) struct Plan {
    places: Vec<Place>,
    place: usize,
    attempts: Attempts,
    last: Option<ContentError>,
    /// The failure of the package, where that is one of the places.
    of_package: Option<ContentError>,
    faults: Vec<(Uri, HostFault)>,
}

/// The attempts at one place.
#[derive(Debug, Default)]
struct Attempts {
    past_caches: bool,
    restarts: u32,
    /// The most bytes of any attempt: a resumed body must get further.
    furthest: u64,
    /// Resumes after [`LITTLE`] progress.
    little: u32,
}

impl Plan {
    /// A plan over `places`.
    pub(super) fn new(places: Vec<Place>) -> Plan {
        Plan { places, ..Plan::default() }
    }

    /// The place of the next attempt; `None` when all failed.
    pub(super) fn place(&self) -> Option<&Place> {
        self.places.get(self.place)
    }

    /// Returns whether caches on the way must be avoided: the last bytes of this place were wrong.
    pub(super) fn past_caches(&self) -> bool {
        self.attempts.past_caches
    }

    /// Number of places of the Source.
    pub(super) fn len(&self) -> usize {
        self.places.iter().filter(|place| !place.is_shortcut()).count()
    }

    /// Why all places failed: wrong bytes mean more than a place without answer. `None` where there was no place.
    pub(super) fn error(&self) -> Option<ContentError> {
        self.last.clone()
    }

    /// The failure of the package that should have the bytes.
    pub(super) fn package_error(&self) -> Option<ContentError> {
        self.of_package.clone()
    }

    /// Returns whether a place before this one failed.
    pub(super) fn has_failed(&self) -> bool {
        self.last.is_some()
    }

    /// The faults of the places that were given up.
    pub(super) fn faults(&self) -> &[(Uri, HostFault)] {
        &self.faults
    }

    /// The step after `failure`; `resumable`: the bytes received belong to a strong validator.
    pub(super) fn after(&mut self, failure: Failure, resumable: bool) -> Next {
        match failure {
            Failure::Refused(error) => {
                // A missing resource is not a fault of its host, nor is our own queue.
                let fault = (!is_absent(&error) && !error.is_unsent()).then_some(HostFault::Silent);
                self.remember(error);
                self.next_place(fault)
            }
            Failure::Cut { received, error } => {
                let is_silent = matches!(error, ContentError::Stalled { .. });
                self.remember(error);
                let (has_others, is_shortcut) = (self.has_others(), self.is_at_shortcut());
                let attempts = &mut self.attempts;
                let gained = received.saturating_sub(attempts.furthest);
                attempts.furthest = attempts.furthest.max(received);
                let is_little = gained < LITTLE;
                if resumable && gained > 0 && (!is_little || attempts.little < LITTLE_RESUMES) {
                    attempts.little += u32::from(is_little);
                    Next::Resume
                } else if attempts.restarts < RESTARTS && !(is_silent && has_others) && !is_shortcut {
                    attempts.restarts += 1;
                    Next::Again
                } else {
                    self.next_place(Some(HostFault::Silent))
                }
            }
            Failure::Wrong(error) => {
                self.remember(error);
                // There is no cache between a package and its directory.
                if self.attempts.past_caches || self.place().is_some_and(|place| !place.is_of_host()) {
                    self.next_place(Some(HostFault::Wrong))
                } else {
                    self.attempts.past_caches = true;
                    Next::Again
                }
            }
        }
    }

    /// Returns whether places follow this one.
    pub(super) fn has_others(&self) -> bool {
        self.place + 1 < self.places.len()
    }

    fn next_place(&mut self, fault: Option<HostFault>) -> Next {
        let failed = self.place().filter(|place| place.is_of_host()).map(|place| place.uri().clone());
        self.faults.extend(failed.zip(fault));
        self.place += 1;
        self.attempts = Attempts::default();
        if self.place < self.places.len() { Next::Again } else { Next::GiveUp }
    }

    fn is_at_shortcut(&self) -> bool {
        self.place().is_some_and(Place::is_shortcut)
    }

    fn remember(&mut self, error: ContentError) {
        // No reader gets it.
        if self.is_at_shortcut() {
            return;
        }
        if matches!(error, ContentError::Package { .. }) {
            self.of_package = Some(error.clone());
        }
        if tells_of_bytes(&error) || !self.last.as_ref().is_some_and(tells_of_bytes) {
            self.last = Some(error);
        }
    }
}

/// Returns whether the bytes, or their head, were those of something else.
pub(super) fn tells_of_bytes(error: &ContentError) -> bool {
    matches!(error, ContentError::Mismatch { .. } | ContentError::Unannounced { .. } | ContentError::Changed { .. })
}

/// Returns whether a place answered that the resource is missing.
pub(super) fn is_absent(error: &ContentError) -> bool {
    matches!(error, ContentError::Fetch { cause, .. } if matches!(cause.status(), Some(404 | 410)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Timestamp;
    use crate::platform::ino::Ino;
    use crate::source::http::HttpError;
    use std::sync::Arc;

    fn uri(name: &str) -> Uri {
        Uri::parse(&format!("http://{name}.example.org/a")).unwrap()
    }

    fn spec(mirrors: &[&str]) -> FetchSpec {
        let mirrors = mirrors.iter().map(|name| uri(name)).collect();
        FetchSpec { mirrors, ..FetchSpec::new(Ino(2), uri("loc")) }
    }

    fn cut(received: u64) -> Failure {
        Failure::Cut { received, error: ContentError::Stalled { uri: uri("loc") } }
    }

    fn wrong() -> Failure {
        Failure::Wrong(ContentError::Mismatch { uri: uri("loc"), what: "its digest".into() })
    }

    fn refused() -> Failure {
        Failure::Refused(ContentError::Stalled { uri: uri("loc") })
    }

    fn hosts(places: &[Place]) -> Vec<Uri> {
        places.iter().map(|place| place.uri().clone()).collect()
    }

    fn order(spec: &FetchSpec, mirrors: Mirrors, vouched: bool, last: &[&str]) -> Vec<Uri> {
        let proof = Proof { vouched, earlier: false };
        hosts(&places(spec, mirrors, proof, Turn::Never, &|asked| last.iter().any(|name| *asked == uri(name))))
    }

    fn plan(names: &[&str]) -> Plan {
        Plan::new(names.iter().map(|name| Place::Mirror(uri(name))).collect())
    }

    fn place(name: &str) -> Place {
        Place::Mirror(uri(name))
    }

    #[test]
    fn mirrors_come_first_only_where_a_digest_vouches() {
        let spec = spec(&["early", "loc", "late"]);
        let order = |mirrors, vouched| order(&spec, mirrors, vouched, &[]);

        assert_eq!(order(Mirrors::Auto, true), [uri("early"), uri("loc"), uri("late")]);
        assert_eq!(order(Mirrors::Auto, false), [uri("loc"), uri("early"), uri("late")]);
        assert_eq!(order(Mirrors::First, false), [uri("early"), uri("loc"), uri("late")]);
        assert_eq!(order(Mirrors::Last, true), [uri("loc"), uri("early"), uri("late")]);
        assert_eq!(order(Mirrors::Off, true), [uri("loc")]);
    }

    #[test]
    fn hosts_at_fault_are_asked_last_and_never_omitted() {
        let spec = spec(&["a", "b"]);
        let order = |mirrors, vouched, last: &[&str]| order(&spec, mirrors, vouched, last);

        assert_eq!(order(Mirrors::Auto, true, &["a"]), [uri("b"), uri("loc"), uri("a")]);
        assert_eq!(order(Mirrors::Auto, true, &["loc"]), [uri("a"), uri("b"), uri("loc")]);
        assert_eq!(order(Mirrors::First, false, &["a", "b", "loc"]), [uri("a"), uri("b"), uri("loc")]);
        // Without digest a mirror is no better than a Source that was silent a moment ago.
        assert_eq!(order(Mirrors::Auto, false, &["loc", "a"]), [uri("loc"), uri("b"), uri("a")]);
    }

    #[test]
    fn mementos_follow_current_places_and_come_first_for_the_past() {
        let mut spec = FetchSpec { mementos: vec![uri("memento")], timegate: Some(uri("gate")), ..spec(&["mirror"]) };
        let versions = [uri("memento"), uri("gate")];
        assert_eq!(order(&spec, Mirrors::Auto, false, &[]), [uri("loc"), uri("mirror"), uri("memento")]);

        spec.lastmod = Some(Timestamp { seconds: 5, nanos: 0 });
        let current = [uri("loc"), uri("mirror")];
        assert_eq!(order(&spec, Mirrors::Auto, false, &[]), [&current[..], &versions].concat());
        spec.is_replaced = true;
        assert_eq!(order(&spec, Mirrors::Auto, false, &[]), versions, "nothing distinguishes the current bytes");
        let by_digest = [&versions[..], &[uri("mirror"), uri("loc")]].concat();
        assert_eq!(order(&spec, Mirrors::Auto, true, &[]), by_digest);
        spec.lastmod = None;
        assert_eq!(order(&spec, Mirrors::Auto, false, &[]), [uri("memento")], "no time to ask for");
    }

    #[test]
    fn a_member_comes_at_its_turn_and_first_for_the_past() {
        let member = PackageMember { package: uri("package"), path: "/a".into() };
        let mut spec = FetchSpec { member: Some(member), mementos: vec![uri("memento")], ..spec(&["mirror"]) };
        let proof = Proof { vouched: true, earlier: false };
        let order = |spec: &FetchSpec, turn| hosts(&places(spec, Mirrors::Auto, proof, turn, &|_| false));
        let current = [uri("mirror"), uri("loc")];

        assert_eq!(order(&spec, Turn::First), [&[uri("package")], &current[..], &[uri("memento")]].concat());
        assert_eq!(order(&spec, Turn::Later), [&current[..], &[uri("package"), uri("memento")]].concat());
        assert_eq!(order(&spec, Turn::Never), [&current[..], &[uri("memento")]].concat());
        spec.is_replaced = true;
        assert_eq!(order(&spec, Turn::Later), [&[uri("package"), uri("memento")], &current[..]].concat());
    }

    #[test]
    fn a_wrong_member_is_not_repeated_and_no_fault_of_its_host() {
        let member = Place::Member(PackageMember { package: uri("package"), path: "/a".into() });
        let mut plan = Plan::new(vec![member, place("a")]);
        assert_eq!(plan.after(wrong(), false), Next::Again);
        assert_eq!((plan.place(), plan.faults()), (Some(&place("a")), &[][..]));
    }

    #[test]
    fn faults_are_of_places_given_up_but_not_of_missing_resources() {
        let mut plan = plan(&["a", "b", "c", "d"]);
        let status = |status| {
            let cause = HttpError::Status { uri: uri("loc"), status, retry_after: None };
            Failure::Refused(ContentError::Fetch { uri: uri("loc"), cause: Arc::new(cause) })
        };
        plan.after(wrong(), false);
        assert_eq!(plan.faults(), [], "a cache on the way may be at fault");
        plan.after(wrong(), false);
        plan.after(status(404), false);
        plan.after(status(503), false);

        assert_eq!(plan.faults(), [(uri("a"), HostFault::Wrong), (uri("c"), HostFault::Silent)]);
    }

    #[test]
    fn wrong_bytes_are_requested_again_past_caches_then_elsewhere() {
        let mut plan = plan(&["a", "b"]);

        assert_eq!(plan.after(wrong(), false), Next::Again);
        assert!(plan.past_caches() && plan.place() == Some(&place("a")));
        assert_eq!(plan.after(wrong(), false), Next::Again);
        assert!(!plan.past_caches() && plan.place() == Some(&place("b")));
        assert_eq!(plan.after(refused(), false), Next::GiveUp);
        assert!(matches!(plan.error(), Some(ContentError::Mismatch { .. })), "wrong bytes mean more than a refusal");
    }

    #[test]
    fn a_cut_body_resumes_with_progress_and_restarts_without() {
        let mut plan = plan(&["a"]);

        assert_eq!(plan.after(cut(10), true), Next::Resume);
        assert_eq!(plan.after(cut(11), true), Next::Resume);
        for _ in 0..RESTARTS {
            assert_eq!(plan.after(cut(11), true), Next::Again);
        }
        assert_eq!(plan.after(cut(11), true), Next::GiveUp);
    }

    #[test]
    fn a_cut_body_without_strong_validator_restarts() {
        let mut plan = plan(&["a", "b"]);
        for received in 1..=u64::from(RESTARTS) {
            assert_eq!(plan.after(cut(received), false), Next::Again);
        }
        assert_eq!(plan.after(cut(9), false), Next::Again);
        assert_eq!(plan.place(), Some(&place("b")));
    }

    #[test]
    fn a_byte_at_a_time_is_not_a_request_each() {
        let mut slow = plan(&["a"]);
        let mut asked = 0;
        while slow.after(cut(asked + 1), true) != Next::GiveUp {
            asked += 1;
            assert!(asked < 100, "without an end");
        }
        assert_eq!(asked, u64::from(LITTLE_RESUMES + RESTARTS));
        let mut steady = plan(&["a"]);
        for piece in 1..100 {
            assert_eq!(steady.after(cut(piece * LITTLE), true), Next::Resume);
        }
    }
}
