//! From a document to the sets it names: down from Source Descriptions, up from lists.

use super::{DocumentKind, FoundDocument, Offered, PAGE, Page, PlaceAnswer, Places, robots};
use crate::document::{Capability, Deviations, Entry, Limits, Link, Root, Rule, Uri, WebLink};
use crate::platform::error_chain::chain;
use crate::source::{
    Channel, DocumentDeviations, DocumentLocation, Missing, Set, Source, SourceError, another_set,
    crawl::{ANOTHER_LIST, CONCURRENCY},
    document_kind::{channel, known},
    http::Client,
};
use futures_util::{StreamExt, stream};
use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
};

/// Indexes, Source Descriptions and pages of these below one another.
const DEPTH: usize = 8;

/// Capability Lists and the like that are read, and documents that one of them names.
pub(super) const DOCUMENTS: usize = 50_000;

/// Documents of one Capability List whose capability is checked.
pub(super) const CHECKED: usize = 100;

/// Bytes of the addresses that all Source Descriptions and Capability Lists name together: they stay in memory.
const NAMED: usize = 32 << 20;

/// Links of one page that are followed.
pub(super) const LINKS: usize = 1_000;

/// Items of an API catalog that are asked: nearly all of them are no documents.
const CATALOG_ITEMS: usize = 16;

/// `Sitemap:` lines of one robots.txt that are followed.
pub(super) const SITEMAP_LINES: usize = 10_000;

/// Channels of one set: each costs a subscription.
const CHANNELS: usize = 100;

/// State of a discovery.
pub(super) struct Finder {
    pub places: Places,
    /// The Source, as far as it is known.
    pub source: Source,
    /// Every place that led nowhere, with its outcome.
    pub tried: Vec<String>,
    /// Bytes that count against [`NAMED`].
    named: usize,
    /// The only set that is wanted, if one was named.
    wanted: Option<Uri>,
    /// Places that [`Finder::of_first`] has asked.
    asked: HashSet<Uri>,
    /// Targets of `up` links with their addresses: lists of one set share them.
    above: HashMap<Uri, (Uri, Vec<Set>)>,
}

/// A way down from one document.
#[derive(Default)]
struct Descent {
    /// Documents above the one that is read.
    depth: usize,
    /// Documents met: one that is met again is not read again, so cycles end.
    met: HashSet<Uri>,
}

impl Finder {
    pub fn new(client: Client, limits: Limits, wanted: Option<Uri>) -> Finder {
        Finder {
            places: Places::new(client, limits),
            source: Source::default(),
            tried: Vec::new(),
            named: 0,
            wanted,
            asked: HashSet::new(),
            above: HashMap::new(),
        }
    }

    /// Makes the address that answered for `pasted` the entry point. Its host becomes the own one, with what that means for credentials,
    /// only where it is the same host, `www.` or not, and never from https down to http.
    pub fn enter(&mut self, pasted: &Uri, answered_by: &Uri) {
        self.source.entry = Some(answered_by.clone());
        self.source.own_authority = Some(answered_by.authority().into());
        let bare = |uri: &Uri| uri.host().strip_prefix("www.").unwrap_or(uri.host()).to_owned();
        let downgraded = pasted.scheme() == "https" && answered_by.scheme() == "http";
        if pasted.authority() != answered_by.authority() && bare(pasted) == bare(answered_by) && !downgraded {
            let moved_to = format!("{}://{}", answered_by.scheme(), answered_by.authority());
            self.places.client = self.places.client.with_own_authority(&moved_to);
            self.source.moved_to = Some(moved_to.into());
        }
    }

    /// The sets that a document names when it is pasted.
    pub async fn scope(&mut self, document: FoundDocument) -> Result<Vec<Set>, SourceError> {
        match document.kind() {
            DocumentKind::Offers => self.offered(document, &mut Descent::default()).await,
            DocumentKind::Lists(_) if self.is_index_of_offers(&document).await? => {
                self.offered(document, &mut Descent::default()).await
            }
            DocumentKind::Lists(capability) => Ok(vec![self.of_list(&document, capability).await?]),
        }
    }

