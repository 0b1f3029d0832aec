//! Bytes as they come to well-formed UTF-8: decompression, encodings, mending, and the bounds on both.

use crate::document::gunzip::{GZIP_MAGIC, Gunzip};
use encoding_rs::{BIG5, EUC_KR, Encoding, GBK, REPLACEMENT as UNREADABLE, SHIFT_JIS, UTF_8, UTF_16BE, UTF_16LE};
use encoding_rs_io::{DecodeReaderBytes, DecodeReaderBytesBuilder};
use std::io::{self, BufRead, Chain, Cursor, Read};

/// Bytes in which compression and encoding are looked for: the longest XML declaration with room to spare.
const SNIFFED: usize = 512;

/// Bytes of text in the buffer.
const CAPACITY: usize = 64 * 1024;

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// A reader whose first bytes have been looked at and are handed out again.
type Sniffed<R> = Chain<Cursor<Vec<u8>>, R>;

/// Which bound the input met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    /// Bytes of the whole document.
    Document,
    /// Bytes between two events of the XML reader.
    Markup,
}

/// Well-formed UTF-8 without BOM, also where the bytes were not.
///
/// Its buffer is handed out in windows `start..end` that are known to be UTF-8, so that between two refills an event of
/// the XML reader costs no more than an index.
pub(super) struct Input<R> {
    bytes: Decoded<R>,
    /// U+FFFD, which is handed out in place of what is ill-formed, then `CAPACITY` bytes of text.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// `next..filled` of the buffer has been read and not yet looked at.
    next: usize,
    filled: usize,
    /// There is nothing more to read.
    ended: bool,
    /// Bytes in all windows so far, the present one included.
    handed_out: u64,
    /// `handed_out` never passes it.
    document_end: u64,
    /// No window is begun past it before the next [`Input::begin_markup`].
    markup_end: u64,
    /// The bound that was met, once reading has failed for it.
    pub(super) exceeded: Option<Exceeded>,
    /// Ill-formed sequences that have been handed out as U+FFFD.
    pub(super) replaced: u64,
    /// The number of control characters so far that XML does not allow, the first of them, and the bytes before it.
    pub(super) controls: Option<(u64, u8, u64)>,
    /// The encoding that the document declares, where that is none we know: it is read as UTF-8.
    pub(super) unknown_encoding: Option<Box<str>>,
}

enum Decoded<R> {
    Utf8(Sniffed<Inflated<R>>),
    Other(DecodeReaderBytes<Sniffed<Inflated<R>>, Vec<u8>>),
}

enum Inflated<R> {
    Plain(Sniffed<R>),
    Gzip(Gunzip<Sniffed<R>>),
}

impl<R: BufRead> Input<R> {
    /// `document` bounds the bytes after decompression.
    pub(super) fn new(bytes: R, document: u64) -> io::Result<Input<R>> {
        let bytes = sniff(bytes)?;
        let inflated = if bytes.get_ref().0.get_ref().starts_with(&GZIP_MAGIC) {
            // Its content is bounded where it is handed out.
            Inflated::Gzip(Gunzip::new(bytes, u64::MAX))
        } else {
            Inflated::Plain(bytes)
        };
        let mut text = sniff(inflated)?;
        let front = text.get_ref().0.get_ref();
        let (encoding, bom_length) = encoding_of(front);
        let unknown = declared_encoding(front).filter(|label| encoding_of_label(label).is_none());
        let unknown_encoding = unknown.map(|label| String::from_utf8_lossy(label).into());
        text.get_mut().0.set_position(bom_length as u64);
        let bytes = if encoding == UTF_8 {
            Decoded::Utf8(text)
        } else {
            let decoder = DecodeReaderBytesBuilder::new()
                .encoding(Some(encoding))
                .bom_override(false)
                .bom_sniffing(false)
                .build(text);
            Decoded::Other(decoder)
        };
        let mut buffer = vec![0; REPLACEMENT.len() + CAPACITY];
        buffer[..REPLACEMENT.len()].copy_from_slice(REPLACEMENT);
        Ok(Input {
            bytes,
            buffer,
            start: 0,
            end: 0,
            next: REPLACEMENT.len(),
            filled: REPLACEMENT.len(),
            ended: false,
            handed_out: 0,
            document_end: document,
            markup_end: document,
            exceeded: None,
            replaced: 0,
            controls: None,
            unknown_encoding,
        })
    }
}

