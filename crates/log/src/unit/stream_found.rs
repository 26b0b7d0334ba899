//! The answer to a read of a stream as it is put together: what belongs to the stream, and between it in one piece each what does not.

use bytes::{Bytes, BytesMut};
use ithaca_chain::RunView;

use super::{Found, Holding};
use crate::entry::EncodedMeta;
use crate::pos::AddrRange;
use crate::wire::{Head, StreamRuns, heads_within};

/// A meta longer than this tells of many groups, most of which are not those of the entries that are shown.
const META_LONG_BYTES: usize = 160;

/// Entries of a run, of which some are added after others.
pub struct Entries<'a> {
    run: RunView<'a>,
    /// If it is long.
    meta: Option<EncodedMeta<'a>>,
}

impl<'a> Entries<'a> {
    /// All that it has.
    pub fn of(run: RunView<'a>) -> Self {
        Self { meta: long_meta(run.meta), run }
    }
}

fn long_meta(meta: &[u8]) -> Option<EncodedMeta<'_>> {
    if meta.len() > META_LONG_BYTES { EncodedMeta::new(meta).ok() } else { None }
}

/// What was found so far. Parts are added in order; once it is full, whatever is added is left out.
pub struct StreamFound {
    found: Found,
    /// Addresses of which the stream has none, that come next. They are added when it is clear where they end.
    passed: Option<AddrRange>,
    heads_only: bool,
}

impl StreamFound {
    /// An empty answer of at most `limit_bytes`, body and data, but at least one entry.
    pub fn new(limit_bytes: u32, heads_only: bool) -> Self {
        Self { found: Found::new(limit_bytes), passed: None, heads_only }
    }

    /// An empty answer that tells of the last entry, at most `limit_bytes` or one entry, and of what follows it.
    pub fn of_last(limit_bytes: u32, heads_only: bool) -> Self {
        Self { found: Found::of_last(limit_bytes), passed: None, heads_only }
    }

    /// Whether the entries are wanted without their data.
    pub fn is_heads_only(&self) -> bool {
        self.heads_only
    }

    /// Whether nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.found.is_full()
    }

    /// Bytes, body and data, until it is full.
    pub fn room_bytes(&self) -> usize {
        self.found.room_bytes()
    }

    /// Adds addresses that hold something, and nothing of the stream.
    pub fn pass(&mut self, range: AddrRange) {
        match &mut self.passed {
            _ if range.is_empty() => {}
            Some(passed) if passed.end == range.start => passed.end = range.end,
            _ => {
                self.settle();
                self.passed = Some(range);
            }
        }
    }

    /// Adds addresses that hold nothing to show.
    pub fn push_other(&mut self, range: AddrRange, holding: Holding) {
        if holding == Holding::Voided {
            return self.pass(range);
        }
        self.settle();
        self.found.push_other(range, holding);
    }

    /// Adds entries of the stream, all or as many of the first as fit. Of their meta it shows the groups that they belong to.
    pub fn push_run(&mut self, run: RunView<'_>) {
        let mut meta = long_meta(run.meta);
        self.push_narrowed(run, meta.as_mut());
    }

    /// The same with those at `addrs`, which are among those that are left of a run with its data.
    pub fn push_some(&mut self, entries: &mut Entries<'_>, addrs: AddrRange) {
        let Entries { run, meta } = entries;
        run.skip((addrs.start.0 - run.first_key) as usize);
        let some = run.split_to(addrs.count() as usize);
        self.push_narrowed(some, meta.as_mut());
    }

    /// Adds entries of a run, whose meta that is if it is long.
    fn push_narrowed(&mut self, run: RunView<'_>, meta: Option<&mut EncodedMeta<'_>>) {
        self.settle();
        // One that cannot be read is shown as it is.
        let narrow = meta.and_then(|meta| meta.within(run.keys().into()).ok()).map(|meta| meta.to_bytes());
        let run = match &narrow {
            Some(meta) => RunView { meta, ..run },
            None => run,
        };
        match self.heads_only {
            true => self.found.push_heads(run),
            false => self.found.push_run(run),
        }
    }

    /// Adds the heads of a run's entries, all or as many of the first as fit, with all that its meta says.
    pub fn push_whole_head(&mut self, run: RunView<'_>) {
        self.settle();
        self.found.push_heads(run);
    }

    fn settle(&mut self) {
        if let Some(passed) = self.passed.take() {
            self.found.push_other(passed, Holding::Voided);
        }
    }

    /// The answer, to be sent with [`Found::encode_stream_head`].
    pub fn finish(mut self) -> Found {
        self.settle();
        self.found
    }
}