    /// Returns whether a document that does not say what it lists leads to sets: its first entry that is a document decides. In the place
    /// of a Source Description a page decides too: that list is one of pages.
    async fn is_index_of_offers(&self, document: &FoundDocument) -> Result<bool, SourceError> {
        let is_description = document.is_silent_description();
        if !is_description && !document.head.is_silent_index() {
            return Ok(false);
        }
        for entry in &document.head.first {
            // Which tree is shown must not rest on how busy a host is.
            let answer = self.places.ask(&entry.loc).await;
            match answer.map_err(|error| error.named_by(&document.location, ANOTHER_LIST))? {
                PlaceAnswer::Document(child) if is_description => return Ok(!child.head.header.root.is_feed_or_text()),
                PlaceAnswer::Document(child) => return Ok(child.kind() == DocumentKind::Offers),
                PlaceAnswer::Page(_) if is_description => return Ok(false),
                PlaceAnswer::Page(_) | PlaceAnswer::Nothing(_) => {}
            }
        }
        Ok(false)
    }

    /// The sets of the document at `place`, which gave this answer; none where it says for good that there is none.
    async fn of_place(&mut self, place: &Uri, answer: PlaceAnswer) -> Result<Vec<Set>, SourceError> {
        let sets = match answer.document(place) {
            Ok(document) => self.scope(document).await?,
            Err(why) => {
                self.tried.push(why);
                return Ok(Vec::new());
            }
        };
        if sets.is_empty() {
            self.tried.push(format!("{place} (has no sets)"));
        }
        Ok(sets)
    }

    /// The sets of the first of `places` that leads to one. A place that was asked before led nowhere and is not asked again.
    pub async fn of_first(&mut self, places: impl IntoIterator<Item = Uri>) -> Result<Vec<Set>, SourceError> {
        for place in places {
            if self.asked.insert(place.clone()) {
                let answer = self.places.look_at(&place).await?;
                let sets = self.of_place(&place, answer).await?;
                if !sets.is_empty() {
                    return Ok(sets);
                }
            }
        }
        Ok(Vec::new())
    }

    /// The sets that the links of a page lead to, each once.
    pub async fn of_links(&mut self, links: Vec<Uri>) -> Result<Vec<Set>, SourceError> {
        let mut sets = Vec::new();
        for link in each_once(links)? {
            let answer = self.places.ask(&link).await?;
            sets.extend(self.of_place(&link, answer).await?);
        }
        Ok(distinct(sets))
    }

    /// The sets of the sitemaps to which `page` links. Links that all lead nowhere are no way, and so no missing parts.
    pub async fn of_sitemap_links(&mut self, page: &Uri, mut links: Vec<Uri>) -> Result<Vec<Set>, SourceError> {
        links.retain(|link| !is_html_sitemap(link));
        let missing = self.source.missing.len();
        let sets = self.of_sitemaps(page, each_once(links)?, Deviations::default()).await?;
        if sets.is_empty() {
            self.source.missing.truncate(missing);
        }
        Ok(sets)
    }

    /// The sets to which the API catalog at `catalog` links, in any context.
    pub async fn of_catalog(&mut self, catalog: &Uri) -> Result<Vec<Set>, SourceError> {
        let links = match self.places.look_at(catalog).await? {
            PlaceAnswer::Page(page) => page.link_set().map_err(|why| format!("{catalog} ({why})")),
            answer => answer.document(catalog).and(Err(format!("{catalog} (a document, not an API catalog)"))),
        };
        let links = match links {
            Ok(links) => links,
            Err(why) => {
                self.tried.push(why);
                return Ok(Vec::new());
            }
        };
        let targets = |is_wanted: fn(&&WebLink) -> bool| -> Vec<Uri> {
            links.iter().filter(is_wanted).filter_map(|link| link.href.uri().cloned()).collect()
        };
        let mut sets = self.of_links(targets(|link| &*link.rel == "resourcesync")).await?;
        if sets.is_empty() {
            sets = self.of_sitemap_links(catalog, targets(|link| &*link.rel == "sitemap")).await?;
        }
        if sets.is_empty() {
            let mut items = targets(|link| {
                let media_type = link.media_type.as_deref().unwrap_or_default();
                &*link.rel == "item" && ["application/xml", "text/xml"].contains(&media_type)
            });
            items.truncate(CATALOG_ITEMS);
            sets = self.of_links(items).await?;
        }
        if sets.is_empty() {
            self.tried.push(format!("{catalog} (no link to a sitemap or a Source)"));
        }
        Ok(sets)
    }

