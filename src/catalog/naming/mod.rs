//! URI -> path, total, deterministic and reversible: the names a person sees.
//!
//! A resource on the Source's own host has its path below the root, any other under `%host/HOST[:PORT]/`; the scheme does not
//! count; `-o map=` moves the resources below a URI. `segment` makes a name of one segment (what is hidden,
//! [`crate::platform::text::is_hidden`], stays escaped), `limit` keeps a name to 255 bytes.
//!
//! A `%` before two hex digits is an escape taken over from the URI, a `%` before anything else marks a name of ours,
//! and since a normalised URI has no `%` but that of its escapes, the two never meet:
//!
//! | name | stands for |
//! |---|---|
//! | `%` | an empty segment that is a folder |
//! | `%index` | what a URI that ends in `/` (before its query) names, in its folder |
//! | `%host` | the folder of the other hosts, at the root |
//! | `NAME%file` | a resource whose own name is also a folder |
//! | `NAME%items` | the folder of the items of the landing page `NAME` |
//! | `%page` | the landing page that is mounted: its items are at the root |
//! | `STEM%~DIGEST.EXT` | a name that was too long, or that lost the plain name to another resource |
//!
//! Without `map=` and `extension=type` two URIs share a path only if they differ in nothing but the scheme, or in which of the
//! reserved characters of their segments are escaped (`segment`): one path may have very many URIs. The rest is resolved where
//! all URIs are at hand, by [`disambiguated`] and, after that, [`beside_folder`]; neither ever gives a name that
//! [`Naming::path`] gives.

mod extension;
mod limit;
pub(super) mod locate;
mod map;
pub(super) mod names_of_path;
mod segment;

use crate::document::Uri;
use serde::{Deserialize, Serialize};

pub(super) use extension::{EXTENSIONS, media_types};
pub use extension::{of_media_type as extension_of_type, of_name as extension_of_name};
pub use limit::{NAME_MAX, beside_folder, disambiguated};
pub use map::MapError;

/// The settings that a name depends on besides its URI; part of a catalog's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Naming {
    /// `HOST[:PORT]` whose resources are below the root.
    pub own_authority: Box<str>,
    /// (URI prefix, path) pairs of `-o map=`, longest prefix first. A prefix ends where a segment ends; its scheme does
    /// not count. [`Naming::new`] brings what a person writes into this form.
    pub maps: Vec<(Box<str>, Box<str>)>,
    /// `-o extension=type`
    pub extension_by_type: bool,
    /// The landing page that is mounted alone: its items are at the root.
    pub page: Option<Uri>,
}

/// Suffix of the folder with the items of a landing page.
pub const ITEMS_SUFFIX: &str = "%items";

/// The name of the page where it is mounted alone.
const PAGE: &str = "%page";

/// Suffix of a resource whose own name is also a folder: `a%file` next to `a/`.
pub const FILE_SUFFIX: &str = "%file";

/// The folder of the hosts that are not the Source's own, with its slash.
const HOSTS: &str = "%host/";

/// Changes whenever a rule of this module gives another name than before.
const RULES: u32 = 2;

