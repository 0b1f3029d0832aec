//! One landing page read: its links, those of its link set, and what descriptions and hosts say of its items.
//!
//! | what | requests |
//! |---|---|
//! | the page | one GET; its head is read as far as `</head>` |
//! | its link sets, where it names any | one GET for each: a link set holds all links where the page holds few |
//! | descriptions of the data set (Croissant, RO-Crate, Frictionless), by address, profile or type | one GET for each, 3 at most |
//! | other metadata records in JSON, where items lack names | the same |
//! | an item that neither its address nor a description names | one HEAD |

use super::names::{PageItem, describe, identified};
use crate::catalog::{ADDRESS, ReadPage};
use crate::document::dataset::described_files;
use crate::document::web_link::{WebLink, links_of_html, links_of_link_set};
use crate::document::{Entry, Href, Link, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::documents::unpacked;
use crate::source::http::{Client, HttpError, Method, Priority, Request, Response, Status};
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::time::Duration;

/// Bytes of a page that are read for its head.
const MOST_OF_PAGE: usize = 1 << 20;

/// Bytes of a link set or a description.
const MOST_OF_DOCUMENT: usize = 16 << 20;

/// Items of one page. A page with more is reported and shows none.
pub const MOST_ITEMS: usize = 50_000;

/// Items of one page whose hosts are asked for names.
const MOST_ASKED: usize = 1_000;

/// Descriptions of one page.
const MOST_DESCRIPTIONS: usize = 3;

/// Link sets of one page.
const MOST_LINK_SETS: usize = 4;

/// How many hosts are asked for names at once.
const ASKED_AT_ONCE: usize = 4;

/// How long each request may take until its answer begins.
const DUE: Duration = Duration::from_secs(30);

/// Marks of the description of a data set, in its address, profile or type.
const DESCRIPTIONS: [&str; 5] = ["croissant", "ro-crate", "ro/crate", "datapackage", "frictionless"];

/// Relations of a page, and of an item, that are shown with it.
pub const SHOWN: [&str; 4] = ["cite-as", "license", "author", "type"];

/// Why a page, or its link set, cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// A request failed.
    #[error("{address}")]
    Http {
        /// The address of the request.
        address: Uri,
        /// The failure.
        #[source]
        cause: HttpError,
    },
    /// A page that had items links to nothing now: it may be a login page, or one of maintenance.
    #[error("{page} had items and has no typed links now; they stay until it leaves the list")]
    Unlinked {
        /// The page.
        page: Uri,
    },
}

/// A page with all its items.
pub struct PageItems {
    /// The page; its items are those of `entries`.
    pub page: ReadPage,
    /// An entry for each item.
    pub entries: Vec<Entry>,
}

/// The reader of pages.
#[derive(Clone)]
pub struct PageReader<'c> {
    /// Sends the requests.
    pub client: &'c Client,
    /// Decides where they wait in the queues of their hosts.
    pub priority: Priority,
    /// True if a request that fails is repeated at once, as long as it may take.
    pub repeats: bool,
}