    /// The sets that the robots.txt at `robots` names.
    pub async fn of_robots(&mut self, robots: &Uri) -> Result<Vec<Set>, SourceError> {
        match self.places.look_at(robots).await? {
            PlaceAnswer::Page(page) if page.may_be_robots() => {
                let sets = self.of_sitemap_lines(robots, &page).await?;
                if sets.is_empty() {
                    self.tried.push(format!("{robots} (no usable Sitemap line)"));
                }
                Ok(sets)
            }
            answer => {
                let why = answer.document(robots).err();
                self.tried.push(why.unwrap_or_else(|| format!("{robots} (a document, not a robots.txt)")));
                Ok(Vec::new())
            }
        }
    }

    /// The sets of the `Sitemap:` lines.
    pub async fn of_sitemap_lines(&mut self, robots: &Uri, page: &Page) -> Result<Vec<Set>, SourceError> {
        let (text, location) = (page.text(), DocumentLocation::Uri(robots.clone()));
        self.places.client.slow_down(robots, robots::crawl_delay(&text).unwrap_or_default());
        let lines = robots::sitemaps(&text);
        if !page.is_whole() && !lines.is_empty() {
            // A part of its lines would be a smaller tree. Without any it is as for a crawler, which reads no more of it (RFC 9309, 2.5).
            return Err(SourceError::Structure { location, what: format!("a robots.txt of more than {PAGE} bytes") });
        }
        if lines.len() > SITEMAP_LINES {
            return Err(SourceError::Structure { location, what: format!("more than {SITEMAP_LINES} Sitemap lines") });
        }
        let mut deviations = Deviations::default();
        let (places, bad): (Vec<_>, Vec<_>) =
            lines.into_iter().map(|line| Uri::resolve(Some(robots), line).map_err(|_| line)).partition(Result::is_ok);
        bad.iter().filter_map(|line| line.as_ref().err()).for_each(|line| deviations.add(Rule::SitemapLine, line));
        if !bad.is_empty() {
            let why = format!("{} Sitemap lines cannot be understood", bad.len());
            self.source.missing.push(Missing { location: location.clone(), entries: bad.len() as u64, why });
        }
        let places = places.into_iter().flatten().collect();
        self.of_sitemaps(robots, places, deviations).await
    }

    /// The sets of sitemaps that the document at `named_by` names: one for each Resource List, or one of all plain sitemaps where
    /// there is none.
    async fn of_sitemaps(
        &mut self,
        named_by: &Uri,
        mut places: Vec<Uri>,
        mut deviations: Deviations,
    ) -> Result<Vec<Set>, SourceError> {
        let location = DocumentLocation::Uri(named_by.clone());
        if let Some(wanted) = self.wanted.clone().filter(|wanted| places.contains(wanted)) {
            places = vec![wanted];
        }
        let (mut sets, mut plain) = (Vec::new(), Vec::new());
        let instead = if places.len() > 1 { ANOTHER_LIST } else { "" };
        let mut answers = self.answers(places);
        while let Some((place, answer)) = answers.next().await {
            let answer = answer.map_err(|error| error.named_by(&location, instead))?;
            if matches!(&answer, PlaceAnswer::Page(page) if page.is_html() && is_html_sitemap(&place)) {
                tracing::warn!(%named_by, %place, "a sitemap is a web page, which lists nothing for this program");
                self.tried.push(format!("{place} (a web page)"));
                deviations.add(Rule::SitemapIsPage, place.as_str());
                continue;
            }
            match answer.document(&place) {
                Ok(document) => match document.kind() {
                    DocumentKind::Lists(capability) if !document.head.speaks_resourcesync() => {
                        plain.push((capability, document.location));
                    }
                    _ => sets.extend(self.scope(document).await?),
                },
                Err(why) => self.miss(place, why),
            }
        }
        if sets.is_empty() && !plain.is_empty() {
            sets.push(Set { capability_list: None, described_by: None, documents: plain, channels: Vec::new() });
        } else {
            for (_, sitemap) in &plain {
                tracing::warn!(%named_by, %sitemap, "a plain sitemap is ignored, because there are Resource Lists");
                deviations.add(Rule::PlainSitemapLeftOut, &sitemap.to_string());
            }
        }
        self.note(&location, deviations);
        Ok(distinct(sets))
    }

