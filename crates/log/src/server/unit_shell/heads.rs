//! The heads of all entries of streams, for a sequencer that learns where streams end; or of all entries, for a node that compares them with its own.
//!
//! Whoever asks for every stream, or every entry, is shown each record that is of one, as it is stored: nothing is looked up by stream, so the unit's
//! index has no part in it and is not filled with what is asked for once.

use ithaca_chain::RunKind;

use super::UnitShell;
use super::streams::{head_of, kept_bytes};
use crate::entry::EntryMeta;
use crate::pos::{Addr, AddrRange};
use crate::server::cold_reads::ColdRead;
use crate::unit::{Found, Holding, StreamFound};
use crate::wire::{ReadStream, Refusal, Wanted};

/// Looks at heads, a megabyte each, until the unit answers how far it came.
const LOOKS_MAX: usize = 32;

impl UnitShell {
    /// The heads of what is wanted of the ranges, in order, as far as the limits go.
    pub(super) async fn find_heads(
        &self,
        read: &ReadStream,
        cold: &mut ColdRead<'_>,
    ) -> Result<Found, Refusal> {
        let mut found = StreamFound::new(read.limit_bytes, true);
        let mut looks = LOOKS_MAX;
        for range in &read.ranges {
            for (part, holding) in self.parts(*range) {
                match holding {
                    Holding::Stored => {
                        self.push_stored_heads(part, read.wanted, &mut looks, &mut found, cold).await?;
                    }
                    other => found.push_other(part, other),
                }
                if found.is_full() || looks == 0 {
                    return Ok(found.finish());
                }
            }
        }
        Ok(found.finish())
    }

    /// Adds the heads of what is wanted of stored addresses. Where there is no room for more of them beside what the answer has, no look is
    /// left.
    async fn push_stored_heads(
        &self,
        part: AddrRange,
        wanted: Wanted,
        looks: &mut usize,
        found: &mut StreamFound,
        cold: &mut ColdRead<'_>,
    ) -> Result<(), Refusal> {
        let mut next = part.start;
        while next < part.end && !found.is_full() && *looks > 0 {
            *looks -= 1;
            let mut runs = Vec::new();
            let heading = |heading: ithaca_chain::Heading<'_>| {
                let is_wanted = heading.kind == RunKind::Data
                    && (wanted == Wanted::Every || EntryMeta::has_groups(heading.meta));
                let head = is_wanted.then(|| head_of(&heading));
                let kept = if is_wanted { kept_bytes(&heading) } else { 0 };
                runs.push((AddrRange::from(heading.keys), head));
                kept
            };
            let (read_to, has_room) = self.visit_headings(next.0..part.end.0, cold, heading).await?;
            let read_to = Addr(read_to);
            *looks = if has_room { *looks } else { 0 };
            for (addrs, head) in runs {
                self.push_gone(AddrRange::new(next, addrs.start), found)?;
                next = addrs.end;
                match head {
                    Some(head) => found.push_whole_head(head.view()),
                    None => found.pass(addrs),
                }
            }
            self.push_gone(AddrRange::new(next, read_to), found)?;
            next = read_to;
            cold.give_way(&self.env).await;
        }
        Ok(())
    }
}