impl PageReader<'_> {
    /// Reads the page at `address`, of which its list says `version`; `None` where it is still that of `validator`.
    pub async fn read(
        &self,
        address: &Uri,
        version: Option<u64>,
        validator: Option<Box<str>>,
    ) -> Result<Option<PageItems>, PageError> {
        let mut request = self.request(address);
        request.accept = Some("text/html, application/xhtml+xml;q=0.9, */*;q=0.5".into());
        request.if_none_match = validator;
        let mut response = self.send(request).await?;
        if response.status == Status::NotModified {
            return Ok(None);
        }
        let base = response.final_uri.clone();
        let mut links = std::mem::take(&mut response.links);
        let mut validator = response.etag.clone();
        if response.media_type.as_deref().is_none_or(|media_type| media_type.contains("html")) {
            links.extend(self.head_links(&mut response, &base).await?);
        }
        drop(response);
        let mut is_partial = false;
        let is_of_page =
            |link: &WebLink| link.anchor.as_ref().is_none_or(|anchor| anchor == address || *anchor == base);
        for link_set in link_sets(&links) {
            // That the page is the same says nothing of its link set.
            validator = None;
            match self.link_set(&link_set).await? {
                Ok(more) => links.extend(more),
                Err(why) => is_partial = lacks(address, &why),
            }
        }
        let mut items = Vec::new();
        let (own, others): (Vec<_>, Vec<_>) = links.into_iter().partition(is_of_page);
        for link in own.iter().filter(|link| matches!(&*link.rel, "item" | "describedby")) {
            if let Href::Web(target) = &link.href {
                items.push(PageItem::new(target.clone(), link.media_type.clone(), &*link.rel == "describedby"));
            }
        }
        is_partial |= !self.describe(address, &own, &mut items).await?;
        if items.len() > MOST_ITEMS {
            is_partial = lacks(address, &format!("it has more than {MOST_ITEMS} items, and none of them is shown"));
            items.clear();
        }
        let unnamed = items.iter_mut().filter(|item| item.lacks_name()).take(MOST_ASKED);
        let asked: Vec<_> = unnamed.map(|item| self.ask_name(item, &base).boxed()).collect();
        let asked = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).collect::<Vec<_>>().await;
        asked.into_iter().collect::<Result<(), _>>()?;
        add_own_links(&mut items, &others);
        let entries: Vec<Entry> = identified(address, items).into_iter().map(|(uri, item)| entry(uri, item)).collect();
        let fragment = |entry: &Entry| entry.loc.page().map(|(_, fragment)| fragment.into());
        let shown = own.iter().filter(|link| SHOWN.contains(&&*link.rel));
        let links = shown.map(|link| (link.rel.clone(), link.href.as_str().into())).collect();
        let items = entries.iter().filter_map(fragment).collect();
        let (uri, read) = (address.clone(), Timestamp::now());
        let page = ReadPage { uri, version, is_partial, read, validator, links, items };
        Ok(Some(PageItems { page, entries }))
    }

    fn request(&self, address: &Uri) -> Request {
        Request { priority: self.priority.clone(), repeats: self.repeats, ..Request::get(address.clone(), DUE) }
    }

    async fn send(&self, request: Request) -> Result<Response, PageError> {
        let address = request.uri.clone();
        self.client.send(request).await.map_err(|cause| PageError::Http { address, cause })
    }

    /// The links of the page's head.
    async fn head_links(&self, response: &mut Response, base: &Uri) -> Result<Vec<WebLink>, PageError> {
        let (mut bytes, mut next) = (Vec::new(), 64 << 10);
        loop {
            let is_whole = read_on(response, &mut bytes, next)
                .await
                .map_err(|cause| PageError::Http { address: base.clone(), cause })?;
            let (links, has_ended) = links_of_html(&plain(&bytes, MOST_OF_PAGE), base);
            if has_ended || is_whole || next >= MOST_OF_PAGE {
                return Ok(links);
            }
            next *= 4;
        }
    }

    /// The links of a link set. The inner error is one of the link set itself: it is dead, or makes no sense.
    async fn link_set(&self, link: &WebLink) -> Result<Result<Vec<WebLink>, String>, PageError> {
        let Some(address) = link.href.uri() else { return Ok(Ok(Vec::new())) };
        let is_json = is_json(link);
        let media_type = if is_json { "application/linkset+json" } else { "application/linkset" };
        let document = self.document(address, media_type).await?;
        let read = |(base, bytes): (Uri, Vec<u8>)| {
            links_of_link_set(&bytes, is_json, &base).map_err(|cause| format!("{address}: {}", chain(&cause)))
        };
        Ok(document.and_then(read))
    }

    /// A whole document with its address. The inner error is final: no document is there, or it is too long.
    async fn document(&self, address: &Uri, media_type: &str) -> Result<Result<(Uri, Vec<u8>), String>, PageError> {
        let mut request = self.request(address);
        request.accept = Some(format!("{media_type}, */*;q=0.1").into());
        let mut response = match self.send(request).await {
            Err(PageError::Http { cause, .. }) if !cause.is_retryable() => return Ok(Err(chain(&cause))),
            sent => sent?,
        };
        let mut bytes = Vec::new();
        let is_whole = read_on(&mut response, &mut bytes, MOST_OF_DOCUMENT).await;
        Ok(match is_whole.map_err(|cause| PageError::Http { address: address.clone(), cause })? {
            true => Ok((response.final_uri.clone(), plain(&bytes, MOST_OF_DOCUMENT))),
            false => Err(format!("{address} is longer than {} MiB", MOST_OF_DOCUMENT >> 20)),
        })
    }

    /// Gives the items what a description of the data set says of them; `false` where one makes no sense or is dead.
    async fn describe(&self, page: &Uri, links: &[WebLink], items: &mut Vec<PageItem>) -> Result<bool, PageError> {
        // One that only may be a description is worth its request where it spares others.
        let lacks_names = items.iter().any(PageItem::lacks_name);
        let is_worth_it = |link: &&WebLink| is_description(link) || lacks_names && is_json(link);
        let described = links.iter().filter(|link| &*link.rel == "describedby").filter(is_worth_it);
        let mut addresses: Vec<_> = described.filter_map(|link| Some((link.href.uri()?, &link.media_type))).collect();
        addresses.dedup();
        for (address, media_type) in addresses.into_iter().take(MOST_DESCRIPTIONS) {
            let read = self.document(address, media_type.as_deref().unwrap_or("application/ld+json")).await?;
            let read = read.and_then(|(base, bytes)| described_files(&bytes, &base).map_err(|cause| chain(&cause)));
            match read {
                Ok(Some(files)) => {
                    describe(items, files);
                    return Ok(true);
                }
                Ok(None) => {}
                Err(why) => return Ok(!lacks(page, &format!("{address}: {why}"))),
            }
        }
        Ok(true)
    }

    /// Asks the host of an item for its name and type; a length that it states is not published, and is asked for when it is wanted. An item that is dead keeps the name of its address, and so does one of
    /// another host than the page's that does not answer.
    async fn ask_name(&self, item: &mut PageItem, page: &Uri) -> Result<(), PageError> {
        let request = Request { method: Method::Head, repeats: false, ..self.request(&item.address) };
        match self.send(request).await {
            Ok(response) => {
                item.path = response.filename.as_deref().map(Box::from);
                item.media_type = item.media_type.take().or(response.media_type);
                Ok(())
            }
            Err(PageError::Http { cause, .. }) if !cause.is_retryable() => Ok(()),
            Err(_) if item.address.authority() != page.authority() => Ok(()),
            Err(cause) => Err(cause),
        }
    }
}