    /// The sets that a Source Description, an index of them, or a Capability List names.
    fn offered<'a>(
        &'a mut self,
        document: FoundDocument,
        descent: &'a mut Descent,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Set>, SourceError>> + Send + 'a>> {
        Box::pin(async move {
            let too_much = |what: String| SourceError::Structure { location: document.location.clone(), what };
            if descent.depth > DEPTH {
                return Err(too_much(format!("is below more than {DEPTH} Source Descriptions or pages of them")));
            }
            let own = document.location.uri().cloned();
            descent.met.extend(own.clone());
            let Offered { entries, skipped, deviations } = document.read(self.places.limits, DOCUMENTS)?;
            self.named += entries.iter().map(|entry| entry.loc.as_str().len()).sum::<usize>();
            if self.named > NAMED {
                let what = format!("with those that were read before it names more than {NAMED} bytes of addresses");
                return Err(too_much(what));
            }
            if skipped > 0 {
                let why = format!("{skipped} entries cannot be understood");
                self.source.missing.push(Missing { location: document.location.clone(), entries: skipped, why });
            }
            self.note(&document.location, deviations);
            let header = &document.head.header;
            let describes_sets = document.is_silent_description()
                || header.root == Root::SitemapIndex
                || document.head.capability() == Some(&Capability::Description);
            if describes_sets {
                self.source.description = self.source.description.take().or(own.clone());
            } else if descent.depth == 0 {
                self.source.description = self.source.description.take().or_else(|| header.link("up").cloned());
            }
            let mut offer = Offer::new(self.chosen(entries), describes_sets);
            // The next page of a Source Description is not a set.
            let next = header.link("next").filter(|_| describes_sets).cloned();
            offer.below.extend(next);
            offer.below.retain(|uri| descent.met.insert(uri.clone()));
            if descent.met.len() > DOCUMENTS {
                return Err(too_much(format!("names more than {DOCUMENTS} documents")));
            }
            let below = self.descend(&document, &mut offer, descent).await?;
            let is_capability_list = header.capability == Some(Capability::CapabilityList);
            let mut sets = Vec::new();
            if !offer.documents.is_empty() || !offer.channels.is_empty() || is_capability_list && below.is_empty() {
                let described_by = header.link("describedby").cloned();
                let (documents, channels) = (offer.documents, offer.channels);
                sets.push(Set { capability_list: own, described_by, documents, channels });
            }
            for mut set in below {
                let description = set.capability_list.as_ref().and_then(|list| offer.descriptions.get(list));
                set.described_by = set.described_by.or_else(|| description.cloned());
                sets.push(set);
            }
            Ok(distinct(sets))
        })
    }

    /// Reads what the `offer` of a document leads to: the sets below it, and the documents whose capability is unclear.
    async fn descend(
        &mut self,
        document: &FoundDocument,
        offer: &mut Offer,
        descent: &mut Descent,
    ) -> Result<Vec<Set>, SourceError> {
        let mut below = Vec::new();
        let mut answers = self.answers(std::mem::take(&mut offer.below));
        while let Some((place, answer)) = answers.next().await {
            let named = |error: SourceError| {
                let others: Vec<&str> = offer.sets.iter().filter(|set| **set != place).map(Uri::as_str).collect();
                let instead = if others.is_empty() { String::new() } else { another_set(&others) };
                error.named_by(&document.location, &instead)
            };
            let answer = answer.map_err(named)?;
            let listed = offer.documents.iter_mut().find(|(_, location)| location.uri() == Some(&place));
            let child = match answer.document(&place) {
                Ok(child) => child,
                Err(why) => {
                    // An entry of unclear capability that leads nowhere stays as it was published.
                    if listed.is_none() {
                        self.miss(place, why);
                    }
                    continue;
                }
            };
            let is_feed = child.head.header.root.is_feed_or_text() && !document.is_silent_description();
            match (child.kind(), listed) {
                // What its entry calls it counts, unless the document itself says otherwise.
                (kind, Some((hint, _))) if known(hint).is_some() => {
                    let own = child.head.capability().filter(|_| kind != DocumentKind::Offers);
                    *hint = own.unwrap_or(hint).clone();
                }
                (DocumentKind::Offers, _) => {
                    offer.documents.retain(|(_, location)| location.uri() != Some(&place));
                    descent.depth += 1;
                    below.extend(self.offered(child, descent).await?);
                    descent.depth -= 1;
                }
                (DocumentKind::Lists(_), None) if is_feed => {
                    self.miss(place.clone(), format!("{place} (a feed or a text, which is not offered as a list)"));
                }
                (DocumentKind::Lists(_), Some(_)) if is_feed => {}
                (DocumentKind::Lists(capability), Some((hint, _))) => *hint = capability,
                (DocumentKind::Lists(capability), None) => offer.documents.push((capability, child.location)),
            }
        }
        Ok(below)
    }

