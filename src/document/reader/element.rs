//! The elements `rs:md` and `rs:ln`: their attributes, read tolerantly.

use super::events::utf8;
use super::namespace::{Bindings, Namespace};
use super::reference::{UndefinedEntity, unescape};
use super::{Deviations, Limits, plain};
use crate::document::hash::PublishedHashes;
use crate::document::link::normal_relation;
use crate::document::uri::Flaws;
use crate::document::{Capability, Change, Digest, Href, LOWEST_PRIORITY, Link, Rule, Timestamp, Uri, UriError};
use quick_xml::events::BytesStart;

/// The tag of an `rs:md` or `rs:ln`.
#[derive(Clone, Copy)]
pub(super) enum RsTag<'t, 'x> {
    /// A tag that the XML reader found.
    Xml(&'t BytesStart<'x>),
    /// A tag that [`plain::find`] found.
    Plain(&'t str),
}

impl<'t> RsTag<'t, '_> {
    /// Bytes of name and attributes.
    pub fn len(self) -> usize {
        match self {
            RsTag::Xml(element) => element.len(),
            RsTag::Plain(bytes) => bytes.len(),
        }
    }

    /// The attributes as they stand there.
    pub fn attributes(self) -> &'t str {
        match self {
            RsTag::Xml(element) => utf8(element.attributes_raw()),
            RsTag::Plain(bytes) => bytes.get(plain::NAME..).unwrap_or_default(),
        }
    }
}

/// The document's facts that reading an element needs, and the notes of what is wrong.
pub(super) struct Context {
    pub bindings: Bindings,
    pub limits: Limits,
    pub notes: Deviations,
}

/// The attributes of one or several `rs:md`.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub capability: Option<Capability>,
    pub at: Option<Timestamp>,
    pub completed: Option<Timestamp>,
    pub from: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub change: Option<Change>,
    pub datetime: Option<Timestamp>,
    pub hashes: Vec<Digest>,
    pub length: Option<u64>,
    pub media_type: Option<Box<str>>,
    pub encoding: Option<Box<str>>,
    pub path: Option<Box<str>>,
}

impl Metadata {
    /// Reads the attributes of an `rs:md`; what an earlier one said stays.
    pub fn read(&mut self, tag: RsTag<'_, '_>, context: &mut Context) -> Result<(), UndefinedEntity> {
        context.each_attribute(tag, |context, name, value| {
            let notes = &mut context.notes;
            match name {
                "capability" => keep(&mut self.capability, || read_capability(value, notes)),
                "at" => keep(&mut self.at, || read_time(value, notes)),
                "completed" => keep(&mut self.completed, || read_time(value, notes)),
                "from" => keep(&mut self.from, || read_time(value, notes)),
                "until" => keep(&mut self.until, || read_time(value, notes)),
                "datetime" => keep(&mut self.datetime, || read_time(value, notes)),
                "change" => keep(&mut self.change, || noted(Change::parse(value), Rule::ChangeUnknown, value, notes)),
                "hash" if self.hashes.is_empty() => self.hashes = read_hashes(value, notes),
                "length" => keep(&mut self.length, || read_length(value, notes)),
                "type" => keep(&mut self.media_type, || read_text(value)),
                "encoding" => keep(&mut self.encoding, || read_text(value)),
                "path" => keep(&mut self.path, || read_text(value)),
                _ => {}
            }
        })
    }
}

/// Reads an `rs:ln`; `None` where it has no relation or leads to no URI.
pub(super) fn read_link(tag: RsTag<'_, '_>, context: &mut Context) -> Result<Option<Link>, UndefinedEntity> {
    let mut rel = None;
    let mut href = None;
    let mut pri = LOWEST_PRIORITY;
    let mut metadata = Metadata::default();
    let mut modified = None;
    context.each_attribute(tag, |context, name, value| {
        let notes = &mut context.notes;
        match name {
            "rel" => rel = read_text(value).map(normal_relation),
            // Other schemes break no rule: there are mirrors on gsiftp and profiles named by URNs.
            "href" => href = Some(Href::read(read_uri(value, context)).map_err(|_| value.to_owned())),
            "pri" => pri = read_priority(value, notes).unwrap_or(LOWEST_PRIORITY),
            "modified" => modified = read_time(value, notes),
            "hash" => metadata.hashes = read_hashes(value, notes),
            "length" => metadata.length = read_length(value, notes),
            "type" => metadata.media_type = read_text(value),
            "encoding" => metadata.encoding = read_text(value),
            "path" => metadata.path = read_text(value),
            _ => {}
        }
    })?;
    let href = match href.transpose() {
        Ok(href) => href,
        Err(seen) => {
            context.notes.add(Rule::LinkMalformed, &seen);
            return Ok(None);
        }
    };
    let (rel, href) = match (rel, href) {
        (Some(rel), Some(href)) => (rel, href),
        (rel, href) => {
            let seen = href.as_ref().map(Href::as_str).or(rel.as_deref());
            context.notes.add(Rule::LinkIncomplete, seen.unwrap_or_default());
            return Ok(None);
        }
    };
    let Metadata { media_type, encoding, length, hashes, path, .. } = metadata;
    Ok(Some(Link { rel, href, pri, media_type, encoding, length, hashes, modified, path }))
}