impl<R> Input<R> {
    /// From here on `limit` bytes, and no more than a buffer beyond, may be read before the next call.
    #[inline]
    pub(super) fn begin_markup(&mut self, limit: u64) {
        self.markup_end = self.handed_out.saturating_add(limit);
    }

    /// Bytes that have been read and not yet been consumed; empty where more is to be read.
    #[inline]
    pub(super) fn window(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The first `bytes` of the window, where they begin with a character and end with one of ASCII.
    #[inline]
    pub(super) fn text(&self, bytes: usize) -> Option<&str> {
        let text = self.window().get(..bytes)?;
        // A bound of the document may cut the window's last character.
        if text.first()? & 0xc0 == 0x80 || !text.last()?.is_ascii() {
            return None;
        }
        // SAFETY: windows are parts of UTF-8 (`refill`), and this one begins with the first byte of a character and ends with one that is all of it.
        Some(unsafe { std::str::from_utf8_unchecked(text) })
    }
}

/// Looks at the first bytes, however few the reader gives at a time.
fn sniff<R: Read>(mut bytes: R) -> io::Result<Sniffed<R>> {
    let mut front = Vec::with_capacity(SNIFFED);
    bytes.by_ref().take(SNIFFED as u64).read_to_end(&mut front)?;
    Ok(Cursor::new(front).chain(bytes))
}

/// The encoding that the first bytes of a document show (XML 1.0, appendix F), and the length of the BOM.
fn encoding_of(front: &[u8]) -> (&'static Encoding, usize) {
    if let Some(bom) = Encoding::for_bom(front) {
        return bom;
    }
    match front {
        [first, 0, second, 0, ..] if *first != 0 && *second != 0 => (UTF_16LE, 0),
        [0, first, 0, second, ..] if *first != 0 && *second != 0 => (UTF_16BE, 0),
        _ => {
            let declared = declared_encoding(front).and_then(encoding_of_label);
            // A document that declares itself in single bytes is not UTF-16, also where it declares that.
            (declared.filter(|encoding| ![UTF_16LE, UTF_16BE].contains(encoding)).unwrap_or(UTF_8), 0)
        }
    }
}

/// The encoding of this name, of the Encoding Standard or as programming languages and Windows write it.
pub(super) fn encoding_of_label(label: &[u8]) -> Option<&'static Encoding> {
    let named = |label: &[u8]| Encoding::for_label(label).filter(|encoding| *encoding != UNREADABLE);
    let separated: Vec<u8> = label.iter().map(|b| if *b == b'_' { b'-' } else { b.to_ascii_lowercase() }).collect();
    let joined: Vec<u8> = separated.iter().copied().filter(|b| *b != b'-').collect();
    named(label).or_else(|| named(&separated)).or_else(|| named(&joined)).or(match joined.as_slice() {
        b"cp932" => Some(SHIFT_JIS),
        b"cp936" | b"ms936" => Some(GBK),
        b"cp949" | b"ms949" => Some(EUC_KR),
        b"cp950" | b"ms950" => Some(BIG5),
        b"cp65001" => Some(UTF_8),
        _ => None,
    })
}

/// The value of `encoding` in an XML declaration.
fn declared_encoding(front: &[u8]) -> Option<&[u8]> {
    let declaration = front.trim_ascii_start().strip_prefix(b"<?xml")?;
    let declaration = declaration.split(|b| *b == b'>').next()?;
    let start = declaration.windows(8).position(|window| window == b"encoding")? + 8;
    let value = declaration.get(start..)?.trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
    let (quote, value) = value.split_first().filter(|(quote, _)| matches!(quote, b'"' | b'\''))?;
    value.split(|b| b == quote).next()
}

