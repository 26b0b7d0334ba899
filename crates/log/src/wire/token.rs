//! What the sequencer grants: tokens for new positions, to groups of appends.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most, no_data, zero};
use crate::entry::{StreamPlace, StreamPlaces, decode_place, decode_stream_count, encode_place, named_twice};
use crate::limits;
use crate::pos::{LogPos, StreamId, StreamIds};
use crate::stream::{Condition, ConflictKey, ConflictKeys, KeyHash};

/// Asks for the next positions, at most [`limits::GRANT_MAX_COUNT`], for appends that are queued already. The head's epoch
/// must be the sequencer's.
///
/// Body: `group count u32`, then for each group `count u32`, `stream count u8`, `has condition u8` (1 or 0), `reserved u16`, for
/// each stream its id, a `u128`; and if there is a condition `snapshot u64`, `read count u16`, `write count u16`,
/// `reserved u32`, and for each part that is read, then for each that is written, `stream u128`, `key u64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Groups of appends in their order, at least one and at most [`limits::TOKEN_GROUPS_MAX_COUNT`].
    pub groups: Vec<TokenGroup>,
}

/// Appends in a row that are to belong to the same streams and that depend on the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenGroup {
    /// How many positions, at least 1.
    pub count: u32,
    /// The streams, at most [`limits::STREAMS_MAX_COUNT`], all different.
    pub streams: StreamIds,
    /// On what it depends. Parts that it writes are of its streams. Out of line: most groups have none, and a message has many groups.
    pub condition: Option<Box<Condition>>,
}

/// The answer: what each group got. Those that were granted positions have them one after the other from `first` on, in
/// the head's epoch only.
///
/// Body: `first u64`, `group count u32`, `reserved u32`, then for each group `kind u32` and, of kind 1 (granted): `count u32`,
/// `stream count u8`, 3 reserved bytes, and the places (`id u128`, `position u64`, `previous u64`); of kind 2 (conflict):
/// `stream u128`, `key u64`, `pos u64`; of kind 3 (too old): `low water u64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first position, if any was granted.
    pub first: LogPos,
    /// What each group got, in the order of the request.
    pub groups: Vec<GroupGrant>,
}

/// What a group got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupGrant {
    /// As many positions as it asked for.
    Granted {
        /// How many.
        count: u32,
        /// Where its first entry stands in each of its streams.
        places: StreamPlaces,
    },
    /// No positions: something that it read was written since its snapshot.
    Conflict {
        /// What.
        key: ConflictKey,
        /// The position that was granted for the latest write of it.
        pos: LogPos,
    },
    /// No positions: whether what it read was written is not known so far back.
    TooOld {
        /// The lowest snapshot that can be decided.
        low_water: LogPos,
    },
}

impl Token {
    /// For `count` appends in no stream.
    pub fn plain(count: u32) -> Self {
        Self { groups: vec![TokenGroup { count, ..TokenGroup::default() }] }
    }
}

impl TokenGroup {
    /// Whether it has to do with no stream.
    pub fn is_plain(&self) -> bool {
        self.streams.is_empty() && self.condition.is_none()
    }
}

impl Grant {
    /// How many positions were granted.
    pub fn count(&self) -> u32 {
        self.groups.iter().map(GroupGrant::count).sum()
    }
}

impl GroupGrant {
    /// How many positions were granted.
    pub fn count(&self) -> u32 {
        if let Self::Granted { count, .. } = self { *count } else { 0 }
    }

    /// The places in streams that were granted.
    pub fn places(&self) -> &[StreamPlace] {
        if let Self::Granted { places, .. } = self { places } else { &[] }
    }
}

impl Message for Token {
    const KIND: Kind = Kind::Token;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u32_le(self.groups.len() as u32);
        encode_groups(&self.groups, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let group_count = group_count(&mut decoder)?;
        let groups = decode_groups(&mut decoder, group_count)?;
        decoder.finish()?;
        no_data(data_len)?;
        grant_count(groups.iter().map(|group| u64::from(group.count)).sum())?;
        Ok(Self { groups })
    }
}

