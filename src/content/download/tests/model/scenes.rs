//! Scenes: steps in which a fault would show. Each aims at a promise.

use super::bodies::{Length, Variant};
use super::places::{Ranges, Tag};
use super::reader::Manner;

/// The next event, mostly of the file that the world looks at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Read(Manner),
    /// Its servers do from now on what is said here.
    Serve(Serve),
    /// Its servers have other faults.
    Servers,
    /// The Source has another version.
    Publish,
    Evict,
    Size,
    Ahead,
    /// Its name has another inode.
    Renew,
    Restart,
    Pin,
    Forget,
    /// The world looks at another file.
    Turn,
    /// The world looks at the other file of a scene: it has the same versions, and the same are published of it.
    Twin,
    /// Nothing is at fault any more: no read may fail.
    Calm,
}

/// A version, by its part in a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The published one.
    Right,
    /// Another, as long.
    Wrong,
    Of(Variant),
    /// Under the ETag that the right one has at the other place.
    Alike,
}

/// The fault of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn<V> {
    /// It breaks off after so many percent.
    Cut(u64),
    /// It is refused, and so are all that follow.
    Refuse,
    /// From this one on it is of another version.
    Become(V),
    /// From this one on no length is announced.
    Unsized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Both,
    Own,
    Mirror,
}

/// The way in which a place answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serve {
    pub(super) at: At,
    pub(super) version: Version,
    /// By chance where it is left open.
    pub(super) tag: Option<Tag>,
    pub(super) ranges: Ranges,
    pub(super) ignores_if_range: bool,
    pub(super) is_lengthless: bool,
    pub(super) is_slow: bool,
    pub(super) turns: &'static [Turn<Version>],
}

/// The file that a scene plays with. What is left open is by chance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) length: Length,
    /// A digest is published.
    pub(super) is_vouched: Option<bool>,
    /// A length is published.
    pub(super) is_measured: Option<bool>,
    pub(super) has_mirror: Option<bool>,
    /// The published version.
    pub(super) published: Option<Variant>,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) kind: Kind,
    pub(super) steps: &'static [Step],
}

impl Scene {
    /// Two versions have one strong ETag: a digest alone tells which.
    pub(super) fn needs_digest(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Serve(serve) if serve.tag == SAME))
    }
}

const LARGE: Kind =
    Kind { length: Length::Large, is_vouched: None, is_measured: None, has_mirror: Some(false), published: None };
const VOUCHED: Kind = Kind { is_vouched: Some(true), ..LARGE };
const UNVOUCHED: Kind = Kind { is_vouched: Some(false), ..LARGE };
const MEDIUM: Kind = Kind { length: Length::Medium, is_measured: Some(false), ..UNVOUCHED };
pub(super) const ANY: Kind =
    Kind { length: Length::Any, is_vouched: None, is_measured: None, has_mirror: None, published: None };

const RIGHT: Serve = Serve {
    at: At::Both,
    version: Version::Right,
    tag: Some(Tag::Strong),
    ranges: Ranges::Right,
    ignores_if_range: false,
    is_lengthless: false,
    is_slow: false,
    turns: &[],
};
const WRONG: Serve = Serve { version: Version::Wrong, ..RIGHT };
const OF_ANY_TAG: Serve = Serve { tag: None, ..WRONG };
const UNTAGGED: Serve = Serve { tag: Some(Tag::None), ..WRONG };
/// Part of it comes, and no more of it.
const BROKEN: Serve = Serve { turns: &[Turn::Cut(60), Turn::Refuse], ..RIGHT };
const REFUSED: Serve = Serve { turns: &[Turn::Refuse], ..RIGHT };
const SAME: Option<Tag> = Some(Tag::Same);

const fn read(manner: Manner) -> Step {
    Step::Read(manner)
}

const WHOLE: Step = read(Manner::Whole);
const SAMPLE: Step = read(Manner::Sample);
const BEGINNING: Step = read(Manner::Beginning);
const FAR: Step = read(Manner::Far);

const fn serve(serve: Serve) -> Step {
    Step::Serve(serve)
}

const fn scene(kind: Kind, steps: &'static [Step]) -> Scene {
    Scene { kind, steps }
}

