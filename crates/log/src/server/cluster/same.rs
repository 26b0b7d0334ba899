//! What of a closed stripe this node holds just as a replica does, found by heads: lengths and checksums of entries instead of the entries. A node that
//! was away for a moment, and lost nothing, is not sent again what it has. (docs/protocol/rebuild.md)

use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Described, RunKind, Table, TableEntry};

use super::rebuild::{PIECE_BYTES, PIECE_PATIENCE, RebuildError, Source};
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::server::cluster::member::Member;
use crate::server::unit_shell::UnitShell;
use crate::unit::Holding;
use crate::wire::{ReadStream, ReceivedRuns, StateRef, StreamRuns, Wanted};

/// Addresses that are compared at a time.
const COMPARED_COUNT: u64 = 1 << 14;

/// What is the same, from the address on that was asked about.
pub(super) struct Same {
    /// Where it ends; that address, if nothing is.
    pub(super) end: Addr,
    /// What of it is trimmed on the replica.
    pub(super) trimmed: Vec<AddrRange>,
    /// Bytes of the replica's heads.
    pub(super) bytes: usize,
}

/// What is known here of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    /// That it should have a record, and none is known.
    Lost,
    Trimmed,
    Junk,
    Data(TableEntry),
}

impl Source {
    /// How far, from `next` on, this node holds what the replica holds. What is harmed here is not found: only what the index says is compared.
    /// An error if the replica does not tell; it may be of an earlier version.
    pub(super) async fn same(
        &self,
        member: &Rc<Member>,
        epoch: Epoch,
        next: Addr,
    ) -> Result<Same, RebuildError> {
        let unit = member.unit()?;
        let end = self.extent.end.min(Addr(next.0.saturating_add(COMPARED_COUNT)));
        let (held, parts) = held(&unit, AddrRange::new(next, end));
        let nothing = Same { end: next, trimmed: Vec::new(), bytes: 0 };
        if held.is_empty() {
            return Ok(nothing);
        }
        if member.options.planted.is(PlantedBug::HeldCountsAsSame) {
            return Ok(Same { end: held.end, ..nothing });
        }
        let Ok(described) = unit.chain().describe(held.numbers()).await else { return Ok(nothing) };
        let heads = ReadStream {
            limit_bytes: PIECE_BYTES,
            committed: false,
            heads_only: true,
            last_only: false,
            known_only: false,
            wait_ms: 0,
            wanted: Wanted::Every,
            ranges: vec![held],
        };
        let (StreamRuns { runs }, _) = self.ask(member, epoch, &heads, PIECE_PATIENCE).await?;
        Ok(compare(&runs, &here(held, &parts, &described), next))
    }
}

/// How far `range` holds something from its beginning on, by the unit's account, and what.
fn held(unit: &UnitShell, range: AddrRange) -> (AddrRange, Vec<(AddrRange, Holding)>) {
    let mut parts = unit.parts(range);
    let gap = parts.iter().position(|(_, holding)| *holding == Holding::Unwritten);
    parts.truncate(gap.unwrap_or(parts.len()));
    let end = parts.last().map_or(range.start, |(part, _)| part.end);
    (AddrRange::new(range.start, end), parts)
}

/// The same for each address of `held`, with what the index says of its records.
fn here(held: AddrRange, parts: &[(AddrRange, Holding)], described: &[Described]) -> Vec<Here> {
    let mut here = vec![Here::Lost; held.count() as usize];
    let at = |addr: u64| (addr - held.start.0) as usize;
    for (part, holding) in parts {
        let known = match holding {
            Holding::Trimmed => Here::Trimmed,
            Holding::Voided => Here::Junk,
            Holding::Stored | Holding::Unwritten => continue,
        };
        here[at(part.start.0)..at(part.end.0)].fill(known);
    }
    for run in described {
        let entries = run.keys().zip(run.table.entries());
        for (addr, entry) in entries.filter(|(addr, _)| held.numbers().contains(addr)) {
            // What is voided, or trimmed, still has its record.
            if here[at(addr)] == Here::Lost {
                here[at(addr)] = if run.kind == RunKind::Data { Here::Data(entry) } else { Here::Junk };
            }
        }
    }
    here
}

