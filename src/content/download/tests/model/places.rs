//! The bodies that there are, and the servers that have them: true, or with one of the faults that real servers have.

use super::super::server::{Received, Reply};
use super::super::{bytes, digest};
use super::random::Random;
use crate::content::fixity::{BLOCK, WHOLE_LIMIT};
use crate::document::{Algorithm, Digest};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::Duration;

/// One version of a file.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    digest: OnceLock<Digest>,
}

impl Body {
    pub(super) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest(Algorithm::Sha256, &self.bytes))
    }
}

/// How a version differs from the first.
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
    Shorter,
}

const VARIANTS: [Variant; 6] =
    [Variant::First, Variant::Other, Variant::Block, Variant::End, Variant::Torn, Variant::Shorter];

type Bodies = HashMap<(u64, Variant), Arc<Body>>;

/// Made once: those of large files are most of the work.
static BODIES: LazyLock<Mutex<Bodies>> = LazyLock::new(Mutex::default);

fn body(length: u64, variant: Variant) -> Arc<Body> {
    if let Some(body) = BODIES.lock().unwrap().get(&(length, variant)) {
        return Arc::clone(body);
    }
    let whole = |variant| body(length, variant).bytes.clone();
    let middle = (length / 2).next_multiple_of(BLOCK).min(length) as usize;
    let bytes = match variant {
        Variant::First => bytes(length as usize, length + 1),
        Variant::Other => bytes(length as usize, length + 7_777),
        Variant::Torn => [&whole(Variant::First)[..middle], &whole(Variant::Other)[middle..]].concat(),
        Variant::Shorter => whole(Variant::First)[..length as usize - length.min(5_000) as usize / 2].to_vec(),
        Variant::Block | Variant::End => {
            let mut bytes = whole(Variant::First);
            let at = if variant == Variant::End { bytes.len() } else { bytes.len() / 2 };
            bytes[..at].last_mut().into_iter().for_each(|byte| *byte ^= 1);
            bytes
        }
    };
    let made = Arc::new(Body { bytes, digest: OnceLock::new() });
    Arc::clone(BODIES.lock().unwrap().entry((length, variant)).or_insert(made))
}