impl Naming {
    /// The naming for a Source on `own_authority` (`HOST[:PORT]`) with the `-o map=URI_PREFIX=PATH` pairs as a person
    /// wrote them, in any order.
    ///
    /// # Errors
    /// A prefix that is not a URI, a path that cannot be one or that looks like a name of ours, or two paths for one prefix.
    pub fn new<'a>(
        own_authority: &str,
        maps: impl IntoIterator<Item = (&'a str, &'a str)>,
        extension_by_type: bool,
    ) -> Result<Naming, MapError> {
        Ok(Naming { own_authority: own_authority.into(), maps: map::sorted(maps)?, extension_by_type, page: None })
    }

    /// The path of `uri` below the root, before conflicts with others are resolved, and whether it is invertible: whether [`Naming::uri`]
    /// gives the URI back from the path and the scheme alone; if not the pair must be stored. `media_type` counts with `extension=type`
    /// only.
    pub fn path(&self, uri: &Uri, media_type: Option<&str>) -> (String, bool) {
        let mut path = String::new();
        let by_rule = self.name(uri, media_type, &mut path);
        // Where another map leads to the same path, what that one stands for may be found first.
        let leads_back = || self.uri(&path, uri.scheme() == "https").as_ref() == Some(uri);
        let invertible = by_rule && (self.maps.is_empty() || leads_back());
        (path, invertible)
    }

    /// The URI of an invertible path; `https` is the scheme. `None` where no rule applies.
    ///
    /// A URI that it returns has this path: for `NAME%file` it is the resource that [`Naming::path`] names `NAME`.
    pub fn uri(&self, path: &str, https: bool) -> Option<Uri> {
        let path = path.strip_suffix(FILE_SUFFIX).unwrap_or(path);
        if let Some(page) = &self.page {
            return if path == PAGE { Some(page.clone()) } else { item_of(page, path) };
        }
        if let Some((page, item)) =
            path.split_once(ITEMS_SUFFIX).and_then(|(page, rest)| Some((page, rest.strip_prefix('/')?)))
        {
            return item_of(&self.uri(page, https)?, item);
        }
        let scheme = if https { "https://" } else { "http://" };
        let mut named = String::new();
        map::addresses(&self.maps, path).chain(self.unmapped_address(path)).find_map(|address| {
            let uri = Uri::parse(&format!("{scheme}{address}")).ok()?;
            self.name(&uri, None, &mut named);
            (named == path).then_some(uri)
        })
    }

    /// A stable text of everything that the names depend on besides the URIs: equal texts, equal names.
    pub fn identity(&self) -> String {
        let mut identity = format!("names={RULES}\nhost={}\n", self.own_authority.escape_default());
        for (prefix, target) in &self.maps {
            // `escape_default` leaves neither a line end nor, with the quotes escaped, an ambiguous `"="`.
            identity += &format!("map=\"{}\"=\"{}\"\n", prefix.escape_default(), target.escape_default());
        }
        if self.extension_by_type {
            identity += "extension=type\n";
        }
        if let Some(page) = &self.page {
            identity += &format!("page={page}\n");
        }
        identity
    }

    /// Writes the path of `uri`; answers whether the same map, or the rule for no map, leads back.
    fn name(&self, uri: &Uri, media_type: Option<&str>, path: &mut String) -> bool {
        path.clear();
        let extension = media_type.filter(|_| self.extension_by_type).and_then(extension::of_media_type);
        if let Some((page, item)) = uri.page() {
            let is_alone = self.page.as_ref().is_some_and(|alone| alone.as_str() == page);
            let by_rule = is_alone || self.items_folder(page, path);
            let (item, mark) = item.split_once('#').map_or((item, None), |(item, mark)| (item, Some(mark)));
            return segment::push_path(item, extension, path) && by_rule && mark.is_none();
        }
        if self.page.as_ref() == Some(uri) {
            path.push_str(PAGE);
            return true;
        }
        self.page_name(uri.as_str(), extension, path)
    }

    /// Writes the folder with the items of `page`; answers whether the rules lead back.
    fn items_folder(&self, page: &str, path: &mut String) -> bool {
        let by_rule = self.page_name(page, None, path);
        path.push_str(ITEMS_SUFFIX);
        let start = path.rfind('/').map_or(0, |slash| slash + 1);
        let whole = limit::fit(path, start);
        path.push('/');
        by_rule && whole
    }

    /// Writes the path of a URI that is not an item.
    fn page_name(&self, uri: &str, extension: Option<&str>, path: &mut String) -> bool {
        let address = without_scheme(uri);
        if let Some((target, rest)) = map::of_address(&self.maps, address) {
            return rest.push_path(target, extension, path);
        }
        let own = address.strip_prefix(&*self.own_authority).and_then(|rest| rest.strip_prefix('/'));
        if let Some(below) = own {
            // The common case: a scan, and one allocation of just the size.
            path.reserve_exact(below.len());
            return segment::push_path(below, extension, path);
        }
        let (authority, below) = address.split_once('/').unwrap_or((address, ""));
        path.reserve(HOSTS.len() + address.len());
        path.push_str(HOSTS);
        let start = path.len();
        path.push_str(segment::escaped_dots(authority).as_deref().unwrap_or(authority));
        let whole = limit::fit(path, start);
        path.push('/');
        segment::push_path(below, extension, path) && whole
    }

    /// The URI of `path` without its scheme, as if there were no maps.
    fn unmapped_address(&self, path: &str) -> Option<String> {
        let (authority, below) = match path.strip_prefix(HOSTS) {
            Some(other) => other.split_once('/')?,
            None if self.own_authority.is_empty() => return None,
            None => (&*self.own_authority, path),
        };
        let mut address = String::with_capacity(authority.len() + 1 + below.len());
        // A host has no other escape.
        address.push_str(&authority.replace("%2E", "."));
        address.push('/');
        segment::push_address(below, &mut address);
        Some(address)
    }
}

/// The item of `page` whose path in its folder this is.
fn item_of(page: &Uri, path: &str) -> Option<Uri> {
    let mut item = format!("{page}#");
    segment::push_address(path, &mut item);
    Uri::parse_item(&item).ok()
}

/// The address of a URI: what follows `http://` or `https://`, no matter whether the rest looks like a URI itself.
fn without_scheme(uri: &str) -> &str {
    uri.strip_prefix("http://").or_else(|| uri.strip_prefix("https://")).unwrap_or(uri)
}

#[cfg(test)]
mod tests;