/// Bytes handed out without a verdict bind those that come later.
const UNJUDGED: [Scene; 8] = [
    scene(UNVOUCHED, &[serve(BROKEN), WHOLE, serve(WRONG), Step::Forget, SAMPLE, WHOLE, SAMPLE]),
    scene(UNVOUCHED, &[serve(BROKEN), WHOLE, serve(UNTAGGED), Step::Forget, SAMPLE, WHOLE]),
    scene(VOUCHED, &[serve(Serve { turns: BROKEN.turns, ..WRONG }), WHOLE, serve(RIGHT), Step::Forget, SAMPLE, WHOLE]),
    scene(
        LARGE,
        &[serve(Serve { turns: &[Turn::Cut(50), Turn::Become(Version::Wrong)], ..RIGHT }), WHOLE, SAMPLE, WHOLE],
    ),
    // It is sampled from its end backwards.
    scene(
        UNVOUCHED,
        &[serve(RIGHT), read(Manner::End), FAR, serve(REFUSED), BEGINNING, serve(WRONG), Step::Forget, WHOLE, SAMPLE],
    ),
    scene(
        Kind { is_measured: Some(false), published: Some(Variant::First), ..UNVOUCHED },
        &[
            serve(RIGHT),
            read(Manner::End),
            serve(REFUSED),
            BEGINNING,
            serve(Serve { version: Version::Of(Variant::Prefix), ..RIGHT }),
            Step::Forget,
            WHOLE,
        ],
    ),
    // An extent of the next version under If-Range.
    scene(UNVOUCHED, &[serve(RIGHT), FAR, serve(Serve { ignores_if_range: true, ..WRONG }), FAR, WHOLE]),
    // The verdict comes after both versions, whichever is right.
    scene(
        Kind { published: Some(Variant::First), ..UNVOUCHED },
        &[
            serve(BROKEN),
            read(Manner::Stretch),
            SAMPLE,
            serve(Serve { version: Version::Of(Variant::Block), ..RIGHT }),
            Step::Forget,
            WHOLE,
            SAMPLE,
        ],
    ),
];

/// Two versions under one ETag.
const ALIKE: [Scene; 3] = [
    scene(
        VOUCHED,
        &[serve(Serve { tag: SAME, ..WRONG }), FAR, serve(Serve { tag: SAME, ..RIGHT }), WHOLE, SAMPLE, WHOLE],
    ),
    scene(
        Kind { published: Some(Variant::First), ..VOUCHED },
        &[
            serve(Serve { tag: SAME, ..BROKEN }),
            read(Manner::Stretch),
            SAMPLE,
            serve(Serve { tag: SAME, version: Version::Of(Variant::Torn), ..RIGHT }),
            Step::Forget,
            read(Manner::Stretch),
            SAMPLE,
            WHOLE,
        ],
    ),
    scene(
        Kind { published: Some(Variant::Torn), ..VOUCHED },
        &[
            serve(Serve { tag: SAME, version: Version::Of(Variant::First), ..RIGHT }),
            FAR,
            SAMPLE,
            serve(Serve { tag: SAME, ..RIGHT }),
            WHOLE,
            read(Manner::Stretch),
        ],
    ),
];

/// Verified bytes bind those that come later.
const VERIFIED: [Scene; 5] = [
    scene(LARGE, &[serve(RIGHT), WHOLE, Step::Evict, serve(OF_ANY_TAG), SAMPLE, WHOLE]),
    scene(
        VOUCHED,
        &[serve(RIGHT), WHOLE, Step::Restart, SAMPLE, WHOLE, Step::Evict, serve(OF_ANY_TAG), SAMPLE, BEGINNING],
    ),
    scene(UNVOUCHED, &[serve(RIGHT), WHOLE, Step::Restart, Step::Evict, serve(OF_ANY_TAG), SAMPLE, WHOLE]),
    scene(Kind { is_vouched: None, ..MEDIUM }, &[serve(RIGHT), WHOLE, Step::Evict, serve(OF_ANY_TAG), SAMPLE, WHOLE]),
    scene(
        Kind { length: Length::Any, is_vouched: None, is_measured: None, ..MEDIUM },
        &[serve(RIGHT), WHOLE, Step::Pin, Step::Evict, SAMPLE, Step::Restart, WHOLE, Step::Calm, WHOLE],
    ),
];

/// Published digests and lengths count: before the end, at the end, and after wrong bytes.
const PUBLISHED: [Scene; 9] = [
    scene(VOUCHED, &[serve(WRONG), read(Manner::EndFirst), serve(RIGHT), Step::Forget, WHOLE]),
    scene(VOUCHED, &[serve(Serve { version: Version::Of(Variant::Other), ..RIGHT }), read(Manner::EndFirst), SAMPLE]),
    scene(VOUCHED, &[serve(OF_ANY_TAG), WHOLE, read(Manner::Tail), SAMPLE]),
    scene(VOUCHED, &[serve(WRONG), read(Manner::End), read(Manner::Backwards), read(Manner::Shuffled)]),
    scene(VOUCHED, &[serve(WRONG), WHOLE, serve(RIGHT), Step::Forget, WHOLE, Step::Restart, WHOLE, SAMPLE]),
    scene(VOUCHED, &[serve(WRONG), WHOLE, WHOLE, Step::Renew, BEGINNING, SAMPLE, serve(RIGHT), Step::Calm, WHOLE]),
    scene(
        Kind { is_vouched: Some(true), is_measured: Some(true), ..MEDIUM },
        &[serve(WRONG), WHOLE, serve(RIGHT), Step::Forget, Step::Calm, WHOLE],
    ),
    scene(
        Kind { length: Length::Small, is_vouched: Some(true), is_measured: Some(true), ..MEDIUM },
        &[serve(OF_ANY_TAG), WHOLE, SAMPLE, serve(RIGHT), Step::Calm, WHOLE],
    ),
    scene(
        Kind { is_measured: Some(true), ..MEDIUM },
        &[serve(Serve { version: Version::Of(Variant::Third), is_lengthless: true, ..RIGHT }), WHOLE, SAMPLE],
    ),
];

