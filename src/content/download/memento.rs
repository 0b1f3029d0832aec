//! Versions of a resource by time (RFC 7089): which mementos of a TimeMap may be the wanted version, and whether an answer is.

use super::plan::Place;
use crate::content::{Content, ContentError, FetchSpec};
use crate::document::{Timestamp, Uri};
use crate::source::http::{HttpError, Priority, Request, TimeMapLink, time_map};
use std::sync::Arc;

/// The bytes of a TimeMap that are read: some 30,000 mementos.
const TIME_MAP_LIMIT: usize = 4 << 20;

/// The TimeMaps that are read of one resource: the first, and those that it lists.
const TIME_MAPS: usize = 4;

/// The mementos of a TimeMap that are requested.
const MEMENTOS: usize = 3;

/// Whether a memento of that time is the wanted version: the only proof without a digest.
pub(super) fn is_of_version(wanted: &FetchSpec, datetime: Option<Timestamp>) -> bool {
    let life = wanted.life();
    datetime.zip(life).is_some_and(|(datetime, life)| life.contains(&datetime))
}

/// The mementos closest to `moment`. The state at that time is the last one before it, so these come first, the nearest at the front.
/// `vouched`: a digest decides whether one from after it is the same version.
fn closest(links: &[TimeMapLink], moment: Timestamp, vouched: bool) -> Vec<Uri> {
    let mut dated: Vec<_> =
        links.iter().filter(|link| link.is_memento).filter_map(|link| Some((link.datetime?, &link.target))).collect();
    dated.sort_by_key(|(datetime, _)| *datetime);
    let split = dated.partition_point(|(datetime, _)| *datetime <= moment);
    let (before, after) = dated.split_at(split);
    let after = after.iter().take(usize::from(vouched));
    before.iter().rev().take(MEMENTOS - 1).chain(after).map(|(_, target)| (*target).clone()).collect()
}

/// The TimeMap to read next: an unread one whose times, where known, include `moment`.
fn next_map<'l>(links: &'l [TimeMapLink], moment: Timestamp, read: &[Uri]) -> Option<&'l Uri> {
    let holds = |link: &&TimeMapLink| {
        link.from.is_none_or(|from| from <= moment) && link.until.is_none_or(|until| moment <= until)
    };
    let mut maps = links.iter().filter(|link| !link.is_memento && !read.contains(&link.target));
    maps.find(holds).map(|link| &link.target)
}

impl Content {
    /// The mementos of `wanted` in the TimeMap at `map` and in those that it lists.
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
    fn earlier_mementos_come_first_a_later_one_only_with_a_digest() {
        let undated = TimeMapLink { datetime: None, ..memento(25) };
        let links = [memento(40), memento(10), memento(30), undated, memento(20), memento(50)];

        let chosen = |moment, vouched| -> Vec<Uri> { closest(&links, at(moment), vouched) };

        assert_eq!(chosen(30, false), [uri("30"), uri("20")]);
        assert_eq!(chosen(35, true), [uri("30"), uri("20"), uri("40")]);
        assert_eq!(chosen(5, false), []);
        assert_eq!(chosen(5, true), [uri("10")]);
    }

    #[test]
    fn the_time_map_of_the_moment_is_read_and_none_twice() {
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
