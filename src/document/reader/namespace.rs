//! The kind of an element, by its name and the namespace that its prefix stands for.

use super::events::{self, utf8};
use super::reference::unescape;
use super::{Deviations, Limits};
use crate::document::{Root, Rule, Uri};
use quick_xml::events::BytesStart;

/// Bindings kept at a time. Documents have five or so; more would only make every lookup slow.
const BINDINGS: usize = 64;

/// The attribute that states a base (RFC 4287, 2).
const BASE: &str = "xml:base";

/// The namespaces that the reader distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Namespace {
    Sitemap,
    ResourceSync,
    /// Extensions of Sitemaps for images and videos.
    Image,
    Video,
    /// Atom's; in a feed of RSS also that of its elements, which have none.
    Feed,
    /// A prefix that was never declared, or no namespace at all.
    Undeclared,
    /// Any other: what is in it is skipped.
    Foreign,
}

impl Namespace {
    /// Classifies a namespace name, and says whether it is spelt as the standards spell it.
    pub fn of(name: &str) -> (Namespace, bool) {
        const SITEMAP: &str = "http://www.sitemaps.org/schemas/sitemap/0.9";
        const RESOURCE_SYNC: &str = "http://www.openarchives.org/rs/terms/";
        if name == SITEMAP {
            return (Namespace::Sitemap, true);
        }
        if name == RESOURCE_SYNC {
            return (Namespace::ResourceSync, true);
        }
        if name.is_empty() {
            return (Namespace::Undeclared, true);
        }
        let folded = name.trim().to_ascii_lowercase();
        let folded = folded.strip_prefix("https://").or(folded.strip_prefix("http://")).unwrap_or(&folded);
        let folded = folded.strip_prefix("www.").unwrap_or(folded).trim_end_matches(['/', '#']);
        if folded.starts_with("openarchives.org/rs/terms") {
            (Namespace::ResourceSync, false)
        } else if folded.starts_with("sitemaps.org/schemas/sitemap/")
            || folded.starts_with("google.com/schemas/sitemap/0")
        {
            (Namespace::Sitemap, false)
        } else if folded.starts_with("google.com/schemas/sitemap-image/") {
            (Namespace::Image, true)
        } else if folded.starts_with("google.com/schemas/sitemap-video/") {
            (Namespace::Video, true)
        } else if matches!(folded, "w3.org/2005/atom" | "purl.org/atom/ns") {
            (Namespace::Feed, true)
        } else {
            (Namespace::Foreign, true)
        }
    }

    /// The namespace that an undeclared prefix is taken for.
    pub fn customary(prefix: &str) -> Option<Namespace> {
        match prefix {
            "" => Some(Namespace::Sitemap),
            "rs" => Some(Namespace::ResourceSync),
            "image" => Some(Namespace::Image),
            "video" => Some(Namespace::Video),
            _ => None,
        }
    }
}

/// The kind of an element, as the reader takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementKind {
    /// The root element of a list within another, and what holds the items of RSS.
    Nested,
    Entry(Root),
    Loc,
    LastMod,
    ChangeFreq,
    /// `image:image` and `video:video`, and within them the address of the image or the video.
    MediaGroup,
    Media,
    /// `link` of a feed, and what RSS has for an item without one.
    FeedLink,
    Guid,
    Enclosure,
    Metadata,
    Link,
    /// An element of the Sitemap namespace, which has none of this name.
    Unknown,
    Foreign,
}