impl Message for Grant {
    const KIND: Kind = Kind::Grant;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.first.0);
        out.put_u32_le(self.groups.len() as u32);
        out.put_u32_le(0);
        encode_answers(&self.groups, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let first = LogPos(decoder.u64("first position")?);
        let group_count = group_count(&mut decoder)?;
        zero("grant reserved", decoder.u32("grant reserved")?.into())?;
        let groups = decode_answers(&mut decoder, group_count)?;
        decoder.finish()?;
        no_data(data_len)?;
        let count: u64 = groups.iter().map(|group| u64::from(group.count())).sum();
        if count > u64::from(limits::GRANT_MAX_COUNT) || first.0.checked_add(count).is_none() {
            return Err(DecodeError::Invalid {
                field: "first position",
                found: first.0,
                expected: "positions that do not run out",
            });
        }
        Ok(Self { first, groups })
    }
}

/// Appends groups, of which there is at least one. Panics if they are over a limit.
pub(super) fn encode_groups(groups: &[TokenGroup], out: &mut BytesMut) {
    assert!((1..=limits::TOKEN_GROUPS_MAX_COUNT).contains(&groups.len()), "{} groups", groups.len());
    groups.iter().for_each(|group| encode_group(group, out));
}

/// Decodes `count` groups, which must be within its limit.
pub(super) fn decode_groups(decoder: &mut Decoder<'_>, count: usize) -> Result<Vec<TokenGroup>, DecodeError> {
    let mut groups = Vec::with_capacity(count.min(decoder.left() / 8));
    let mut keys_left = limits::TOKEN_KEYS_MAX_COUNT;
    for _ in 0..count {
        groups.push(decode_group(decoder, &mut keys_left)?);
    }
    Ok(groups)
}

/// Appends what groups got.
pub(super) fn encode_answers(answers: &[GroupGrant], out: &mut BytesMut) {
    answers.iter().for_each(|answer| encode_answer(answer, out));
}

/// Decodes what `count` groups got.
pub(super) fn decode_answers(
    decoder: &mut Decoder<'_>,
    count: usize,
) -> Result<Vec<GroupGrant>, DecodeError> {
    let mut answers = Vec::with_capacity(count.min(decoder.left() / 12));
    for _ in 0..count {
        answers.push(decode_answer(decoder)?);
    }
    Ok(answers)
}

fn encode_group(group: &TokenGroup, out: &mut BytesMut) {
    assert!(group.streams.len() <= limits::STREAMS_MAX_COUNT, "{} streams", group.streams.len());
    out.put_u32_le(group.count);
    out.put_u8(group.streams.len() as u8);
    out.put_u8(group.condition.is_some().into());
    out.put_u16_le(0);
    group.streams.iter().for_each(|stream| out.put_u128_le(stream.0));
    let Some(condition) = &group.condition else { return };
    let Condition { snapshot, reads, writes } = &**condition;
    assert!(reads.len().max(writes.len()) <= limits::CONDITION_KEYS_MAX_COUNT, "too many parts of streams");
    out.put_u64_le(snapshot.0);
    out.put_u16_le(reads.len() as u16);
    out.put_u16_le(writes.len() as u16);
    out.put_u32_le(0);
    reads.iter().chain(writes).for_each(|key| encode_key(*key, out));
}

fn decode_group(decoder: &mut Decoder<'_>, keys_left: &mut usize) -> Result<TokenGroup, DecodeError> {
    let count = decoder.u32("token count")?;
    grant_count(count.into())?;
    let stream_count = usize::from(decoder.u8("stream count")?);
    let has_condition = decoder.u8("has condition")?;
    zero("group reserved", decoder.u16("group reserved")?.into())?;
    at_most("stream count", stream_count, limits::STREAMS_MAX_COUNT, "at most 16 streams")?;
    at_most("has condition", has_condition.into(), 1, "0 or 1")?;
    let mut streams = StreamIds::with_capacity(stream_count);
    for _ in 0..stream_count {
        let stream = StreamId(decoder.u128("stream")?);
        if streams.contains(&stream) {
            return Err(named_twice(stream));
        }
        streams.push(stream);
    }
    let mut group = TokenGroup { count, streams, condition: None };
    if has_condition == 1 {
        group.condition = Some(Box::new(decode_condition(decoder, keys_left, &group.streams)?));
    }
    Ok(group)
}

