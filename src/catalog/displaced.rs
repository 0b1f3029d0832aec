//! The row of a resource whose name is not plain because another resource has that: by it the resources of one path are found.

use super::naming::disambiguated;
use super::naming::resolve::{path_of_record, split};
use super::store::codec::damaged;
use super::store::keys::displaced_key;
use super::store::record::ResourceRecord;
use super::store::symbols::Symbols;
use super::{CatalogError, Naming};
use crate::document::Uri;

/// Stands in every name of such a resource ([`disambiguated`]).
const MARK: &[u8] = b"%~";

/// Key and URI of the row that a file has by this name, with this record; `None` where it has none.
pub(super) fn displaced(
    name: &[u8],
    resource: &[u8],
    naming: &Naming,
    symbols: &Symbols,
) -> Result<Option<([u8; 32], Uri)>, CatalogError> {
    let is_marked = memchr::memchr_iter(b'%', name).any(|at| name[at..].starts_with(MARK));
    if resource.is_empty() || !is_marked {
        return Ok(None);
    }
    let sense = || damaged("resource", name);
    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
    // A name that is not by rule has its URI in the record.
    let Some(uri) = record.uri.and_then(|uri| Uri::parse(uri).ok()) else { return Ok(None) };
    let (path, _) = path_of_record(naming, &uri, &record, symbols).ok_or_else(sense)?;
    let (_, plain) = split(&path);
    let is_displaced = plain.as_bytes() != name && disambiguated(plain, &uri).as_bytes() == name;
    Ok(is_displaced.then(|| (displaced_key(&path, &uri), uri)))
}