/// The versions of one file; the first is the first.
pub(super) fn bodies(random: &mut Random) -> Vec<Arc<Body>> {
    let whole = WHOLE_LIMIT;
    let length = match random.below(14) {
        0 => 0,
        1 => 1 + random.below(3) * 5,
        2..=4 => 4096 * (1 + random.below(20)) + 77,
        5 => BLOCK,
        6 => 3 * BLOCK,
        7 => 1_500_000,
        8 => whole + 1,
        9..=10 => whole + 2 * BLOCK,
        11..=12 => whole + 3 * BLOCK + 12_345,
        _ => 2 * whole + 5 * BLOCK + 99,
    };
    let mut bodies = vec![body(length, Variant::First)];
    for variant in VARIANTS.into_iter().skip(1) {
        let body = body(length, variant);
        if bodies.iter().all(|known| known.bytes != body.bytes) {
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

/// What one address serves.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) bodies: Vec<Arc<Body>>,
    pub(super) current: usize,
    pub(super) tag: Tag,
    pub(super) ranges: Ranges,
    /// No length is announced.
    pub(super) is_lengthless: bool,
    /// The announced length is too great by this.
    pub(super) lie: usize,
    /// In so many of a hundred answers the body breaks off.
    pub(super) cuts: u64,
    /// So many of a hundred requests are refused.
    pub(super) refusals: u64,
    /// In so many of a hundred answers the file becomes another while it is sent.
    pub(super) changes: u64,
    pub(super) is_slow: bool,
}

impl Place {
    /// A server without fault.
    pub(super) fn honest(bodies: &[Arc<Body>], random: &mut Random) -> Place {
        let tag = random.one_of(&[Tag::Strong, Tag::Strong, Tag::Strong, Tag::None, Tag::Weak]);
        Place {
            bodies: bodies.to_vec(),
            current: 0,
            tag,
            ranges: if random.chance(80) { Ranges::Right } else { Ranges::Ignored },
            is_lengthless: false,
            lie: 0,
            cuts: 0,
            refusals: 0,
            changes: 0,
            is_slow: random.chance(10),
        }
    }

    /// One with faults. Those that nothing shows are left out: `is_vouched` where a digest is published, `is_measured` where a length is.
    pub(super) fn hostile(bodies: &[Arc<Body>], (is_vouched, is_measured): (bool, bool), random: &mut Random) -> Place {
        let tags = [Tag::Strong, Tag::Strong, Tag::OfNode, Tag::None, Tag::Weak, Tag::Same];
        let ranges =
            [Ranges::Right, Ranges::Right, Ranges::Ignored, Ranges::Shifted, Ranges::Lengthless, Ranges::Refused];
        let honest = Place::honest(bodies, random);
        Place {
            current: if random.chance(50) { 0 } else { random.below(bodies.len() as u64) as usize },
            tag: random.one_of(if is_vouched { &tags } else { &tags[..5] }),
            ranges: random.one_of(&ranges),
            is_lengthless: (is_vouched || is_measured) && random.chance(25),
            lie: if random.chance(15) { 1 + random.below(9_000) as usize } else { 0 },
            cuts: random.one_of(&[0, 30, 60]),
            refusals: random.one_of(&[0, 0, 10, 40]),
            changes: random.one_of(&[0, 0, 30]),
            ..honest
        }
    }

    pub(super) fn is_liar(&self) -> bool {
        self.tag == Tag::Same
    }

    fn etag(&self, request: &Received) -> Option<String> {
        let current = self.current;
        match self.tag {
            Tag::None => None,
            Tag::Strong => Some(format!("\"v{current}\"")),
            Tag::Weak => Some(format!("W/\"v{current}\"")),
            Tag::OfNode => Some(format!("\"v{current}-{}\"", request.number % 2)),
            Tag::Same => Some("\"same\"".into()),
        }
    }

    /// The answer to a request; what is served may be another afterwards.
    pub(super) fn answer(&mut self, request: &Received, random: &mut Random) -> Reply {
        if random.chance(self.refusals) {
            return Reply::status(random.one_of(&[404, 403, 410, 404]));
        }
        let body = Arc::clone(&self.bodies[self.current]);
        let etag = self.etag(request);
        let length = body.bytes.len();
        let is_current = request.field("if-range").is_none_or(|asked| Some(asked) == etag.as_deref());
        let range = request.range(length).filter(|_| is_current && self.ranges != Ranges::Ignored);
        let reply = match range {
            Some(range) if range.is_empty() || self.ranges == Ranges::Refused => {
                Reply::status(416).with("Content-Range", &format!("bytes */{length}"))
            }
            Some(range) => {
                let shift = usize::from(self.ranges == Ranges::Shifted && range.len() > 1);
                let range = range.start + shift..range.end;
                let total = if self.ranges == Ranges::Lengthless { "*".into() } else { length.to_string() };
                let described = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                self.sent(Reply::full(&body.bytes[range]).with_status(206), random).with("Content-Range", &described)
            }
            None => {
                let announced = (!self.is_lengthless).then_some(length + self.lie);
                self.sent(Reply::full(&body.bytes).announcing(announced), random)
            }
        };
        if random.chance(self.changes) {
            self.current = random.below(self.bodies.len() as u64) as usize;
        }
        let reply = if self.ranges == Ranges::Ignored { reply } else { reply.with("Accept-Ranges", "bytes") };
        match etag {
            Some(etag) => reply.with("ETag", &etag),
            None => reply,
        }
    }

    fn sent(&self, reply: Reply, random: &mut Random) -> Reply {
        let reply = if self.is_slow { reply.paced(400 << 20) } else { reply };
        match random.chance(self.cuts) {
            true => reply.cut_within(random.fraction()),
            false => reply,
        }
    }
}

/// A pause in which other readers come.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
