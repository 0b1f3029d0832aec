//! What the links of a resource mean for its bytes (section 14 of the standard): from which other places they can be fetched, and
//! which representation is shown.

use super::{Filesystem, FsOptions};
use crate::catalog::{CatalogError, Journaled, Kind, Node, Resource, Snapshot};
use crate::content::{FetchSpec, Patch};
use crate::document::{Change, Link, Uri, believed_length};
use crate::platform::ino::Ino;

/// A mirror (14.2).
const DUPLICATE: &str = "duplicate";

/// Another representation (14.3).
const ALTERNATE: &str = "alternate";

/// A description of what changed (14.4).
pub(super) const PATCH: &str = "http://www.openarchives.org/rs/terms/patch";

/// Short form of [`PATCH`] that some Sources write.
pub(super) const PATCH_IN_SHORT: &str = "patch";

/// The version of the time of last modification under its own URI (14.6).
const MEMENTO: &str = "memento";

/// Versions by time (14.6).
const TIMEGATE: &str = "timegate";

/// Fetch spec of the version behind `ino`; `None` where there is no such file.
pub fn fetch_spec(snapshot: &Snapshot<'_>, ino: Ino, options: &FsOptions) -> Result<Option<FetchSpec>, CatalogError> {
    let Some(resource) = snapshot.resource(ino)? else { return Ok(None) };
    let is_alternate = alternate(&resource, options).is_some();
    let mut resource = represented(resource, options);
    if is_alternate {
        // These belong to the generic resource.
        (resource.links, resource.member) = (Vec::new(), None);
    }
    let mut spec = linked(&resource, ino);
    spec.listed_at = snapshot.at()?;
    spec.as_of = options.as_of;
    spec.is_replaced = !has_name(snapshot, ino)?;
    Ok(Some(spec))
}

fn has_name(snapshot: &Snapshot<'_>, ino: Ino) -> Result<bool, CatalogError> {
    Ok(snapshot.inode(ino)?.is_some_and(|inode| inode.name.is_some()))
}

/// The last change that a Change List announced of the resource behind `ino`, as long as no list speaks for a later time.
pub(super) fn last_change(
    snapshot: &Snapshot<'_>,
    ino: Ino,
    resource: &Resource,
) -> Result<Option<Journaled>, CatalogError> {
    // What is published of a resource now is not of the version that another has replaced.
    if !has_name(snapshot, ino)? {
        return Ok(None);
    }
    let mut last: Option<Journaled> = None;
    for set in &resource.sets {
        let change = snapshot.journaled(*set, &resource.uri)?.filter(|it| it.change != Change::Deleted);
        last = change.filter(|change| last.is_none_or(|last| last.time < change.time)).or(last);
    }
    Ok(last)
}

impl Filesystem {
    /// The node as it is shown: of a resource that is shown by an alternate the size is that one's.
    pub(super) fn viewed(&self, snapshot: &Snapshot<'_>, node: Node) -> Result<Node, CatalogError> {
        if node.kind == Kind::Folder || self.options.alternate.is_none() {
            return Ok(node);
        }
        let resource = snapshot.resource(node.ino)?;
        let shown = resource.as_ref().and_then(|resource| alternate(resource, &self.options));
        let Some(link) = shown else { return Ok(node) };
        // As in the catalog: the length of coded bytes is not the size.
        let published = believed_length(link.length, &link.hashes).filter(|_| link.encoding.is_none());
        // The catalog distinguishes versions by the entry alone. Where the alternate has changed and the entry has not, the
        // inode keeps the size that was read until it gets a successor.
        Ok(Node { size: self.content.known_size(node.ino).or(published), ..node })
    }
}

/// The representation that is shown in place of `resource` itself: its alternate of the chosen type, the first by `pri`. `None`
/// where it has none, or is of that type already.
fn alternate<'r>(resource: &'r Resource, options: &FsOptions) -> Option<&'r Link> {
    let wanted = options.alternate.as_deref()?;
    let is_wanted = |media_type: Option<&str>| media_type.is_some_and(|it| essence(it).eq_ignore_ascii_case(wanted));
    if is_wanted(resource.media_type.as_deref()) {
        return None;
    }
    let alternates = resource.links.iter().filter(|link| &*link.rel == ALTERNATE && link.uri().is_some());
    alternates.filter(|link| is_wanted(link.media_type.as_deref())).min_by_key(|link| link.pri)
}

/// `resource` as it is shown: with the bytes of its alternate where that is shown.
pub(super) fn represented(resource: Resource, options: &FsOptions) -> Resource {
    let Some(link) = alternate(&resource, options).cloned() else { return resource };
    Resource {
        uri: link.uri().cloned().unwrap_or(resource.uri),
        lastmod: link.modified.or(resource.lastmod),
        length: link.length,
        hashes: link.hashes,
        media_type: link.media_type,
        encoding: link.encoding,
        ..resource
    }
}

/// A media type without its parameters.
fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Fetch spec of a resource, by its entry and its links.
fn linked(resource: &Resource, ino: Ino) -> FetchSpec {
    let of = |relation: &'static str| resource.links.iter().filter(move |link| &*link.rel == relation);
    let first = |relation| of(relation).find_map(Link::uri).cloned();
    let mut duplicates: Vec<_> = of(DUPLICATE).collect();
    // Of equal priority they stay in the order of the document.
    duplicates.sort_by_key(|link| link.pri);
    FetchSpec {
        length: believed_length(resource.length, &resource.hashes),
        hashes: resource.hashes.clone(),
        media_type: resource.media_type.clone(),
        encoding: resource.encoding.clone(),
        mirrors: duplicates.into_iter().filter_map(Link::uri).cloned().collect(),
        mementos: mementos(resource),
        timegate: first(TIMEGATE),
        patches: patches(resource),
        member: resource.member.clone(),
        lastmod: resource.lastmod,
        ..FetchSpec::new(ino, resource.address().clone())
    }
}

