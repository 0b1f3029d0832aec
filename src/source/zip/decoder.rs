//! One member's bytes: the local header checked against the directory, unpacked, and judged before the last of them go out.

use super::PackageError;
use super::directory::{DEFLATED, Directory, ENCRYPTED, LOCAL_HEADER, Record};
use super::package_bytes::PackageBytes;
use crate::source::over_bytes;
use bytes::Bytes;
use flate2::{Crc, Decompress, FlushDecompress, Status};

/// What a local header begins with (APPNOTE 4.3.7).
const SIGNATURE: [u8; 4] = *b"PK\x03\x04";

/// The bit that says that sizes and CRC follow the bytes (APPNOTE 4.4.4).
const DESCRIBED_AFTER: u16 = 1 << 3;

/// Extra fields with 64-bit sizes, and with the name in UTF-8 (APPNOTE 4.5.3 and 4.6.9).
const ZIP64: u16 = 0x0001;
const UNICODE_NAME: u16 = 0x7075;

/// PackageBytes unpacked at once, and of a large member.
const BLOCK: usize = 64 << 10;
const BLOCK_OF_LARGE: usize = 256 << 10;

/// A member of more bytes is large.
const LARGE: u64 = 128 << 10;

/// Unpacks one member. It never gives more bytes than the directory says, and gives the last of them only when length and
/// CRC-32 of all are right.
#[derive(Debug)]
pub(super) struct Decoder {
    path: Box<str>,
    record: Record,
    /// PackageBytes taken from the package.
    taken: u64,
    /// PackageBytes unpacked, and their CRC-32.
    unpacked: u64,
    crc: Crc,
    inflate: Option<Decompress>,
    /// Packed bytes not yet unpacked.
    input: Bytes,
    /// Unpacked bytes held back until others follow or the verdict is there.
    held: Option<Bytes>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    Failed,
}

impl Decoder {
    /// Reads the local header of `record`, to which `bytes` are moved, and checks it.
    pub async fn begin(
        directory: &Directory,
        record: Record,
        path: &str,
        bytes: &mut PackageBytes,
    ) -> Result<Decoder, PackageError> {
        let wrong = |what: String| member(directory, path, what);
        if let Some(what) = record.unreadable() {
            return Err(wrong(what));
        }
        bytes.skip_to(record.header).await?;
        let fixed = bytes.exactly(LOCAL_HEADER).await?;
        let header =
            LocalHeader::read(&fixed).ok_or_else(|| wrong("has no local header where the directory says".into()))?;
        let name = bytes.exactly(header.name_length.into()).await?;
        let extra = bytes.exactly(header.extra_length.into()).await?;
        header.agrees(&record, directory.name(&record), &name, &extra).map_err(|what| wrong(what.into()))?;
        Ok(Decoder {
            path: path.into(),
            record,
            taken: 0,
            unpacked: 0,
            crc: Crc::new(),
            inflate: (record.method == DEFLATED).then(|| Decompress::new(false)),
            input: Bytes::new(),
            held: None,
            state: State::Running,
        })
    }

    /// Whether the bytes lie in the package as they are, and none of them was taken.
    pub fn is_untouched_and_stored(&self) -> bool {
        self.inflate.is_none() && self.taken == 0 && self.state == State::Running
    }

    /// The next unpacked bytes; `None` after the last. After an error there are no more.
    pub async fn chunk(
        &mut self,
        directory: &Directory,
        bytes: &mut PackageBytes,
    ) -> Result<Option<Bytes>, PackageError> {
        match self.state {
            State::Running => {}
            State::Done => return Ok(self.held.take()),
            State::Failed => return Err(member(directory, &self.path, "broke off before".into())),
        }
        self.state = State::Failed;
        loop {
            let unpacked = if self.inflate.is_some() { self.inflated(bytes).await } else { self.stored(bytes).await };
            let unpacked = unpacked.map_err(|stop| stop.told(directory, &self.path))?;
            let Some(unpacked) = unpacked else { break };
            over_bytes(unpacked.len() as u64, || self.crc.update(&unpacked));
            self.unpacked += unpacked.len() as u64;
            if self.unpacked > self.record.length {
                let what = format!("is longer than the {} bytes that the directory says", self.record.length);
                return Err(member(directory, &self.path, what));
            }
            if let Some(held) = self.held.replace(unpacked) {
                self.state = State::Running;
                return Ok(Some(held));
            }
        }
        if self.unpacked != self.record.length || self.taken != self.record.packed {
            let what = format!("has {} bytes where the directory says {}", self.unpacked, self.record.length);
            return Err(member(directory, &self.path, what));
        }
        if self.crc.sum() != self.record.crc {
            let what =
                format!("has the CRC-32 {:08x} where the directory says {:08x}", self.crc.sum(), self.record.crc);
            return Err(member(directory, &self.path, what));
        }
        self.state = State::Done;
        Ok(self.held.take())
    }

