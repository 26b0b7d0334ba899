//! Who appended an entry, and to which streams: the meta of a run.
//!
//! A run is a batch of appends of one client, or the part of one that lies on one stripe. Its meta states the request
//! number of one address, the anchor, and how the numbers go on from there, so that a part of a run can keep the meta of
//! the whole. The appends of a batch that belong to the same streams and follow each other are a *group*: the meta says
//! of each which streams these are and where in them its first entry stands, which gives every entry's places.
//!
//! The encoding is little-endian (docs/protocol.md): 32 bytes, and only if there are groups 8 more and the groups.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use smallvec::SmallVec;

use crate::limits;
use crate::pos::{Addr, AddrRange, ClientId, LogPos, RequestNo, StreamId, StreamPos};
use crate::stream::StreamTail;

/// Bytes of a meta without groups.
pub const META_HEAD_BYTES: usize = 32;

/// Bytes that a meta has more if there are groups, beside the groups.
pub const GROUPS_HEAD_BYTES: usize = 8;

/// Bytes of a group without streams.
pub const GROUP_HEAD_BYTES: usize = 8;

/// Bytes of each stream of a group.
pub const PLACE_BYTES: usize = 32;

/// The version of the encoding.
const META_VERSION: u8 = 1;

/// The previous log position of a stream's first entry, encoded.
const NO_PREVIOUS: u64 = u64::MAX;

/// An entry's place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// The stream.
    pub stream: StreamId,
    /// The entry's position in the stream.
    pub position: StreamPos,
    /// Where the stream's last entry before this one stands, as far as its sequencer knew: [`StreamTail::last`] of
    /// [`StreamPlace::end_before`].
    pub previous: Option<LogPos>,
}

impl StreamPlace {
    /// Where the stream ended before the entry.
    pub fn end_before(&self) -> StreamTail {
        StreamTail { next: self.position, last: self.previous }
    }
}

/// Where an entry stands in its streams: the first place is inline.
pub type StreamPlaces = SmallVec<[StreamPlace; 1]>;

/// Appends in a row that belong to the same streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamGroup {
    /// How many, at least one.
    pub count: u32,
    /// The places of the first one, at most [`limits::STREAMS_MAX_COUNT`], each of another stream. The others follow one
    /// by one, in each stream and in the log.
    pub places: StreamPlaces,
}

impl StreamGroup {
    /// The places of the `nth` entry of the group, which stands at `pos`.
    pub fn places_of(&self, nth: u32, pos: LogPos) -> StreamPlaces {
        let place = |first: &StreamPlace| match nth {
            0 => *first,
            _ => StreamPlace {
                position: StreamPos(first.position.0.wrapping_add(nth.into())),
                previous: pos.0.checked_sub(1).map(LogPos),
                ..*first
            },
        };
        self.places.iter().map(place).collect()
    }

    fn encoded_bytes(&self) -> usize {
        GROUP_HEAD_BYTES + self.places.len() * PLACE_BYTES
    }

    /// Adds a group behind the others, as a part of the last one if it goes on in the same streams.
    pub(crate) fn add_to(self, groups: &mut Vec<Self>) {
        if let Some(last) = groups.last_mut()
            && last.places.len() == self.places.len()
            && last.places.iter().zip(&self.places).all(|(one, other)| {
                one.stream == other.stream && one.position.0 + u64::from(last.count) == other.position.0
            })
        {
            last.count += self.count;
            return;
        }
        groups.push(self);
    }
}

/// The meta of a run: whose entries these are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// Who appended them.
    pub client: ClientId,
    /// The address whose entry has the request number `request`.
    pub anchor: Addr,
    /// The request number of the entry at the anchor.
    pub request: RequestNo,
    /// By how much the request number grows from one address to the next: the number of stripes that the client's
    /// batch was spread over.
    pub stride: u16,
    /// The request number of the first entry of the first group; 0 if there are no groups.
    pub groups_from: RequestNo,
    /// Groups, one after the other in the order of the request numbers. Entries outside of them are in no stream.
    pub groups: Vec<StreamGroup>,
}

impl EntryMeta {
    /// Entries of `client` from `anchor` on, numbered from `request` in steps of one, in no stream.
    pub fn new(client: ClientId, anchor: Addr, request: RequestNo) -> Self {
        Self { client, anchor, request, stride: 1, ..Self::default() }
    }