/// Tells that items of a page may be missing.
fn lacks(page: &Uri, why: &str) -> bool {
    tracing::warn!("items of {page} may be missing, or lack their names: {why}");
    true
}

/// Reads on until `most` bytes are there; answers whether the body has ended.
async fn read_on(response: &mut Response, bytes: &mut Vec<u8>, most: usize) -> Result<bool, HttpError> {
    while bytes.len() < most {
        match response.body.chunk().await? {
            Some(chunk) => bytes.extend_from_slice(&chunk),
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// The bytes with their compression, if any, undone; of those that are cut off as much as there is.
fn plain(bytes: &[u8], most: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    let _ = unpacked(bytes, most as u64).and_then(|bytes| bytes.take(most as u64).read_to_end(&mut plain));
    plain
}

/// The link sets of a page, each address once: in JSON, where there are several forms of one.
fn link_sets(links: &[WebLink]) -> Vec<WebLink> {
    let mut sets: Vec<_> = links.iter().filter(|link| link.leads_by("linkset").is_some()).cloned().collect();
    sets.sort_by_key(|link| !is_json(link));
    let mut seen = HashSet::new();
    sets.retain(|link| seen.insert(link.href.as_str().to_owned()));
    sets.truncate(MOST_LINK_SETS);
    sets
}

fn is_json(link: &WebLink) -> bool {
    link.media_type.as_deref().is_some_and(|media_type| media_type.contains("json"))
}

fn is_description(link: &WebLink) -> bool {
    let texts = [Some(link.href.as_str()), link.profile.as_deref(), link.media_type.as_deref()];
    texts.into_iter().flatten().any(|text| DESCRIPTIONS.iter().any(|mark| text.to_ascii_lowercase().contains(mark)))
}

/// Adds to items what a link set says of each by its anchor.
fn add_own_links(items: &mut [PageItem], links: &[WebLink]) {
    let mut by_anchor: BTreeMap<&Uri, Vec<&WebLink>> = BTreeMap::new();
    for link in links.iter().filter(|link| SHOWN.contains(&&*link.rel)) {
        link.anchor.iter().for_each(|anchor| by_anchor.entry(anchor).or_default().push(link));
    }
    for item in items {
        let own = by_anchor.get(&item.address).into_iter().flatten();
        item.links.extend(own.map(|link| Link::new(&link.rel, link.href.clone())));
    }
}

/// The entry of an item.
fn entry(uri: Uri, item: PageItem) -> Entry {
    let mut links = vec![Link::new(ADDRESS, item.address)];
    links.extend(item.links);
    Entry { length: item.length, hashes: item.hashes, media_type: item.media_type, links, ..Entry::new(uri) }
}
