//! Whole packages on this machine's disk: where the server has no ranges or no strong ETag, or most of one is wanted.

use super::directory::Directory;
use super::manifest::failed;
use super::octets::Place;
use super::{PackageError, Packages, remote};
use crate::document::Uri;
use crate::source::http::Response;
use std::io::BufReader;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;

/// Brings the body of `response` to the disk and reads the directory of what came.
pub(super) async fn fetch(
    packages: &Packages,
    package: &Uri,
    mut response: Response,
) -> Result<Directory, PackageError> {
    let limit = packages.shared.config.whole;
    let too_large = || PackageError::TooLarge { package: package.clone(), what: "the whole of it", limit };
    if response.content_length.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let folder = &packages.shared.config.folder;
    let temporary = tempfile::Builder::new().suffix(".tmp").tempfile_in(folder).map_err(failed(folder))?;
    let path = temporary.path().to_owned();
    let kept = temporary.reopen().map_err(failed(&path))?;
    let mut file = tokio::fs::File::from_std(temporary.into_file());
    let mut length = 0;
    while let Some(octets) = remote::chunk(package, &mut response.body).await? {
        length += octets.len() as u64;
        if length > limit {
            return Err(too_large());
        }
        file.write_all(&octets).await.map_err(failed(&path))?;
    }
    file.flush().await.map_err(failed(&path))?;
    let version = remote::version(package, &response, length)?;
    let (package, limit) = (package.clone(), packages.shared.config.directory);
    let reading = tokio::task::spawn_blocking(move || {
        let clone = kept.try_clone().map_err(failed(&path))?;
        let place = Place::File { file: Arc::new(kept), path: Arc::new(path) };
        Directory::of_file(&package, &version, place, BufReader::new(clone), limit)
    });
    reading.await.unwrap_or_else(|cause| Err(failed(folder)(std::io::Error::other(cause))))
}
