//! A page of a footer: run heads sorted by key, as they are in the groups; or *packed*, where each run is one record without meta.
//!
//! Blocks that are written in no order make a run each. Packed, such a run takes 20 bytes in place of 44, and who reads all of
//! them steps from one to the next without looking into any.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use super::footer::{FooterRun, expect};
use super::run_head::{HeadView, RUN_HEAD_BYTES};
use super::{begin_record, finish_record, finish_zeros, open_record};
use crate::limits::FOOTER_PAGE_BYTES;
use crate::owner::{Place, Placed};
use crate::run::{RunKind, TABLE_ENTRY_BYTES, listed};

const MAGIC: u32 = u32::from_le_bytes(*b"ITHF");
pub(super) const PAGE_HEAD_BYTES: usize = 36;
/// The page is packed.
const FLAG_PACKED: u16 = 1;
/// What the keys and the versions of a packed page are counted from.
const BASES_BYTES: usize = 16;
/// A run of a packed page: key, version, offset, length and checksum.
const ENTRY_BYTES: usize = 20;
/// What keys and versions are counted from is no higher, so that no sum overflows.
const BASE_MAX: u64 = u64::MAX - u32::MAX as u64 - 1;
/// In the length of a packed run: it is junk.
const LEN_JUNK: u32 = 1 << 31;

/// A run of one record without meta.
#[derive(Clone, Copy)]
struct Single {
    key: u64,
    version: u64,
    offset: u32,
    len: u32,
    checksum: u32,
}

impl Single {
    /// The run with this head, if it can be packed.
    fn of(blob: &[u8]) -> Option<Self> {
        let (head, len) = HeadView::decode(blob).ok()?;
        let is_single = head.table.len() == TABLE_ENTRY_BYTES && head.meta.is_empty() && len == blob.len();
        let entry = listed(head.table).next().filter(|_| is_single)?;
        let flag = if head.kind == RunKind::Junk { LEN_JUNK } else { 0 };
        let single = Self {
            key: head.first_key,
            version: head.version,
            offset: head.data_offset,
            len: entry.len | flag,
            checksum: entry.checksum,
        };
        // What is not kept follows from what is.
        let is_same = HeadView::of_single(single.key, single.version, single.offset, head.kind, head.table)
            .is_same_as(&head);
        let is_small = entry.len < LEN_JUNK && single.key <= BASE_MAX && single.version <= BASE_MAX;
        (is_same && is_small).then_some(single)
    }
}

/// The runs of a page that can be packed, and what they have in common.
struct Packing {
    singles: Vec<Single>,
    versions: Range<u64>,
}

impl Packing {
    /// The versions with those of one run more; `None` if the page cannot be packed with it.
    fn with(&self, single: &Single) -> Option<Range<u64>> {
        let Some(first) = self.singles.first() else { return Some(single.version..single.version) };
        let versions = self.versions.start.min(single.version)..self.versions.end.max(single.version);
        let fits = |from: u64, to: u64| to.checked_sub(from).is_some_and(|span| span <= u64::from(u32::MAX));
        (fits(first.key, single.key) && fits(versions.start, versions.end)).then_some(versions)
    }

    fn bytes(&self) -> usize {
        PAGE_HEAD_BYTES + BASES_BYTES + ENTRY_BYTES * self.singles.len()
    }
}

/// A page that is being filled.
pub(super) struct PageBuilder {
    starts: Vec<u32>,
    blob: BytesMut,
    first_key: u64,
    end_key: u64,
    /// As long as all runs can be packed.
    packing: Option<Packing>,
}

impl Default for PageBuilder {
    fn default() -> Self {
        let packing = Some(Packing { singles: Vec::new(), versions: 0..0 });
        Self { starts: Vec::new(), blob: BytesMut::new(), first_key: 0, end_key: 0, packing }
    }
}

impl PageBuilder {
    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Whether the page ends before this run. No page but the last holds less than [`FOOTER_PAGE_BYTES`] of heads.
    pub(super) fn is_full_before(&self, run: &FooterRun<'_>) -> bool {
        let is_full = self.blob.len() + 4 * self.starts.len() >= FOOTER_PAGE_BYTES;
        match &self.packing {
            Some(packing) if is_full => {
                let is_packed_on = Single::of(run.blob).is_some_and(|single| packing.with(&single).is_some());
                packing.bytes() + ENTRY_BYTES > FOOTER_PAGE_BYTES || !is_packed_on
            }
            _ => is_full,
        }
    }

