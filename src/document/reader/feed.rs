//! Links of feeds (RSS and Atom), which the Sitemap protocol allows besides its XML: their items link to pages.

use super::draft::Draft;
use super::element::{Context, read_uri};
use super::events::utf8;
use super::namespace::ElementKind;
use super::reference::unescape;
use crate::document::{Entry, Root, Rule, Uri};
use quick_xml::events::BytesStart;

/// A link of a feed.
#[derive(Default)]
pub(super) struct FeedLink {
    /// `href` of Atom, `url` of an enclosure of RSS; `None` where the link is the element's text.
    pub target: Option<Uri>,
    /// The relation; none is `alternate`.
    pub rel: Option<String>,
    /// The media type of what it leads to. Its length is a hint alone (RFC 4287, 4.2.7.6), and none that is held to.
    pub media_type: Option<Box<str>>,
    /// The target that is not a file: of mail, a magnet.
    elsewhere: Option<Box<str>>,
    /// `isPermaLink="false"` of a `guid`.
    pub is_name: bool,
}

impl FeedLink {
    /// Reads the attributes; what cannot be understood is noted and left out.
    pub fn read(element: &BytesStart<'_>, context: &mut Context) -> FeedLink {
        let mut link = FeedLink::default();
        for attribute in element.attributes().with_checks(false).flatten() {
            let (name, value) = (utf8(attribute.key.into_inner()), utf8(&attribute.value));
            if !matches!(name, "href" | "url" | "rel" | "type" | "isPermaLink") {
                continue;
            }
            if value.len() > context.limits.text {
                context.notes.add(Rule::TextTooLong, value);
                continue;
            }
            let is_own = context.bindings.declares_entities;
            let Ok(value) = unescape(value, is_own, &mut context.notes) else { continue };
            match name {
                "rel" => link.rel = Some(value.trim().to_ascii_lowercase()),
                "type" => link.media_type = Some(value.trim()).filter(|it| it.contains('/')).map(Box::from),
                "isPermaLink" => link.is_name = value.trim().eq_ignore_ascii_case("false"),
                _ => match read_uri(&value, context) {
                    Ok(uri) => link.target = Some(uri),
                    Err(error) if error.is_of_other_scheme() => link.elsewhere = Some(value.trim().into()),
                    Err(_) => context.notes.add(Rule::LinkMalformed, &value),
                },
            }
        }
        link
    }

    /// Gives `draft` what it leads to; else as what its element's text is to be read.
    pub fn add_to(
        self,
        draft: &mut Draft,
        kind: ElementKind,
        root: Root,
        context: &mut Context,
    ) -> Option<ElementKind> {
        let is_enclosure = kind == ElementKind::Enclosure || self.rel.as_deref() == Some("enclosure");
        let is_page = self.rel.as_deref().is_none_or(|rel| rel.is_empty() || rel == "alternate");
        match self.target {
            None if self.elsewhere.is_some() => {
                let is_own = is_enclosure || kind == ElementKind::FeedLink && is_page && draft.loc.is_none();
                self.elsewhere.filter(|_| is_own).iter().for_each(|address| draft.set_elsewhere(address, context));
            }
            Some(loc) if is_enclosure => {
                draft.add_further(
                    ElementKind::Media,
                    Entry { media_type: self.media_type, ..Entry::new(loc) },
                    context,
                );
            }
            Some(loc) if kind == ElementKind::FeedLink => {
                if is_page && draft.loc.is_none() {
                    draft.set_loc(loc);
                }
            }
            // Its enclosure cannot be understood.
            None if is_enclosure => draft.hide(ElementKind::Enclosure),
            _ if self.is_name || root == Root::Atom => {}
            _ => return Some(if kind == ElementKind::Guid { kind } else { ElementKind::Loc }),
        }
        None
    }
}
