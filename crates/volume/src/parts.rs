//! Bytes in a transaction, which works in blocks and in parts of them: for front ends whose clients know of bytes only.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use ithaca_env::limits::BLOCK_BYTES;

use crate::{Tx, TxError};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The part of a block that bytes are: the block, and which of its bytes.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (block, start) = (at / BLOCK, at % BLOCK);
        let end = BLOCK.min(start + range.end.saturating_sub(at));
        at += end - start;
        (start < end).then_some((block, start as usize..end as usize))
    })
}

/// Reads bytes: what the transaction has written, and its snapshot. It depends on these alone. Errors: as of [`Tx::read`].
pub(crate) async fn read(tx: &Tx, range: &Range<u64>) -> Result<Bytes, TxError> {
    let mut data = BytesMut::with_capacity((range.end - range.start) as usize);
    for (block, bytes) in parts(range.clone()) {
        let part = if bytes.len() == BLOCK_BYTES {
            tx.read(block, 1).await?
        } else {
            tx.read_part(block, bytes).await?
        };
        data.extend_from_slice(&part);
    }
    Ok(data.freeze())
}

/// Writes bytes, in memory: they are there for others, and durable, when it commits. Errors: as of [`Tx::write`], after which
/// it cannot commit.
pub(crate) async fn write(tx: &Tx, offset: u64, data: &Bytes) -> Result<(), TxError> {
    let written = write_parts(tx, offset, data).await;
    written.inspect_err(|_| tx.note_refused_write())
}

async fn write_parts(tx: &Tx, offset: u64, data: &Bytes) -> Result<(), TxError> {
    let (mut from, end) = (0, offset + data.len() as u64);
    tx.check_writes(offset / BLOCK..end.div_ceil(BLOCK))?;
    for (block, bytes) in parts(offset..end) {
        let part = data.slice(from..from + bytes.len());
        from += bytes.len();
        match bytes.len() {
            // Copied: it is a part of what a client has sent.
            BLOCK_BYTES => tx.write(block, Bytes::copy_from_slice(&part))?,
            _ => tx.write_part(block, bytes.start, &part).await?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_parts_of_the_blocks_that_they_lie_in() {
        let of = |range| parts(range).collect::<Vec<_>>();
        assert_eq!(of(0..4096), [(0, 0..4096)]);
        assert_eq!(of(100..200), [(0, 100..200)]);
        assert_eq!(of(4000..8292), [(0, 4000..4096), (1, 0..4096), (2, 0..100)]);
        assert_eq!(of(8192..8192), []);
    }
}
