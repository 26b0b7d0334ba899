//! The answer to a read as it is put together: it keeps to every limit of a reply, and never has a gap.

use bytes::{Bytes, BytesMut};
use ithaca_chain::RunView;

use super::Holding;
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::wire::{Head, RunRef, RunsBody, StateRef, entries_within};

/// What was found so far, as it will be sent. Parts are added in the order of the request; once it is full, whatever is
/// added is left out, so that the answer ends where the first thing did not fit.
#[derive(Clone, Debug, Default)]
pub struct Found {
    body: RunsBody,
    data: Vec<Bytes>,
    data_bytes: usize,
    entries: u64,
    end: Option<Addr>,
    room_bytes: usize,
    /// Whether what holds nothing to show has a place also where nothing else has.
    tells_rest: bool,
    full: bool,
    says_unwritten: bool,
}

impl Found {
    /// An empty answer of at most `limit_bytes`, body and data, but at least one entry.
    pub fn new(limit_bytes: u32) -> Self {
        let mut found = Self::default();
        found.restart(limit_bytes);
        found
    }

    /// Makes it an empty answer again; its memory is kept.
    pub fn restart(&mut self, limit_bytes: u32) {
        self.body.clear();
        self.data.clear();
        self.data_bytes = 0;
        self.entries = 0;
        self.end = None;
        self.room_bytes = (limit_bytes as usize).min(limits::READ_MAX_BYTES);
        self.tells_rest = false;
        self.full = false;
        self.says_unwritten = false;
    }

    /// The same of one entry at the most, after which what follows it is told however large it was.
    pub fn of_last(limit_bytes: u32) -> Self {
        Self { tells_rest: true, ..Self::new(limit_bytes) }
    }

    /// Whether it says of an address that nothing is there.
    pub fn says_unwritten(&self) -> bool {
        self.says_unwritten
    }

    /// Whether nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Bytes, body and data, until it is full: what is worth looking for. At least 1.
    pub fn room_bytes(&self) -> usize {
        self.room_bytes.max(1)
    }

    /// Where what was added last ends; `None` if there is nothing yet.
    pub fn end(&self) -> Option<Addr> {
        self.end
    }

    /// Adds a stored run, or as many of its first entries as fit; at least one if the answer is not full.
    pub fn push_run(&mut self, run: RunView<'_>) {
        let count = entries_within(&run, self.room_bytes);
        self.push_part(run, count);
    }

    /// Adds the first `count` entries of a run.
    pub(super) fn push_part(&mut self, mut run: RunView<'_>, count: usize) {
        if self.full {
            return;
        }
        let whole = count as u64 == run.count();
        if !whole {
            run.truncate(count);
        }
        self.entries += run.count();
        self.push(&RunRef::of_view(&run), run.data);
        self.full |= !whole;
    }

    /// Adds addresses that hold nothing to show. Panics for [`Holding::Stored`]: the chain has what those hold.
    pub fn push_other(&mut self, range: AddrRange, holding: Holding) {
        let state = match holding {
            Holding::Trimmed => StateRef::Trimmed,
            Holding::Unwritten => StateRef::Unwritten,
            Holding::Voided => StateRef::Junk { epoch: Epoch(0) },
            Holding::Stored => panic!("{range} holds a record, which the chain has"),
        };
        if !self.full && !range.is_empty() {
            self.says_unwritten |= holding == Holding::Unwritten;
            self.push(&RunRef { addr: range.start, count: range.count(), state }, Bytes::new());
        }
    }

    fn push(&mut self, run: &RunRef<'_>, data: Bytes) {
        self.room_bytes = self.room_bytes.saturating_sub(run.body_bytes() + data.len());
        self.body.push(run);
        self.end = Some(run.range().end);
        if !data.is_empty() {
            self.data_bytes += data.len();
            self.data.push(data);
        }
        let is_filled = self.room_bytes == 0 && !self.tells_rest;
        self.full = is_filled || self.body.count() == limits::RUNS_MAX_COUNT;
    }

    /// Its runs, encoded.
    pub(super) fn body(&self) -> &RunsBody {
        &self.body
    }

    /// Appends the answer's frame but for its data, which must follow.
    pub fn encode_head(&self, out: &mut BytesMut, head: Head) {
        self.body.encode_head(out, head, self.data_bytes);
    }

    /// Bytes of data.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Entries of the runs in it, junk included.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The data, piece by piece in order. Gives it up: the answer must not be encoded again.
    pub fn take_data(&mut self) -> impl Iterator<Item = Bytes> {
        self.data.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use ithaca_chain::{Run, RunKind, Table};

    use super::*;
    use crate::pos::RequestId;
    use crate::wire::{Reply, RunHead, next_frame};

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
            found.push_run(Run { first_key: at * count as u64, ..part.clone() }.view());
        }
        let (runs, size) = sent(found);
        let next = runs.iter().fold(0, |next, (head, _)| {
            assert_eq!(head.addr, Addr(next), "no gap");
            next + head.count
        });
        (next, size)
    }

    /// What whoever asked is sent, and how many bytes that is.
    fn sent(mut found: Found) -> (Vec<(RunHead, Bytes)>, usize) {
        let mut frame = BytesMut::new();
        found.encode_head(&mut frame, Head::new(RequestId(1), Epoch(1)));
        found.take_data().for_each(|piece| frame.extend_from_slice(&piece));
        let size = frame.len();
        let frame = next_frame(&mut frame).expect("a frame").expect("whole");
        let Ok(Reply::Runs(runs)) = Reply::decode(&frame) else {
            panic!("it keeps to the limits of the wire")
        };
        (runs.with_data(frame.data).collect(), size)
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
        found.push_run(run(0, 10, 100).view());
        assert!(found.is_full());
        found.push_other(AddrRange::new(Addr(10), Addr(20)), Holding::Trimmed);
        found.push_run(run(20, 1, 1).view());
        assert_eq!(found.end(), Some(Addr(2)));
        let (runs, _) = sent(found);
        assert_eq!((runs.len(), runs[0].0.count, runs[0].1.len()), (1, 2, 200));
    }
}
