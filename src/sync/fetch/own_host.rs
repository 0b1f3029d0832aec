//! The own host of a Source, below whose names those of all other hosts stand apart.

use super::spool::Spool;
use crate::catalog::{Catalog, Naming};
use crate::source::documents::CachedDocument;
use crate::source::{EntryPoint, Source};
use crate::sync::read_set::ReadSet;
use crate::sync::{SyncConfig, SyncError};
use std::ops::ControlFlow;

/// The names of a tree that is made of `read`.
pub async fn naming(
    config: &SyncConfig,
    catalog: &Catalog,
    spool: &Spool,
    source: &Source,
    read: &[ReadSet],
) -> Result<Naming, SyncError> {
    if let Some(naming) = known_naming(config, catalog, source)? {
        return Ok(naming);
    }
    let (spool, lists) = (spool.clone(), read.iter().flat_map(ReadSet::list_documents).collect::<Vec<_>>());
    let (answered, typed) = (source.own_authority.clone(), config.typed_authority());
    let decided = tokio::task::spawn_blocking(move || match answered.zip(typed) {
        Some((answered, typed)) => listed_authority(&spool, &lists, &answered, &typed),
        None => smallest_authority(&spool, &lists),
    });
    config.naming_of(&decided.await??)
}

/// The names of a tree of `source`, if they are known before anything is read.
pub fn known_naming(config: &SyncConfig, catalog: &Catalog, source: &Source) -> Result<Option<Naming>, SyncError> {
    let own_authority = match (&config.host, &source.own_authority) {
        (Some(host), _) => Some(host.clone()),
        (None, Some(answered)) => known_authority(config, catalog, answered)?,
        (None, None) => None,
    };
    own_authority.map(|authority| config.naming_of(&authority)).transpose()
}

/// The own host of an entry point that was `answered` by this host. Behind a redirect to another host it is that of the
/// tree that is shown, so that no name changes with what is listed; `None` where there is none yet.
fn known_authority(config: &SyncConfig, catalog: &Catalog, answered: &str) -> Result<Option<Box<str>>, SyncError> {
    let Some(typed) = config.typed_authority().filter(|typed| **typed != *answered) else {
        return Ok(Some(answered.into()));
    };
    let shown = catalog.snapshot()?.naming()?.map(|naming| naming.own_authority);
    Ok(shown.filter(|shown| *shown == typed || **shown == *answered))
}

impl SyncConfig {
    /// `HOST[:PORT]` of the address that a person typed.
    fn typed_authority(&self) -> Option<Box<str>> {
        match &self.entry {
            EntryPoint::Uri(typed) => Some(typed.authority().into()),
            EntryPoint::File(_) => None,
        }
    }

    pub(in crate::sync) fn naming_of(&self, own_authority: &str) -> Result<Naming, SyncError> {
        let maps = self.maps.iter().map(|(prefix, path)| (&**prefix, &**path));
        Ok(Naming::new(own_authority, maps, self.extension_by_type)?)
    }
}

/// The authority of the smallest URI listed: the own host of lists on a disk.
fn smallest_authority(spool: &Spool, lists: &[CachedDocument]) -> Result<Box<str>, SyncError> {
    let mut smallest = None;
    for list in lists {
        spool.each_resource(list, &mut |entry| {
            smallest = smallest.take().into_iter().chain([entry.loc]).min();
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(smallest.map_or_else(|| "".into(), |uri| uri.authority().into()))
}

/// The own host of lists whose address was `typed` and that another host has `answered`: that one, unless it has none of the resources
/// and the first has some, as where a site keeps its sitemap in a bucket.
fn listed_authority(
    spool: &Spool,
    lists: &[CachedDocument],
    answered: &str,
    typed: &str,
) -> Result<Box<str>, SyncError> {
    let (mut is_answered, mut is_typed) = (false, false);
    for list in lists.iter() {
        spool.each_resource(list, &mut |entry| {
            is_answered |= entry.loc.authority() == answered;
            is_typed |= entry.loc.authority() == typed;
            Ok(if is_answered { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if is_answered {
            break;
        }
    }
    Ok(if is_typed && !is_answered { typed.into() } else { answered.into() })
}