    /// The same meta with what `groups`, from the request `from` on, say of the entries at `addrs`. Groups that have none of these are left
    /// out: their numbers count for the group before, so that what the meta says of other addresses does not hold.
    pub fn in_groups(self, from: RequestNo, groups: &[StreamGroup], addrs: AddrRange) -> Self {
        let mut cut = Cut::new(Self { groups_from: from, ..self }, addrs);
        for group in groups {
            if cut.keeps(group.count, group.places.len()) {
                cut.meta.groups.push(group.clone());
            }
        }
        cut.finish()
    }

    /// The request number of the entry at `addr`.
    pub fn request_at(&self, addr: Addr) -> RequestNo {
        let steps = addr.0.wrapping_sub(self.anchor.0);
        RequestNo(self.request.0.wrapping_add(steps.wrapping_mul(u64::from(self.stride))))
    }

    /// The places of the entry at `addr`, which stands at `pos` of the log; none if it is in no stream.
    pub fn places_at(&self, addr: Addr, pos: LogPos) -> StreamPlaces {
        let mut before = self.request_at(addr).0.wrapping_sub(self.groups_from.0);
        for group in &self.groups {
            match before.checked_sub(group.count.into()) {
                Some(rest) => before = rest,
                None => return group.places_of(before as u32, pos),
            }
        }
        StreamPlaces::new()
    }

    /// Which of `addrs` belong to each group that has streams: the addresses, how many entries of the group come before the
    /// one at the first of them, and the group; in ascending order.
    pub fn groups_within(&self, addrs: AddrRange) -> impl Iterator<Item = (AddrRange, u32, &StreamGroup)> {
        let numbering = Numbering::of(self);
        let mut next = 0;
        self.groups.iter().filter_map(move |group| {
            let first = next;
            next += i128::from(group.count);
            let (range, nth) = numbering.within(first..next, addrs);
            let is_in = !range.is_empty() && !group.places.is_empty();
            is_in.then_some((range, nth, group))
        })
    }

    /// Whether an encoded meta says anything of streams. True of what cannot be read, so that whoever reads it finds that out.
    pub fn has_groups(meta: &[u8]) -> bool {
        meta.get(4..6) != Some(&[0, 0])
    }

    /// Gives `each` the places of the last entry of each group among those at `addrs`, of an encoded meta, and that entry's address: in
    /// ascending order. What they say of the entry before is left out. Of [`StreamId::SEQUENCER`] it is given every entry: each is a chunk
    /// that is needed.
    pub fn each_end(
        meta: &[u8],
        addrs: AddrRange,
        mut each: impl FnMut(StreamId, StreamPos, Addr),
    ) -> Result<(), DecodeError> {
        let mut decoder = Decoder::new(meta);
        let (meta, group_count) = decode_head(&mut decoder)?;
        let numbering = Numbering::of(&meta);
        let mut next = 0;
        for _ in 0..group_count {
            let count = decode_group_count(&mut decoder)?;
            let first = next;
            next += i128::from(count);
            let (range, nth) = numbering.within(first..next, addrs);
            for _ in 0..decode_stream_count(&mut decoder)? {
                let place = decode_place(&mut decoder)?;
                let first = match place.stream {
                    StreamId::SEQUENCER => range.start.0,
                    _ => range.start.0.max(range.end.0.saturating_sub(1)),
                };
                for addr in first..range.end.0 {
                    let steps = (addr - range.start.0) * u64::from(meta.stride);
                    let position = place.position.0.wrapping_add(u64::from(nth) + steps);
                    each(place.stream, StreamPos(position), Addr(addr));
                }
            }
        }
        decoder.finish()
    }

    /// Bytes that it takes, encoded.
    pub fn encoded_bytes(&self) -> usize {
        encoded_bytes(&self.groups)
    }

