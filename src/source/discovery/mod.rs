//! From the address that a person pastes to the sets it names (section 6.3).
//!
//! The address names the scope. A document speaks for itself: a Source Description (or an index of them) names all its
//! sets, a Capability List or a Resource List its own set. A page that links to a Capability List names that set.
//! A site names all its sets. Of several ways the first of these that leads to a set is taken:
//!
//! 1. the well-known URI right below the address; for a site (no path) also that of where it redirects to;
//! 2. the page's `Link` header;
//! 3. the page's HTML `<link>`;
//! 4. the page itself where it is a landing page: it links to files or metadata records (`item`, `describedby`, `linkset`);
//! 5. the well-known URIs of the folders above, the nearest first, at last the host's;
//! 6. the page's links of relation `sitemap`, of its header and its HTML head;
//! 7. the host's API catalog, `/.well-known/api-catalog` (RFC 9727): its links of relation `resourcesync`, then `sitemap`, then
//!    `item` in XML;
//! 8. `Sitemap:` lines of robots.txt: Resource Lists, or where there are none plain sitemaps;
//! 9. `/sitemap.xml`.
//!
//! Each way costs one request, and one for each document that it names. A page whose text names OAI-PMH leads nowhere: that lists no
//! files, and the message says what to ask for.
//!
//! Where a document is expected (`….xml`, `….gz`, the well-known URI itself) nothing else is taken in its place. A page that is
//! not there names nothing but what lies below it.
//!
//! The next way is taken only when the place before answered for good that there is nothing. A way that fails
//! today may work tomorrow, and the same entry point must not name one tree today and another tomorrow.

mod answer;
mod robots;
mod sets;
#[cfg(test)]
mod tests;

use super::{
    DocumentLocation, EntryPoint, Set, Source, SourceError, document_kind::DocumentKind, documents::DocumentCache,
    http::Client,
};
use crate::document::{Limits, Uri};
use crate::platform::error_chain::chain;
use answer::{FoundDocument, Offered, PAGE, Page, PlaceAnswer, Places, open};
use sets::Finder;
use std::sync::Arc;

/// Path of a Source Description below its host (section 6.3.2), and in use below a context path.
const WELL_KNOWN: &str = "/.well-known/resourcesync";

/// Path of a site's API catalog (RFC 9727, 2).
const API_CATALOG: &str = "/.well-known/api-catalog";

/// Folders above a page whose well-known URI is asked, the host's included.
const FOLDERS: usize = 8;

/// Finds the Source behind `entry`; `set` picks one set by its Capability List or `describedby`.
///
/// # Errors
/// [`SourceError::NothingFound`] with every place that was asked, [`SourceError::NoSuchSet`] with the sets there are, and
/// failures that may pass.
pub async fn discover(
    client: &Client,
    entry: &EntryPoint,
    set: Option<&Uri>,
    limits: Limits,
) -> Result<Source, SourceError> {
    discover_with(Finder::new(client.clone(), limits, set.cloned()), entry, set, limits).await
}

/// Discovers a Source whose `lists` were read before: each of them is taken for what it was. The caller asks them afterwards.
///
/// # Errors
/// As [`discover`].
pub async fn discover_again(
    client: &Client,
    entry: &EntryPoint,
    set: Option<&Uri>,
    limits: Limits,
    lists: &Arc<DocumentCache>,
) -> Result<Source, SourceError> {
    let mut finder = Finder::new(client.clone(), limits, set.cloned());
    finder.places.lists = Some(Arc::clone(lists));
    discover_with(finder, entry, set, limits).await
}

async fn discover_with(
    mut finder: Finder,
    entry: &EntryPoint,
    set: Option<&Uri>,
    limits: Limits,
) -> Result<Source, SourceError> {
    let (sets, pasted) = match entry {
        EntryPoint::Uri(uri) => (of_uri(&mut finder, uri).await?, uri.to_string()),
        EntryPoint::File(path) => (finder.scope(open(path, limits)?).await?, path.display().to_string()),
    };
    let mut source = finder.source;
    if sets.is_empty() && source.page.is_none() {
        if finder.tried.is_empty() {
            finder.tried.push(format!("{pasted} (has no sets)"));
        }
        return Err(SourceError::NothingFound { entry: pasted, tried: finder.tried.join("; ") });
    }
    source.sets = picked(sets, set)?;
    if set.is_some() {
        // What was not chosen lacks nothing.
        source.missing.retain(|it| source.sets.iter().any(|set| set.contains(&it.location)));
    }
    Ok(source)
}

/// The sets of the address that answers for `pasted`.
async fn of_uri(finder: &mut Finder, pasted: &Uri) -> Result<Vec<Set>, SourceError> {
    let location = || DocumentLocation::Uri(pasted.clone());
    let expects_document = expects_document(pasted);
    let page = match finder.places.ask(pasted).await? {
        PlaceAnswer::Document(document) => {
            let answered_by = document.base.clone().unwrap_or_else(|| pasted.clone());
            finder.enter(pasted, &answered_by);
            return finder.scope(document).await;
        }
        // A list with a fault is what was meant: no other place is taken instead.
        PlaceAnswer::Page(page) if expects_document || page.is_nearly_list() && pasted.path() != "/" => {
            return Err(SourceError::Document { location: location(), cause: page.cause });
        }
        PlaceAnswer::Nothing(cause) if expects_document || cause.status().is_none() => {
            return Err(SourceError::Http { location: location(), cause });
        }
        PlaceAnswer::Nothing(cause) => {
            finder.tried.push(chain(&cause));
            None
        }
        PlaceAnswer::Page(page) => {
            finder.tried.push(format!("{pasted} ({})", page.description()));
            Some(page)
        }
    };
    let answered_by = page.as_ref().map_or(pasted, |page| &page.base).clone();
    finder.enter(pasted, &answered_by);
    of_site(finder, pasted, &answered_by, page).await
}

