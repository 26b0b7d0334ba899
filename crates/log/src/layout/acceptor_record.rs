//! What an acceptor stores: what it promised and accepted for the epoch after the latest, and the latest layouts.
//!
//! Body of the record (magic `ITac`, version 1): `cluster u128`, `promised round u64`, `proposer u64`, `accepted round u64`, `proposer u64`,
//! the accepted layout record behind its `length u32` (0 if there is none), `layout count u32`, then each layout record
//! behind its `length u32`.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::{Acceptor, Layout};
use crate::limits;
use crate::pos::{Ballot, ClusterId, Epoch, NodeId};
use ithaca_env::record::{self, RecordError};

const MAGIC: [u8; 4] = *b"ITac";
const VERSION: u16 = 1;

/// The record to store.
pub(super) fn encode(acceptor: &Acceptor) -> Bytes {
    record::encode(MAGIC, VERSION, |out| {
        out.put_u128_le(acceptor.cluster.0);
        encode_ballot(acceptor.promised, out);
        let accepted = acceptor.accepted.as_ref();
        encode_ballot(accepted.map_or(Ballot::NONE, |(ballot, _)| *ballot), out);
        out.counted(&accepted.map_or_else(Bytes::new, |(_, layout)| layout.encode()));
        out.put_u32_le(acceptor.decided.len() as u32);
        acceptor.decided.iter().for_each(|layout| out.counted(&layout.encode()));
    })
}

/// Fills `acceptor`, which is new, with what is in a record.
pub(super) fn decode(acceptor: &mut Acceptor, bytes: &[u8]) -> Result<(), RecordError> {
    let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
    let mut decoder = Decoder::new(body);
    let (low, high) = (decoder.u64("cluster")?, decoder.u64("cluster")?);
    acceptor.cluster = ClusterId(u128::from(high) << 64 | u128::from(low));
    acceptor.promised = decode_ballot(&mut decoder)?;
    let ballot = decode_ballot(&mut decoder)?;
    let accepted = decoder.counted("accepted layout", limits::LAYOUT_MAX_BYTES)?;
    if accepted.is_empty() != (ballot == Ballot::NONE) || ballot > acceptor.promised {
        return Err(invalid("accepted round", ballot.round, "one that was promised, with its layout"));
    }
    if !accepted.is_empty() {
        acceptor.accepted = Some((ballot, Layout::decode(accepted)?));
    }
    let count = decoder.u32("layout count")? as usize;
    if count > limits::LAYOUT_HISTORY_MAX_COUNT {
        return Err(invalid("layout count", count as u64, "at most 8 layouts"));
    }
    let mut latest = Epoch(0);
    for _ in 0..count {
        let layout = Layout::decode(decoder.counted("layout", limits::LAYOUT_MAX_BYTES)?)?;
        if layout.epoch <= latest {
            return Err(invalid("layout epoch", layout.epoch.0, "layouts in the order of their epochs"));
        }
        latest = layout.epoch;
        acceptor.decided.push_back(layout);
    }
    decoder.finish()?;
    let follows = |epoch: Epoch| epoch == latest.next() || epoch == latest.after_loss();
    if acceptor.accepted.as_ref().is_some_and(|(_, layout)| !follows(layout.epoch)) {
        return Err(invalid("accepted epoch", latest.0, "that after the latest"));
    }
    Ok(())
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> RecordError {
    DecodeError::Invalid { field, found, expected }.into()
}

fn encode_ballot(ballot: Ballot, out: &mut BytesMut) {
    out.put_u64_le(ballot.round);
    out.put_u64_le(ballot.proposer.0);
}

fn decode_ballot(decoder: &mut Decoder<'_>) -> Result<Ballot, DecodeError> {
    let round = decoder.u64("ballot round")?;
    Ok(Ballot { round, proposer: NodeId(decoder.u64("ballot proposer")?) })
}
