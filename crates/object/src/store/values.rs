//! Values of a store: found in the entries that have them, and kept in memory while they are used.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};

use super::state::{Located, MoveValues, MultiPut};
use crate::collections::{Blob, Name};
use crate::object::Mutator;
use crate::record::Record;

/// What a value has in memory beside its bytes, about.
const VALUE_HEAD_BYTES: usize = 128;

/// Values that were read or written of late, by the entries that have them. An entry never changes, so neither does what is here.
pub(super) struct Values<K> {
    max_bytes: usize,
    bytes: usize,
    by_place: BTreeMap<(LogPos, K), Kept>,
    /// The oldest use first.
    by_use: BTreeMap<u64, (LogPos, K)>,
    uses: u64,
}

struct Kept {
    value: Blob,
    used: u64,
}

impl<K: Name> Values<K> {
    /// None yet, and never more than so many bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: 0, by_place: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }

    /// The value, if it is here.
    pub(super) fn get(&mut self, key: &K, located: &Located) -> Option<Blob> {
        let place = (located.pos, key.clone());
        let kept = self.by_place.get_mut(&place)?;
        if !located.is(&kept.value) {
            return None;
        }
        self.uses += 1;
        let used = std::mem::replace(&mut kept.used, self.uses);
        self.by_use.remove(&used);
        self.by_use.insert(self.uses, place);
        Some(kept.value.clone())
    }

    /// Keeps a value, in place of those that were not used for longest.
    pub(super) fn keep(&mut self, key: &K, pos: LogPos, value: Blob) {
        let bytes = VALUE_HEAD_BYTES + value.0.len();
        if bytes > self.max_bytes {
            return;
        }
        self.uses += 1;
        self.bytes += bytes;
        let place = (pos, key.clone());
        self.by_use.insert(self.uses, place.clone());
        if let Some(before) = self.by_place.insert(place, Kept { value, used: self.uses }) {
            self.bytes -= VALUE_HEAD_BYTES + before.value.0.len();
            self.by_use.remove(&before.used);
        }
        while self.bytes > self.max_bytes
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            if let Some(gone) = self.by_place.remove(&oldest) {
                self.bytes -= VALUE_HEAD_BYTES + gone.value.0.len();
            }
        }
    }
}

/// Finds values in one entry: of each key that is sought, the one that it is to be.
pub(super) fn find_in<K: Name>(
    entry: &Bytes,
    stream: StreamId,
    sought: &[(K, Located)],
) -> Vec<Option<Blob>> {
    let mut found = vec![None; sought.len()];
    let Ok(record) = Record::decode(entry) else { return found };
    let keys: BTreeSet<&K> = sought.iter().map(|(key, _)| key).collect();
    for call in record.calls.iter().filter(|call| call.stream == stream) {
        for (key, value) in values_of::<K>(&call.method, &call.arguments) {
            if !keys.contains(&key) {
                continue;
            }
            for ((of, located), found) in sought.iter().zip(&mut found) {
                if *of == key && located.is(&value) {
                    *found = Some(Blob(value.0.clone()));
                }
            }
        }
    }
    found
}

/// The values that a call brings.
fn values_of<K: Name>(method: &[u8], arguments: &[u8]) -> Vec<(K, Blob)> {
    if method == MultiPut::<K>::NAME.as_bytes() {
        let call: Option<MultiPut<K>> = rmp_serde::from_slice(arguments).ok();
        let puts = call.map(|call| call.puts).unwrap_or_default();
        return puts.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    }
    if method == MoveValues::<K>::NAME.as_bytes() {
        let call: Option<MoveValues<K>> = rmp_serde::from_slice(arguments).ok();
        let values = call.map(|call| call.values).unwrap_or_default();
        return values.into_iter().map(|moved| (moved.key, moved.value)).collect();
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Object, call_of};
    use crate::record::TxId;
    use crate::store::StoreState;

    const STREAM: StreamId = StreamId(7);

    fn blob(byte: u8, len: usize) -> Blob {
        Blob(vec![byte; len].into())
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_the_rest_keeps_to_its_limit() {
        let mut values = Values::new(3 * (VALUE_HEAD_BYTES + 100));
        let mut state = StoreState::<u8>::default();
        let puts = (0..4).map(|key| (key, Some(blob(key, 100)))).collect();
        MultiPut { expected: Vec::new(), puts }.apply(&mut state, LogPos(9), &mut Vec::new()).expect("put");
        let at = |key: u8| state.entries()[&key];
        (0..3).for_each(|key| values.keep(&key, LogPos(9), blob(key, 100)));
        assert!(values.get(&0, &at(0)).is_some());
        values.keep(&3, LogPos(9), blob(3, 100));
        let left: Vec<u8> = (0..4).filter(|key| values.get(key, &at(*key)).is_some()).collect();
        assert_eq!(left, [0, 2, 3]);
        values.keep(&0, LogPos(9), blob(5, 100));
        assert_eq!(values.get(&0, &at(0)), None, "bytes that are not the value");
        values.keep(&1, LogPos(9), blob(1, 1 << 20));
        assert!(values.by_place.len() == 3 && values.by_use.len() == 3 && values.bytes <= values.max_bytes);
    }

    #[test]
    fn a_value_is_found_by_what_it_is_wherever_in_its_entry_it_stands() {
        // Of two values of one key the last one counts, and a value of another object is none.
        let mut state = StoreState::<u8>::default();
        let puts = vec![(1, Some(blob(1, 4))), (2, None), (1, Some(blob(2, 4)))];
        let put = MultiPut { expected: Vec::new(), puts };
        let calls = [StreamId(8), STREAM].map(|of| call_of::<StoreState<u8>, _>(of, &put).expect("encoded"));
        put.apply(&mut state, LogPos(3), &mut Vec::new()).expect("put");
        let id = TxId { client: 1, request: 0 };
        let record =
            |calls: &[_]| Record { id, settled: 0, checks: Vec::new(), calls: calls.to_vec() }.encode();
        let sought = [(1, state.entries()[&1]), (3, state.entries()[&1])];
        assert_eq!(find_in(&record(&calls), STREAM, &sought), [Some(blob(2, 4)), None]);
        assert_eq!(find_in(&record(&calls[..1]), STREAM, &sought), [None, None]);
        assert_eq!(find_in(&Bytes::from_static(b"no record"), STREAM, &sought), [None, None]);
        assert_eq!(StoreState::<u8>::TYPE, "store");
    }
}
