//! From a document to the sets it names: down from Source Descriptions, up from lists.

use super::{Answer, Document, Kind, Offered, Places, Silence, robots};
use crate::causes::chain;
use crate::document::{Capability, Deviations, Entry, Limits, Link, Root, Rule, Uri};
use crate::source::{
    Channel, DocumentDeviations, DocumentLocation, Missing, Set, SourceError, another_set,
    crawl::{ANOTHER_LIST, CONCURRENCY},
    head::{channel, known},
    http::Client,
};
use futures_util::{StreamExt, stream};
use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
};

/// Indexes, Source Descriptions and pages of these below one another; `up` links after one another.
const DEPTH: usize = 8;

/// Capability Lists and the like that are read, and documents that one of them names.
pub(super) const DOCUMENTS: usize = 50_000;

/// Documents of one Capability List whose capability is checked.
pub(super) const CHECKED: usize = 100;

/// Bytes of the addresses that all Source Descriptions and Capability Lists name together: they stay in memory.
const NAMED: usize = 32 << 20;

/// Links of one page that are followed.
pub(super) const LINKS: usize = 1_000;

/// `Sitemap:` lines of one robots.txt.
const SITEMAP_LINES: usize = 10_000;

/// Channels of one set: each costs a subscription.
const CHANNELS: usize = 100;

/// What discovery has found so far.
pub(super) struct Finder {
    pub places: Places,
    /// See [`Finder::own`].
    pub moved_to: Option<Box<str>>,
    /// Every place that led nowhere, with its outcome.
    pub tried: Vec<String>,
    pub description: Option<Uri>,
    pub missing: Vec<Missing>,
    pub deviations: Vec<DocumentDeviations>,
    /// Bytes that count against [`NAMED`], and documents whose capability was checked.
    named: usize,
    checked: usize,
    /// The only set that is wanted, if one was named.
    wanted: Option<Uri>,
    /// Places that [`Finder::of_first`] has asked.
    asked: HashSet<Uri>,
    /// What `up` links led to: lists of one set share them.
    above: HashMap<Uri, Vec<Set>>,
}

/// Documents already read on the way down: a document that is met again is not read again, so cycles end.
type Seen = HashSet<DocumentLocation>;

impl Finder {
    pub fn new(client: Client, limits: Limits, wanted: Option<Uri>) -> Finder {
        Finder {
            places: Places::new(client, limits),
            moved_to: None,
            tried: Vec::new(),
            description: None,
            missing: Vec::new(),
            deviations: Vec::new(),
            named: 0,
            checked: 0,
            wanted,
            asked: HashSet::new(),
            above: HashMap::new(),
        }
    }

    /// Makes the host that `pasted` redirected to the own one, with what that means for credentials: only where it is
    /// the same host, `www.` or not, and never from https down to http.
    pub fn own(&mut self, pasted: &Uri, answered_by: &Uri) {
        let bare = |uri: &Uri| uri.host().strip_prefix("www.").unwrap_or(uri.host()).to_owned();
        let downgraded = pasted.scheme() == "https" && answered_by.scheme() == "http";
        if pasted.authority() != answered_by.authority() && bare(pasted) == bare(answered_by) && !downgraded {
            let moved_to = format!("{}://{}", answered_by.scheme(), answered_by.authority());
            self.places.client = self.places.client.with_own_authority(&moved_to);
            self.moved_to = Some(moved_to.into());
        }
    }

    /// The sets that a document names when it is pasted.
    pub async fn scope(&mut self, document: Document) -> Result<Vec<Set>, SourceError> {
        match document.kind() {
            Kind::Offers => self.offered(document, 0, &mut Seen::new()).await,
            Kind::Lists(_) if self.is_index_of_offers(&document).await? => {
                self.offered(document, 0, &mut Seen::new()).await
            }
            Kind::Lists(capability) => Ok(vec![self.of_list(&document, capability).await?]),
        }
    }

