//! A client's memory that its server has too: blocks lie there, and requests and answers name the slots in which they do.
//!
//! ```text
//!   read ──► ReadInto(slots) ─► server puts the blocks there ─► answer ─► a copy of them
//!   write ─► copied there ─► WriteFrom(slots) ─► server takes a copy ─► answer
//! ```
//!
//! Requests that find no room go through the socket as they are, and so does everything until the server has said that it uses the memory.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::memory::SharedMemory;
use ithaca_env::net::Writer;

use super::client::ClientOptions;
use super::request::{Request, kind};
use super::slots::Slots;
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::planted::{Planted, PlantedBug};

const BLOCK: usize = VOLUME_BLOCK_BYTES;

/// See the module.
pub(super) struct Memory {
    shared: SharedMemory,
    slots: Slots,
    /// The server has said that it uses it.
    is_used: bool,
    planted: Planted,
}

impl Memory {
    /// Passes memory to the server, before anything is sent to it. `None` if none is wanted, or the system has none.
    pub fn share(env: &Env, writer: &Writer, options: ClientOptions) -> Option<Self> {
        let ClientOptions { memory_bytes, planted } = options;
        if memory_bytes == 0 {
            return None;
        }
        match env.share_memory(memory_bytes) {
            Ok((shared, handle)) => {
                writer.pass(handle);
                let slots = Slots::new(memory_bytes / BLOCK);
                Some(Self { shared, slots, is_used: false, planted })
            }
            Err(error) => {
                tracing::debug!("socket: no memory is shared: {error}");
                None
            }
        }
    }

    /// The server uses it.
    pub fn use_it(&mut self) {
        self.is_used = true;
    }

    /// The same request through the memory if it reads or writes blocks for which there is room, and the slots that are the server's until it
    /// is answered.
    pub fn through(&mut self, request: Request) -> (Request, Option<Range<usize>>) {
        let count = match &request {
            _ if !self.is_used => None,
            Request::Read { blocks } => blocks.end.checked_sub(blocks.start),
            Request::Write { data, .. } if data.len().is_multiple_of(BLOCK) => {
                Some((data.len() / BLOCK) as u64)
            }
            _ => None,
        };
        let Some(slots) = count.and_then(|count| self.slots.take(count)) else { return (request, None) };
        if self.planted.is(PlantedBug::SlotsNotHeld) {
            self.slots.give_back(slots.clone());
        }
        let slot = slots.start as u32;
        let request = match request {
            Request::Read { blocks } => Request::ReadInto { blocks, slot },
            Request::Write { first_block, data, durability } => {
                self.shared.copy_in(slots.start * BLOCK, &data);
                let blocks = first_block..first_block.saturating_add(slots.len() as u64);
                Request::WriteFrom { blocks, slot, durability }
            }
            other => unreachable!("{other:?} has no blocks"),
        };
        (request, Some(slots))
    }

    /// The request of this kind that had these slots is answered. Gives what was read.
    pub fn take_back(&mut self, slots: Range<usize>, kind: u16) -> Option<Bytes> {
        let bytes = slots.len() * BLOCK;
        let read = (kind == kind::READ_INTO).then(|| self.shared.copy_out(slots.start * BLOCK, bytes));
        if !self.planted.is(PlantedBug::SlotsNotHeld) {
            self.slots.give_back(slots);
        }
        read
    }
}