    /// The set of a list that was pasted or that robots.txt names: its Capability List's, found by `up`, or itself alone.
    async fn of_list(&mut self, list: &FoundDocument, capability: Capability) -> Result<Set, SourceError> {
        let header = &list.head.header;
        let up = header.link("up");
        let (above, sets) = match up {
            Some(up) => {
                let (place, sets) = self.above(up).await.map_err(|error| error.named_by(&list.location, ""))?;
                (Some(place), sets)
            }
            None => (None, Vec::new()),
        };
        // Any of these in a Capability List shows that the list belongs to it.
        let further = [list.base.as_ref(), header.link("index"), up].into_iter().flatten().cloned();
        let mut names = vec![list.location.clone()];
        names.extend(further.map(DocumentLocation::Uri));
        if let Some(set) = sets.iter().find(|set| set.documents.iter().any(|(_, listed)| names.contains(listed))) {
            return Ok(set.clone());
        }
        let alone = (capability.clone(), list.location.clone());
        // A Capability List without this list still names the changes.
        if let Some(mut set) = sets.into_iter().find(|set| set.capability_list == above) {
            if capability == Capability::ResourceList {
                set.documents.retain(|(other, _)| *other != Capability::ResourceList);
            }
            set.documents.insert(0, alone);
            return Ok(set);
        }
        let described_by = header.link("describedby").cloned();
        Ok(Set { capability_list: None, described_by, documents: vec![alone], channels: Vec::new() })
    }

    /// The sets that an `up` link leads to, by way of an index where it leads to one, and where they are. There are none where it leads nowhere for good.
    async fn above(&mut self, up: &Uri) -> Result<(Uri, Vec<Set>), SourceError> {
        if let Some(above) = self.above.get(up) {
            return Ok(above.clone());
        }
        let (mut place, mut answer) = (up.clone(), self.places.ask(up).await?.document(up));
        let of_index = answer.as_ref().ok().filter(|document| document.kind() != DocumentKind::Offers);
        if let Some(further) = of_index.and_then(|index| index.head.header.link("up")).cloned() {
            answer = self.places.ask(&further).await?.document(&further);
            place = further;
        }
        let sets = match answer {
            Ok(document) if document.kind() == DocumentKind::Offers => {
                // The set is picked by what it lists: none may be left out on the way down.
                let wanted = self.wanted.take();
                let sets = self.offered(document, &mut Descent::default()).await;
                self.wanted = wanted;
                match sets {
                    Err(error @ (SourceError::Http { .. } | SourceError::Part { .. })) => return Err(error),
                    sets => sets.map_err(|error| chain(&error)),
                }
            }
            Ok(_) => Err(format!("{place} (a list, not a Capability List)")),
            Err(why) => Err(why),
        };
        let sets = sets.unwrap_or_else(|why| {
            tracing::warn!(%why, "an up link does not lead to a Capability List");
            self.tried.push(why);
            Vec::new()
        });
        let above = (place, sets);
        self.above.insert(up.clone(), above.clone());
        Ok(above)
    }

    /// The entries that lead to the wanted set, where they name it; else all.
    fn chosen(&self, mut entries: Vec<Entry>) -> Vec<Entry> {
        let Some(wanted) = &self.wanted else { return entries };
        let leads = |entry: &Entry| {
            entry.capability == Some(Capability::CapabilityList)
                && (entry.loc == *wanted
                    || entry.links.iter().any(|l| &*l.rel == "describedby" && l.uri() == Some(wanted)))
        };
        if entries.iter().any(leads) {
            entries.retain(leads);
        }
        entries
    }

