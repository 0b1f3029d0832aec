//! Links between resources of the web (RFC 8288): of `Link` fields, of the heads of HTML pages, and of link sets (RFC 9264).

mod header;
mod html;
mod link_set;

pub use header::links_of_header;
pub use html::links_of_html;
pub use link_set::{LinkSetError, links_of_link_set};

use super::link::normal_relation;
use super::{Href, Uri, UriError};

/// Links of one document.
pub const MOST_LINKS: usize = 100_000;

/// Bytes of the links of one document: each relative one costs a copy of its base.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// Relations of one link that count: each costs a copy of its target, and a host may send a hundred thousand.
const RELATIONS: usize = 16;

/// A typed link of a web resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebLink {
    /// The context; `None` where it is the document in which the link stands (no anchor, or an anchor that is its own address).
    pub anchor: Option<Uri>,
    /// One relation, lower case where it is a registered one (no `:`).
    pub rel: Box<str>,
    /// The target, resolved and normalised.
    pub href: Href,
    /// `type`
    pub media_type: Option<Box<str>>,
    /// `profile`; several with a blank between them.
    pub profile: Option<Box<str>>,
    /// `title*` (RFC 8187), else `title`.
    pub title: Option<Box<str>>,
}

impl WebLink {
    /// The target, if the link leads from its own document by `rel` to what can be asked.
    pub fn leads_by(&self, rel: &str) -> Option<&Uri> {
        self.href.uri().filter(|_| self.anchor.is_none() && &*self.rel == rel)
    }
}

/// The links so far, and the base that they are resolved against.
struct Links<'a> {
    base: &'a Uri,
    found: Vec<WebLink>,
    bytes: usize,
}

impl<'a> Links<'a> {
    fn new(base: &'a Uri) -> Links<'a> {
        Links { base, found: Vec::new(), bytes: 0 }
    }

    /// The context that `anchor` names. One that cannot be asked is an error: no page of ours is its context.
    fn context(&self, anchor: &str) -> Result<Option<Uri>, UriError> {
        Uri::resolve(Some(self.base), anchor).map(|context| Some(context).filter(|context| context != self.base))
    }

    /// Adds a link once for each of its relations, which blanks separate. A link that leads nowhere is passed over.
    fn add(&mut self, relations: &str, href: &str, anchor: Option<&Uri>, texts: Texts) -> Result<(), LinkSetError> {
        let Ok(href) = Href::read(Uri::resolve(Some(self.base), href)) else { return Ok(()) };
        let [media_type, profile, title] =
            texts.map(|text| text.as_deref().map(str::trim).filter(|text| !text.is_empty()).map(Box::from));
        let copied =
            [Some(href.as_str()), anchor.map(Uri::as_str), media_type.as_deref(), profile.as_deref(), title.as_deref()];
        let size: usize = copied.into_iter().flatten().map(str::len).sum();
        for relation in relations.split_ascii_whitespace().take(RELATIONS) {
            self.bytes += size + relation.len();
            if self.found.len() >= MOST_LINKS || self.bytes > MOST_BYTES {
                return Err(LinkSetError::TooMany);
            }
            self.found.push(WebLink {
                anchor: anchor.cloned(),
                rel: normal_relation(relation.into()),
                href: href.clone(),
                media_type: media_type.clone(),
                profile: profile.clone(),
                title: title.clone(),
            });
        }
        Ok(())
    }
}

/// `type`, `profile` and `title` of a link.
type Texts = [Option<String>; 3];