fn decode_condition(
    decoder: &mut Decoder<'_>,
    keys_left: &mut usize,
    streams: &[StreamId],
) -> Result<Condition, DecodeError> {
    let snapshot = LogPos(decoder.u64("snapshot")?);
    let read_count = usize::from(decoder.u16("read count")?);
    let write_count = usize::from(decoder.u16("write count")?);
    zero("condition reserved", decoder.u32("condition reserved")?.into())?;
    let limit = limits::CONDITION_KEYS_MAX_COUNT.min(*keys_left);
    at_most("read count", read_count, limit, "at most 1024 parts, and 65536 in one request")?;
    at_most("write count", write_count, limit, "at most 1024 parts, and 65536 in one request")?;
    *keys_left = keys_left.saturating_sub(read_count + write_count);
    let reads = decode_keys(decoder, read_count)?;
    let writes = decode_keys(decoder, write_count)?;
    if let Some(key) = writes.iter().find(|key| !streams.contains(&key.stream)) {
        let expected = "a stream of the group";
        let found = key.stream.0 as u64;
        return Err(DecodeError::Invalid { field: "stream of a part that is written", found, expected });
    }
    Ok(Condition { snapshot, reads, writes })
}

fn encode_answer(answer: &GroupGrant, out: &mut BytesMut) {
    match answer {
        GroupGrant::Granted { count, places } => {
            out.put_u32_le(1);
            out.put_u32_le(*count);
            out.put_u8(places.len() as u8);
            out.put_bytes(0, 3);
            places.iter().for_each(|place| encode_place(place, out));
        }
        GroupGrant::Conflict { key, pos } => {
            out.put_u32_le(2);
            encode_key(*key, out);
            out.put_u64_le(pos.0);
        }
        GroupGrant::TooOld { low_water } => {
            out.put_u32_le(3);
            out.put_u64_le(low_water.0);
        }
    }
}

fn decode_answer(decoder: &mut Decoder<'_>) -> Result<GroupGrant, DecodeError> {
    match decoder.u32("kind of grant")? {
        1 => {
            let count = decoder.u32("grant count")?;
            grant_count(count.into())?;
            let streams = decode_stream_count(decoder)?;
            let places = (0..streams).map(|_| decode_place(decoder)).collect::<Result<_, _>>()?;
            Ok(GroupGrant::Granted { count, places })
        }
        2 => {
            let key = decode_key(decoder)?;
            Ok(GroupGrant::Conflict { key, pos: LogPos(decoder.u64("position of a write")?) })
        }
        3 => Ok(GroupGrant::TooOld { low_water: LogPos(decoder.u64("low water")?) }),
        other => {
            Err(DecodeError::Invalid { field: "kind of grant", found: other.into(), expected: "1, 2 or 3" })
        }
    }
}

fn encode_key(key: ConflictKey, out: &mut BytesMut) {
    out.put_u128_le(key.stream.0);
    out.put_u64_le(key.key.0);
}

fn decode_key(decoder: &mut Decoder<'_>) -> Result<ConflictKey, DecodeError> {
    let stream = StreamId(decoder.u128("stream of a part")?);
    Ok(ConflictKey { stream, key: KeyHash(decoder.u64("part of a stream")?) })
}

fn decode_keys(decoder: &mut Decoder<'_>, count: usize) -> Result<ConflictKeys, DecodeError> {
    let mut keys = ConflictKeys::with_capacity(count.min(decoder.left() / 24));
    for _ in 0..count {
        keys.push(decode_key(decoder)?);
    }
    Ok(keys)
}

fn group_count(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    let found = decoder.u32("group count")? as usize;
    if (1..=limits::TOKEN_GROUPS_MAX_COUNT).contains(&found) {
        return Ok(found);
    }
    Err(DecodeError::Invalid { field: "group count", found: found as u64, expected: "1 to 1024" })
}

/// Refuses an empty or too large count of positions.
fn grant_count(found: u64) -> Result<(), DecodeError> {
    if (1..=u64::from(limits::GRANT_MAX_COUNT)).contains(&found) {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "token count", found, expected: "1 to 65536" })
}
