//! A process that reads one file, in one of the manners that processes have.

use super::places::MOMENT;
use super::random::Random;
use super::shown::Pages;
use super::{HANG, Model, READS};
use crate::content::{Content, FetchSpec, LocalRead};
use crate::source::http::Requester;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A file is read in so many pieces, at most.
const PIECES: u64 = 300;

/// The pieces that are read of a file, and their order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner {
    Any,
    /// All of it in order, as `cat`.
    Whole,
    Backwards,
    Shuffled,
    Beginning,
    /// The end, backwards from there, as `tail`.
    End,
    /// From a place near the end to the end.
    Tail,
    /// A stretch from anywhere on.
    Stretch,
    /// Pieces from anywhere, and those by which versions are told apart.
    Sample,
    /// Pieces behind what a stream soon brings, in order.
    Far,
    /// The end, and then all of it in order.
    EndFirst,
}

/// A process that reads one file.
pub(super) struct Reader {
    pub(super) content: Arc<Content>,
    pub(super) model: Arc<Mutex<Model>>,
    pub(super) file: usize,
    pub(super) manner: Manner,
    pub(super) random: Random,
    /// Pages by which versions are told apart.
    pub(super) telling: Vec<u64>,
    /// The pages that it has read.
    pub(super) own: Pages,
}

impl Reader {
    pub(super) async fn read(mut self) {
        let spec = self.model.lock().unwrap().files[self.file].shown.spec.clone();
        let size = {
            let model = self.model.lock().unwrap();
            let known = self.content.known_size(spec.ino).or(spec.length);
            known.unwrap_or(model.files[self.file].bodies[0].length())
        };
        for (at, length) in self.plan(size) {
            if !self.read_at(&spec, at, length).await {
                return;
            }
        }
    }

    /// The pieces of a file of `size`.
    fn plan(&mut self, size: u64) -> Vec<(u64, u64)> {
        let length = self.random.one_of(&[4096, 4096, 16 << 10, 128 << 10, 128 << 10, 1 << 20, 3000]);
        let few = 1 + self.random.below(24);
        let manner = match self.manner {
            Manner::Any => self.random.one_of(&[
                Manner::Whole,
                Manner::Whole,
                Manner::Backwards,
                Manner::Shuffled,
                Manner::Beginning,
                Manner::Beginning,
                Manner::End,
                Manner::Tail,
                Manner::Stretch,
                Manner::Sample,
                Manner::EndFirst,
            ]),
            manner => manner,
        };
        // To read all of a large file takes large pieces.
        let whole = if size / length < PIECES { length } else { self.random.one_of(&[64 << 10, 128 << 10, 1 << 20]) };
        let all = (size / whole + 2).min(PIECES);
        let end = size.saturating_sub(self.random.below(3) * (128 << 10) + length);
        let page = |random: &mut Random| random.below(size + 1) / 4096 * 4096;
        let pieces =
            |numbers: &mut dyn Iterator<Item = u64>| numbers.map(|number| (number * whole, whole)).collect::<Vec<_>>();
        let on = |first: u64| (0..few).map(|number| (first + number * length, length)).collect::<Vec<_>>();
        match manner {
            Manner::Any | Manner::Whole => pieces(&mut (0..all)),
            Manner::Backwards => pieces(&mut (0..all).rev()),
            Manner::Shuffled => {
                let mut pieces = pieces(&mut (0..all));
                (0..pieces.len()).for_each(|at| pieces.swap(at, self.random.below(all) as usize));
                pieces
            }
            Manner::Beginning => on(0),
            Manner::End => (0..few).map(|number| (end.saturating_sub(number * length), length)).collect(),
            Manner::Tail => on(end),
            Manner::Stretch => on(page(&mut self.random)),
            Manner::Sample => (0..few)
                .map(|_| match self.random.chance(30) {
                    true => (self.random.one_of(&self.telling), length),
                    false => (page(&mut self.random), length),
                })
                .collect(),
            Manner::Far => on((size / 3 + page(&mut self.random) / 2) / 4096 * 4096),
            Manner::EndFirst => [(end, length)].into_iter().chain(pieces(&mut (0..all))).collect(),
        }
    }

    /// Returns whether it continues.
    async fn read_at(&mut self, spec: &FetchSpec, offset: u64, length: u64) -> bool {
        let begun = {
            let mut model = self.model.lock().unwrap();
            model.hear();
            if model.files[self.file].shown.spec.ino != spec.ino {
                return false;
            }
            model.files[self.file].shown.begin()
        };
        READS.fetch_add(1, Ordering::Relaxed);
        let asked = length as u32;
        let read = match self.content.read_in_memory(spec.ino, offset, asked) {
            LocalRead::Bytes(bytes) => Ok(bytes),
            _ => match self.content.read_present(spec, offset, asked).await.filter(|_| self.random.chance(50)) {
                Some(bytes) => Ok(bytes),
                None if self.random.chance(3) => {
                    let patience = MOMENT * self.random.below(20) as u32;
                    match tokio::time::timeout(patience, self.content.read(spec, Requester::default(), offset, asked))
                        .await
                    {
                        Ok(read) => read,
                        Err(_) => return true,
                    }
                }
                None => tokio::time::timeout(HANG, self.content.read(spec, Requester::default(), offset, asked))
                    .await
                    .expect("a read hangs"),
            },
        };
        let mut model = self.model.lock().unwrap();
        model.hear();
        let shown = &mut model.files[self.file].shown;
        match read {
            Ok(bytes) => {
                shown.read((begun, &mut self.own), (offset, length), &bytes, self.content.known_size(spec.ino));
                true
            }
            Err(error) => {
                assert!(!shown.is_honest, "{spec:?} at {offset}: {error:?}");
                drop(model);
                // Or it would fail for as long as the model lives.
                self.content.forget_failures();
                self.random.chance(60)
            }
        }
    }
}