    /// Appends its encoding. Panics if there are more streams in a group than [`limits::STREAMS_MAX_COUNT`], or if it takes more
    /// than [`limits::META_MAX_BYTES`].
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_with(self.groups_from, &self.groups, out);
    }

    /// Its encoding.
    pub fn to_bytes(&self) -> Bytes {
        self.to_bytes_with(self.groups_from, &self.groups)
    }

    /// The encoding of the same meta with other groups, from the request `from` on. They are those of all its entries.
    pub(crate) fn to_bytes_with(&self, from: RequestNo, groups: &[StreamGroup]) -> Bytes {
        let mut out = BytesMut::with_capacity(encoded_bytes(groups));
        self.encode_with(from, groups, &mut out);
        out.freeze()
    }

    fn encode_with(&self, from: RequestNo, groups: &[StreamGroup], out: &mut BytesMut) {
        let bytes = encoded_bytes(groups);
        assert!(bytes <= limits::META_MAX_BYTES, "a meta of {bytes} bytes");
        out.put_u8(META_VERSION);
        out.put_u8(0);
        out.put_u16_le(self.stride);
        out.put_u16_le(groups.len() as u16);
        out.put_u16_le(0);
        out.put_u64_le(self.client.0);
        out.put_u64_le(self.anchor.0);
        out.put_u64_le(self.request.0);
        if !groups.is_empty() {
            out.put_u64_le(from.0);
        }
        for group in groups {
            encode_group(group, out);
        }
    }

    /// Decodes all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let (mut meta, group_count) = decode_head(&mut decoder)?;
        meta.groups = (0..group_count).map(|_| decode_group(&mut decoder)).collect::<Result<_, _>>()?;
        decoder.finish()?;
        Ok(meta)
    }
}

/// An encoded meta of which is decoded what it says of some addresses, and then of others that come after them.
#[derive(Clone, Debug)]
pub struct EncodedMeta<'a> {
    /// The meta without its groups.
    bare: EntryMeta,
    /// The groups that were not passed yet, how many, and how many entries the others have.
    groups: &'a [u8],
    group_count: u16,
    passed: i128,
}

impl<'a> EncodedMeta<'a> {
    /// Of a whole meta. An error if it does not begin as one.
    pub fn new(meta: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(meta);
        let (bare, group_count) = decode_head(&mut decoder)?;
        let groups = &meta[meta.len() - decoder.left()..];
        Ok(Self { bare, groups, group_count, passed: 0 })
    }

    /// What it says of the entries at `addrs`, as [`EntryMeta::in_groups`] has it; none of which may come before those of the call before.
    /// Of the groups that are left out it is not checked what they say.
    pub fn within(&mut self, addrs: AddrRange) -> Result<EntryMeta, DecodeError> {
        let mut cut = Cut::new(self.bare.clone(), addrs);
        self.pass(cut.numbering.number(addrs.start));
        cut.pass(self.passed);
        let mut decoder = Decoder::new(self.groups);
        for _ in 0..self.group_count {
            if cut.is_whole() {
                break;
            }
            let count = decode_group_count(&mut decoder)?;
            let streams = decode_stream_count(&mut decoder)?;
            if cut.keeps(count, streams) {
                let places = decode_places(&mut decoder, streams)?;
                cut.meta.groups.push(StreamGroup { count, places });
            } else {
                decoder.bytes("places of a group", streams * PLACE_BYTES)?;
            }
        }
        Ok(cut.finish())
    }

    /// Passes the groups all of whose entries come before the `first` of all.
    fn pass(&mut self, first: i128) {
        while self.group_count > 0
            && let Some(head) = self.groups.first_chunk::<GROUP_HEAD_BYTES>()
        {
            let count = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let bytes = GROUP_HEAD_BYTES + usize::from(head[4]) * PLACE_BYTES;
            let passed = self.passed + i128::from(count);
            // What is cut short is decoded, which says so.
            let Some(rest) = self.groups.get(bytes..).filter(|_| passed <= first) else { return };
            (self.groups, self.passed) = (rest, passed);
            self.group_count -= 1;
        }
    }
}

/// A meta that is cut to what it says of some addresses, group by group.
struct Cut {
    meta: EntryMeta,
    addrs: AddrRange,
    numbering: Numbering,
    /// How many entries the groups up to here have, and the first of `addrs` whose entry is none of them.
    next: i128,
    at: u64,
}

impl Cut {
    /// Of a meta, without the groups that it has by now.
    fn new(meta: EntryMeta, addrs: AddrRange) -> Self {
        let meta = EntryMeta { groups: Vec::new(), ..meta };
        let numbering = Numbering::of(&meta);
        Self { numbering, addrs, next: 0, at: numbering.address(0, addrs), meta }
    }

