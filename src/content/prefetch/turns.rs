//! Whose turn it is to have something fetched ahead: processes take turns, and the walks of each, by what is fetched for them.

use std::collections::HashMap;

/// Shares of processes that have no walk any more are forgotten past so many.
const FORGOTTEN_PAST: usize = 256;

/// Virtual times, in bytes fetched: who has had less is due earlier, and nobody saves up turns while there is nothing to fetch for
/// it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    processes: HashMap<u32, Share>,
    /// When the process served last was due.
    turn: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    due: u64,
    /// When the walk of it that was served last was due.
    turn: u64,
}

impl Turns {
    /// When a walk of `process` is served that is `due` among its own: the earliest first.
    pub(super) fn due(&self, process: u32, due: u64) -> (u64, u64) {
        let share = self.processes.get(&process).copied().unwrap_or_default();
        (share.due.max(self.turn), due.max(share.turn))
    }

    /// That walk is served, which costs so much; answers when it is due next.
    pub(super) fn serve(&mut self, process: u32, due: u64, cost: u64) -> u64 {
        let (process_due, walk_due) = self.due(process, due);
        self.turn = process_due;
        self.processes.insert(process, Share { due: process_due.saturating_add(cost), turn: walk_due });
        walk_due.saturating_add(cost)
    }

    /// A walk that is `due` among those of the process `from` is taken up by `to`: answers when it is due among those of that one. A
    /// process of which nothing is known begins where the other is, or a walk that goes through the hands of many would cost nothing.
    pub(super) fn hand_on(&mut self, from: u32, to: u32, due: u64) -> u64 {
        match (self.processes.contains_key(&to), self.processes.get(&from).copied()) {
            (true, _) => 0,
            (false, Some(share)) => {
                self.processes.insert(to, share);
                due
            }
            (false, None) => due,
        }
    }

    /// Keeps nothing of processes that have no walk, once they are many.
    pub(super) fn forget_but(&mut self, has_walk: impl Fn(u32) -> bool) {
        if self.processes.len() > FORGOTTEN_PAST {
            self.processes.retain(|process, _| has_walk(*process));
        }
    }
}