impl ElementKind {
    /// The kind of an element by the letter of its name.
    fn of(namespace: Namespace, name: &str) -> ElementKind {
        match (namespace, name) {
            (Namespace::Sitemap, "url") => ElementKind::Entry(Root::UrlSet),
            (Namespace::Sitemap, "sitemap") => ElementKind::Entry(Root::SitemapIndex),
            (Namespace::Sitemap, "loc") => ElementKind::Loc,
            (Namespace::Sitemap, "lastmod") => ElementKind::LastMod,
            (Namespace::Sitemap, "changefreq") => ElementKind::ChangeFreq,
            (Namespace::Sitemap, "urlset" | "sitemapindex") | (Namespace::Feed, "channel") => ElementKind::Nested,
            (Namespace::Sitemap, "priority") => ElementKind::Foreign,
            (Namespace::Sitemap, _) => ElementKind::Unknown,
            (Namespace::ResourceSync, "md") => ElementKind::Metadata,
            (Namespace::ResourceSync, "ln") => ElementKind::Link,
            (Namespace::Image, "image") | (Namespace::Video, "video") => ElementKind::MediaGroup,
            (Namespace::Image, "loc") | (Namespace::Video, "content_loc") => ElementKind::Media,
            (Namespace::Feed, "item") => ElementKind::Entry(Root::Rss),
            (Namespace::Feed, "entry") => ElementKind::Entry(Root::Atom),
            (Namespace::Feed, "link") => ElementKind::FeedLink,
            (Namespace::Feed, "guid") => ElementKind::Guid,
            (Namespace::Feed, "enclosure") => ElementKind::Enclosure,
            (Namespace::Feed, "updated" | "modified" | "pubDate" | "pubdate") => ElementKind::LastMod,
            _ => ElementKind::Foreign,
        }
    }
}

struct Binding {
    prefix: Box<str>,
    namespace: Namespace,
    /// Depth of the element that declares it.
    depth: usize,
}

/// The meaning of the names of a document.
#[derive(Default)]
pub(super) struct Bindings {
    /// The prefixes of the open elements, outermost first.
    prefixes: Vec<Binding>,
    /// The document's own URI; `None` for a file on disk.
    document: Option<Uri>,
    /// The values of `xml:base` in the open elements of a feed, with their depths, outermost first.
    bases: Vec<(usize, Uri)>,
    /// `true` for a feed: elsewhere the elements of feeds are foreign.
    pub is_feed: bool,
    /// `true` where the document declares entities.
    pub declares_entities: bool,
}

impl Bindings {
    /// No bindings yet, of a document at `uri`.
    pub fn of(uri: Option<Uri>) -> Bindings {
        Bindings { document: uri, ..Bindings::default() }
    }

    /// The URI that relative references are resolved against.
    pub fn base(&self) -> Option<&Uri> {
        self.bases.last().map(|(_, base)| base).or(self.document.as_ref())
    }

    /// Declares the namespaces of the root element and returns what it is, or else its local name. Whatever its own
    /// namespace, it is taken for that of Sitemaps.
    pub fn open_root<'a>(&mut self, element: &'a BytesStart<'_>, notes: &mut Deviations) -> Result<Root, &'a str> {
        let (name, prefix) = split(element);
        let folded = name.to_ascii_lowercase();
        let (root, own) = match folded.as_str() {
            "urlset" => (Root::UrlSet, Namespace::Sitemap),
            "sitemapindex" => (Root::SitemapIndex, Namespace::Sitemap),
            "rss" => (Root::Rss, Namespace::Feed),
            "feed" => (Root::Atom, Namespace::Feed),
            _ => return Err(name),
        };
        if folded != name {
            notes.add(Rule::ElementSpelling, name);
        }
        self.is_feed = own == Namespace::Feed;
        self.declare_all(element, 1, notes);
        if self.resolve(prefix) != own {
            if !self.is_feed {
                notes.add(Rule::RootNamespace, utf8(element.attributes_raw()).trim());
            }
            self.declare(prefix, own, 1);
        }
        Ok(root)
    }

