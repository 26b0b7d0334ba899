//! A victim's footer that cannot be read, made again of the groups of its segment, for whoever moves what is left in it.
//!
//! The groups tell what the footer tells, but not whether they are all there. That tells the checksum of the directory, which is known since
//! the segment was closed or the chain was opened: what they give is the footer as it was written, byte for byte, or it does not count.
//!
//! It is not written again where it was. Its segment is free in a moment; and a drive that cannot read a block may not be able to write it
//! either, which would stop a chain that goes on as long as nobody insists on that block.

use std::rc::Rc;

use super::Inner;
use super::clean::Unclean;
use crate::cache::FooterPart;
use crate::error::ReadError;
use crate::format::{Directory, PageEntry, PageView};
use crate::read::UnreadGroups;
use crate::recover::{Scan, published};

/// See the module.
pub(super) struct Remade {
    pub(super) directory: Rc<Directory>,
    pub(super) pages: Vec<Rc<PageView>>,
}

impl Inner {
    /// What stands for a victim's footer of which a part could not be read, or is harmed on all sides, as `read` says. Errors: its groups do
    /// not make it: what `read` says then.
    pub(super) async fn footer_of_groups(
        &self,
        segment: u32,
        lap: u64,
        read: Result<Option<FooterPart>, Unclean>,
    ) -> Result<Remade, Unclean> {
        if let Err(why @ (Unclean::Refused | Unclean::Over | Unclean::Stopped(_))) = read {
            return Err(why);
        }
        let scan = self.patiently(async || self.scan_closed(segment, lap).await.map_err(ReadError::from));
        let remade = scan.await.map(|scan| scan.and_then(|scan| self.remade(&scan)));
        if let Ok(Some(remade)) = remade {
            tracing::warn!(segment, lap, "a footer that cannot be read was made again of the groups");
            return Ok(remade);
        }
        read?;
        remade?;
        // It names what is lost.
        self.patiently(async || self.rebuild(segment, lap, UnreadGroups::AskAgain).await).await?;
        Err(self.harmed_or_over(segment, lap))
    }

    /// The footer that the groups make; `None` if that is not the one that was written.
    fn remade(&self, scan: &Scan) -> Option<Remade> {
        let (segment, lap) = (scan.segment, scan.lap);
        let groups = scan.groups.iter().map(|group| published(&group.head, &group.area));
        let footer = self.core.borrow().footer_again((segment, lap), groups)?;
        let at = |offset: u32| (offset - footer.start) as usize;
        let directory = Directory::decode(&footer.bytes[at(footer.directory_offset)..], segment, lap).ok()?;
        let page = |it: &PageEntry| {
            let encoded = footer.bytes.slice(at(it.offset)..at(it.offset + it.bytes));
            PageView::decode(&encoded, segment, lap).map(Rc::new)
        };
        let pages = directory.pages.iter().map(page).collect::<Result<_, _>>().ok()?;
        Some(Remade { directory: Rc::new(directory), pages })
    }
}