    /// Leaves out the first groups, which have so many entries together and none of the addresses.
    fn pass(&mut self, count: i128) {
        self.next = count;
        self.meta.groups_from = self.meta.groups_from.after(count as u64);
    }

    /// Whether the groups that are left have none of the addresses.
    fn is_whole(&self) -> bool {
        self.at >= self.addrs.end.0
    }

    /// Whether the next group is to be added: one of `count` entries in so many streams. Else its entries are counted for the one before.
    fn keeps(&mut self, count: u32, streams: usize) -> bool {
        self.next += i128::from(count);
        let start = std::mem::replace(&mut self.at, self.numbering.address(self.next, self.addrs));
        let has_none = start >= self.at;
        let meta = &mut self.meta;
        match meta.groups.last_mut() {
            None if has_none || streams == 0 => meta.groups_from = meta.groups_from.after(count.into()),
            Some(last) if has_none && last.count + count <= limits::GRANT_MAX_COUNT => last.count += count,
            Some(_) if has_none => meta.groups.push(StreamGroup { count, places: StreamPlaces::new() }),
            _ => return true,
        }
        false
    }

    fn finish(mut self) -> EntryMeta {
        if self.meta.groups.is_empty() {
            self.meta.groups_from = RequestNo(0);
        }
        self.meta
    }
}

/// How the entries of a run are numbered from the first one of its groups on.
#[derive(Clone, Copy)]
struct Numbering {
    anchor: i128,
    /// By how much the anchor's entry lies behind the first one of the groups; it may lie before it.
    base: i128,
    stride: i128,
}

impl Numbering {
    fn of(meta: &EntryMeta) -> Self {
        let base = i128::from(meta.request.0.wrapping_sub(meta.groups_from.0) as i64);
        Self { anchor: meta.anchor.0.into(), base, stride: meta.stride.max(1).into() }
    }

    /// Which of `addrs` have the entries of a group, which are these of all groups, and how many of the group come before the one at the
    /// first of them.
    fn within(self, group: Range<i128>, addrs: AddrRange) -> (AddrRange, u32) {
        let range = AddrRange::from(self.address(group.start, addrs)..self.address(group.end, addrs));
        (range, (self.number(range.start) - group.start) as u32)
    }

    /// The number of the entry at `addr`: how many entries of groups come before it.
    fn number(self, addr: Addr) -> i128 {
        self.base + (i128::from(addr.0) - self.anchor) * self.stride
    }

    /// The first of `addrs` whose entry is at least the `nth` of all groups, or their end.
    fn address(self, nth: i128, addrs: AddrRange) -> u64 {
        let address = self.anchor + divide_up(nth - self.base, self.stride);
        address.clamp(addrs.start.0.into(), addrs.end.0.into()) as u64
    }
}

/// A quotient, rounded up. Long divisions take several times as long, and what is divided is short but for metas that nobody has made.
fn divide_up(number: i128, by: i128) -> i128 {
    match (i64::try_from(number), i64::try_from(by)) {
        (Ok(number), Ok(by)) => (number.div_euclid(by) + i64::from(number.rem_euclid(by) != 0)).into(),
        _ => number.div_euclid(by) + i128::from(number.rem_euclid(by) != 0),
    }
}

/// Bytes that a meta with these groups takes, encoded.
fn encoded_bytes(groups: &[StreamGroup]) -> usize {
    let bytes: usize = groups.iter().map(StreamGroup::encoded_bytes).sum();
    META_HEAD_BYTES + if groups.is_empty() { 0 } else { GROUPS_HEAD_BYTES + bytes }
}

/// A meta without its groups, and how many follow.
fn decode_head(decoder: &mut Decoder<'_>) -> Result<(EntryMeta, u16), DecodeError> {
    let version = decoder.u8("meta version")?;
    if version != META_VERSION {
        return Err(DecodeError::Invalid { field: "meta version", found: version.into(), expected: "1" });
    }
    zero("meta reserved", decoder.u8("meta reserved")?.into())?;
    let stride = decoder.u16("stride")?;
    let group_count = decoder.u16("group count")?;
    zero("meta reserved", decoder.u16("meta reserved")?.into())?;
    let client = ClientId(decoder.u64("client")?);
    let anchor = Addr(decoder.u64("anchor")?);
    let request = RequestNo(decoder.u64("request")?);
    let mut meta = EntryMeta { client, anchor, request, stride, ..EntryMeta::default() };
    if group_count > 0 {
        if stride == 0 {
            let (field, expected) = ("stride", "at least 1 in streams");
            return Err(DecodeError::Invalid { field, found: 0, expected });
        }
        meta.groups_from = RequestNo(decoder.u64("first request of the groups")?);
    }
    Ok((meta, group_count))
}