    pub(super) fn add(&mut self, run: FooterRun<'_>) {
        if self.starts.is_empty() {
            self.first_key = run.keys.0;
        }
        self.end_key = self.end_key.max(run.keys.1);
        self.starts.push(self.blob.len() as u32);
        self.blob.extend_from_slice(run.blob);
        if let Some(packing) = &mut self.packing {
            let single = Single::of(run.blob);
            match single.and_then(|single| Some((single, packing.with(&single)?))) {
                Some((single, versions)) => {
                    packing.singles.push(single);
                    packing.versions = versions;
                }
                None => self.packing = None,
            }
        }
    }

    /// The keys of the page and its bytes.
    pub(super) fn finish(self, segment: u32, lap: u64) -> (Range<u64>, BytesMut) {
        let heads_bytes = PAGE_HEAD_BYTES + 4 * self.starts.len() + self.blob.len();
        let bytes = self.packing.as_ref().map_or(heads_bytes, Packing::bytes).next_multiple_of(BLOCK_BYTES);
        let content_bytes = self.packing.as_ref().map_or(self.blob.len(), |it| it.bytes() - PAGE_HEAD_BYTES);
        let mut out = begin_record(bytes, MAGIC, if self.packing.is_some() { FLAG_PACKED } else { 0 });
        out.put_u32_le(segment);
        out.put_u64_le(lap);
        out.put_u32_le(self.starts.len() as u32);
        out.put_u32_le(content_bytes as u32);
        out.put_u32_le(0);
        debug_assert_eq!(out.len(), PAGE_HEAD_BYTES);
        match &self.packing {
            Some(packing) => {
                out.put_u64_le(self.first_key);
                out.put_u64_le(packing.versions.start);
                for single in &packing.singles {
                    out.put_u32_le((single.key - self.first_key) as u32);
                    out.put_u32_le((single.version - packing.versions.start) as u32);
                    out.put_u32_le(single.offset);
                    out.put_u32_le(single.len);
                    out.put_u32_le(single.checksum);
                }
            }
            None => {
                self.starts.iter().for_each(|&start| out.put_u32_le(start));
                out.extend_from_slice(&self.blob);
            }
        }
        (self.first_key..self.end_key, finish_record(out, bytes))
    }
}

/// What stands in a page, checked.
struct Content {
    is_packed: bool,
    count: usize,
    /// Where the heads, or bases and entries, lie in the page.
    at: Range<usize>,
    /// Where the list of their beginnings lies, if there is one.
    list: Range<usize>,
}

impl Content {
    /// Checks the frame of a page of this segment and lap.
    fn of(page: &[u8], segment: u32, lap: u64) -> Result<Self, DecodeError> {
        let mut decoder = open_record(page, "footer page", MAGIC)?;
        let flags = decoder.u16("page flags")?;
        if flags & !FLAG_PACKED != 0 {
            return Err(invalid("page flags", u64::from(flags), "0 or 1"));
        }
        expect(u64::from(decoder.u32("page segment")?), u64::from(segment), "page segment")?;
        expect(decoder.u64("page lap")?, lap, "page lap")?;
        let count = decoder.u32("page runs")? as usize;
        let content_bytes = decoder.u32("page bytes")? as usize;
        expect(u64::from(decoder.u32("page reserved")?), 0, "page reserved")?;
        let is_packed = flags == FLAG_PACKED;
        let list_bytes = if is_packed { 0 } else { count.saturating_mul(4) };
        if is_packed && count.saturating_mul(ENTRY_BYTES).saturating_add(BASES_BYTES) != content_bytes {
            return Err(invalid("page bytes", content_bytes as u64, "20 bytes for each run"));
        }
        decoder.bytes("page runs", list_bytes)?;
        let at = page.len() - decoder.left();
        decoder.bytes("page bytes", content_bytes)?;
        finish_zeros(decoder, "footer page")?;
        Ok(Self { is_packed, count, at: at..at + content_bytes, list: at - list_bytes..at })
    }
}

/// Entries of a packed page, and what they count from.
#[derive(Clone, Copy, Debug)]
struct Bases {
    key: u64,
    version: u64,
}