/// The mementos that may be this very version. Those of its time come first, those of another time last: the standard's own
/// example has one of these.
fn mementos(resource: &Resource) -> Vec<Uri> {
    let contradicts = |link: &Link| {
        link.hashes
            .iter()
            .any(|theirs| resource.hashes.iter().any(|ours| ours.algorithm() == theirs.algorithm() && ours != theirs))
    };
    let mut links: Vec<_> = resource.links.iter().filter(|link| &*link.rel == MEMENTO && !contradicts(link)).collect();
    links.sort_by_key(|link| (link.modified.is_some() && link.modified != resource.lastmod, link.pri));
    links.into_iter().filter_map(Link::uri).cloned().collect()
}

fn patches(resource: &Resource) -> Vec<Patch> {
    let links = resource.links.iter().filter(|link| [PATCH, PATCH_IN_SHORT].contains(&&*link.rel));
    let patch = |link: &Link| {
        Some(Patch {
            uri: link.uri()?.clone(),
            media_type: link.media_type.clone(),
            length: link.length,
            hashes: link.hashes.clone(),
        })
    };
    links.filter_map(patch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Digest, Href, LOWEST_PRIORITY, Timestamp};

    fn link(rel: &str, href: &str) -> Link {
        Link::new(rel, Href::parse(href).unwrap())
    }

    fn resource(links: Vec<Link>) -> Resource {
        Resource {
            uri: Uri::parse("http://example.com/res1").unwrap(),
            lastmod: Timestamp::parse("2013-01-03T18:00:00Z"),
            changefreq: None,
            length: Some(8876),
            hashes: vec![digest(1)],
            media_type: Some("text/html".into()),
            encoding: None,
            links,
            sets: Vec::new(),
            member: None,
        }
    }

    fn digest(byte: u8) -> Digest {
        Digest::new(Algorithm::Md5, &[byte; 16]).unwrap()
    }

    fn options(alternate: &str) -> FsOptions {
        FsOptions { alternate: Some(alternate.into()), ..FsOptions::default() }
    }

    fn texts(uris: &[Uri]) -> Vec<&str> {
        uris.iter().map(Uri::as_str).collect()
    }

    #[test]
    fn mirrors_are_duplicates_by_priority_then_document_order() {
        let of = |rel: &str, href: &str, pri| Link { pri, ..link(rel, href) };
        let spec = linked(
            &resource(vec![
                of("duplicate", "https://c.example/a", LOWEST_PRIORITY),
                of("alternate", "https://b.example/a.html", 1),
                of("duplicate", "https://d.example/a", 2),
                of("duplicate", "gsiftp://e.example/a", 1),
                of("duplicate", "https://b.example/a", 2),
            ]),
            Ino(2),
        );

        assert_eq!(texts(&spec.mirrors), ["https://d.example/a", "https://b.example/a", "https://c.example/a"]);
    }

    /// Example 29.
    #[test]
    fn links_to_versions_are_distinguished() {
        let memento = |href: &str, modified: &str, byte| Link {
            modified: Timestamp::parse(modified),
            hashes: vec![digest(byte)],
            ..link("memento", href)
        };
        let spec = linked(
            &resource(vec![
                memento("http://example.com/20130103070000/res1", "2013-01-02T18:00:00Z", 1),
                memento("http://example.com/20130103180000/res1", "2013-01-03T18:00:00Z", 1),
                memento("http://example.com/20120101000000/res1", "2012-01-01T00:00:00Z", 2),
                link("timegate", "http://example.com/timegate/http://example.com/res1"),
            ]),
            Ino(2),
        );

        let mementos = ["http://example.com/20130103180000/res1", "http://example.com/20130103070000/res1"];
        assert_eq!(texts(&spec.mementos), mementos);
        assert_eq!(spec.timegate.unwrap().as_str(), "http://example.com/timegate/http://example.com/res1");
    }

    /// Example 27.
    #[test]
    fn patches_keep_their_type_and_length() {
        let patch = Link {
            media_type: Some("application/json-patch".into()),
            length: Some(73),
            ..link(PATCH, "http://example.com/res4-json-patch")
        };
        let spec = linked(&resource(vec![patch, link("patch", "urn:x:y")]), Ino(2));

        let [patch] = &spec.patches[..] else { panic!("{:?}", spec.patches) };
        assert_eq!((patch.media_type.as_deref(), patch.length), (Some("application/json-patch"), Some(73)));
    }

    /// Example 25.
    #[test]
    fn the_alternate_of_the_chosen_type_is_shown() {
        let alternate_of = |media_type: &str, href: &str| Link {
            media_type: Some(media_type.into()),
            length: Some(5),
            ..link("alternate", href)
        };
        let generic = Resource {
            media_type: None,
            ..resource(vec![
                alternate_of("text/html", "http://example.com/res1.html"),
                alternate_of("Application/PDF; version=1.7", "http://example.com/res1.pdf"),
            ])
        };

        let shown = represented(generic.clone(), &options("application/pdf"));
        assert_eq!((shown.uri.as_str(), shown.length), ("http://example.com/res1.pdf", Some(5)));
        assert_eq!((shown.hashes, shown.lastmod), (Vec::new(), generic.lastmod));
        assert_eq!(alternate(&generic, &options("image/png")), None);
        let html = Resource { media_type: Some("text/html".into()), ..generic };
        assert_eq!(alternate(&html, &options("text/html")), None, "it is of that type itself");
    }
}
