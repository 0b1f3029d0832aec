//! The files of secrets, read at the start and whenever they may have changed: a token lives for an hour, and its file is replaced then.

use super::args::CredentialOptions;
use super::option_files::{Access, read};
use super::{CliError, Exit};
use crate::source::http::Credentials;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The files that options name, as they were when they were last read.
pub struct CredentialFiles(Mutex<Files>);

/// The files of header fields, a bearer token, user names with passwords, and a client certificate.
type Files = [Option<SecretFile>; 4];

#[derive(Clone)]
struct SecretFile {
    path: PathBuf,
    bytes: Vec<u8>,
    /// `None`: it is a pipe or a device, which is read once.
    stamp: Option<Stamp>,
}

/// The values that differ after a file was written or replaced: inode, size, time of change.
type Stamp = (u64, u64, i64, i64);

impl SecretFile {
    fn open(path: &Path) -> Result<SecretFile, CliError> {
        let stamp = stamp(path);
        Ok(SecretFile { path: path.to_owned(), bytes: read(path, Access::OwnerReads)?, stamp })
    }

    /// Reads it again where it has changed. One that cannot be read, or is empty, is being replaced: what was read before stays.
    fn reread(&mut self) -> bool {
        let now = stamp(&self.path);
        if self.stamp.is_none() || now.is_none() || now == self.stamp {
            return false;
        }
        match read(&self.path, Access::OwnerReads) {
            Ok(bytes) if !bytes.trim_ascii().is_empty() => {
                self.stamp = now;
                std::mem::replace(&mut self.bytes, bytes) != self.bytes
            }
            Ok(_) => false,
            Err(cause) => {
                tracing::warn!("credentials stay as they were: {}", cause.message);
                false
            }
        }
    }

    fn text(&self) -> Result<&str, CliError> {
        std::str::from_utf8(&self.bytes).map_err(|_| CliError::at(Exit::Usage, &self.path, "is not UTF-8 text"))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

impl CredentialFiles {
    /// Reads the files that `options` name.
    pub fn open(options: &CredentialOptions) -> Result<CredentialFiles, CliError> {
        let mut files = Files::default();
        let paths = [&options.header_file, &options.bearer_file, &options.netrc, &options.cert];
        for (file, path) in files.iter_mut().zip(paths) {
            *file = path.as_deref().map(SecretFile::open).transpose()?;
        }
        Ok(CredentialFiles(Mutex::new(files)))
    }

    /// The credentials in the files.
    pub fn credentials(&self) -> Result<Credentials, CliError> {
        credentials(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The credentials if a file has changed and can be used. Blocks on the disk.
    pub fn changed(&self) -> Option<Credentials> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = files.clone();
        if now.iter_mut().flatten().map(SecretFile::reread).filter(|has_changed| *has_changed).count() == 0 {
            return None;
        }
        match credentials(&now) {
            Ok(credentials) => {
                *files = now;
                Some(credentials)
            }
            Err(cause) => {
                tracing::warn!("credentials stay as they were: {}", cause.message);
                None
            }
        }
    }
}

fn credentials([header, bearer, netrc, certificate]: &Files) -> Result<Credentials, CliError> {
    let mut headers: Vec<(Box<str>, Box<str>)> = Vec::new();
    if let Some(file) = header {
        for line in file.text()?.lines().filter(|line| !line.trim().is_empty()) {
            let refused = || CliError::at(Exit::Usage, &file.path, "a line is not NAME: VALUE");
            let (name, value) = line.split_once(':').ok_or_else(refused)?;
            headers.push((name.trim().into(), value.trim().into()));
        }
    }
    if let Some(file) = bearer {
        headers.push(("authorization".into(), format!("Bearer {}", file.text()?.trim()).into()));
    }
    Ok(Credentials {
        headers,
        netrc: netrc.as_ref().map(|file| file.text().map(Into::into)).transpose()?,
        client_certificate: certificate.as_ref().map(|file| file.bytes.clone()),
        ..Credentials::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn sent(credentials: &Credentials) -> Vec<&str> {
        credentials.headers.iter().map(|(_, value)| &**value).collect()
    }

    #[test]
    fn a_file_that_cannot_be_used_for_a_moment_keeps_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let (bearer, header) = (folder.path().join("bearer"), folder.path().join("header"));
        write(&bearer, "one\n");
        write(&header, "X-Key: a\n");
        let options = CredentialOptions {
            netrc: None,
            header_file: Some(header.clone()),
            bearer_file: Some(bearer.clone()),
            ca: None,
            cert: None,
            shared_cache_credentials: None,
        };
        let files = CredentialFiles::open(&options).unwrap();
        assert_eq!(sent(&files.credentials().unwrap()), ["a", "Bearer one"]);
        assert!(files.changed().is_none());

        write(&bearer, "");
        assert!(files.changed().is_none(), "empty");
        fs::remove_file(&bearer).unwrap();
        assert!(files.changed().is_none(), "missing");
        write(&header, "half a li");
        assert!(files.changed().is_none(), "half written");
        write(&header, "X-Key: b\n");
        assert_eq!(sent(&files.changed().unwrap()), ["b", "Bearer one"]);
        write(&bearer, "two\n");
        assert_eq!(sent(&files.changed().unwrap()), ["b", "Bearer two"]);
        write(&bearer, "two\n");
        assert!(files.changed().is_none(), "the same text in another file");
    }

    #[test]
    fn a_pipe_is_read_once() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"token").unwrap();
        drop(writer);
        let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
        let mut file = SecretFile::open(&path).unwrap();

        assert!(!file.reread());
        assert_eq!(file.bytes, b"token");
    }
}
