//! The bodies that there are, and the servers that have them: true, or with one of the faults that real servers have.

use super::super::{bytes, digest};
use super::random::Random;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::document::{Algorithm, Digest};
use crate::source::tests::server::{Gate, Received, Reply};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

/// Bytes of the longest body.
const LONGEST: u64 = 2 * WHOLE_LIMIT + 5 * BLOCK + 99;

/// Bytes between those of one body and those of another that has no bytes of its own.
const SHIFT: u64 = 4096 + 8;

/// Two bodies without a page in common; all others are made of these.
static FIRST: LazyLock<Vec<u8>> = LazyLock::new(|| bytes((LONGEST + SHIFT) as usize, 1));
static OTHER: LazyLock<Vec<u8>> = LazyLock::new(|| bytes((LONGEST + SHIFT) as usize, 2));

/// The difference between a version and the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variant {
    First,
    /// Everywhere.
    Other,
    /// In one block in the middle.
    Block,
    /// In its last byte.
    End,
    /// As `First` to the middle and as `Other` from there on: it was changed while it was sent.
    Torn,
    /// As `First`, and it ends earlier.
    Shorter,
    /// Everywhere, and it ends earlier.
    Third,
}

const VARIANTS: [Variant; 7] =
    [Variant::First, Variant::Other, Variant::Block, Variant::End, Variant::Torn, Variant::Shorter, Variant::Third];

/// One version of a file.
pub(super) struct Body {
    length: u64,
    variant: Variant,
    /// Bytes of the first version.
    of_first: u64,
    digest: OnceLock<Digest>,
}

impl Body {
    fn new(of_first: u64, variant: Variant) -> Body {
        let length = match variant {
            Variant::Shorter => of_first - of_first.min(5_000) / 2,
            Variant::Third => of_first.saturating_sub(3 * BLOCK + 1).max(of_first / 2),
            _ => of_first,
        };
        Body { length, variant, of_first, digest: OnceLock::new() }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(Algorithm::Sha256, &self.read(0..self.length)))
    }

    fn middle(&self) -> u64 {
        (self.of_first / 2).next_multiple_of(BLOCK).min(self.length)
    }

    /// The pages by which each version is told from the others.
    pub(super) fn telling(&self) -> [u64; 3] {
        [0, (self.length / 2).saturating_sub(1), self.length.saturating_sub(1)].map(|byte| byte / 4096 * 4096)
    }

    /// The bytes of `range` but for the one that is flipped: two pieces, and that byte where it lies in the range.
    fn pieces(&self, range: &Range<u64>) -> ([&'static [u8]; 2], Option<usize>) {
        let of = |from: &'static [u8], range: Range<u64>| &from[range.start as usize..range.end as usize];
        let flipped = match self.variant {
            Variant::Block => (self.length / 2).checked_sub(1),
            Variant::End => self.length.checked_sub(1),
            _ => None,
        };
        let pieces = match self.variant {
            Variant::Other => [of(&OTHER, range.clone()), &[]],
            Variant::Third => [of(&OTHER, range.start + SHIFT..range.end + SHIFT), &[]],
            Variant::Torn => {
                let middle = self.middle().clamp(range.start, range.end);
                [of(&FIRST, range.start..middle), of(&OTHER, middle..range.end)]
            }
            _ => [of(&FIRST, range.clone()), &[]],
        };
        let flipped = flipped.filter(|flipped| range.contains(flipped));
        (pieces, flipped.map(|flipped| (flipped - range.start) as usize))
    }

    /// The bytes of `range`.
    pub(super) fn read(&self, range: Range<u64>) -> Vec<u8> {
        let (pieces, flipped) = self.pieces(&range);
        let mut bytes = pieces.concat();
        flipped.into_iter().for_each(|flipped| bytes[flipped] ^= 1);
        bytes
    }

    /// Whether these are its bytes from `at` on.
    pub(super) fn has(&self, at: u64, piece: &[u8]) -> bool {
        let range = at..at + piece.len() as u64;
        if range.end > self.length {
            return false;
        }
        let ([one, two], flipped) = self.pieces(&range);
        match flipped {
            Some(_) => self.read(range) == piece,
            None => piece[..one.len()] == *one && piece[one.len()..] == *two,
        }
    }
}

type Bodies = HashMap<(u64, Variant), Arc<Body>>;

