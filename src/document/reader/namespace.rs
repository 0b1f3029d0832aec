//! What an element is: its name, and the namespace that its prefix stands for.

use super::Notes;
use crate::document::{Root, Rule};
use quick_xml::events::BytesStart;

/// Bindings kept at a time. Documents have five or so; more would only make every lookup slow.
const BINDINGS: usize = 64;

/// What the reader tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Namespace {
    Sitemap,
    ResourceSync,
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
        } else {
            (Namespace::Foreign, true)
        }
    }

    /// What an undeclared prefix is taken for.
    pub fn customary(prefix: &str) -> Option<Namespace> {
        match prefix {
            "" => Some(Namespace::Sitemap),
            "rs" => Some(Namespace::ResourceSync),
            _ => None,
        }
    }
}

/// What the reader makes of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Entry(Root),
    Loc,
    LastMod,
    ChangeFreq,
    Metadata,
    Link,
    Foreign,
}

struct Binding {
    prefix: Box<str>,
    namespace: Namespace,
    /// Depth of the element that declares it.
    depth: usize,
}

/// The bindings of the open elements, outermost first.
#[derive(Default)]
pub(super) struct Bindings(Vec<Binding>);

impl Bindings {
    /// Declares the namespaces of the root element and tells what it is, or else its local name. Whatever its own
    /// namespace, it is taken for that of Sitemaps.
    pub fn open_root<'a>(&mut self, element: &'a BytesStart<'_>, notes: &mut Notes<'_>) -> Result<Root, &'a str> {
        let (name, prefix) = split(element);
        let root = match name {
            "urlset" => Root::UrlSet,
            "sitemapindex" => Root::SitemapIndex,
            other => return Err(other),
        };
        self.declare_all(element, 1, notes);
        if self.resolve(prefix) != Namespace::Sitemap {
            notes.add(Rule::RootNamespace, element.attributes_raw().trim());
            self.declare(prefix, Namespace::Sitemap, 1);
        }
        Ok(root)
    }

    /// Declares the namespaces of an element at `depth` and tells what it is.
    #[inline]
    pub fn open(&mut self, element: &BytesStart<'_>, depth: usize, notes: &mut Notes<'_>) -> Kind {
        self.declare_all(element, depth, notes);
        let (name, prefix) = split(element);
        let mut namespace = self.resolve(prefix);
        if namespace == Namespace::Undeclared
            && let Some(meant) = Namespace::customary(prefix)
        {
            notes.add(Rule::UndeclaredPrefix, element.name().into_inner());
            namespace = meant;
        }
        match (namespace, name) {
            (Namespace::Sitemap, "url") => Kind::Entry(Root::UrlSet),
            (Namespace::Sitemap, "sitemap") => Kind::Entry(Root::SitemapIndex),
            (Namespace::Sitemap, "loc") => Kind::Loc,
            (Namespace::Sitemap, "lastmod") => Kind::LastMod,
            (Namespace::Sitemap, "changefreq") => Kind::ChangeFreq,
            (Namespace::ResourceSync, "md") => Kind::Metadata,
            (Namespace::ResourceSync, "ln") => Kind::Link,
            // Sitemaps have no such elements: the prefix was forgotten.
            (Namespace::Sitemap, forgotten @ ("md" | "ln")) => {
                notes.add(Rule::UndeclaredPrefix, forgotten);
                if forgotten == "md" { Kind::Metadata } else { Kind::Link }
            }
            _ => Kind::Foreign,
        }
    }

    #[inline]
    fn declare_all(&mut self, element: &BytesStart<'_>, depth: usize, notes: &mut Notes<'_>) {
        let attributes = element.attributes_raw();
        if !attributes.match_indices('x').any(|(start, _)| attributes[start..].starts_with("xmlns")) {
            return;
        }
        for attribute in element.attributes().with_checks(false).flatten() {
            let prefix = match attribute.key.into_inner().strip_prefix("xmlns") {
                Some("") => "",
                Some(prefix) if prefix.starts_with(':') => &prefix[1..],
                _ => continue,
            };
            let (namespace, well_spelt) = Namespace::of(&attribute.value);
            if !well_spelt {
                notes.add(Rule::NamespaceSpelling, &attribute.value);
            }
            self.declare(prefix, namespace, depth);
        }
    }

    /// Binds `prefix` (empty for the default namespace) within the element at `depth`.
    fn declare(&mut self, prefix: &str, namespace: Namespace, depth: usize) {
        if self.0.len() < BINDINGS {
            self.0.push(Binding { prefix: prefix.into(), namespace, depth });
        }
    }

    /// Forgets what the element at `depth` declared.
    #[inline]
    pub fn leave(&mut self, depth: usize) {
        while self.0.last().is_some_and(|binding| binding.depth >= depth) {
            self.0.pop();
        }
    }

    /// Whether no prefix stands for Sitemaps and `rs` for ResourceSync, as in nearly every document.
    pub fn are_usual(&self) -> bool {
        self.resolve("") == Namespace::Sitemap && self.resolve("rs") == Namespace::ResourceSync
    }

    /// What an element's `prefix` stands for.
    #[inline]
    pub fn resolve(&self, prefix: &str) -> Namespace {
        // Nearly every prefix is empty, and comparing nothing with nothing by memcmp can cost hundreds of cycles.
        let same = |binding: &&Binding| {
            binding.prefix.len() == prefix.len() && (prefix.is_empty() || &*binding.prefix == prefix)
        };
        let binding = self.0.iter().rev().find(same);
        binding.map_or(Namespace::Undeclared, |binding| binding.namespace)
    }
}

/// Local name and prefix, which is empty where there is none.
#[inline]
fn split<'a>(element: &'a BytesStart<'_>) -> (&'a str, &'a str) {
    let (name, prefix) = element.name().decompose();
    (name.into_inner(), prefix.map_or("", |prefix| prefix.into_inner()))
}