impl Found {
    /// Adds a run without its data, or as many of its first entries as fit.
    fn push_heads(&mut self, run: RunView<'_>) {
        let count = heads_within(&run, self.room_bytes());
        self.push_part(RunView { data: Bytes::new(), ..run }, count);
    }

    /// Appends the frame of an answer to a read of a stream but for its data, which must follow.
    pub fn encode_stream_head(&self, out: &mut BytesMut, head: Head, heads_only: bool) {
        StreamRuns::encode_head(out, head, self.body(), self.data_bytes(), heads_only);
    }
}

#[cfg(test)]
mod tests {
    use ithaca_chain::{Run, RunKind, Table};

    use super::*;
    use crate::entry::{EntryMeta, StreamGroup, StreamPlace};
    use crate::pos::{Addr, ClientId, Epoch, LogPos, RequestId, RequestNo, StreamId, StreamPos};
    use crate::wire::{Message, StateRef, StreamRuns, next_frame};

    /// A batch of one entry each in streams of their own, 300 and on, from address 40 on.
    fn batch(count: u32) -> Run {
        let place = |nth: u32| StreamPlace {
            stream: StreamId(300 + u128::from(nth)),
            position: StreamPos(nth.into()),
            previous: None,
        };
        let groups =
            (0..count).map(|nth| StreamGroup { count: 1, places: vec![place(nth)].into() }).collect();
        let meta = EntryMeta {
            groups_from: RequestNo(9),
            groups,
            ..EntryMeta::new(ClientId(1), Addr(40), RequestNo(9))
        };
        let payloads: Vec<String> = (0..count).map(|nth| format!("entry {nth}")).collect();
        Run {
            first_key: 40,
            version: 3,
            kind: RunKind::Data,
            meta: meta.to_bytes(),
            table: Table::of_payloads(&payloads),
            data: payloads.concat().into(),
        }
    }

    /// What whoever asked is sent.
    fn sent(found: StreamFound) -> (StreamRuns, Bytes) {
        let heads_only = found.is_heads_only();
        let mut found = found.finish();
        let mut out = BytesMut::new();
        found.encode_stream_head(&mut out, Head::new(RequestId(1), Epoch(3)), heads_only);
        found.take_data().for_each(|piece| out.extend_from_slice(&piece));
        let frame = next_frame(&mut out).expect("a frame").expect("whole");
        (StreamRuns::decode_body(&frame.body, frame.data.len()).expect("it decodes"), frame.data)
    }

    #[test]
    fn an_entry_of_a_batch_comes_with_its_own_groups_only_and_what_is_passed_in_one_piece() {
        for heads_only in [false, true] {
            let run = batch(50);
            let mut found = StreamFound::new(1 << 20, heads_only);
            found.pass((40..45).into());
            found.pass((45..47).into());
            let mut entry = run.slice(47..48);
            if heads_only {
                entry.data = Bytes::new();
            }
            found.push_run(entry.view());
            found.push_other((48..49).into(), Holding::Voided);
            found.pass((49..90).into());
            found.push_other((90..91).into(), Holding::Unwritten);
            let (runs, data) = sent(found);
            assert_eq!(
                (&data[..], runs.is_heads_only()),
                if heads_only { (&b""[..], true) } else { (&b"entry 7"[..], false) }
            );
            let shown: Vec<_> = runs.runs.runs().map(|run| (run.range().numbers(), run.state)).collect();
            assert_eq!(
                shown.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>(),
                [40..47, 47..48, 48..90, 90..91]
            );
            let StateRef::Data { meta, .. } = shown[1].1 else { panic!("{shown:?}") };
            assert!(meta.len() <= META_LONG_BYTES, "{} bytes for one entry", meta.len());
            let meta = EntryMeta::decode(meta).expect("it decodes");
            let whole = EntryMeta::decode(&run.meta).expect("it decodes");
            assert_eq!(meta.places_at(Addr(47), LogPos(47)), whole.places_at(Addr(47), LogPos(47)));
            assert_eq!(meta.request_at(Addr(47)), RequestNo(16));
        }
    }

    #[test]
    fn an_answer_that_is_full_ends_there_whatever_comes() {
        let run = batch(20);
        let mut found = StreamFound::new(300, false);
        found.push_run(run.view());
        assert!(found.is_full());
        found.pass((60..70).into());
        let (runs, _) = sent(found);
        let ends: Vec<u64> = runs.runs.runs().map(|run| run.range().end.0).collect();
        assert!(ends.len() == 1 && ends[0] < 60, "{ends:?}");
    }
}