    /// Whether a document that does not say what it lists leads to sets: its first entry that is a document decides. In the place
    /// of a Source Description a page decides too: that list is one of pages.
    async fn is_index_of_offers(&self, document: &Document) -> Result<bool, SourceError> {
        let is_description = document.is_silent_description();
        if !is_description && !document.head.is_silent_index() {
            return Ok(false);
        }
        for entry in &document.head.first {
            match self.places.ask(&entry.loc).await {
                Ok(Answer::Document(child)) if is_description => return Ok(!child.head.header.root.is_feed_or_text()),
                Ok(Answer::Document(child)) => return Ok(child.kind() == Kind::Offers),
                Ok(Answer::Page(_)) if is_description => return Ok(false),
                Ok(Answer::Page(_)) | Err(Silence::Nothing(_)) => {}
                // Which tree is shown must not rest on how busy a host is.
                Err(Silence::Failed(error)) => return Err(error.named_by(&document.location, ANOTHER_LIST)),
            }
        }
        Ok(false)
    }

    /// The sets of the document at `place`; none where it answers for good that there is none.
    pub async fn of_place(&mut self, place: &Uri) -> Result<Vec<Set>, SourceError> {
        match self.places.ask(place).await {
            Ok(Answer::Document(document)) => {
                let sets = self.scope(document).await?;
                if sets.is_empty() {
                    self.tried.push(format!("{place} (lists no set)"));
                }
                Ok(sets)
            }
            Ok(Answer::Page(page)) => {
                self.tried.push(format!("{place} ({})", page.description()));
                Ok(Vec::new())
            }
            Err(Silence::Nothing(cause)) => {
                self.tried.push(chain(&cause));
                Ok(Vec::new())
            }
            Err(Silence::Failed(error)) => Err(error),
        }
    }

    /// The sets of the first of `places` that leads to one; a place met before led nowhere and is not asked again.
    pub async fn of_first(&mut self, places: Vec<Uri>) -> Result<Vec<Set>, SourceError> {
        for place in places {
            if self.asked.insert(place.clone()) {
                let sets = self.of_place(&place).await?;
                if !sets.is_empty() {
                    return Ok(sets);
                }
            }
        }
        Ok(Vec::new())
    }

    /// The sets that the links of a page lead to, each once.
    pub async fn of_links(&mut self, mut links: Vec<Uri>) -> Result<Vec<Set>, SourceError> {
        let mut seen = HashSet::new();
        links.retain(|link| seen.insert(link.clone()));
        if let Some(link) = links.get(LINKS) {
            let what = format!("the first after {LINKS} links of one page");
            return Err(SourceError::Structure { location: DocumentLocation::Uri(link.clone()), what });
        }
        let mut sets = Vec::new();
        for link in links {
            sets.extend(self.of_place(&link).await?);
        }
        Ok(distinct(sets))
    }

    /// The sets of the `Sitemap:` lines: one for each Resource List, or one of all plain sitemaps where there is none.
    pub async fn of_robots(&mut self, robots: &Uri, text: &str) -> Result<Vec<Set>, SourceError> {
        self.places.client.slow_down(robots, robots::crawl_delay(text).unwrap_or_default());
        let lines = robots::sitemaps(text, SITEMAP_LINES + 1);
        if lines.len() > SITEMAP_LINES {
            let what = format!("more than {SITEMAP_LINES} Sitemap lines");
            return Err(SourceError::Structure { location: DocumentLocation::Uri(robots.clone()), what });
        }
        let mut deviations = Deviations::default();
        let (mut places, mut bad): (Vec<Uri>, u64) = (Vec::new(), 0);
        for line in lines {
            match Uri::resolve(Some(robots), line) {
                Ok(place) => places.push(place),
                Err(_) => {
                    bad += 1;
                    deviations.add(Rule::SitemapLine, 0, line);
                }
            }
        }
        if bad > 0 {
            let why = format!("{bad} Sitemap lines cannot be understood");
            self.missing.push(Missing { location: DocumentLocation::Uri(robots.clone()), entries: bad, why });
        }
        let mut sets = Vec::new();
        let mut plain = Vec::new();
        let instead = if places.len() > 1 { ANOTHER_LIST } else { "" };
        let mut answers = self.answers(places);
        while let Some((place, answer)) = answers.next().await {
            let named = |error: SourceError| error.named_by(&DocumentLocation::Uri(robots.clone()), instead);
            match self.document(&place, answer).map_err(named)? {
                Ok(document) => match document.kind() {
                    Kind::Lists(capability) if !document.head.speaks_resourcesync() => {
                        plain.push((capability, document.location));
                    }
                    _ => sets.extend(self.scope(document).await?),
                },
                Err(why) => self.miss(place, why),
            }
        }
        if !sets.is_empty() {
            for (_, location) in &plain {
                tracing::warn!(%robots, sitemap = %location, "a plain sitemap next to Resource Lists is left out");
                deviations.add(Rule::PlainSitemapLeftOut, 0, &location.to_string());
            }
        }
        if !deviations.is_empty() {
            self.deviations.push(DocumentDeviations { location: DocumentLocation::Uri(robots.clone()), deviations });
        }
        if sets.is_empty() && !plain.is_empty() {
            sets.push(Set { capability_list: None, described_by: None, documents: plain, channels: Vec::new() });
        }
        Ok(distinct(sets))
    }

