//! Reading blocks back from a cache drive. A block counts if the head of its line names it and its checksum matches.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::DriveFuture;
use ithaca_env::limits::BLOCK_BYTES;

use super::drive::{CacheDrive, Inner};
use super::{BlockKey, Found};
use crate::format::{LineHead, line_start};
use crate::limits::CACHE_DEADLINE_MS;

/// Blocks that were asked for, in their order; `None` if one of them is not there.
pub(crate) type CacheRead = Pin<Box<dyn Future<Output = Option<Vec<Bytes>>>>>;

/// Blocks of one line that follow each other and were asked for one after the other.
struct Piece {
    first: BlockKey,
    line: u32,
    at: u32,
    count: u32,
}

/// Where the next blocks come from.
enum Part {
    Memory(Bytes),
    Drive { piece: Piece, head: DriveFuture<Bytes>, blocks: DriveFuture<Bytes> },
}

impl CacheDrive {
    /// Starts to read these blocks. `None` if one of them is not cached: nothing is read then.
    ///
    /// The answer comes within [`CACHE_DEADLINE_MS`]; a drive that does not give it by then is dropped. With
    /// `is_believed` nothing is checked, which is a planted fault.
    pub(crate) fn read(&self, keys: &[BlockKey], is_believed: bool) -> Option<CacheRead> {
        let parts = self.inner.find(keys)?;
        if parts.iter().all(Result::is_ok) {
            let blocks = parts.into_iter().filter_map(Result::ok).collect();
            return Some(Box::pin(std::future::ready(Some(blocks))));
        }
        let parts: Vec<Part> = parts.into_iter().map(|part| self.inner.start(part)).collect();
        let cache = self.clone();
        Some(Box::pin(async move {
            let inner = &cache.inner;
            let deadline = Duration::from_millis(CACHE_DEADLINE_MS);
            let answer = inner.env.timeout(deadline, inner.finish(parts, is_believed)).await;
            answer.unwrap_or_else(|_| {
                inner.drop_drive("a read was not answered within a second");
                None
            })
        }))
    }

    /// The cached block is not what its chain wrote there.
    pub(crate) fn forget(&self, key: BlockKey) {
        let found = self.inner.lines.borrow_mut().find(key);
        if let Some(Found::Line { line, .. }) = found {
            self.inner.forget(key, line, None);
        }
    }
}

impl Inner {
    /// Where all the blocks are: in memory, or in pieces of lines.
    fn find(&self, keys: &[BlockKey]) -> Option<Vec<Result<Bytes, Piece>>> {
        let mut lines = self.lines.borrow_mut();
        let mut parts: Vec<Result<Bytes, Piece>> = Vec::new();
        for &key in keys {
            match (lines.find(key)?, parts.last_mut()) {
                (Found::Memory(block), _) => parts.push(Ok(block)),
                (Found::Line { line, at }, Some(Err(last)))
                    if last.line == line
                        && last.at + last.count == at
                        && last.first.block + last.count == key.block =>
                {
                    last.count += 1;
                }
                (Found::Line { line, at }, _) => parts.push(Err(Piece { first: key, line, at, count: 1 })),
            }
        }
        Some(parts)
    }

    fn start(&self, part: Result<Bytes, Piece>) -> Part {
        match part {
            Ok(block) => Part::Memory(block),
            Err(piece) => {
                let start = line_start(piece.line);
                let offset = start + (1 + u64::from(piece.at)) * BLOCK_BYTES as u64;
                let head = self.drive.read(start, BLOCK_BYTES);
                let blocks = self.drive.read(offset, piece.count as usize * BLOCK_BYTES);
                Part::Drive { piece, head, blocks }
            }
        }
    }

    async fn finish(&self, parts: Vec<Part>, is_believed: bool) -> Option<Vec<Bytes>> {
        let mut found = Vec::new();
        for part in parts {
            match part {
                Part::Memory(block) => found.push(block),
                Part::Drive { piece, head, blocks } => {
                    let read = match head.await {
                        Ok(head) => blocks.await.map(|blocks| (head, blocks)),
                        Err(error) => Err(error),
                    };
                    let (head, blocks) = match read {
                        Ok(read) => read,
                        Err(error) => {
                            self.forget(piece.first, piece.line, Some(&error));
                            return None;
                        }
                    };
                    if !is_believed && !self.is_right(&piece, &head, &blocks) {
                        self.forget(piece.first, piece.line, None);
                        return None;
                    }
                    found.extend((0..piece.count as usize).map(|nth| block(&blocks, nth)));
                }
            }
        }
        Some(found)
    }

    /// Whether what was read is what was asked for. The line may also have been written over meanwhile.
    fn is_right(&self, piece: &Piece, head: &[u8], blocks: &Bytes) -> bool {
        let Ok(head) = LineHead::decode(head) else { return false };
        if (head.session, head.line) != (self.session, piece.line) {
            return false;
        }
        (0..piece.count).all(|nth| {
            let key = BlockKey { block: piece.first.block + nth, ..piece.first };
            let named = head.blocks.get((piece.at + nth) as usize);
            named.is_some_and(|named| {
                self.is_named(named, key) && crc32c::crc32c(&block(blocks, nth as usize)) == named.checksum
            })
        })
    }
}

fn block(blocks: &Bytes, nth: usize) -> Bytes {
    blocks.slice(nth * BLOCK_BYTES..(nth + 1) * BLOCK_BYTES)
}