impl<R: BufRead> Input<R> {
    /// Opens the next window; it stays empty at the end of the document.
    fn refill(&mut self) -> io::Result<()> {
        loop {
            let unseen = self.buffer.get(self.next..self.filled).unwrap_or_default();
            let (valid, error_length) = match std::str::from_utf8(unseen) {
                Ok(text) => (text.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let cut_off = valid < unseen.len() && self.ended;
            if valid > 0 {
                return self.hand_out(self.next, valid);
            } else if error_length.is_some() || cut_off {
                self.next += error_length.unwrap_or(unseen.len());
                self.replaced += 1;
                return self.hand_out(0, REPLACEMENT.len());
            } else if self.ended {
                return Ok(());
            }
            // Nothing is left, or the beginning of a character.
            self.buffer.copy_within(self.next..self.filled, REPLACEMENT.len());
            self.filled -= self.next - REPLACEMENT.len();
            self.next = REPLACEMENT.len();
            let count = self.bytes.read(&mut self.buffer[self.filled..])?;
            self.filled += count;
            self.ended = count == 0;
        }
    }

    /// Notes the control characters of the window.
    fn look_for_controls(&mut self) {
        let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r');
        let window = self.buffer.get(self.start..self.end).unwrap_or_default();
        // Without a branch, so that the compiler looks at many bytes at once.
        if !window.iter().fold(false, |found, byte| found | is_control(byte)) {
            return;
        }
        let first = window.iter().zip(self.handed_out..).find(|(byte, _)| is_control(byte));
        let (_, byte, position) = self.controls.or(first.map(|(byte, at)| (0, *byte, at))).unwrap_or_default();
        let count = self.controls.map_or(0, |(count, ..)| count);
        let more = window.iter().filter(|byte| is_control(byte)).count() as u64;
        self.controls = Some((count + more, byte, position));
    }

    /// Makes `length` bytes from `start` the window, or as many as the bounds leave room for.
    fn hand_out(&mut self, start: usize, length: usize) -> io::Result<()> {
        let room = usize::try_from(self.document_end - self.handed_out).unwrap_or(usize::MAX);
        self.exceeded = if room == 0 {
            Some(Exceeded::Document)
        } else if self.handed_out >= self.markup_end {
            Some(Exceeded::Markup)
        } else {
            None
        };
        if self.exceeded.is_some() {
            return Err(io::Error::other("a limit of the reader was met"));
        }
        let length = length.min(room);
        self.start = start;
        self.end = start + length;
        self.look_for_controls();
        self.handed_out += length as u64;
        if start == self.next {
            self.next = self.end;
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for Input<R> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.refill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    #[inline]
    fn consume(&mut self, count: usize) {
        self.start += count;
    }
}

impl<R: BufRead> Read for Input<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let count = available.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> Read for Decoded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoded::Utf8(bytes) => bytes.read(out),
            Decoded::Other(bytes) => bytes.read(out),
        }
    }
}

impl<R: BufRead> Read for Inflated<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Inflated::Plain(bytes) => bytes.read(out),
            Inflated::Gzip(bytes) => bytes.read(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(bytes: &[u8], bound: u64) -> Input<&[u8]> {
        let mut input = Input::new(bytes, bound).unwrap();
        input.fill_buf().unwrap();
        input
    }

    #[test]
    fn text_begins_with_a_character_and_ends_with_one_of_ascii() {
        let mut input = filled("aé>".as_bytes(), 100);

        assert_eq!(input.text(4), Some("aé>"));
        assert_eq!(input.text(1), Some("a"));
        assert_eq!([0, 2, 3, 5].map(|bytes| input.text(bytes)), [None; 4]);
        input.consume(1);
        assert_eq!(input.text(3), Some("é>"));
        input.consume(1);
        assert_eq!(input.text(2), None, "it begins in the midst of a character");
    }

    #[test]
    fn a_character_that_the_bound_of_the_document_cuts_is_no_text() {
        let input = filled("a€".as_bytes(), 2);

        assert_eq!(input.window(), b"a\xe2");
        assert_eq!((input.text(1), input.text(2)), (Some("a"), None));
    }
}