impl Bases {
    /// Those of a page whose content this is, and the entries behind them. The highest numbers that can be made of them do not
    /// overflow.
    fn split(content: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let mut decoder = Decoder::new(content);
        let bases = Self { key: decoder.u64("page key")?, version: decoder.u64("page version")? };
        if bases.key > BASE_MAX || bases.version > BASE_MAX {
            return Err(invalid("page key", bases.key, "one that others can be counted from"));
        }
        Ok((bases, &content[BASES_BYTES..]))
    }

    /// The record that an entry of 20 bytes is.
    #[inline]
    fn record(self, entry: &[u8; ENTRY_BYTES], segment: u32, lap: u64) -> Placed {
        let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let (kind, len) = match number(12) {
            len if len & LEN_JUNK == 0 => (RunKind::Data, len),
            _ => (RunKind::Junk, 0),
        };
        Placed {
            key: self.key + u64::from(number(0)),
            version: self.version + u64::from(number(4)),
            kind,
            place: Place { segment, lap, offset: number(8), len, checksum: number(16) },
        }
    }
}

/// Adds every record of a page to `records`, in the order of their keys. On an error some may have been added.
pub(crate) fn add_records(
    page: &[u8],
    segment: u32,
    lap: u64,
    records: &mut Vec<Placed>,
) -> Result<(), DecodeError> {
    let content = Content::of(page, segment, lap)?;
    let bytes = &page[content.at.clone()];
    if content.is_packed {
        let (bases, entries) = Bases::split(bytes)?;
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        records.extend(entries.iter().map(|entry| bases.record(entry, segment, lap)));
        return Ok(());
    }
    let mut at = 0;
    for _ in 0..content.count {
        let (head, len) = HeadView::decode(bytes.get(at..).unwrap_or(&[]))?;
        head.check()?;
        records.extend(head.records(segment, lap));
        at += len;
    }
    expect(at as u64, bytes.len() as u64, "page bytes")
}

/// A page in memory: run heads to search.
#[derive(Clone, Debug)]
pub(crate) struct PageView {
    /// The heads, or the entries of a packed page.
    blob: Bytes,
    /// What the entries of a packed page count from.
    bases: Option<Bases>,
    runs: Vec<RunKeys>,
}

/// Which keys a run of a page has, and where its head begins. All that a search looks at of a run is in one line of memory.
#[derive(Clone, Copy, Debug)]
struct RunKeys {
    first_key: u64,
    count: u32,
    start: u32,
}

impl PageView {
    /// Decodes a page and checks every run head in it once.
    pub(crate) fn decode(page: &Bytes, segment: u32, lap: u64) -> Result<Self, DecodeError> {
        let content = Content::of(page, segment, lap)?;
        let (count, blob) = (content.count, page.slice(content.at.clone()));
        let mut view = Self { blob, bases: None, runs: Vec::with_capacity(count) };
        if content.is_packed {
            let (bases, entries) = Bases::split(&view.blob)?;
            view.blob = view.blob.slice_ref(entries);
            view.bases = Some(bases);
        }
        let mut list = Decoder::new(&page[content.list]);
        let (mut at, mut last_key) = (0, 0);
        for index in 0..count {
            if !content.is_packed {
                expect(u64::from(list.u32("page runs")?), at as u64, "page runs")?;
            }
            let (run, len) = view.decode_head(at)?;
            run.check()?;
            if run.first_key < last_key
                || (index == 0 && view.bases.is_some_and(|it| it.key != run.first_key))
            {
                return Err(invalid("page runs", run.first_key, "ascending keys"));
            }
            let (first_key, count) = (run.first_key, (run.keys().end - run.first_key) as u32);
            last_key = first_key;
            view.runs.push(RunKeys { first_key, count, start: at as u32 });
            at += len;
        }
        expect(at as u64, view.blob.len() as u64, "page bytes")?;
        Ok(view)
    }

    /// The head at `at`, and the number of bytes it takes.
    fn decode_head(&self, at: usize) -> Result<(HeadView<'_>, usize), DecodeError> {
        let bytes = self.blob.get(at..).unwrap_or(&[]);
        let Some(bases) = self.bases else { return HeadView::decode(bytes) };
        let entry = bytes.first_chunk().ok_or(invalid("page runs", at as u64, "whole entries"))?;
        let Placed { key, version, kind, place } = bases.record(entry, 0, 0);
        let table = &entry[ENTRY_BYTES - TABLE_ENTRY_BYTES..];
        Ok((HeadView::of_single(key, version, place.offset, kind, table), ENTRY_BYTES))
    }

    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The keys of run `index`, if there are so many.
    pub(crate) fn keys(&self, index: usize) -> Option<Range<u64>> {
        let run = self.runs.get(index)?;
        Some(run.first_key..run.first_key + u64::from(run.count))
    }

