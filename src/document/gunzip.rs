//! Gzip undone, within bounds: of what it holds, and of how many members hold it.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// The first bytes of a gzip file.
pub const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Members of one file, empty ones too. Each costs the making of a decoder, and one that holds nothing is 20 bytes, which
/// another layer of compression makes into none.
const MEMBERS: u64 = 100_000;

/// Bytes that each further member has to hold in the mean: those of tools that work in blocks hold sixteen times that.
const OF_A_MEMBER: u64 = 4 << 10;

/// Every member of a gzip file, one after the other. Bytes behind the last member are ignored.
pub struct Gunzip<R> {
    /// `None` behind the last member.
    member: Option<GzDecoder<R>>,
    members: u64,
    /// Bytes handed out.
    bytes: u64,
    /// The most of those.
    limit: u64,
}

impl<R: BufRead> Gunzip<R> {
    /// Unpacks `bytes`, up to `limit` bytes: more is an error.
    pub fn new(bytes: R, limit: u64) -> Gunzip<R> {
        Gunzip { member: Some(GzDecoder::new(bytes)), members: 1, bytes: 0, limit }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let count = member.read(out)?;
            if count > 0 || out.is_empty() {
                self.bytes = self.bytes.saturating_add(count as u64);
                if self.bytes > self.limit {
                    return Err(io::Error::other(format!("more than {} bytes when unpacked", self.limit)));
                }
                return Ok(count);
            }
            let another = member.get_mut().fill_buf()?.first() == GZIP_MAGIC.first();
            if another && self.members >= MEMBERS.saturating_add(self.bytes / OF_A_MEMBER) {
                return Err(io::Error::other(format!("{} almost empty gzip members", self.members)));
            }
            self.members += 1;
            self.member = self.member.take().filter(|_| another).map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn unpacked(bytes: &[u8], limit: u64) -> io::Result<Vec<u8>> {
        let mut unpacked = Vec::new();
        Gunzip::new(bytes, limit).read_to_end(&mut unpacked).map(|_| unpacked)
    }

    #[test]
    fn members_follow_each_other_and_what_is_none_is_ignored() {
        let bytes = [gzip(b"one"), gzip(b""), gzip(b"two"), b"\0\0".to_vec()].concat();
        assert_eq!(unpacked(&bytes, 6).unwrap(), b"onetwo");
        assert!(unpacked(&bytes, 5).is_err());
    }

    #[test]
    fn the_more_the_members_hold_the_more_there_may_be() {
        let (more, others) = (1_000, gzip(b"").repeat(MEMBERS as usize + 900));
        let large = vec![b'x'; more * OF_A_MEMBER as usize];
        assert_eq!(unpacked(&[gzip(&large), others.clone()].concat(), u64::MAX).unwrap().len(), large.len());
        assert!(unpacked(&others, u64::MAX).is_err(), "none holds anything");
    }
}