/// Returns whether `uri` should be a document, by its name.
fn expects_document(uri: &Uri) -> bool {
    let path = uri.path().to_ascii_lowercase();
    [".xml", ".gz", WELL_KNOWN].iter().any(|ending| path.ends_with(ending))
}

/// The sets that a site or page names, by the first way that leads to one.
async fn of_site(
    finder: &mut Finder,
    pasted: &Uri,
    answered_by: &Uri,
    page: Option<Page>,
) -> Result<Vec<Set>, SourceError> {
    let robots = page.as_ref().filter(|page| answered_by.path().ends_with("/robots.txt") && page.may_be_robots());
    if let Some(page) = robots {
        return finder.of_sitemap_lines(answered_by, page).await;
    }
    let site = pasted.path() == "/" && pasted.query().is_none();
    let (mut nearest, mut above) = (well_known(pasted), well_known(answered_by));
    if site {
        nearest.append(&mut above);
    } else {
        above.extend(nearest.split_off(1.min(nearest.len())));
    }
    let mut sets = finder.of_first(nearest).await?;
    if page.is_none() && !site {
        return Ok(sets);
    }
    let targets = |rel| page.as_ref().map(|page| page.targets(rel)).unwrap_or_default();
    for links in targets("resourcesync") {
        if sets.is_empty() {
            sets = finder.of_links(links).await?;
        }
    }
    if let Some(page) = page.as_ref().filter(|page| sets.is_empty() && !site && page.is_landing_page()) {
        finder.source.page = Some(page.base.clone());
        return Ok(sets);
    }
    if sets.is_empty() {
        sets = finder.of_first(above).await?;
    }
    if sets.is_empty() {
        sets = finder.of_sitemap_links(answered_by, targets("sitemap").concat()).await?;
    }
    if sets.is_empty() {
        if let Ok(catalog) = Uri::resolve(Some(answered_by), API_CATALOG) {
            sets = finder.of_catalog(&catalog).await?;
        }
    }
    if sets.is_empty() {
        if let Ok(robots) = Uri::resolve(Some(answered_by), "/robots.txt") {
            sets = finder.of_robots(&robots).await?;
        }
    }
    if sets.is_empty() {
        sets = finder.of_first(Uri::resolve(Some(answered_by), "/sitemap.xml")).await?;
    }
    Ok(sets)
}

/// The well-known URIs for `uri`: below itself taken for a folder, below the folders above it, below the host.
fn well_known(uri: &Uri) -> Vec<Uri> {
    let mut folder = uri.path().trim_end_matches('/');
    let mut places = Vec::new();
    loop {
        // In full: of a reference that begins with `//` the first segment would be a host.
        places.extend(Uri::parse(&format!("{}://{}{folder}{WELL_KNOWN}", uri.scheme(), uri.authority())));
        match folder.rfind('/') {
            Some(end) => folder = folder[..end].trim_end_matches('/'),
            None => break,
        }
    }
    if places.len() > FOLDERS {
        places.drain(FOLDERS - 1..places.len() - 1);
    }
    places
}

/// Returns whether `uri` is such a place.
fn is_well_known(uri: &Uri) -> bool {
    uri.path().ends_with(WELL_KNOWN)
}

/// The one of `sets` that `wanted` names, or all of them where none is named.
fn picked(sets: Vec<Set>, wanted: Option<&Uri>) -> Result<Vec<Set>, SourceError> {
    let Some(wanted) = wanted else { return Ok(sets) };
    let offered: Vec<String> = sets.iter().map(description).collect();
    let sets: Vec<Set> = sets.into_iter().filter(|set| names(set, wanted)).collect();
    if sets.is_empty() {
        return Err(SourceError::NoSuchSet { wanted: wanted.clone(), offered: offered.join(", ") });
    }
    Ok(sets)
}

/// A set for a person: its Capability List, or its first list, and what describes it.
fn description(set: &Set) -> String {
    let list = set.capability_list.as_ref().map(Uri::to_string);
    let list = list.or_else(|| set.documents.first().map(|(_, location)| location.to_string())).unwrap_or_default();
    match &set.described_by {
        Some(description) => format!("{list} (described by {description})"),
        None => list,
    }
}

/// Returns whether `wanted` names `set`: by its Capability List, its description, or for a list that stands alone by the list.
fn names(set: &Set, wanted: &Uri) -> bool {
    let alone = |(_, location): &(_, DocumentLocation)| location.uri() == Some(wanted);
    set.capability_list.as_ref() == Some(wanted)
        || set.described_by.as_ref() == Some(wanted)
        || set.capability_list.is_none() && set.documents.iter().any(alone)
}
