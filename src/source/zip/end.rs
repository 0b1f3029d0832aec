//! The end of a package as a file of which the rest is missing: what the `zip` crate reads a directory from.

use std::io::{self, Read, Seek, SeekFrom};

/// A file of which only the last bytes are here. A read of others fails and says where they begin.
#[derive(Debug)]
pub(super) struct End {
    /// PackageBytes of the whole.
    length: u64,
    /// Offset of the first byte that is here.
    first: u64,
    /// The bytes from there to the end: `length - first` of them.
    bytes: Vec<u8>,
    position: u64,
    /// Where the last read began that met a hole.
    missed: Option<u64>,
}

impl End {
    /// A file of `length` bytes that ends with `bytes`.
    pub fn new(length: u64, bytes: Vec<u8>) -> End {
        let first = length.saturating_sub(bytes.len() as u64);
        End { length, first, bytes, position: 0, missed: None }
    }

    /// Offset of the first byte that is here.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// PackageBytes of the whole.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where the last failed read began.
    pub fn missed(&self) -> Option<u64> {
        self.missed
    }

    /// Puts `bytes` before those that are here.
    pub fn prepend(&mut self, mut bytes: Vec<u8>) {
        self.first = self.first.saturating_sub(bytes.len() as u64);
        bytes.append(&mut self.bytes);
        self.bytes = bytes;
        self.missed = None;
    }

    /// Whether something here looks like the record that a directory ends with.
    pub fn has_directory(&self) -> bool {
        self.bytes.windows(4).any(|bytes| bytes == b"PK\x05\x06")
    }

    /// Everything, where nothing is missing.
    pub fn into_whole(self) -> Option<Vec<u8>> {
        (self.first == 0).then_some(self.bytes)
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        let Some(offset) = self.position.checked_sub(self.first) else {
            self.missed = Some(self.position);
            return Err(io::Error::other("this part of the package was not fetched"));
        };
        let here = self.bytes.get(offset as usize..).unwrap_or_default();
        let count = here.len().min(buffer.len());
        buffer[..count].copy_from_slice(&here[..count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for End {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.length.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_an_error_that_says_where_it_begins() {
        let mut end = End::new(10, b"fghij".to_vec());
        let mut buffer = [0; 3];
        end.seek(SeekFrom::End(-3)).unwrap();
        end.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"hij");

        end.seek(SeekFrom::Start(2)).unwrap();
        end.read(&mut buffer).unwrap_err();
        assert_eq!(end.missed(), Some(2));

        end.prepend(b"cde".to_vec());
        end.read_exact(&mut buffer).unwrap();
        assert_eq!((&buffer, end.first(), end.missed()), (b"cde", 2, None));
        assert_eq!(end.into_whole(), None);
    }
}