    /// The sets that a Source Description, an index of them, or a Capability List names.
    fn offered<'a>(
        &'a mut self,
        document: Document,
        depth: usize,
        seen: &'a mut Seen,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Set>, SourceError>> + Send + 'a>> {
        Box::pin(async move {
            let too_much = |what: String| SourceError::Structure { location: document.location.clone(), what };
            if depth > DEPTH {
                return Err(too_much(format!("lies below more than {DEPTH} Source Descriptions or pages of them")));
            }
            seen.insert(document.location.clone());
            let Offered { entries, skipped, deviations } = document.read(self.places.limits, DOCUMENTS)?;
            self.named += entries.iter().map(|entry| entry.loc.as_str().len()).sum::<usize>();
            if self.named > NAMED {
                let what = format!("with those that were read before it names more than {NAMED} bytes of addresses");
                return Err(too_much(what));
            }
            if skipped > 0 {
                let why = format!("{skipped} entries cannot be understood");
                self.missing.push(Missing { location: document.location.clone(), entries: skipped, why });
            }
            if !deviations.is_empty() {
                self.deviations.push(DocumentDeviations { location: document.location.clone(), deviations });
            }
            let is_silent = document.is_silent_description();
            let describes_sets = is_silent
                || document.head.header.root == Root::SitemapIndex
                || document.head.capability() == Some(&Capability::Description);
            let own = document.location.uri().cloned();
            if describes_sets {
                self.description = self.description.take().or(own.clone());
            }
            let mut offer = Offer::new(self.chosen(entries), describes_sets);
            offer.below.retain(|uri| seen.insert(DocumentLocation::Uri(uri.clone())));
            let next = document.head.header.link("next").filter(|_| describes_sets).cloned();
            offer.next = next.filter(|uri| seen.insert(DocumentLocation::Uri(uri.clone())));
            if seen.len() > DOCUMENTS {
                return Err(too_much(format!("names more than {DOCUMENTS} documents")));
            }
            let below = self.descend(&document.location, &mut offer, is_silent, depth, seen).await?;
            self.mend_hints(&mut offer).await.map_err(|error| error.named_by(&document.location, ""))?;
            let header = &document.head.header;
            let is_capability_list = header.capability == Some(Capability::CapabilityList);
            let mut sets = Vec::new();
            let offers = !offer.documents.is_empty() || !offer.channels.is_empty();
            if offers || is_capability_list && below.is_empty() {
                if !describes_sets && depth == 0 {
                    self.description = self.description.take().or_else(|| header.link("up").cloned());
                }
                let described_by = header.link("describedby").cloned();
                let (documents, channels) = (offer.documents, offer.channels);
                sets.push(Set { capability_list: own.clone(), described_by, documents, channels });
            }
            for mut set in below {
                if let Some(description) = set.capability_list.as_ref().and_then(|list| offer.descriptions.get(list)) {
                    set.described_by.get_or_insert_with(|| description.clone());
                }
                sets.push(set);
            }
            Ok(distinct(sets))
        })
    }