/// The rest of a body comes from where it was cut, and is of its version.
const RESUMED: [Scene; 8] = [
    scene(
        MEDIUM,
        &[
            serve(Serve { ignores_if_range: true, turns: &[Turn::Cut(50), Turn::Become(Version::Wrong)], ..RIGHT }),
            WHOLE,
            SAMPLE,
        ],
    ),
    scene(MEDIUM, &[serve(Serve { turns: &[Turn::Cut(40), Turn::Become(Version::Wrong)], ..RIGHT }), WHOLE, SAMPLE]),
    scene(MEDIUM, &[serve(Serve { ranges: Ranges::Shifted, turns: &[Turn::Cut(50)], ..RIGHT }), WHOLE, SAMPLE]),
    scene(
        MEDIUM,
        &[serve(Serve { ranges: Ranges::Ignored, turns: &[Turn::Cut(50), Turn::Unsized], ..RIGHT }), WHOLE, SAMPLE],
    ),
    scene(
        MEDIUM,
        &[serve(BROKEN), WHOLE, serve(Serve { ignores_if_range: true, ..WRONG }), Step::Forget, WHOLE, SAMPLE],
    ),
    scene(
        MEDIUM,
        &[serve(BROKEN), WHOLE, Step::Restart, serve(Serve { ignores_if_range: true, ..WRONG }), WHOLE, SAMPLE],
    ),
    scene(
        Kind { has_mirror: Some(true), ..MEDIUM },
        &[
            serve(Serve { at: At::Own, ..REFUSED }),
            serve(Serve { at: At::Mirror, ..BROKEN }),
            WHOLE,
            serve(Serve { at: At::Mirror, ..REFUSED }),
            serve(Serve { at: At::Own, version: Version::Alike, ..RIGHT }),
            Step::Forget,
            WHOLE,
            SAMPLE,
        ],
    ),
    // Two versions are mixed, and the verdict shows it.
    scene(
        VOUCHED,
        &[
            serve(Serve {
                tag: Some(Tag::None),
                turns: &[Turn::Cut(30), Turn::Become(Version::Of(Variant::Other)), Turn::Cut(50), Turn::Refuse],
                ..RIGHT
            }),
            WHOLE,
            Step::Restart,
            serve(Serve { tag: Some(Tag::None), is_slow: true, ..RIGHT }),
            BEGINNING,
            WHOLE,
            WHOLE,
        ],
    ),
];

/// One size, and one object for all that have its digest.
const SHARED: [Scene; 5] = [
    scene(
        VOUCHED,
        &[
            serve(Serve { turns: BROKEN.turns, ..WRONG }),
            WHOLE,
            serve(Serve { turns: BROKEN.turns, ..WRONG }),
            Step::Forget,
            WHOLE,
            Step::Twin,
            serve(RIGHT),
            WHOLE,
            Step::Twin,
            SAMPLE,
            WHOLE,
        ],
    ),
    scene(VOUCHED, &[serve(WRONG), WHOLE, Step::Twin, serve(RIGHT), Step::Calm, WHOLE, Step::Twin, SAMPLE]),
    scene(
        Kind { length: Length::Any, is_measured: Some(false), published: Some(Variant::First), ..VOUCHED },
        &[
            serve(Serve { version: Version::Of(Variant::Third), ..RIGHT }),
            Step::Size,
            Step::Twin,
            serve(RIGHT),
            WHOLE,
            Step::Twin,
            SAMPLE,
            serve(RIGHT),
            WHOLE,
        ],
    ),
    scene(
        Kind { is_measured: Some(false), published: Some(Variant::Third), ..VOUCHED },
        &[serve(Serve { version: Version::Of(Variant::First), ..RIGHT }), Step::Size, serve(RIGHT), SAMPLE, WHOLE],
    ),
    scene(
        Kind { is_vouched: Some(true), published: Some(Variant::First), ..MEDIUM },
        &[serve(Serve { version: Version::Of(Variant::Third), ..RIGHT }), Step::Size, serve(RIGHT), WHOLE, SAMPLE],
    ),
];

/// Events at servers without a fault: no read fails.
const HONEST: [Scene; 4] = [
    scene(ANY, &[WHOLE, SAMPLE, Step::Evict, read(Manner::Tail), Step::Restart, WHOLE]),
    scene(ANY, &[read(Manner::EndFirst), Step::Pin, Step::Evict, read(Manner::Shuffled)]),
    scene(LARGE, &[SAMPLE, read(Manner::Backwards), Step::Renew, FAR, Step::Restart, read(Manner::Stretch)]),
    scene(ANY, &[Step::Size, Step::Ahead, WHOLE, Step::Evict, Step::Size, read(Manner::End), WHOLE]),
];

/// The scenes of a world.
pub(super) fn scenes(is_honest: bool) -> Vec<Scene> {
    match is_honest {
        true => [HONEST, HONEST].concat(),
        false => [&UNJUDGED[..], &ALIKE, &VERIFIED, &PUBLISHED, &RESUMED, &SHARED].concat(),
    }
}
