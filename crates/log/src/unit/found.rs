//! The answer to a read as it is put together: it keeps to every limit of a reply, and never has a gap.

use bytes::Bytes;
use ithaca_chain::Run;

use super::Holding;
use crate::limits;
use crate::pos::AddrRange;
use crate::wire::{RunHead, RunState, entries_within};

/// What was found so far. Parts are added in the order of the request; once it is full, whatever is added is left out, so
/// that the answer ends where the first thing did not fit.
#[derive(Clone, Debug)]
pub struct Found {
    runs: Vec<(RunHead, Bytes)>,
    room_bytes: usize,
    full: bool,
}

impl Found {
    /// An empty answer of at most `limit_bytes`, body and data, but at least one entry.
    pub fn new(limit_bytes: u32) -> Self {
        let room_bytes = (limit_bytes as usize).min(limits::READ_MAX_BYTES);
        Self { runs: Vec::new(), room_bytes, full: false }
    }

    /// Whether nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Bytes, body and data, until it is full: what is worth looking for. At least 1.
    pub fn room_bytes(&self) -> usize {
        self.room_bytes.max(1)
    }

    /// Adds a stored run, or as many of its first entries as fit; at least one if the answer is not full.
    pub fn push_run(&mut self, run: Run) {
        if self.full {
            return;
        }
        let count = entries_within(&run, self.room_bytes);
        let whole = count as u64 == run.count();
        let run = if whole { run } else { run.slice(run.first_key..run.first_key + count as u64) };
        self.push(RunHead::of_run(&run), run.data);
        self.full |= !whole;
    }

    /// Adds addresses that hold nothing to show. Panics for [`Holding::Stored`]: the chain has what those hold.
    pub fn push_other(&mut self, range: AddrRange, holding: Holding) {
        let state = match holding {
            Holding::Trimmed => RunState::Trimmed,
            Holding::Unwritten => RunState::Unwritten,
            Holding::Stored => panic!("{range} holds a record, which the chain has"),
        };
        if !self.full && !range.is_empty() {
            self.push(RunHead { addr: range.start, count: range.count(), state }, Bytes::new());
        }
    }

    fn push(&mut self, head: RunHead, data: Bytes) {
        self.room_bytes = self.room_bytes.saturating_sub(head.body_bytes() + data.len());
        self.runs.push((head, data));
        self.full = self.room_bytes == 0 || self.runs.len() == limits::RUNS_MAX_COUNT;
    }

    /// The runs of the answer, each with its data.
    pub fn into_runs(self) -> Vec<(RunHead, Bytes)> {
        self.runs
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use ithaca_chain::{RunKind, Table};

    use super::*;
    use crate::pos::{Addr, Epoch, RequestId};
    use crate::wire::{Head, Reply, Runs, encode, next_frame};

    fn run(first_key: u64, count: usize, len: usize) -> Run {
        let payloads = vec![vec![7; len]; count];
        let (table, data) = (Table::of_payloads(&payloads), payloads.concat().into());
        Run { first_key, version: 1, kind: RunKind::Data, meta: Bytes::from_static(&[0; 32]), table, data }
    }

    /// Adds runs of `count` entries of `len` bytes for ever; the addresses that the answer covers.
    fn covered(limit_bytes: u32, count: usize, len: usize) -> (u64, usize) {
        let mut found = Found::new(limit_bytes);
        let part = run(0, count, len);
        for at in 0..20_000 {
            found.push_run(Run { first_key: at * count as u64, ..part.clone() });
        }
        let runs = found.into_runs();
        let next = runs.iter().fold(0, |next, (head, _)| {
            assert_eq!(head.addr, Addr(next), "no gap");
            next + head.count
        });
        let (runs, data): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
        let mut frame = BytesMut::new();
        encode(&mut frame, Head::new(RequestId(1), Epoch(1)), &Runs { runs }, &data);
        let size = frame.len();
        let frame = next_frame(&mut frame).expect("a frame").expect("whole");
        assert!(Reply::decode(&frame).is_ok(), "it keeps to the limits of the wire");
        (next, size)
    }

    #[test]
    fn an_answer_keeps_to_its_limits_and_has_no_gap_whatever_the_runs_are() {
        for limit in [1, 100, 4096, 65_536, limits::READ_MAX_BYTES as u32] {
            for (count, len) in [(1, 0), (1, 128), (1, 5000), (16, 0), (16, 512), (300, 10), (2, 100_000)] {
                let (addresses, bytes) = covered(limit, count, len);
                assert!(addresses >= 1, "at least one entry");
                let most = limit as usize + 32 + 8 + 32 + 32 + 8 + len;
                assert!(bytes <= most, "{count} x {len} in {limit}: {bytes} bytes, {addresses} entries");
            }
        }
        assert_eq!(covered(limits::READ_MAX_BYTES as u32, 1, 0).0, limits::RUNS_MAX_COUNT as u64);
    }

    #[test]
    fn what_does_not_fit_ends_the_answer_also_when_something_smaller_follows() {
        let mut found = Found::new(300);
        found.push_run(run(0, 10, 100));
        assert!(found.is_full());
        found.push_other(AddrRange::new(Addr(10), Addr(20)), Holding::Trimmed);
        found.push_run(run(20, 1, 1));
        let runs = found.into_runs();
        assert_eq!((runs.len(), runs[0].0.count, runs[0].1.len()), (1, 2, 200));
    }
}
