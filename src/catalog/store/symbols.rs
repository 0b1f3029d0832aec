//! The dictionary of a catalog: media types, codings and relations, which records name by number.

use super::codec::{Decoder, push_string, push_varint};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A media type, coding or relation as a record holds it.
#[derive(Clone, Copy)]
pub enum Symbol<'a> {
    Known(u64),
    Inline(&'a str),
}

/// Media types, codings and relations that records name by number. Numbers are given once and never change.
#[derive(Default)]
pub struct Symbols(RwLock<Known>);

#[derive(Default)]
struct Known {
    /// The string of number `i + 1`.
    strings: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u64>,
}

impl Known {
    /// Gives a string, which has none, the next number.
    fn add(&mut self, string: &str) -> u64 {
        let (string, number) = (Arc::<str>::from(string), self.strings.len() as u64 + 1);
        self.strings.push(string.clone());
        self.numbers.insert(string, number);
        number
    }
}

impl Symbols {
    /// Beyond so many, and for longer strings, a record holds the string itself, so that no Source fills the memory.
    const LIMIT: usize = 4096;
    const LONGEST: usize = 255;

    /// From what [`Symbols::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Symbols> {
        let (mut known, mut bytes) = (Known::default(), Decoder(bytes));
        while !bytes.0.is_empty() {
            known.add(bytes.string()?);
        }
        (known.strings.len() <= Symbols::LIMIT).then(|| Symbols(RwLock::new(known)))
    }

    /// All strings in the order of their numbers.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.known().strings.iter().for_each(|string| push_string(out, string));
    }

    /// The string of a symbol; `None` for a number never given.
    pub fn resolve(&self, symbol: Symbol<'_>) -> Option<Box<str>> {
        match symbol {
            Symbol::Inline(string) => Some(string.into()),
            Symbol::Known(number) => {
                let index = usize::try_from(number).ok()?.checked_sub(1)?;
                self.known().strings.get(index).map(|string| string[..].into())
            }
        }
    }

    /// Writes a string by its number, which it is given here at the latest, or as it is.
    pub fn push(&self, out: &mut Vec<u8>, string: &str) {
        self.push_within(out, string, Symbols::LIMIT);
    }

    /// [`Symbols::push`] for the URI of a package. A Source may have one for each resource: these leave half of the
    /// numbers to all others.
    pub fn push_package(&self, out: &mut Vec<u8>, uri: &str) {
        self.push_within(out, uri, Symbols::LIMIT / 2);
    }

    fn push_within(&self, out: &mut Vec<u8>, string: &str, limit: usize) {
        self.number(string, limit).map_or(Symbol::Inline(string), Symbol::Known).push(out);
    }

    fn number(&self, string: &str, limit: usize) -> Option<u64> {
        let known = self.known();
        if let Some(number) = known.numbers.get(string) {
            return Some(*number);
        }
        if string.len() > Symbols::LONGEST || known.strings.len() >= limit {
            return None;
        }
        drop(known);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added it, or the last one.
        match known.numbers.get(string) {
            Some(number) => Some(*number),
            None => (known.strings.len() < limit).then(|| known.add(string)),
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether two symbols, or their absence, mean the same.
    pub fn agree(&self, a: Option<Symbol<'_>>, b: Option<Symbol<'_>>) -> bool {
        match (a, b) {
            (Some(Symbol::Known(a)), Some(Symbol::Known(b))) => a == b,
            (a, b) => a.map(|a| self.resolve(a)) == b.map(|b| self.resolve(b)),
        }
    }
}

impl<'a> Symbol<'a> {
    pub fn push(self, out: &mut Vec<u8>) {
        match self {
            Symbol::Known(number) => push_varint(out, number),
            Symbol::Inline(string) => {
                out.push(0);
                push_string(out, string);
            }
        }
    }

    /// Reads what [`Symbol::push`] wrote.
    pub fn read(bytes: &mut Decoder<'a>) -> Option<Symbol<'a>> {
        match bytes.varint()? {
            0 => bytes.string().map(Symbol::Inline),
            number => Some(Symbol::Known(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_give_each_string_one_number() {
        let symbols = Symbols::default();
        let all: Vec<_> = (0..2 * Symbols::LIMIT).map(|number| format!("application/x-{number}")).collect();
        let written = |strings: &mut dyn Iterator<Item = &String>| {
            let mut out = Vec::new();
            strings.for_each(|string| symbols.push(&mut out, string));
            out
        };

        thread::scope(|scope| {
            scope.spawn(|| written(&mut all.iter()));
            scope.spawn(|| written(&mut all.iter().rev()));
        });

        let mut encoded = Vec::new();
        symbols.encode(&mut encoded);
        let again = Symbols::decode(&encoded).unwrap();
        let mut inline = 0;
        for string in &all {
            let mut bytes = Vec::new();
            again.push(&mut bytes, string);
            assert_eq!(bytes, written(&mut [string].into_iter()));
            let symbol = Symbol::read(&mut Decoder(&bytes)).unwrap();
            assert_eq!(again.resolve(symbol).as_deref(), Some(&**string));
            inline += usize::from(matches!(symbol, Symbol::Inline(_)));
        }
        assert_eq!(inline, Symbols::LIMIT, "each number is given once, and all are");
    }

    #[test]
    fn more_strings_than_numbers_are_refused() {
        let mut bytes = Vec::new();
        (0..=Symbols::LIMIT).for_each(|number| push_string(&mut bytes, &number.to_string()));
        assert!(Symbols::decode(&bytes).is_none());
    }
}
