//! Changes bytes as accidents and attackers do.

use crate::common::random::Random;

/// Numbers at which counts and lengths go wrong.
const NUMBERS: [&str; 9] =
    ["0", "-1", "65536", "2147483648", "4294967295", "9223372036854775807", "18446744073709551616", "1e999", "NaN"];

/// Most bytes of a case: enough for what is bounded to meet its bound, few enough for thousands of cases a second.
const MOST: usize = 64 << 10;

/// A case made of `seed` by one to eight changes, with pieces of `other` and words of `dictionary`.
pub fn mutated(random: &mut Random, seed: &[u8], other: &[u8], dictionary: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(8) {
        change(random, &mut bytes, other, dictionary);
    }
    bytes.truncate(MOST);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8], dictionary: &[Vec<u8>]) {
    let place = random.below(bytes.len() as u64 + 1) as usize;
    let most = 1 << random.below(9);
    let length = random.below(most) as usize;
    let end = bytes.len().min(place + length);
    match random.below(10) {
        0 if place < bytes.len() => bytes[place] ^= 1 << random.below(8),
        1 if place < bytes.len() => bytes[place] = random.number() as u8,
        2 => drop(bytes.drain(place..end)),
        3 => bytes.truncate(place),
        4 => {
            let from = random.below(other.len() as u64 + 1) as usize;
            let piece = &other[from..other.len().min(from + length)];
            drop(bytes.splice(place..end, piece.iter().copied()));
        }
        5 => {
            let times = 1 << random.below(12);
            let piece = bytes[place..end].repeat(times);
            drop(bytes.splice(place..place, piece.into_iter().take(MOST)));
        }
        6 => {
            let piece = bytes[place..end].to_vec();
            let to = random.below(bytes.len() as u64 + 1) as usize;
            drop(bytes.splice(to..to, piece));
        }
        7 => replace_number(random, bytes, place),
        _ => {
            let word = &dictionary[random.below(dictionary.len() as u64) as usize];
            let end = if random.below(2) == 0 { place } else { end };
            drop(bytes.splice(place..end, word.iter().copied()));
        }
    }
}

/// Puts another number in place of the next one in the text.
fn replace_number(random: &mut Random, bytes: &mut Vec<u8>, place: usize) {
    let Some(first) = bytes[place..].iter().position(u8::is_ascii_digit).map(|at| place + at) else { return };
    let end = bytes[first..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |at| first + at);
    let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
    drop(bytes.splice(first..end, number.bytes()));
}