    /// Reads what the `offer` of a document leads to: the sets below it, and the unclear capabilities of its documents.
    async fn descend(
        &mut self,
        document: &DocumentLocation,
        offer: &mut Offer,
        takes_sitemaps: bool,
        depth: usize,
        seen: &mut Seen,
    ) -> Result<Vec<Set>, SourceError> {
        let mut below = Vec::new();
        let mut places = std::mem::take(&mut offer.below);
        let is_list = |place: &Uri| offer.documents.iter().any(|(_, location)| is_at(location, place));
        let sets: Vec<Uri> = places.iter().filter(|place| !is_list(place)).cloned().collect();
        places.extend(offer.next.take());
        let mut answers = self.answers(places);
        while let Some((place, answer)) = answers.next().await {
            let named = |error: SourceError| {
                let others: Vec<&str> = sets.iter().filter(|set| **set != place).map(Uri::as_str).collect();
                let instead = if others.is_empty() { String::new() } else { another_set(&others) };
                error.named_by(document, &instead)
            };
            let unclear = offer.documents.iter().position(|(_, location)| is_at(location, &place));
            match (self.document(&place, answer).map_err(named), unclear) {
                (Ok(Ok(child)), _) if child.kind() == Kind::Offers => {
                    offer.documents.retain(|(_, location)| !is_at(location, &place));
                    below.extend(self.offered(child, depth + 1, seen).await?);
                }
                (Ok(Ok(child)), unclear) if child.head.header.root.is_feed_or_text() && !takes_sitemaps => {
                    if unclear.is_none() {
                        self.miss(place.clone(), format!("{place} (a feed or a text, not listed as a list)"));
                    }
                }
                (Ok(Ok(child)), unclear) => {
                    if let Kind::Lists(capability) = child.kind() {
                        match unclear {
                            Some(at) => offer.documents[at].0 = capability,
                            None => offer.documents.push((capability, child.location)),
                        }
                    }
                }
                // An entry of unknown capability that leads nowhere is kept as it was published.
                (Ok(Err(_)), Some(_)) => {}
                (Ok(Err(why)), None) => self.miss(place, why),
                (Err(error), _) => return Err(error),
            }
        }
        Ok(below)
    }

    /// The set of a list that was pasted or that robots.txt names: its Capability List's, found by `up`, or itself alone.
    async fn of_list(&mut self, list: &Document, capability: Capability) -> Result<Set, SourceError> {
        // Any of these in a Capability List shows that the list belongs to it.
        let mut names = vec![list.location.clone()];
        names.extend(list.base.clone().map(DocumentLocation::Uri));
        names.extend(list.head.header.link("index").cloned().map(DocumentLocation::Uri));
        let alone = (capability.clone(), list.location.clone());
        let mut up = list.head.header.link("up").cloned();
        let mut turns = 0;
        while let Some(place) = up.take().filter(|_| turns < DEPTH) {
            turns += 1;
            let sets = match self.above.get(&place) {
                Some(sets) => sets.clone(),
                None => match self.above(&place).await.map_err(|error| error.named_by(&list.location, ""))? {
                    Ok(Above::Sets(sets)) => {
                        self.above.insert(place.clone(), sets.clone());
                        sets
                    }
                    Ok(Above::List(further)) => {
                        names.push(DocumentLocation::Uri(place));
                        up = further;
                        continue;
                    }
                    Err(why) => {
                        tracing::warn!(list = %list.location, %why, "the link up leads nowhere");
                        self.tried.push(why);
                        break;
                    }
                },
            };
            let listed = |set: &&Set| set.documents.iter().any(|(_, location)| names.contains(location));
            if let Some(set) = sets.iter().find(listed) {
                return Ok(set.clone());
            }
            // A Capability List without this list still names the changes.
            if let Some(mut set) = sets.into_iter().find(|set| set.capability_list.as_ref() == Some(&place)) {
                if capability == Capability::ResourceList {
                    set.documents.retain(|(other, _)| *other != Capability::ResourceList);
                }
                set.documents.insert(0, alone);
                return Ok(set);
            }
        }
        Ok(Set {
            capability_list: None,
            described_by: list.head.header.link("describedby").cloned(),
            documents: vec![alone],
            channels: Vec::new(),
        })
    }

    /// What an `up` link leads to, or why it leads nowhere for good.
    async fn above(&mut self, place: &Uri) -> Result<Result<Above, String>, SourceError> {
        Ok(match self.places.ask(place).await {
            Ok(Answer::Document(document)) => match document.kind() {
                Kind::Offers => {
                    // The set is picked by what it lists: none may be left out on the way down.
                    let wanted = self.wanted.take();
                    let sets = self.offered(document, 0, &mut Seen::new()).await;
                    self.wanted = wanted;
                    match sets {
                        Err(error @ (SourceError::Http { .. } | SourceError::Part { .. })) => return Err(error),
                        sets => sets.map(Above::Sets).map_err(|error| chain(&error)),
                    }
                }
                Kind::Lists(_) => Ok(Above::List(document.head.header.link("up").cloned())),
            },
            Ok(Answer::Page(page)) => Err(format!("{place} ({})", page.description())),
            Err(Silence::Nothing(cause)) => Err(chain(&cause)),
            Err(Silence::Failed(error)) => return Err(error),
        })
    }

