//! The dictionary of a catalog: media types, codings and relations, which records name by number.

use super::codec::{Octets, push_string, push_varint};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A media type, coding or relation as a record holds it.
#[derive(Clone, Copy)]
pub(in crate::catalog) enum Symbol<'a> {
    Known(u64),
    Inline(&'a str),
}

/// Media types, codings and relations that records name by number. Numbers are given once and never change. Whoever looks one up
/// waits for nobody.
pub(in crate::catalog) struct Symbols {
    /// The string of number `i + 1`.
    strings: Box<[OnceLock<Box<str>>]>,
    /// The number of each string, from the place on that its hash tells: more than half of them are 0, none.
    places: Box<[AtomicU16]>,
    /// Of the hash: who writes a list is not to know which strings share a place.
    seed: u64,
    /// How many there are; held while one is added.
    count: Mutex<usize>,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols {
            strings: (0..Symbols::LIMIT).map(|_| OnceLock::new()).collect(),
            places: (0..2 * Symbols::LIMIT + 1).map(|_| AtomicU16::new(0)).collect(),
            seed: RandomState::new().hash_one(()),
            count: Mutex::new(0),
        }
    }
}

impl Symbols {
    /// Beyond these many, and for longer strings, a record holds the string itself, so that no Source fills the memory.
    const LIMIT: usize = 4096;
    const LONGEST: usize = 255;

    /// From what [`Symbols::encode`] wrote.
    pub(in crate::catalog) fn decode(octets: &[u8]) -> Option<Symbols> {
        let symbols = Symbols::default();
        let mut octets = Octets(octets);
        while !octets.0.is_empty() {
            let mut count = symbols.count.lock().unwrap_or_else(PoisonError::into_inner);
            symbols.add(&mut count, octets.string()?)?;
        }
        Some(symbols)
    }

    /// All strings in the order of their numbers.
    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        self.strings.iter().map_while(OnceLock::get).for_each(|string| push_string(out, string));
    }

    /// The string of a symbol; `None` for a number never given.
    pub(in crate::catalog) fn resolve(&self, symbol: Symbol<'_>) -> Option<Box<str>> {
        match symbol {
            Symbol::Inline(string) => Some(string.into()),
            Symbol::Known(number) => self.strings.get(usize::try_from(number).ok()?.checked_sub(1)?)?.get().cloned(),
        }
    }

    /// Writes a string by its number, which it is given here at the latest, or as it is.
    pub(in crate::catalog) fn push(&self, out: &mut Vec<u8>, string: &str) {
        self.push_within(out, string, Self::LIMIT);
    }

    /// [`Symbols::push`] for the URI of a package. A Source may have one for each resource: these leave half of the
    /// numbers to all others.
    pub(in crate::catalog) fn push_package(&self, out: &mut Vec<u8>, uri: &str) {
        self.push_within(out, uri, Self::LIMIT / 2);
    }

    fn push_within(&self, out: &mut Vec<u8>, string: &str, limit: usize) {
        match self.number(string, limit) {
            Some(number) => push_varint(out, number),
            None => {
                out.push(0);
                push_string(out, string);
            }
        }
    }

    fn number(&self, string: &str, limit: usize) -> Option<u64> {
        if let Ok(number) = self.find(string) {
            return Some(number);
        }
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(number) = self.find(string) {
            return Some(number);
        }
        if string.len() > Self::LONGEST || *count >= limit {
            return None;
        }
        self.add(&mut count, string)
    }

    /// The number of a string; else the place where it belongs.
    fn find(&self, string: &str) -> Result<u64, usize> {
        let mut place = xxh3_64_with_seed(string.as_bytes(), self.seed) as usize % self.places.len();
        loop {
            // What the writer of the number wrote before it is seen.
            let number = self.places[place].load(Ordering::Acquire);
            match usize::from(number).checked_sub(1) {
                None => return Err(place),
                Some(index) if self.strings[index].get().is_some_and(|known| **known == *string) => {
                    return Ok(u64::from(number));
                }
                Some(_) => place = (place + 1) % self.places.len(),
            }
        }
    }

    /// Gives a string the next number, where there is one left.
    fn add(&self, count: &mut usize, string: &str) -> Option<u64> {
        self.strings.get(*count)?.set(string.into()).ok()?;
        *count += 1;
        if let Err(place) = self.find(string) {
            self.places[place].store(u16::try_from(*count).ok()?, Ordering::Release);
        }
        u64::try_from(*count).ok()
    }

    /// Whether two symbols, or their absence, mean the same.
    pub(in crate::catalog) fn agree(&self, a: Option<Symbol<'_>>, b: Option<Symbol<'_>>) -> bool {
        match (a, b) {
            (Some(Symbol::Known(a)), Some(Symbol::Known(b))) => a == b,
            (a, b) => a.map(|a| self.resolve(a)) == b.map(|b| self.resolve(b)),
        }
    }
}

impl<'a> Symbol<'a> {
    /// Reads what [`Symbols::push`] wrote.
    pub(in crate::catalog) fn read(octets: &mut Octets<'a>) -> Option<Symbol<'a>> {
        match octets.varint()? {
            0 => octets.string().map(Symbol::Inline),
            number => Some(Symbol::Known(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_that_look_up_the_same_strings_give_each_one_number() {
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
            let mut octets = Vec::new();
            again.push(&mut octets, string);
            assert_eq!(octets, written(&mut [string].into_iter()));
            let symbol = Symbol::read(&mut Octets(&octets)).unwrap();
            assert_eq!(again.resolve(symbol).as_deref(), Some(&**string));
            inline += usize::from(matches!(symbol, Symbol::Inline(_)));
        }
        assert_eq!(inline, Symbols::LIMIT, "each number is given once, and all are");
    }

    #[test]
    fn more_strings_than_there_are_numbers_are_none_of_ours() {
        let mut octets = Vec::new();
        (0..=Symbols::LIMIT).for_each(|number| push_string(&mut octets, &number.to_string()));
        assert!(Symbols::decode(&octets).is_none());
    }
}
