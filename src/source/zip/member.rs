//! One member of a package: its local header checked against the directory, its bytes unpacked, the last of them held back
//! until length and CRC-32 of all are right.

use super::bytes::{BytesPlace, PackageBytes};
use super::directory::{DEFLATED, Directory, FoundMember, LOCAL_HEADER, MemberRecord};
use super::local_header::LocalHeader;
use super::remote::{PackageServer, Received};
use super::{PackageError, Packages};
use crate::document::Uri;
use crate::platform::scheduling::over_bytes;
use crate::source::http::Priority;
use bytes::Bytes;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::sync::Arc;

/// Bytes unpacked at once.
const BLOCK: u64 = 128 << 10;

/// How often a package that changes is read again.
const ATTEMPTS: u32 = 3;

/// Extent of a member in the package, where it is not packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The package.
    pub package: Uri,
    /// Its strong ETag.
    pub etag: Box<str>,
    /// Bytes of the package.
    pub total: u64,
    /// Offset of the member's first byte.
    pub first: u64,
}

/// One member of a package, unpacked in order.
#[derive(Debug)]
pub struct Member {
    directory: Arc<Directory>,
    path: Box<str>,
    record: MemberRecord,
    bytes: PackageBytes,
    is_at_server: bool,
    /// Bytes taken from the package.
    taken: u64,
    /// Bytes unpacked, and their CRC-32.
    unpacked: u64,
    crc: Crc,
    inflate: Option<Decompress>,
    /// Packed bytes not yet unpacked.
    input: Bytes,
    /// Unpacked bytes held back until others follow or all are judged.
    held: Option<Bytes>,
    state: MemberState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    Running,
    Done,
    Failed,
}

impl Packages {
    /// One member: `path` is that of the manifest's entry. The first bytes are asked for here, so that a package that has
    /// changed is noticed, and read again, before any are handed out.
    ///
    /// # Errors
    /// Any [`PackageError`].
    pub async fn member(&self, package: &Uri, path: &str) -> Result<Member, PackageError> {
        self.member_for(package, path, Priority::default(), &Received::default()).await
    }

    /// Member for a requester; until `priority` names one, requests for its bytes give way to others'. What comes for it is
    /// counted as `received`.
    ///
    /// # Errors
    /// Any [`PackageError`].
    pub async fn member_for(
        &self,
        package: &Uri,
        path: &str,
        priority: Priority,
        received: &Received,
    ) -> Result<Member, PackageError> {
        for _ in 0..ATTEMPTS {
            let directory = self.directory_for(package, received).await?;
            if directory.find(path) == FoundMember::Nothing {
                self.learn_folder(&directory, received).await;
            }
            let (package, path) = (package.clone(), Box::from(path));
            let number = match directory.find(&path) {
                FoundMember::Member(number) => number,
                FoundMember::Nothing => return Err(PackageError::NoMember { package, path }),
                FoundMember::Several => return Err(PackageError::Ambiguous { package, path }),
            };
            let (remote, place) = (self.remote(&package), self.place(&directory, number, &path));
            received.add(&remote.received);
            if let BytesPlace::Arriving(arriving) = &place {
                received.add(&arriving.received);
            }
            match Member::begin(remote, &directory, (number, &path), place, priority.clone()).await {
                Err(PackageError::Changed { .. }) => self.forget(&directory),
                begun => return begun,
            }
        }
        Err(PackageError::Changed { package: package.clone() })
    }
}

impl Member {
    /// Reads and checks its local header.
    pub(super) async fn begin(
        remote: PackageServer,
        directory: &Arc<Directory>,
        (number, path): (u32, &str),
        place: BytesPlace,
        priority: Priority,
    ) -> Result<Member, PackageError> {
        let directory = Arc::clone(directory);
        let wrong = |what: String| at_fault(&directory, path, what);
        let record = *directory.record(number).ok_or_else(|| wrong("is not in the directory".into()))?;
        if let Some(what) = record.unreadable() {
            return Err(wrong(what));
        }
        let (is_at_server, extent) = (matches!(place, BytesPlace::Server), directory.extent(number));
        let span = (extent.start, extent.end);
        let mut bytes = PackageBytes::new(remote, &directory.version, place, span, priority);
        let fixed = bytes.exactly(LOCAL_HEADER).await?;
        let header =
            LocalHeader::read(&fixed).ok_or_else(|| wrong("has no local header where the directory says".into()))?;
        let name = bytes.exactly(header.name_length.into()).await?;
        let extra = bytes.exactly(header.extra_length.into()).await?;
        if !header.agrees(&record, directory.name(&record), &name, &extra) {
            return Err(wrong("has a local header that contradicts the directory".into()));
        }
        Ok(Member {
            path: path.into(),
            record,
            bytes,
            is_at_server,
            taken: 0,
            unpacked: 0,
            crc: Crc::new(),
            inflate: (record.method == DEFLATED).then(|| Decompress::new(false)),
            input: Bytes::new(),
            held: None,
            state: MemberState::Running,
            directory,
        })
    }