    /// Where no document is listed as a Resource List, the hints may be wrong: the documents themselves are asked.
    async fn mend_hints(&mut self, offer: &mut Offer) -> Result<(), SourceError> {
        if offer.documents.iter().any(|(capability, _)| *capability == Capability::ResourceList) {
            return Ok(());
        }
        let places = offer.documents.iter().filter(|(capability, _)| known(capability).is_some());
        let places = places.filter_map(|(_, location)| location.uri().cloned());
        let places: Vec<Uri> = places.take(CHECKED.min(DOCUMENTS.saturating_sub(self.checked))).collect();
        self.checked += places.len();
        let mut answers = self.answers(places);
        while let Some((place, answer)) = answers.next().await {
            let Ok(document) = self.document(&place, answer)? else { continue };
            if let (Some(own), Kind::Lists(_)) = (document.head.capability(), document.kind()) {
                let same = offer.documents.iter_mut().filter(|(_, location)| is_at(location, &place));
                same.for_each(|(capability, _)| *capability = own.clone());
            }
        }
        Ok(())
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
    fn answers(&self, places: Vec<Uri>) -> stream::BoxStream<'static, (Uri, Result<Answer, Silence>)> {
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

    /// The document that an answer holds, or the definite reason why there is none.
    fn document(&self, place: &Uri, answer: Result<Answer, Silence>) -> Result<Result<Document, String>, SourceError> {
        match answer {
            Ok(Answer::Document(document)) => Ok(Ok(document)),
            Ok(Answer::Page(page)) => Ok(Err(format!("{place} ({}: {})", page.description(), chain(&page.cause)))),
            Err(Silence::Nothing(cause)) => Ok(Err(chain(&cause))),
            Err(Silence::Failed(error)) => Err(error),
        }
    }

    fn miss(&mut self, place: Uri, why: String) {
        tracing::warn!(%place, %why, "an offered document is missing");
        self.tried.push(why.clone());
        self.missing.push(Missing { location: DocumentLocation::Uri(place), entries: 0, why });
    }
}

/// What an `up` link leads to.
enum Above {
    Sets(Vec<Set>),
    /// An index, with its own `up`.
    List(Option<Uri>),
}

/// What the entries of a Source Description or Capability List say.
struct Offer {
    /// Documents of one capability; those whose capability is unclear are in `below` too.
    documents: Vec<(Capability, DocumentLocation)>,
    /// Documents to be read next.
    below: Vec<Uri>,
    /// The next page of it, which is no set.
    next: Option<Uri>,
    /// Where there is nothing to read.
    channels: Vec<Channel>,
    /// Capability List -> what describes its set.
    descriptions: HashMap<Uri, Uri>,
}

impl Offer {
    /// Sorts `entries`. Of a document that describes sets, entries without a capability are taken for Capability Lists.
    fn new(entries: Vec<Entry>, describes_sets: bool) -> Offer {
        let (mut documents, mut below) = (Vec::new(), Vec::new());
        let (mut channels, mut descriptions) = (Vec::<Channel>::new(), HashMap::new());
        for entry in entries {
            let description =
                entry.links.iter().filter(|link| &*link.rel == "describedby").find_map(Link::uri).cloned();
            if let Some(channel) = channel(&entry) {
                if channels.len() < CHANNELS && channels.iter().all(|known| known.topic != channel.topic) {
                    channels.push(channel);
                }
                continue;
            }
            let hint = entry.capability.as_ref().and_then(known).cloned();
            let location = DocumentLocation::Uri(entry.loc.clone());
            match hint {
                Some(Capability::Description | Capability::CapabilityList) => {
                    descriptions.extend(description.map(|description| (entry.loc.clone(), description)));
                    below.push(entry.loc);
                }
                Some(hint) => documents.push((hint, location)),
                None => {
                    if describes_sets {
                        descriptions.extend(description.map(|description| (entry.loc.clone(), description)));
                    } else {
                        documents.push((entry.capability.unwrap_or(Capability::Other("".into())), location));
                    }
                    below.push(entry.loc);
                }
            }
        }
        Offer { documents, below, next: None, channels, descriptions }
    }
}

fn is_at(location: &DocumentLocation, place: &Uri) -> bool {
    location.uri() == Some(place)
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