    async fn stored(&mut self, bytes: &mut PackageBytes) -> Result<Option<Bytes>, Stop> {
        let left = self.record.packed - self.taken;
        if left == 0 {
            return Ok(None);
        }
        let bytes = bytes.next(left).await?;
        self.taken += bytes.len() as u64;
        Ok(Some(bytes))
    }

    async fn inflated(&mut self, bytes: &mut PackageBytes) -> Result<Option<Bytes>, Stop> {
        let Some(inflate) = &mut self.inflate else { return Ok(None) };
        loop {
            let left = self.record.packed - self.taken;
            if self.input.is_empty() && left > 0 {
                self.input = bytes.next(left).await?;
                self.taken += self.input.len() as u64;
            }
            // One byte more than there may be shows a member that is too long, whatever it would unpack to.
            let most = if self.record.length > LARGE { BLOCK_OF_LARGE } else { BLOCK };
            let room = (self.record.length - self.unpacked).saturating_add(1).min(most as u64) as usize;
            let mut block = vec![0; room];
            let before = (inflate.total_in(), inflate.total_out());
            let unpack = || inflate.decompress(&self.input, &mut block, FlushDecompress::None);
            let status = over_bytes(self.record.length, unpack);
            let status = status.map_err(|_| Stop::Wrong("is not deflated as it should be"))?;
            let taken = (inflate.total_in() - before.0) as usize;
            let given = (inflate.total_out() - before.1) as usize;
            let _ = self.input.split_to(taken);
            if given > 0 {
                block.truncate(given);
                return Ok(Some(block.into()));
            }
            match status {
                Status::StreamEnd if self.input.is_empty() && self.taken == self.record.packed => return Ok(None),
                Status::StreamEnd => return Err(Stop::Wrong("ends before its packed bytes do")),
                _ if self.input.is_empty() && self.taken == self.record.packed => {
                    return Err(Stop::Wrong("goes on past its packed bytes"));
                }
                _ if taken == 0 && !self.input.is_empty() => {
                    return Err(Stop::Wrong("is not deflated as it should be"));
                }
                _ => {}
            }
        }
    }
}

enum Stop {
    Package(PackageError),
    Wrong(&'static str),
}

impl From<PackageError> for Stop {
    fn from(error: PackageError) -> Stop {
        Stop::Package(error)
    }
}

impl Stop {
    fn told(self, directory: &Directory, path: &str) -> PackageError {
        match self {
            Stop::Package(error) => error,
            Stop::Wrong(what) => member(directory, path, what.into()),
        }
    }
}

fn member(directory: &Directory, path: &str, what: String) -> PackageError {
    PackageError::Member { package: directory.package().clone(), path: path.into(), what }
}

/// The fixed part of a local header.
#[derive(Debug)]
struct LocalHeader {
    flags: u16,
    method: u16,
    crc: u32,
    packed: u32,
    length: u32,
    name_length: u16,
    extra_length: u16,
}

impl LocalHeader {
    fn read(bytes: &[u8]) -> Option<LocalHeader> {
        if !bytes.starts_with(&SIGNATURE) {
            return None;
        }
        Some(LocalHeader {
            flags: u16_at(bytes, 6)?,
            method: u16_at(bytes, 8)?,
            crc: u32_at(bytes, 14)?,
            packed: u32_at(bytes, 18)?,
            length: u32_at(bytes, 22)?,
            name_length: u16_at(bytes, 26)?,
            extra_length: u16_at(bytes, 28)?,
        })
    }

    /// Whether this is the member that the directory describes.
    fn agrees(&self, record: &Record, listed: &[u8], name: &[u8], extra: &[u8]) -> Result<(), &'static str> {
        const OTHER: &str = "has a local header that contradicts the directory";
        // The directory's name may be the one that such a field gives in UTF-8: version, CRC-32 of the other, the name.
        let unicode = field(extra, UNICODE_NAME).and_then(|field| field.get(5..));
        if name != listed && unicode != Some(listed) {
            return Err(OTHER);
        }
        if self.method != record.method || (self.flags ^ record.flags) & ENCRYPTED != 0 {
            return Err(OTHER);
        }
        let wide = field(extra, ZIP64);
        let mut wide_sizes = wide.unwrap_or_default().chunks_exact(8).map(|size| u64_at(size, 0));
        let mut size = |narrow: u32| match narrow {
            u32::MAX if wide.is_some() => wide_sizes.next().flatten(),
            narrow => Some(narrow.into()),
        };
        let (length, packed) = (size(self.length), size(self.packed));
        let may_follow = self.flags & DESCRIBED_AFTER != 0;
        let is_right = |here: u64, listed: u64| here == listed || (may_follow && here == 0);
        match (length, packed) {
            (Some(length), Some(packed))
                if is_right(length, record.length)
                    && is_right(packed, record.packed)
                    && is_right(self.crc.into(), record.crc.into()) =>
            {
                Ok(())
            }
            _ => Err(OTHER),
        }
    }
}

/// An extra field: its bytes behind kind and length.
fn field(mut extra: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (here, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let content = extra.get(4..4 + length)?;
        if here == kind {
            return Some(content);
        }
        extra = extra.get(4 + length..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
