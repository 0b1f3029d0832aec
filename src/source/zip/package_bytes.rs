//! PackageBytes of one version of a package from an offset on, wherever they lie.

use super::PackageError;
use super::directory::Version;
use super::remote;
use crate::document::Uri;
use crate::source::http::{Body, Client, Priority};
use bytes::Bytes;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// PackageBytes read from a file at once.
const BLOCK: u64 = 128 << 10;

/// How often in a row a range is asked for again that broke off without bringing anything.
const RETRIES: u32 = 3;

/// Where the bytes of a version are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Those from an offset on in memory; what is not lies at the server.
    Memory { first: u64, bytes: Bytes },
    /// All of them in a file of this machine, which nobody changes.
    File { file: Arc<File>, path: Arc<PathBuf> },
    /// At the server.
    Server,
}

/// Reads a version of a package forwards.
pub(super) struct PackageBytes {
    client: Client,
    package: Uri,
    version: Version,
    place: Place,
    /// Offset of the next byte.
    position: u64,
    /// First byte past what one request asks for; past it there is another request.
    until: u64,
    /// PackageBytes that have come and were not taken, from `position` on.
    rest: Bytes,
    body: Option<Body>,
    fruitless: u32,
    /// Who waits for them.
    awaited: Priority,
}

impl PackageBytes {
    /// Reads from `from` on; what is likely wanted ends at `until`.
    pub fn new(client: &Client, package: &Uri, version: &Version, place: Place, from: u64, until: u64) -> PackageBytes {
        PackageBytes {
            client: client.clone(),
            package: package.clone(),
            version: version.clone(),
            place,
            position: from,
            until,
            rest: Bytes::new(),
            body: None,
            fruitless: 0,
            awaited: Priority::default(),
        }
    }

    /// The same; what is asked for gives way to readers until `awaited` says who waits.
    pub fn awaited(self, awaited: Priority) -> PackageBytes {
        PackageBytes { awaited, ..self }
    }

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// First byte past what the request under way asks for.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// At least one byte, at most `most` (which is not 0), that lie here.
    ///
    /// # Errors
    /// [`PackageError::Changed`] where the server has another version; at the end of the package [`PackageError::Damaged`].
    pub async fn next(&mut self, most: u64) -> Result<Bytes, PackageError> {
        if self.rest.is_empty() {
            self.rest = self.come(most).await?;
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

    /// Goes forward to `position`. At the server what lies between is let pass where it is on its way already.
    pub async fn skip_to(&mut self, position: u64) -> Result<(), PackageError> {
        while self.position < position {
            if matches!(self.place, Place::Server) && (self.body.is_some() || !self.rest.is_empty()) {
                self.next(position - self.position).await?;
            } else {
                self.rest = Bytes::new();
                self.position = position;
            }
        }
        Ok(())
    }

    /// The next bytes from where they lie.
    async fn come(&mut self, most: u64) -> Result<Bytes, PackageError> {
        let left = self.version.length.saturating_sub(self.position);
        if left == 0 {
            return Err(PackageError::damaged(&self.package, "a member goes on past its end"));
        }
        match &self.place {
            Place::Memory { first, bytes } => {
                let here = self.position.checked_sub(*first).and_then(|offset| bytes.get(offset as usize..));
                match here.filter(|here| !here.is_empty()) {
                    Some(here) => Ok(bytes.slice_ref(&here[..here.len().min(most.min(left) as usize)])),
                    None => {
                        self.place = Place::Server;
                        self.arrive(most).await
                    }
                }
            }
            Place::File { file, path } => {
                let (file, path, position) = (Arc::clone(file), Arc::clone(path), self.position);
                let mut block = vec![0; most.min(left).min(BLOCK) as usize];
                let read =
                    tokio::task::spawn_blocking(move || file.read_exact_at(&mut block, position).map(|()| block));
                let read = read.await.map_err(std::io::Error::other).and_then(|read| read);
                read.map(Bytes::from)
                    .map_err(|cause| PackageError::Folder { path: path.to_path_buf(), cause: Arc::new(cause) })
            }
            Place::Server => self.arrive(most).await,
        }
    }

    /// The next bytes from the server; a body that breaks off is asked for again from here on.
    async fn arrive(&mut self, most: u64) -> Result<Bytes, PackageError> {
        loop {
            let outcome = match &mut self.body {
                Some(body) => remote::chunk(&self.package, body).await,
                None => {
                    // Past what was foreseen, no more than what is wanted now.
                    let until =
                        if self.position < self.until { self.until } else { self.position.saturating_add(most) };
                    let range = self.position..until.min(self.version.length);
                    let awaited = self.awaited.clone();
                    let body = remote::ask_range(&self.client, &self.package, &self.version, range, awaited).await?;
                    self.body = Some(body);
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
                    tracing::debug!(%error, "a range of a package broke off, asking for the rest");
                }
            }
        }
    }
}

impl std::fmt::Debug for PackageBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackageBytes({} from {} on)", self.package, self.position)
    }
}