/// Made once: to hash those of large files is most of the work.
static BODIES: LazyLock<Mutex<Bodies>> = LazyLock::new(Mutex::default);

fn body(length: u64, variant: Variant) -> Arc<Body> {
    let mut bodies = BODIES.lock().unwrap();
    Arc::clone(bodies.entry((length, variant)).or_insert_with(|| Arc::new(Body::new(length, variant))))
}

/// The versions of one file; the first is the first.
pub(super) fn bodies(random: &mut Random) -> Vec<Arc<Body>> {
    let whole = WHOLE_LIMIT;
    let length = match random.below(16) {
        0 => 0,
        1 => 1 + random.below(3) * 5,
        2..=3 => 4096 * (1 + random.below(20)) + 77,
        4 => BLOCK,
        5 => 3 * BLOCK,
        6 => 1_500_000,
        7..=8 => whole + 1,
        9..=10 => whole + 2 * BLOCK,
        11..=14 => whole + 3 * BLOCK + 12_345,
        _ => LONGEST,
    };
    let mut bodies = vec![body(length, Variant::First)];
    for variant in VARIANTS.into_iter().skip(1) {
        let body = body(length, variant);
        // Large ones differ as they are made.
        if length > 1 << 20 || bodies.iter().all(|known| known.digest() != body.digest()) {
            bodies.push(body);
        }
    }
    bodies
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    None,
    /// Another for each version.
    Strong,
    /// One for all versions, which may be equivalent.
    Weak,
    /// The same bytes have another at each node.
    OfNode,
    /// All versions have one: a lie.
    Same,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranges {
    Right,
    /// The whole is sent.
    Ignored,
    /// Other bytes than those that were asked for.
    Shifted,
    /// It does not say of how many bytes they are.
    Lengthless,
    Refused,
}

/// One address, and what it serves.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) bodies: Vec<Arc<Body>>,
    pub(super) current: usize,
    /// Between the number of a version and that in its ETag: no two places name versions alike.
    pub(super) rotation: usize,
    pub(super) tag: Tag,
    pub(super) ranges: Ranges,
    /// If-Range is not understood.
    pub(super) ignores_if_range: bool,
    /// No length is announced.
    pub(super) is_lengthless: bool,
    /// The announced length is too great by this.
    pub(super) lie: u64,
    /// In so many of a hundred answers the body breaks off.
    pub(super) cuts: u64,
    /// So many of a hundred requests are refused.
    pub(super) refusals: u64,
    /// In so many of a hundred answers the file becomes another while it is sent.
    pub(super) changes: u64,
    /// Bytes a second, where it is slow.
    pub(super) pace: Option<usize>,
    /// The time before each answer.
    pub(super) delay: Duration,
    /// The time for which a long body pauses.
    pub(super) hold: Option<Duration>,
}

impl Place {
    /// A server without fault.
    pub(super) fn honest(bodies: &[Arc<Body>], rotation: usize, random: &mut Random) -> Place {
        let tag = random.one_of(&[Tag::Strong, Tag::Strong, Tag::Strong, Tag::None, Tag::Weak]);
        Place {
            bodies: bodies.to_vec(),
            current: 0,
            rotation,
            tag,
            ranges: if random.chance(80) { Ranges::Right } else { Ranges::Ignored },
            ignores_if_range: false,
            is_lengthless: false,
            lie: 0,
            cuts: 0,
            refusals: 0,
            changes: 0,
            pace: random.one_of(&[None, None, None, Some(400 << 20), Some(80 << 20)]),
            delay: if random.chance(15) { 5 * MOMENT } else { Duration::ZERO },
            hold: random.chance(25).then_some(80 * MOMENT),
        }
    }