impl Context {
    /// Calls `each` with name and value of every attribute that ResourceSync defines, once a name.
    fn each_attribute(
        &mut self,
        tag: RsTag<'_, '_>,
        mut each: impl FnMut(&mut Self, &str, &str),
    ) -> Result<(), UndefinedEntity> {
        let mut seen = 0u32;
        let element = match tag {
            RsTag::Xml(element) => element,
            RsTag::Plain(_) => {
                for (name, value) in plain::attributes(tag.attributes()) {
                    if self.is_first(name, &mut seen) {
                        each(self, name, value);
                    }
                }
                return Ok(());
            }
        };
        for attribute in element.attributes().with_checks(false) {
            let attribute = match attribute {
                Ok(attribute) => attribute,
                Err(error) => {
                    self.notes.add(Rule::MalformedAttribute, &error.to_string());
                    continue;
                }
            };
            let (name, prefix) = attribute.key.decompose();
            let name = utf8(name.into_inner());
            if let Some(prefix) = prefix {
                let prefix = utf8(prefix.into_inner());
                let namespace = match self.bindings.resolve(prefix) {
                    Namespace::Undeclared => Namespace::customary(prefix),
                    declared => Some(declared),
                };
                if namespace != Some(Namespace::ResourceSync) {
                    continue;
                }
                self.notes.add(Rule::PrefixedAttribute, utf8(attribute.key.into_inner()));
            }
            if !self.is_first(name, &mut seen) {
                continue;
            }
            if attribute.value.len() > self.limits.text {
                self.notes.add(Rule::TextTooLong, utf8(&attribute.value));
                continue;
            }
            let value = unescape(utf8(&attribute.value), self.bindings.declares_entities, &mut self.notes)?;
            each(self, name, &value);
        }
        Ok(())
    }

    /// Answers whether ResourceSync defines an attribute of this name, and it is the first; `seen` has a bit for each name.
    fn is_first(&mut self, name: &str, seen: &mut u32) -> bool {
        let Some(position) = ATTRIBUTES.iter().position(|defined| *defined == name) else {
            return false;
        };
        let is_repeated = *seen & 1 << position != 0;
        if is_repeated {
            self.notes.add(Rule::DuplicateAttribute, name);
        }
        *seen |= 1 << position;
        !is_repeated
    }
}

/// The attributes of `rs:md` and `rs:ln` (section 7, table 3; `datetime` is of 1.1), first those that most entries have.
const ATTRIBUTES: [&str; 16] = [
    "hash",
    "length",
    "type",
    "href",
    "rel",
    "change",
    "datetime",
    "path",
    "at",
    "capability",
    "completed",
    "encoding",
    "from",
    "modified",
    "pri",
    "until",
];

/// Notes what was `seen` where it could not be `read`.
fn noted<T>(read: Option<T>, rule: Rule, seen: &str, notes: &mut Deviations) -> Option<T> {
    if read.is_none() {
        notes.add(rule, seen);
    }
    read
}

fn keep<T>(field: &mut Option<T>, read: impl FnOnce() -> Option<T>) {
    if field.is_none() {
        *field = read();
    }
}

fn read_text(value: &str) -> Option<Box<str>> {
    Some(value.trim()).filter(|text| !text.is_empty()).map(Box::from)
}

fn read_capability(value: &str, notes: &mut Deviations) -> Option<Capability> {
    if value.trim().is_empty() {
        return None;
    }
    let capability = Capability::parse(value);
    if capability.as_str() != value {
        notes.add(Rule::CapabilitySpelling, value);
    }
    Some(capability)
}

pub(super) fn read_time(value: &str, notes: &mut Deviations) -> Option<Timestamp> {
    let (timestamp, is_strict) = noted(Timestamp::parse_noting(value), Rule::TimeUnreadable, value, notes)?;
    if !is_strict && !is_date_alone(value) {
        notes.add(Rule::TimeSpelling, value);
    }
    Some(timestamp)
}

/// Answers whether a readable time is a year, a month or a day: W3C Datetimes, though without zone.
fn is_date_alone(value: &str) -> bool {
    matches!(value.len(), 4 | 7 | 10) && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn read_hashes(value: &str, notes: &mut Deviations) -> Vec<Digest> {
    let published = PublishedHashes::parse(value);
    if published.unknown || published.digests.is_empty() {
        notes.add(Rule::HashUnreadable, value);
    }
    if published.misspelt {
        notes.add(Rule::HashSpelling, value);
    }
    published.digests
}

/// The greatest length that `off_t` can hold.
pub(super) fn read_length(value: &str, notes: &mut Deviations) -> Option<u64> {
    let length = value.trim().parse().ok().filter(|length| !value.contains('+') && *length <= i64::MAX as u64);
    noted(length, Rule::LengthUnreadable, value, notes)
}

fn read_priority(value: &str, notes: &mut Deviations) -> Option<u32> {
    let priority = value.trim().parse().ok().filter(|priority| (1..=LOWEST_PRIORITY).contains(priority));
    noted(priority, Rule::PriorityUnreadable, value, notes)
}

/// Resolves a URI and notes what had to be mended. In feeds a URI may be relative, and in Atom it is an IRI (RFC 4287, 2).
pub(super) fn read_uri(raw: &str, context: &mut Context) -> Result<Uri, UriError> {
    // Against a base an empty reference would be the document itself.
    if raw.trim().is_empty() {
        return Err(UriError::Malformed(raw.to_owned()));
    }
    let uri = Uri::resolve(context.bindings.base(), raw)?;
    if uri.as_str() != raw {
        // A text with replaced ill-formed bytes is not the URI that was meant.
        if raw.contains('\u{fffd}') {
            return Err(UriError::Malformed(raw.to_owned()));
        }
        let is_feed = context.bindings.is_feed;
        let flaws = if is_feed { Flaws::of(&raw.replace(|c: char| !c.is_ascii(), "")) } else { Flaws::of(raw) };
        for (flaw, rule) in [
            (flaws.relative && !is_feed, Rule::UriRelative),
            (flaws.unescaped, Rule::UriUnescaped),
            (flaws.bad_escape, Rule::UriEscape),
        ] {
            if flaw {
                context.notes.add(rule, raw);
            }
        }
    }
    Ok(uri)
}