    /// Declares the namespaces of an element at `depth` and returns what it is.
    #[inline]
    pub fn open(&mut self, element: &BytesStart<'_>, depth: usize, notes: &mut Deviations) -> ElementKind {
        self.declare_all(element, depth, notes);
        let (name, prefix) = split(element);
        let mut namespace = self.resolve(prefix);
        if namespace == Namespace::Undeclared {
            if let Some(meant) = Namespace::customary(prefix) {
                notes.add(Rule::UndeclaredPrefix, events::name(element));
                namespace = meant;
            }
        }
        if namespace == Namespace::Feed && !self.is_feed {
            return ElementKind::Foreign;
        }
        match (ElementKind::of(namespace, name), name) {
            // Sitemaps have no such elements: the prefix was forgotten.
            (ElementKind::Unknown, forgotten @ ("md" | "ln")) => {
                notes.add(Rule::UndeclaredPrefix, forgotten);
                if forgotten == "md" { ElementKind::Metadata } else { ElementKind::Link }
            }
            (ElementKind::Unknown, _) => {
                // Entries and addresses are not guessed: XML is case-sensitive.
                let meant = match ElementKind::of(namespace, &name.to_ascii_lowercase()) {
                    ElementKind::Entry(_) | ElementKind::Loc => ElementKind::Unknown,
                    meant => meant,
                };
                notes.add(
                    if meant == ElementKind::Unknown { Rule::ElementUnknown } else { Rule::ElementSpelling },
                    name,
                );
                meant
            }
            (kind, _) => kind,
        }
    }

    #[inline]
    fn declare_all(&mut self, element: &BytesStart<'_>, depth: usize, notes: &mut Deviations) {
        let attributes = utf8(element.attributes_raw());
        let is_of_xml = |text: &str| text.starts_with("xmlns") || self.is_feed && text.starts_with(BASE);
        if !attributes.match_indices('x').any(|(start, _)| is_of_xml(&attributes[start..])) {
            return;
        }
        for attribute in element.attributes().with_checks(false).flatten() {
            let value = utf8(&attribute.value);
            let name = utf8(attribute.key.into_inner());
            let prefix = match name.strip_prefix("xmlns") {
                Some("") => "",
                Some(prefix) if prefix.starts_with(':') => &prefix[1..],
                _ if self.is_feed && name == BASE => {
                    self.rebase(value, depth, notes);
                    continue;
                }
                _ => continue,
            };
            let (namespace, well_spelt) = Namespace::of(value);
            if !well_spelt {
                notes.add(Rule::NamespaceSpelling, value);
            }
            self.declare(prefix, namespace, depth);
        }
    }

    /// Binds `prefix` (empty for the default namespace) within the element at `depth`.
    fn declare(&mut self, prefix: &str, namespace: Namespace, depth: usize) {
        if self.prefixes.len() < BINDINGS {
            self.prefixes.push(Binding { prefix: prefix.into(), namespace, depth });
        }
    }

    /// Takes the base that the element at `depth` states; it may be relative itself.
    fn rebase(&mut self, stated: &str, depth: usize, notes: &mut Deviations) {
        if self.bases.len() == BINDINGS || stated.len() > Limits::TEXT {
            return;
        }
        let Ok(stated) = unescape(stated, self.declares_entities, notes) else { return };
        self.bases.extend(Uri::resolve(self.base(), &stated).ok().map(|base| (depth, base)));
    }

    /// Forgets what the element at `depth` declared.
    #[inline]
    pub fn leave(&mut self, depth: usize) {
        while self.prefixes.last().is_some_and(|binding| binding.depth >= depth) {
            self.prefixes.pop();
        }
        while self.bases.last().is_some_and(|(of, _)| *of >= depth) {
            self.bases.pop();
        }
    }

    /// Answers whether no prefix stands for Sitemaps and `rs` for ResourceSync, as in nearly every document.
    pub fn are_usual(&self) -> bool {
        self.resolve("") == Namespace::Sitemap && self.resolve("rs") == Namespace::ResourceSync
    }

    /// The namespace of an element's `prefix`.
    #[inline]
    pub fn resolve(&self, prefix: &str) -> Namespace {
        // Nearly every prefix is empty, and comparing nothing with nothing by memcmp can cost hundreds of cycles.
        let same = |binding: &&Binding| {
            binding.prefix.len() == prefix.len() && (prefix.is_empty() || &*binding.prefix == prefix)
        };
        let binding = self.prefixes.iter().rev().find(same);
        binding.map_or(Namespace::Undeclared, |binding| binding.namespace)
    }
}

/// Local name and prefix, which is empty where there is none.
#[inline]
fn split<'a>(element: &'a BytesStart<'_>) -> (&'a str, &'a str) {
    let (name, prefix) = element.name().decompose();
    (utf8(name.into_inner()), prefix.map_or("", |prefix| utf8(prefix.into_inner())))
}