    /// Asks `places`, several at a time; answers come in the order of the places.
    fn answers(&self, places: Vec<Uri>) -> stream::BoxStream<'static, (Uri, Result<PlaceAnswer, SourceError>)> {
        let asking = self.places.clone();
        let asked = stream::iter(places).map(move |place| {
            let asking = asking.clone();
            async move {
                let answer = asking.ask(&place).await;
                (place, answer)
            }
        });
        Box::pin(asked.buffered(CONCURRENCY))
    }

    fn miss(&mut self, place: Uri, why: String) {
        tracing::warn!(%place, %why, "an offered document is missing");
        self.tried.push(why.clone());
        self.source.missing.push(Missing { location: DocumentLocation::Uri(place), entries: 0, why });
    }

    fn note(&mut self, location: &DocumentLocation, deviations: Deviations) {
        if !deviations.is_empty() {
            self.source.deviations.push(DocumentDeviations { location: location.clone(), deviations });
        }
    }
}

/// Links of a page, each once.
fn each_once(mut links: Vec<Uri>) -> Result<Vec<Uri>, SourceError> {
    let mut seen = HashSet::new();
    links.retain(|link| seen.insert(link.clone()));
    match links.get(LINKS) {
        Some(link) => {
            let what = format!("the first after {LINKS} links of one page");
            Err(SourceError::Structure { location: DocumentLocation::Uri(link.clone()), what })
        }
        None => Ok(links),
    }
}

/// Sitemaps for people, by their names: `sitemap_index.html`, `htmlmap`. Another that answers with a web page may
/// have been a list.
fn is_html_sitemap(place: &Uri) -> bool {
    place.path().rsplit('/').next().is_some_and(|name| name.to_ascii_lowercase().contains("htm"))
}

/// Entries of a Source Description or Capability List, sorted by their meaning.
struct Offer {
    /// Documents of one capability; those whose capability is unclear are in `below` too.
    documents: Vec<(Capability, DocumentLocation)>,
    /// Source Descriptions and Capability Lists.
    sets: Vec<Uri>,
    /// Documents to be read next.
    below: Vec<Uri>,
    /// Channels, which are no documents.
    channels: Vec<Channel>,
    /// Capability List -> what describes its set.
    descriptions: HashMap<Uri, Uri>,
}

impl Offer {
    /// Sorts `entries`. Of a document that describes sets, entries without a capability are taken for Capability Lists.
    fn new(entries: Vec<Entry>, describes_sets: bool) -> Offer {
        let (mut documents, mut sets, mut unclear) = (Vec::new(), Vec::new(), Vec::new());
        let (mut channels, mut descriptions) = (Vec::<Channel>::new(), HashMap::new());
        for entry in entries {
            if let Some(channel) = channel(&entry) {
                if channels.len() < CHANNELS && channels.iter().all(|known| known.topic != channel.topic) {
                    channels.push(channel);
                }
                continue;
            }
            let hint = entry.capability.as_ref().and_then(known);
            let names_sets = matches!(hint, Some(Capability::Description | Capability::CapabilityList));
            if names_sets || hint.is_none() && describes_sets {
                let described_by = entry.links.iter().filter(|link| &*link.rel == "describedby").find_map(Link::uri);
                descriptions.extend(described_by.map(|description| (entry.loc.clone(), description.clone())));
                sets.push(entry.loc);
                continue;
            }
            if hint.is_none() {
                unclear.push(entry.loc.clone());
            }
            documents
                .push((entry.capability.unwrap_or(Capability::Other("".into())), DocumentLocation::Uri(entry.loc)));
        }
        // Where no document is called a Resource List the names may be wrong.
        if documents.iter().all(|(capability, _)| *capability != Capability::ResourceList) {
            let named = documents.iter().filter(|(capability, _)| known(capability).is_some());
            unclear.extend(named.filter_map(|(_, location)| location.uri().cloned()).take(CHECKED));
        }
        let below = sets.iter().cloned().chain(unclear).collect();
        Offer { documents, sets, below, channels, descriptions }
    }
}

/// `sets` with each Capability List, and each list that stands alone, once.
fn distinct(sets: Vec<Set>) -> Vec<Set> {
    let mut seen = HashSet::new();
    let identity = |set: &Set| match &set.capability_list {
        Some(list) => Some(DocumentLocation::Uri(list.clone())),
        None => set.documents.first().map(|(_, location)| location.clone()),
    };
    sets.into_iter().filter(|set| seen.insert(identity(set))).collect()
}