fn encode_group(group: &StreamGroup, out: &mut BytesMut) {
    let streams = group.places.len();
    assert!(streams <= limits::STREAMS_MAX_COUNT, "{streams} streams");
    out.put_u32_le(group.count);
    out.put_u8(streams as u8);
    out.put_bytes(0, 3);
    for place in &group.places {
        encode_place(place, out);
    }
}

fn decode_group_count(decoder: &mut Decoder<'_>) -> Result<u32, DecodeError> {
    let count = decoder.u32("entries of a group")?;
    if (1..=limits::GRANT_MAX_COUNT).contains(&count) {
        return Ok(count);
    }
    let expected = "1 to 65536 entries";
    Err(DecodeError::Invalid { field: "entries of a group", found: count.into(), expected })
}

fn decode_group(decoder: &mut Decoder<'_>) -> Result<StreamGroup, DecodeError> {
    let count = decode_group_count(decoder)?;
    let streams = decode_stream_count(decoder)?;
    Ok(StreamGroup { count, places: decode_places(decoder, streams)? })
}

fn decode_places(decoder: &mut Decoder<'_>, streams: usize) -> Result<StreamPlaces, DecodeError> {
    let mut places = StreamPlaces::with_capacity(streams);
    for _ in 0..streams {
        let place = decode_place(decoder)?;
        if places.iter().any(|before| before.stream == place.stream) {
            return Err(named_twice(place.stream));
        }
        places.push(place);
    }
    Ok(places)
}

/// The number of streams of a group, and the three bytes after it.
pub(crate) fn decode_stream_count(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    let streams = usize::from(decoder.u8("stream count")?);
    for _ in 0..3 {
        zero("group reserved", decoder.u8("group reserved")?.into())?;
    }
    if streams > limits::STREAMS_MAX_COUNT {
        let expected = "at most 16 streams";
        return Err(DecodeError::Invalid { field: "stream count", found: streams as u64, expected });
    }
    Ok(streams)
}

/// Appends a place: `stream u128`, `position u64`, `previous u64`.
pub(crate) fn encode_place(place: &StreamPlace, out: &mut BytesMut) {
    out.put_u128_le(place.stream.0);
    out.put_u64_le(place.position.0);
    out.put_u64_le(place.previous.map_or(NO_PREVIOUS, |previous| previous.0));
}

/// Decodes a place.
pub(crate) fn decode_place(decoder: &mut Decoder<'_>) -> Result<StreamPlace, DecodeError> {
    let stream = StreamId(decoder.u128("stream")?);
    let position = StreamPos(decoder.u64("stream position")?);
    let previous = Some(decoder.u64("previous")?).filter(|&pos| pos != NO_PREVIOUS).map(LogPos);
    Ok(StreamPlace { stream, position, previous })
}

/// The same stream twice in one list.
pub(crate) fn named_twice(stream: StreamId) -> DecodeError {
    DecodeError::Invalid { field: "stream", found: stream.0 as u64, expected: "streams that differ" }
}