    /// One with faults. Those that nothing shows are left out: `is_vouched` where a digest is published, `is_measured` where a length is.
    pub(super) fn hostile(
        bodies: &[Arc<Body>],
        rotation: usize,
        (is_vouched, is_measured): (bool, bool),
        random: &mut Random,
    ) -> Place {
        let tags = [Tag::Strong, Tag::Strong, Tag::Strong, Tag::OfNode, Tag::None, Tag::Weak, Tag::Same, Tag::Same];
        let ranges = [
            Ranges::Right,
            Ranges::Right,
            Ranges::Right,
            Ranges::Ignored,
            Ranges::Shifted,
            Ranges::Lengthless,
            Ranges::Refused,
        ];
        let honest = Place::honest(bodies, rotation, random);
        Place {
            current: if random.chance(60) { 0 } else { random.below(bodies.len() as u64) as usize },
            tag: random.one_of(if is_vouched { &tags } else { &tags[..6] }),
            ranges: random.one_of(&ranges),
            ignores_if_range: random.chance(30),
            is_lengthless: (is_vouched || is_measured) && random.chance(15),
            lie: if random.chance(10) { 1 + random.below(9_000) } else { 0 },
            cuts: random.one_of(&[0, 0, 30, 60]),
            refusals: random.one_of(&[0, 0, 0, 10, 40]),
            changes: random.one_of(&[0, 0, 30, 50]),
            hold: random.chance(50).then_some(120 * MOMENT),
            ..honest
        }
    }

    /// Whether two versions have one strong ETag.
    pub(super) fn is_liar(&self) -> bool {
        self.tag == Tag::Same
    }

    /// Whether the announced length says nothing of the version.
    pub(super) fn hides_length(&self) -> bool {
        self.lie > 0 || self.is_lengthless || self.ranges == Ranges::Lengthless
    }

    fn etag(&self, request: &Received) -> Option<String> {
        let version = self.current + self.rotation;
        match self.tag {
            Tag::None => None,
            Tag::Strong => Some(format!("\"v{}\"", version % self.bodies.len())),
            Tag::Weak => Some("W/\"v\"".into()),
            Tag::OfNode => Some(format!("\"v{version}-{}\"", request.number % 2)),
            Tag::Same => Some("\"same\"".into()),
        }
    }

    /// The answer to a request, and the time after which it is sent; what is served may be another afterwards.
    pub(super) fn answer(&mut self, request: &Received, random: &mut Random) -> (Reply, Duration) {
        if random.chance(self.refusals) {
            return (Reply::status(random.one_of(&[404, 403, 410, 404])), self.delay);
        }
        let body = Arc::clone(&self.bodies[self.current]);
        let etag = self.etag(request);
        let length = body.length();
        let is_asked = |asked: &str| Some(asked) == etag.as_deref();
        let is_current = self.ignores_if_range || request.field("if-range").is_none_or(is_asked);
        let range = request.range(length as usize).filter(|_| is_current && self.ranges != Ranges::Ignored);
        let reply = match range {
            Some(range) if range.is_empty() || self.ranges == Ranges::Refused => {
                Reply::status(416).with("Content-Range", &format!("bytes */{length}"))
            }
            Some(range) => {
                let shift = u64::from(self.ranges == Ranges::Shifted && range.len() > 1);
                let range = range.start as u64 + shift..range.end as u64;
                let total = if self.ranges == Ranges::Lengthless { "*".into() } else { length.to_string() };
                let described = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                let reply = Reply::full(&body.read(range.clone())).with_status(206);
                self.sent(reply, range, random).with("Content-Range", &described)
            }
            None => {
                let announced = (!self.is_lengthless).then_some((length + self.lie) as usize);
                self.sent(Reply::full(&body.read(0..length)).announcing(announced), 0..length, random)
            }
        };
        if random.chance(self.changes) {
            self.current = random.below(self.bodies.len() as u64) as usize;
        }
        let reply = if self.ranges == Ranges::Ignored { reply } else { reply.with("Accept-Ranges", "bytes") };
        let reply = match etag {
            Some(etag) => reply.with("ETag", &etag),
            None => reply,
        };
        (reply, self.delay)
    }

    fn sent(&self, reply: Reply, range: Range<u64>, random: &mut Random) -> Reply {
        let bytes = range.end - range.start;
        let reply = match self.pace {
            Some(pace) => reply.paced(pace),
            None => reply,
        };
        let reply = match self.hold.filter(|_| bytes > 2 << 20) {
            Some(time) => held(reply, random.below(bytes), time),
            None => reply,
        };
        match random.chance(self.cuts) {
            true => reply.cut_within(random.fraction()),
            false => reply,
        }
    }
}

/// A body that pauses after `bytes`, once for a `time`.
fn held(reply: Reply, bytes: u64, time: Duration) -> Reply {
    let gate = Gate::default();
    let reply = reply.gated_at(bytes as usize, &gate);
    std::thread::spawn(move || {
        std::thread::sleep(time);
        gate.open();
    });
    reply
}

/// A pause in which other readers come.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
