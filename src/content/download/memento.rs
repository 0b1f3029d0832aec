//! Versions of a resource by time (RFC 7089): which of those that a TimeMap lists may be the one that is wanted, and
//! whether what came is.

use super::plan::Place;
use crate::content::{Content, ContentError, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::source::http::{HttpError, Priority, Request, TimeMapLink, time_map};
use std::sync::Arc;

/// Bytes of a TimeMap that are read: some 30,000 mementos.
const TIME_MAP_LIMIT: usize = 4 << 20;

/// TimeMaps that are read of one resource: the first, and those that it leads to.
const TIME_MAPS: usize = 4;

/// Mementos of a TimeMap that are asked for.
const MEMENTOS: usize = 3;

/// Whether a memento of that time is the version that is wanted: without digest nothing else tells.
pub(super) fn is_of_version(wanted: &FetchSpec, datetime: Option<Timestamp>) -> bool {
    let life = wanted.life();
    datetime.zip(life).is_some_and(|(datetime, life)| life.contains(&datetime))
}

/// The mementos closest to `moment`: what was the state then is the last of before, so those come first, the nearest
/// at the front; `vouched`: a digest tells whether one of after is the same version.
fn closest(links: &[TimeMapLink], moment: Timestamp, vouched: bool) -> Vec<Uri> {
    let mut dated: Vec<_> =
        links.iter().filter(|link| link.is_memento).filter_map(|link| Some((link.datetime?, &link.target))).collect();
    dated.sort_by_key(|(datetime, _)| *datetime);
    let split = dated.partition_point(|(datetime, _)| *datetime <= moment);
    let (before, after) = dated.split_at(split);
    let after = after.iter().take(usize::from(vouched));
    before.iter().rev().take(MEMENTOS - 1).chain(after).map(|(_, target)| (*target).clone()).collect()
}

/// The further TimeMap to read next: one whose times hold `moment`, as far as it tells them.
fn next_map<'l>(links: &'l [TimeMapLink], moment: Timestamp, read: &[Uri]) -> Option<&'l Uri> {
    let holds = |link: &TimeMapLink| {
        link.from.is_none_or(|from| from <= moment) && link.until.is_none_or(|until| moment <= until)
    };
    let maps = links.iter().filter(|link| !link.is_memento && !read.contains(&link.target));
    maps.filter(|link| holds(link)).map(|link| &link.target).next()
}

impl Content {
    /// The mementos of `wanted` that the TimeMap at `map` and those it leads to list.
    pub(super) async fn listed_mementos(
        &self,
        wanted: &FetchSpec,
        map: &Uri,
        places: usize,
        vouched: bool,
    ) -> Result<Vec<Place>, ContentError> {
        let Some(moment) = wanted.moment() else { return Ok(Vec::new()) };
        let (mut read, mut links) = (Vec::new(), Vec::new());
        let mut map = map.clone();
        while read.len() < TIME_MAPS {
            links.extend(self.read_time_map(wanted, &map, places + TIME_MAPS).await?);
            read.push(map);
            match next_map(&links, moment, &read) {
                Some(next) => map = next.clone(),
                None => break,
            }
        }
        Ok(closest(&links, moment, vouched).into_iter().map(Place::Memento).collect())
    }

    async fn read_time_map(
        &self,
        wanted: &FetchSpec,
        map: &Uri,
        places: usize,
    ) -> Result<Vec<TimeMapLink>, ContentError> {
        let failed = |cause: HttpError| ContentError::Fetch { uri: wanted.uri.clone(), cause: Arc::new(cause) };
        let mut request = Request::get(map.clone(), self.head_budget(places));
        request.accept = Some("application/link-format".into());
        request.priority = Priority::Reader(wanted.requester);
        let mut response = self.client.send(request).await.map_err(failed)?;
        let mut document = Vec::new();
        loop {
            let chunk = tokio::time::timeout(self.config.stall, response.body.chunk()).await;
            let chunk = chunk.map_err(|_| ContentError::Stalled { uri: wanted.uri.clone() })?.map_err(failed)?;
            let Some(chunk) = chunk else { break };
            document.extend_from_slice(&chunk);
            if document.len() > TIME_MAP_LIMIT {
                document.truncate(TIME_MAP_LIMIT);
                break;
            }
        }
        Ok(time_map(&String::from_utf8_lossy(&document), &response.final_uri).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    fn uri(path: &str) -> Uri {
        Uri::parse(&format!("http://example.org/{path}")).unwrap()
    }

    fn memento(time: i64) -> TimeMapLink {
        let target = uri(&time.to_string());
        TimeMapLink { target, is_memento: true, datetime: Some(at(time)), from: None, until: None }
    }

    #[test]
    fn the_last_memento_of_before_comes_first_and_one_of_after_only_where_a_digest_tells() {
        let undated = TimeMapLink { datetime: None, ..memento(25) };
        let links = [memento(40), memento(10), memento(30), undated, memento(20), memento(50)];

        let chosen = |moment, vouched| -> Vec<Uri> { closest(&links, at(moment), vouched) };

        assert_eq!(chosen(30, false), [uri("30"), uri("20")]);
        assert_eq!(chosen(35, true), [uri("30"), uri("20"), uri("40")]);
        assert_eq!(chosen(5, false), []);
        assert_eq!(chosen(5, true), [uri("10")]);
    }

    #[test]
    fn of_further_time_maps_the_one_of_the_time_is_read_and_none_twice() {
        let map = |path: &str, from: i64, until: i64| TimeMapLink {
            target: uri(path),
            is_memento: false,
            datetime: None,
            from: Some(at(from)),
            until: Some(at(until)),
        };
        let links = [map("1", 0, 10), map("2", 10, 20), map("3", 10, 30)];

        assert_eq!(next_map(&links, at(15), &[]), Some(&uri("2")));
        assert_eq!(next_map(&links, at(15), &[uri("2")]), Some(&uri("3")));
        assert_eq!(next_map(&links, at(40), &[]), None);
    }
}