/// How far the replica's `runs`, which begin at `from`, are as what is `here` from there on.
fn compare(runs: &ReceivedRuns, here: &[Here], from: Addr) -> Same {
    let mut same = Same { end: from, trimmed: Vec::new(), bytes: 0 };
    for run in runs.runs() {
        let range = run.range();
        same.bytes += run.body_bytes();
        let held = here.get((same.end.0 - from.0) as usize..(range.end.0.saturating_sub(from.0)) as usize);
        // Nothing else is answered than what was asked for.
        let Some(here) = held.filter(|_| range.start == same.end) else { break };
        let count = match run.state {
            StateRef::Unwritten => 0,
            StateRef::Trimmed => {
                same.trimmed.push(range);
                here.len()
            }
            StateRef::Junk { .. } => {
                here.iter().take_while(|here| matches!(here, Here::Junk | Here::Trimmed)).count()
            }
            StateRef::Data { table, .. } => {
                let table = Table::from_bytes(Bytes::copy_from_slice(table)).expect("whole entries");
                let is_same = |(here, entry)| matches!(here, &Here::Trimmed) || *here == Here::Data(entry);
                here.iter().zip(table.entries()).take_while(|&pair| is_same(pair)).count()
            }
        };
        same.end = Addr(range.start.0 + count as u64);
        if same.end < range.end {
            break;
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::wire::{Message, RunHead, RunState, Runs};

    /// What a replica answers: runs of an address or two from 10 on.
    fn answered(states: &[(u64, RunState)]) -> ReceivedRuns {
        let mut next = 10;
        let run = |&(count, ref state): &(u64, RunState)| {
            let addr = Addr(next);
            next += count;
            RunHead { addr, count, state: state.clone() }
        };
        let runs = Runs { runs: states.iter().map(run).collect() };
        let mut body = BytesMut::new();
        runs.encode_body(&mut body);
        let data_len = states.iter().map(|(_, state)| match state {
            RunState::Data { table, .. } => table.data_bytes() as usize,
            _ => 0,
        });
        ReceivedRuns::decode_body(&body.freeze(), data_len.sum()).expect("well formed")
    }

    fn data(payloads: &[&str]) -> RunState {
        RunState::Data { epoch: Epoch(1), meta: Bytes::new(), table: Table::of_payloads(payloads) }
    }

    fn entry(payload: &str) -> Here {
        Here::Data(Table::of_payloads([payload]).entries().next().expect("one"))
    }

    #[test]
    fn what_differs_ends_what_is_the_same() {
        let (junk, two) = (RunState::Junk { epoch: Epoch(0) }, || data(&["a", "b"]));
        let cases = [
            (vec![(2, two())], vec![entry("a"), entry("b")], 12),
            (vec![(2, two())], vec![entry("a"), entry("x")], 11),
            (vec![(2, two())], vec![entry("a"), Here::Junk], 11),
            (vec![(2, two())], vec![Here::Lost, entry("b")], 10),
            (vec![(2, two()), (1, junk.clone())], vec![Here::Trimmed, entry("b"), Here::Junk], 13),
            (vec![(1, junk.clone()), (1, data(&["a"]))], vec![entry("a"), entry("a")], 10),
            (vec![(1, junk), (1, RunState::Unwritten)], vec![Here::Trimmed, entry("a")], 11),
            // More than was asked for.
            (vec![(2, two())], vec![entry("a")], 10),
        ];
        for (runs, here, end) in cases {
            let same = compare(&answered(&runs), &here, Addr(10));
            assert_eq!((same.end, same.trimmed.len()), (Addr(end), 0), "{runs:?} {here:?}");
        }
    }

    #[test]
    fn what_is_trimmed_on_the_replica_is_told() {
        let runs = answered(&[(1, data(&["a"])), (2, RunState::Trimmed), (1, data(&["d"]))]);
        let same = compare(&runs, &[entry("a"), entry("b"), Here::Lost, entry("x")], Addr(10));
        assert_eq!((same.end, same.trimmed), (Addr(13), vec![AddrRange::new(Addr(11), Addr(13))]));
    }
}