    /// Bytes in all, as the directory says; no more ever come.
    pub fn length(&self) -> u64 {
        self.record.length
    }

    /// Extent of its bytes at the server, where they are not packed: a range of this version holds some of them. To be asked
    /// before the first are taken.
    pub fn stored(&self) -> Option<Stored> {
        let directory = &self.directory;
        let is_stored = self.is_at_server && self.inflate.is_none() && self.taken == 0;
        let etag = directory.version.etag.clone().filter(|_| is_stored)?;
        let (package, total) = (directory.package().clone(), directory.length());
        Some(Stored { package, etag, total, first: self.bytes.position() })
    }

    /// The next bytes; `None` at the end. The last ones come only when length and CRC-32 of all are right.
    ///
    /// # Errors
    /// Any [`PackageError`]; none but errors follow one.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, PackageError> {
        match self.state {
            MemberState::Running => {}
            MemberState::Done => return Ok(None),
            MemberState::Failed => return Err(self.wrong("broke off before")),
        }
        let chunk = self.checked().await;
        if chunk.is_err() {
            self.state = MemberState::Failed;
        }
        chunk
    }

    async fn checked(&mut self) -> Result<Option<Bytes>, PackageError> {
        let (length, crc) = (self.record.length, self.record.crc);
        while let Some(unpacked) = self.next_block().await? {
            over_bytes(unpacked.len() as u64, || self.crc.update(&unpacked));
            self.unpacked += unpacked.len() as u64;
            if self.unpacked > length {
                return Err(self.wrong(&format!("is longer than the {length} bytes that the directory says")));
            }
            if let Some(held) = self.held.replace(unpacked) {
                return Ok(Some(held));
            }
        }
        if self.unpacked != length || self.taken != self.record.packed {
            return Err(self.wrong(&format!("has {} bytes where the directory says {length}", self.unpacked)));
        }
        let sum = self.crc.sum();
        if sum != crc {
            return Err(self.wrong(&format!("has the CRC-32 {sum:08x} where the directory says {crc:08x}")));
        }
        self.state = MemberState::Done;
        Ok(self.held.take())
    }

    /// The next bytes as they are unpacked; `None` where they end with the packed ones. It may be dropped while it waits.
    async fn next_block(&mut self) -> Result<Option<Bytes>, PackageError> {
        loop {
            if self.input.is_empty() && self.taken < self.record.packed {
                self.input = self.bytes.next(self.record.packed - self.taken).await?;
                self.taken += self.input.len() as u64;
            }
            let Some(inflate) = &mut self.inflate else {
                let stored = std::mem::take(&mut self.input);
                return Ok(Some(stored).filter(|stored| !stored.is_empty()));
            };
            // One byte more than there may be shows a member that is too long, before it is unpacked.
            let most = (self.record.length - self.unpacked).saturating_add(1).min(BLOCK);
            let mut block = vec![0; most as usize];
            let before = (inflate.total_in(), inflate.total_out());
            let unpack = || inflate.decompress(&self.input, &mut block, FlushDecompress::None);
            let Ok(status) = over_bytes(self.record.length, unpack) else {
                return Err(self.wrong("is not deflated as it should be"));
            };
            let (taken, given) = (inflate.total_in() - before.0, inflate.total_out() - before.1);
            let _ = self.input.split_to(taken as usize);
            if given > 0 {
                block.truncate(given as usize);
                return Ok(Some(block.into()));
            }
            let is_at_end = self.input.is_empty() && self.taken == self.record.packed;
            match (status, is_at_end) {
                (Status::StreamEnd, true) => return Ok(None),
                (Status::StreamEnd, false) => return Err(self.wrong("ends before its packed bytes do")),
                (_, true) => return Err(self.wrong("continues past its packed bytes")),
                (_, false) if taken == 0 && !self.input.is_empty() => {
                    return Err(self.wrong("is not deflated as it should be"));
                }
                (_, false) => {}
            }
        }
    }

    fn wrong(&self, what: &str) -> PackageError {
        at_fault(&self.directory, &self.path, what.into())
    }
}

fn at_fault(directory: &Directory, path: &str, what: String) -> PackageError {
    PackageError::Member { package: directory.package().clone(), path: path.into(), what }
}
