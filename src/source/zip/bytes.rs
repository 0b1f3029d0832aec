//! Bytes of one version of a package from an offset on, wherever they are.

use super::PackageError;
use super::arriving::Arriving;
use super::folder::{self, Local};
use super::remote::{PackageServer, PackageVersion};
use crate::source::http::{Body, Priority};
use bytes::Bytes;
use std::sync::Arc;

/// How often in a row a range that broke off without any bytes is asked for again.
const RETRIES: u32 = 3;

/// Place of the bytes of a version.
#[derive(Clone, Debug)]
pub(super) enum BytesPlace {
    /// All of them in memory.
    Memory(Bytes),
    /// All of them in a file of the folder.
    File(Local),
    /// Some of them on their way; the others at the server.
    Arriving(Arc<Arriving>),
    /// At the server.
    Server,
}

/// Reads a version of a package forwards.
pub(super) struct PackageBytes {
    remote: PackageServer,
    version: PackageVersion,
    place: BytesPlace,
    /// Offset of the next byte.
    position: u64,
    /// First byte past what one request asks for; past it there is another request.
    until: u64,
    /// Bytes that have come and were not taken, from `position` on.
    rest: Bytes,
    body: Option<Body>,
    fruitless: u32,
    priority: Priority,
}

impl PackageBytes {
    /// Reads from `position` on; what is likely wanted ends at `until`.
    pub fn new(
        remote: PackageServer,
        version: &PackageVersion,
        place: BytesPlace,
        (position, until): (u64, u64),
        priority: Priority,
    ) -> PackageBytes {
        let (version, rest, body, fruitless) = (version.clone(), Bytes::new(), None, 0);
        PackageBytes { remote, version, place, position, until, rest, body, fruitless, priority }
    }

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// At least one byte, at most `most` (which is not 0).
    ///
    /// # Errors
    /// [`PackageError::Changed`] where the server has another version; at the end of the package [`PackageError::Damaged`].
    pub async fn next(&mut self, most: u64) -> Result<Bytes, PackageError> {
        if self.rest.is_empty() {
            self.rest = self.more(most).await?;
        }
        let count = (self.rest.len() as u64).min(most);
        self.position += count;
        Ok(self.rest.split_to(count as usize))
    }

    /// Exactly `count` bytes.
    pub async fn exactly(&mut self, count: u64) -> Result<Vec<u8>, PackageError> {
        let mut bytes = Vec::with_capacity(count as usize);
        while (bytes.len() as u64) < count {
            bytes.extend_from_slice(&self.next(count - bytes.len() as u64).await?);
        }
        Ok(bytes)
    }

    async fn more(&mut self, most: u64) -> Result<Bytes, PackageError> {
        let most = most.min(self.version.length.saturating_sub(self.position));
        if most == 0 {
            return Err(PackageError::damaged(&self.remote.package, "a member continues past its end"));
        }
        match &self.place {
            BytesPlace::Memory(bytes) => {
                let from = (self.position as usize).min(bytes.len());
                return Ok(bytes.slice(from..bytes.len().min(from + most as usize)));
            }
            BytesPlace::File(local) => return folder::read_at(local, self.position, most).await,
            BytesPlace::Arriving(arriving) => match arriving.read(self.position, most, &self.priority).await? {
                Some(bytes) => return Ok(bytes),
                None => self.place = BytesPlace::Server,
            },
            BytesPlace::Server => {}
        }
        self.received(most).await
    }

    /// The next bytes from the server; a body that breaks off is asked for again from here on.
    async fn received(&mut self, most: u64) -> Result<Bytes, PackageError> {
        loop {
            let outcome = match &mut self.body {
                Some(body) => self.remote.chunk(body).await,
                None => {
                    // Past what was foreseen, no more than what is wanted now.
                    let until = if self.position < self.until { self.until } else { self.position + most };
                    let range = self.position..until.min(self.version.length);
                    self.body = Some(self.remote.range(&self.version, range, self.priority.clone()).await?);
                    continue;
                }
            };
            match outcome {
                Ok(Some(bytes)) if bytes.is_empty() => {}
                Ok(Some(bytes)) => {
                    self.fruitless = 0;
                    return Ok(bytes);
                }
                Ok(None) => self.body = None,
                Err(error) => {
                    self.body = None;
                    self.fruitless += 1;
                    if self.fruitless > RETRIES || !error.is_retryable() {
                        return Err(error);
                    }
                    tracing::debug!(%error, "a range of a package ended early; the rest is requested");
                }
            }
        }
    }
}

impl std::fmt::Debug for PackageBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackageBytes({} from {} on)", self.remote.package, self.position)
    }
}