fn zero(field: &'static str, found: u64) -> Result<(), DecodeError> {
    if found == 0 { Ok(()) } else { Err(DecodeError::Invalid { field, found, expected: "0" }) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn place(stream: u128, position: u64, previous: Option<u64>) -> StreamPlace {
        StreamPlace {
            stream: StreamId(stream),
            position: StreamPos(position),
            previous: previous.map(LogPos),
        }
    }

    /// Requests 500 to 506 on three stripes, this one being the second: 500 and 501 in streams 7 and 8, 502 in none, 503 to
    /// 505 in stream 7, 506 in none.
    fn meta() -> EntryMeta {
        let groups = vec![
            StreamGroup { count: 2, places: vec![place(7, 4, Some(99)), place(8, 0, None)].into() },
            StreamGroup { count: 1, places: StreamPlaces::new() },
            StreamGroup { count: 3, places: [place(7, 6, Some(1001))].into() },
        ];
        let first = EntryMeta::new(ClientId(0xC0FFEE), Addr(10), RequestNo(501));
        EntryMeta { stride: 3, groups_from: RequestNo(500), groups, ..first }
    }

    #[test]
    fn a_meta_survives_encoding_and_every_truncation_is_refused() {
        for meta in [meta(), EntryMeta::new(ClientId(7), Addr(1), RequestNo(2))] {
            let bytes = meta.to_bytes();
            assert_eq!(bytes.len(), meta.encoded_bytes());
            assert_eq!(EntryMeta::has_groups(&bytes), !meta.groups.is_empty());
            assert_eq!(EntryMeta::decode(&bytes), Ok(meta));
            assert!((0..bytes.len()).all(|len| EntryMeta::decode(&bytes[..len]).is_err()));
        }
        assert_eq!(meta().request_at(Addr(12)), RequestNo(507));
        assert_eq!(meta().request_at(Addr(9)), RequestNo(498));
    }

    #[test]
    fn each_entry_has_its_own_places() {
        // An entry that is given the places of the first of its group is at a position that another one has.
        let places = |addr, pos| meta().places_at(Addr(addr), LogPos(pos));
        assert_eq!(places(9, 998)[..], [], "before the groups");
        assert_eq!(places(10, 1001)[..], [place(7, 5, Some(1000)), place(8, 1, Some(1000))]);
        assert_eq!(places(11, 1004)[..], [place(7, 7, Some(1003))]);
        assert_eq!(places(12, 1007)[..], [], "behind them");
        let first = EntryMeta { anchor: Addr(10), request: RequestNo(500), ..meta() };
        assert_eq!(first.places_at(Addr(10), LogPos(1000))[..], [place(7, 4, Some(99)), place(8, 0, None)]);
    }

    #[test]
    fn groups_within_addresses_agree_with_the_places_of_each() {
        for (first, stride) in (490..=510).flat_map(|first| (1..=4).map(move |stride| (first, stride))) {
            let meta = EntryMeta { request: RequestNo(first), stride, ..meta() };
            for addrs in (4..16).flat_map(|start| (start..16).map(move |end| AddrRange::from(start..end))) {
                let mut found = BTreeMap::new();
                for (range, nth, group) in meta.groups_within(addrs) {
                    for (step, addr) in (0..).zip(range.numbers()) {
                        let nth = nth + step * u32::from(stride);
                        found.insert(addr, group.places_of(nth, LogPos(addr)));
                    }
                }
                for addr in addrs.numbers() {
                    let places = meta.places_at(Addr(addr), LogPos(addr));
                    assert_eq!(found.remove(&addr).unwrap_or_default(), places, "{addr} of {meta:?}");
                }
                assert!(found.is_empty(), "nothing outside of {addrs}");
                check_ends(&meta, addrs);
            }
        }
    }

    #[test]
    fn a_meta_of_some_addresses_gives_their_entries_the_places_that_the_whole_gives() {
        // An entry of a stripe that takes the place of another stripe's entry is lost to its stream.
        let groups: Vec<StreamGroup> = (0..12u64)
            .map(|nth| {
                let places = if nth % 4 == 3 {
                    Vec::new()
                } else {
                    vec![place(7 + u128::from(nth % 3), 10 * nth, None)]
                };
                StreamGroup { count: 1 + (nth % 2) as u32, places: places.into() }
            })
            .collect();
        for (request, stride) in (497..=503).flat_map(|first| (1..=5).map(move |stride| (first, stride))) {
            let from = RequestNo(500);
            let bare = EntryMeta { stride, ..EntryMeta::new(ClientId(1), Addr(10), RequestNo(request)) };
            let whole = EntryMeta { groups_from: from, groups: groups.clone(), ..bare.clone() };
            let bytes = whole.to_bytes();
            // One entry after the other, as of a batch of which every second one is another stream's.
            for step in 1..4 {
                let mut encoded = EncodedMeta::new(&bytes).expect("it decodes");
                for addr in (6..20).step_by(step) {
                    let one = encoded.within((addr..addr + 1).into()).expect("it decodes");
                    let places = |meta: &EntryMeta| meta.places_at(Addr(addr), LogPos(1000 + addr));
                    assert_eq!(places(&one), places(&whole), "{addr} of {whole:?}: {one:?}");
                }
            }
            for addrs in (6..20).flat_map(|start| (start + 1..20).map(move |end| AddrRange::from(start..end)))
            {
                let cut = bare.clone().in_groups(from, &groups, addrs);
                assert_eq!(EntryMeta::decode(&cut.to_bytes()).as_ref(), Ok(&cut));
                let mut encoded = EncodedMeta::new(&bytes).expect("it decodes");
                let decoded = encoded.within(addrs).expect("it decodes");
                assert!(cut.groups.len() <= addrs.count() as usize, "{addrs} of {whole:?}: {cut:?}");
                for addr in addrs.numbers().map(Addr) {
                    let places = |meta: &EntryMeta| meta.places_at(addr, LogPos(1000 + addr.0));
                    assert_eq!(places(&cut), places(&whole), "{addr:?} of {addrs} of {whole:?}: {cut:?}");
                    assert_eq!(
                        places(&decoded),
                        places(&whole),
                        "{addr:?} of {addrs} of {whole:?}: {decoded:?}"
                    );
                }
                check_ends(&cut, addrs);
            }
        }
    }

    #[test]
    fn a_group_counts_no_more_entries_than_one_can_be_asked_for() {
        // What cannot be decoded makes an entry unreadable.
        let group = |stream| StreamGroup { count: 40_000, places: vec![place(stream, 4, None)].into() };
        let groups = [group(7), group(8), group(9)];
        let bare = EntryMeta { stride: u16::MAX, ..EntryMeta::new(ClientId(1), Addr(10), RequestNo(39_999)) };
        let meta = bare.in_groups(RequestNo(0), &groups, (10..12).into());
        assert_eq!(EntryMeta::decode(&meta.to_bytes()).as_ref(), Ok(&meta));
        let position = |addr| meta.places_at(Addr(addr), LogPos(0))[0].position.0;
        assert_eq!((position(10), position(11)), (40_003, 4 + 39_999 + 65_535 - 80_000));
    }

    #[test]
    fn every_entry_of_the_stream_of_checkpoints_is_an_end() {
        // Chunks that share a batch are one group: a new sequencer that was told of the last one alone would find no whole checkpoint.
        let sequencer = StreamId::SEQUENCER;
        let groups = vec![
            StreamGroup { count: 1, places: [place(7, 4, None)].into() },
            StreamGroup { count: 5, places: vec![place(sequencer.0, 40, None), place(8, 0, None)].into() },
        ];
        let first = EntryMeta::new(ClientId(1), Addr(10), RequestNo(500));
        let meta = EntryMeta { stride: 2, groups_from: RequestNo(499), groups, ..first };
        let mut ends = Vec::new();
        let each = |stream, position: StreamPos, addr: Addr| ends.push((stream, position.0, addr.0));
        EntryMeta::each_end(&meta.to_bytes(), (9..20).into(), each).expect("it decodes");
        let chunk = |position, addr| (sequencer, position, addr);
        assert_eq!(ends, [chunk(40, 10), chunk(42, 11), chunk(44, 12), (StreamId(8), 4, 12)]);
    }

    /// What each stream ends with at `addrs` is what the last entry of it there says.
    fn check_ends(meta: &EntryMeta, addrs: AddrRange) {
        let (mut ends, mut expected) = (BTreeMap::new(), BTreeMap::new());
        let each = |stream, position, addr| {
            ends.insert(stream, (position, addr));
        };
        EntryMeta::each_end(&meta.to_bytes(), addrs, each).expect("it decodes");
        for addr in addrs.numbers().map(Addr) {
            for place in meta.places_at(addr, LogPos(addr.0)) {
                expected.insert(place.stream, (place.position, addr));
            }
        }
        assert_eq!(ends, expected, "at {addrs} of {meta:?}");
    }

    #[test]
    fn a_stream_twice_in_a_group_an_empty_group_and_groups_of_one_number_are_refused() {
        let of = |count, places| EntryMeta { groups: vec![StreamGroup { count, places }], ..meta() };
        let twice = of(1, vec![place(7, 4, None), place(7, 5, None)].into());
        for meta in [twice, of(0, vec![place(7, 4, None)].into()), EntryMeta { stride: 0, ..meta() }] {
            assert!(EntryMeta::decode(&meta.to_bytes()).is_err(), "{meta:?}");
        }
    }
}