    /// The first run that has a key at or after `from`.
    pub(crate) fn first_at(&self, from: u64) -> Option<usize> {
        let after = self.after(from);
        let before =
            after.checked_sub(1).filter(|&index| self.keys(index).is_some_and(|keys| keys.end > from));
        before.or((after < self.runs.len()).then_some(after))
    }

    /// How many runs begin at or before a key. Runs are mostly alike, and then it is near where the key lies between the first and the last:
    /// looked for from there on, it needs fewer of them from memory than by halves.
    fn after(&self, key: u64) -> usize {
        let runs = self.runs.as_slice();
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return 0 };
        let part =
            key.saturating_sub(first.first_key) as f64 / (last.first_key - first.first_key).max(1) as f64;
        let guess = (part.min(1.0) * runs.len() as f64) as usize;
        let mut reach = 2;
        loop {
            let near = guess.saturating_sub(reach)..(guess + reach).min(runs.len());
            let has_begun = near.start == 0 || runs[near.start].first_key <= key;
            if has_begun && runs.get(near.end).is_none_or(|run| run.first_key > key) {
                return near.start + runs[near].partition_point(|run| run.first_key <= key);
            }
            reach *= 4;
        }
    }

    /// The records of run `index` with keys in `keys`, which lie within it, and the heads that they lie in.
    pub(crate) fn part(&self, index: usize, keys: Range<u64>) -> (HeadView<'_>, &Bytes) {
        (self.head(index).part(keys, 0), &self.blob)
    }

    /// The whole head of run `index`. Panics if there is no such run.
    pub(crate) fn head(&self, index: usize) -> HeadView<'_> {
        self.decode_head(self.runs[index].start as usize).expect("checked when it was decoded").0
    }

    /// Bytes it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blob.len() + size_of::<RunKeys>() * self.runs.len() + PAGE_HEAD_BYTES + BLOCK_BYTES / 2
    }
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

