//! The dictionary of a catalog: media types, codings and relations, which records name by number.

use super::octets::{Octets, push_string, push_varint};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// A media type, coding or relation as a record holds it.
#[derive(Clone, Copy)]
pub(super) enum Symbol<'a> {
    Known(u64),
    Inline(&'a str),
}

/// Media types, codings and relations that records name by number. Numbers are given once and never change.
#[derive(Default)]
pub(super) struct Symbols {
    table: RwLock<SymbolTable>,
}

#[derive(Default)]
struct SymbolTable {
    /// The string of number `i + 1`.
    strings: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u64>,
}

impl Symbols {
    /// Beyond these many, and for longer strings, a record holds the string itself, so that no Source fills the memory.
    const LIMIT: usize = 4096;
    const LONGEST: usize = 255;

    /// From what [`Symbols::encode`] wrote.
    pub(super) fn decode(octets: &[u8]) -> Option<Symbols> {
        let mut table = SymbolTable::default();
        let mut octets = Octets(octets);
        while !octets.0.is_empty() {
            let string: Box<str> = octets.string()?.into();
            table.strings.push(string.clone());
            table.numbers.insert(string, table.strings.len() as u64);
        }
        Some(Symbols { table: RwLock::new(table) })
    }

    /// All strings in the order of their numbers.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.strings.iter().for_each(|string| push_string(out, string));
    }

    /// The string of a symbol; `None` for a number never given.
    pub(super) fn resolve(&self, symbol: Symbol<'_>) -> Option<Box<str>> {
        match symbol {
            Symbol::Inline(string) => Some(string.into()),
            Symbol::Known(number) => {
                let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
                table.strings.get(usize::try_from(number).ok()?.checked_sub(1)?).cloned()
            }
        }
    }

    /// Writes a string by its number, which it is given here at the latest, or as it is.
    pub(super) fn push(&self, out: &mut Vec<u8>, string: &str) {
        self.push_within(out, string, Self::LIMIT);
    }

    /// [`Symbols::push`] for the URI of a package. A Source may have one for each resource: these leave half of the
    /// numbers to all others.
    pub(super) fn push_package(&self, out: &mut Vec<u8>, uri: &str) {
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
        if let Some(&number) = self.table.read().unwrap_or_else(PoisonError::into_inner).numbers.get(string) {
            return Some(number);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if string.len() > Self::LONGEST || table.strings.len() >= limit {
            return None;
        }
        table.strings.push(string.into());
        let number = table.strings.len() as u64;
        Some(*table.numbers.entry(string.into()).or_insert(number))
    }

    /// Whether two symbols, or their absence, mean the same.
    pub(super) fn agree(&self, a: Option<Symbol<'_>>, b: Option<Symbol<'_>>) -> bool {
        match (a, b) {
            (Some(Symbol::Known(a)), Some(Symbol::Known(b))) => a == b,
            (a, b) => a.map(|a| self.resolve(a)) == b.map(|b| self.resolve(b)),
        }
    }
}

impl<'a> Symbol<'a> {
    /// Reads what [`Symbols::push`] wrote.
    pub(super) fn read(octets: &mut Octets<'a>) -> Option<Symbol<'a>> {
        match octets.varint()? {
            0 => octets.string().map(Symbol::Inline),
            number => Some(Symbol::Known(number)),
        }
    }
}