const _: () = assert!(BASES_BYTES + ENTRY_BYTES <= RUN_HEAD_BYTES + 4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::run_head::encode_run_head;
    use crate::format::testing;
    use crate::run::{Run, Table};

    fn run(first_key: u64, version: u64, kind: RunKind, payloads: &[&[u8]]) -> Run {
        let (table, meta) = (Table::of_payloads(payloads), Bytes::new());
        Run { first_key, version, kind, meta, table, data: Bytes::from(payloads.concat()) }
    }

    /// The pages of these runs, whose data follow each other from byte 4096 of the segment on.
    fn pages(runs: &[Run]) -> Vec<Bytes> {
        let (mut pages, mut building, mut offset) = (Vec::new(), PageBuilder::default(), 4096);
        for run in runs {
            let mut blob = BytesMut::new();
            encode_run_head(&mut blob, run, super::super::is_aligned(run), offset);
            offset += run.data.len() as u32;
            let keys = (run.keys().start, run.keys().end);
            let run = FooterRun { keys, blob: &blob };
            if building.is_full_before(&run) {
                pages.push(std::mem::take(&mut building).finish(3, 9).1.freeze());
            }
            building.add(run);
        }
        pages.push(building.finish(3, 9).1.freeze());
        pages
    }

    fn is_packed(page: &Bytes) -> bool {
        page[10] == 1
    }

    /// The pages say of every record what its run says, one by one and as heads; returns how many of them are packed.
    fn check(runs: &[Run]) -> (usize, usize) {
        let pages = pages(runs);
        let (mut records, mut heads) = (Vec::new(), Vec::new());
        for page in &pages {
            add_records(page, 3, 9, &mut records).expect("good");
            let view = PageView::decode(page, 3, 9).expect("good");
            heads.extend(
                (0..view.run_count()).map(|index| {
                    view.head(index).to_head(view.part(index, view.keys(index).expect("there")).1)
                }),
            );
        }
        assert_eq!(heads.len(), runs.len());
        let mut offset = 4096;
        let mut expected = Vec::new();
        for (head, run) in heads.iter().zip(runs) {
            assert_eq!((head.first_key, head.version, head.kind), (run.first_key, run.version, run.kind));
            assert_eq!((&head.table, &head.meta, head.data_offset), (&run.table, &run.meta, offset));
            assert_eq!(head.aligned, super::super::is_aligned(run));
            expected.extend(head.view().records(3, 9));
            offset += run.data.len() as u32;
        }
        assert_eq!(records, expected);
        (pages.iter().filter(|page| is_packed(page)).count(), pages.len())
    }

    #[test]
    fn single_records_without_meta_are_packed_and_come_back() {
        let block = vec![5; 4096];
        let single = |key: u64| match key % 3 {
            0 => run(key * 7, 1000 - key % 10, RunKind::Data, &[&block]),
            1 => run(key * 7, key, RunKind::Data, &[b"odd"]),
            _ => run(key * 7, key, RunKind::Junk, &[b""]),
        };
        assert_eq!(check(&(0..2000).map(single).collect::<Vec<_>>()), (3, 3), "816 to a page");
        assert_eq!(check(&[single(0)]), (1, 1));
    }

    #[test]
    fn a_key_is_found_wherever_the_others_lie() {
        // Alike, one far from all others, each twice as far as the one before, all close to the highest key, and one alone.
        let spread: [Vec<u64>; 5] = [
            (0..300).map(|nth| 1000 + 16 * nth).collect(),
            (0..100).chain([1 << 50]).chain((0..100).map(|nth| (1 << 60) + nth)).collect(),
            (0..60).map(|nth| 1 << nth).collect(),
            (0..80).map(|nth| u64::MAX - 800 + 10 * nth).collect(),
            vec![7],
        ];
        for firsts in spread {
            // Every third has two records.
            let count =
                |first: u64| 1 + usize::from(first.is_multiple_of(3) && !firsts.contains(&(first + 1)));
            let of = |first: u64| run(first, 1, RunKind::Data, &vec![b"x".as_slice(); count(first)]);
            let runs: Vec<Run> = firsts.iter().map(|&first| of(first)).collect();
            let pages = pages(&runs);
            assert_eq!(pages.len(), 1);
            let view = PageView::decode(&pages[0], 3, 9).expect("good");
            let around = |&first: &u64| first.saturating_sub(2)..=first.saturating_add(2);
            for key in firsts.iter().flat_map(around).chain([0, u64::MAX]) {
                assert_eq!(view.first_at(key), runs.iter().position(|run| run.keys().end > key), "{key}");
            }
        }
    }

    #[test]
    fn what_cannot_be_packed_is_kept_as_it_is() {
        let pair = run(5, 1, RunKind::Data, &[b"a", b"b"]);
        let meta = Run { meta: Bytes::from_static(b"m"), ..run(9, 1, RunKind::Data, &[b"a"]) };
        let single = |key, version| run(key, version, RunKind::Data, &[b"x"]);
        for other in [vec![pair.clone()], vec![meta], vec![single(1 << 40, 1)], vec![single(9, 1 << 40)]] {
            assert_eq!(check(&[vec![single(1, 1)], other].concat()), (0, 1));
        }
        assert_eq!(check(&[single(u64::MAX - 5, 1)]), (0, 1), "the highest keys");
        // Enough for a page by themselves, and then one that is not like them.
        let many: Vec<Run> =
            (0..500).map(|key| single(key, key)).chain([run(900, 1, RunKind::Data, &[b"a", b"b"])]).collect();
        assert_eq!(check(&many), (1, 2));
        // Too few for that.
        let few: Vec<Run> =
            (0..50).map(|key| single(key, key)).chain([run(900, 1, RunKind::Data, &[b"a", b"b"])]).collect();
        assert_eq!(check(&few), (0, 1));
    }

    #[test]
    fn no_flipped_bit_of_a_packed_page_passes_and_noise_does_no_harm() {
        let page = pages(&[run(1, 1, RunKind::Data, &[b"x"]), run(3, 2, RunKind::Junk, &[b""])]).remove(0);
        assert!(is_packed(&page));
        let decode = |bytes: &[u8]| PageView::decode(&Bytes::copy_from_slice(bytes), 3, 9).ok();
        let add = |bytes: &[u8]| add_records(bytes, 3, 9, &mut Vec::new()).ok();
        testing::every_bit_flip_is_refused(&page, decode);
        testing::noise_does_not_panic(&page, decode);
        testing::noise_does_not_panic(&page, add);
    }
}
