//! What a drive may do to stored files while nobody looks: bits that flip, blocks that hold something else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ithaca_env::sim::Random;

/// The unit that a drive loses or misplaces.
const BLOCK_BYTES: u64 = 4096;
/// Bytes that are copied at a time.
const RESTORE_BYTES: u64 = 1 << 20;

/// A file and its blocks that are not all zeros: what is stored, as opposed to space kept ready.
pub struct Stored {
    original: PathBuf,
    /// The copy that is harmed.
    path: PathBuf,
    len: u64,
    blocks: Vec<u64>,
}

impl Stored {
    /// Every file in `originals`, to be copied to `folder`.
    pub fn in_folder(originals: &Path, folder: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for file in std::fs::read_dir(originals)? {
            let file = file?;
            let (original, path) = (file.path(), folder.join(file.file_name()));
            let blocks = blocks_in_use(&original)?;
            found.push(Self { original, path, len: file.metadata()?.len(), blocks });
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Blocks in use.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Makes the copy anew. Where the original holds zeros the copy has a hole, which reads as zeros too.
    pub fn restore(&self) -> io::Result<()> {
        let source = File::open(&self.original)?;
        let target = File::create(&self.path)?;
        target.set_len(self.len)?;
        let mut bytes = vec![0; RESTORE_BYTES as usize];
        let mut blocks = self.blocks.iter().peekable();
        while let Some(&first) = blocks.next() {
            let mut end = first + 1;
            while (end - first) * BLOCK_BYTES < RESTORE_BYTES && blocks.next_if_eq(&&end).is_some() {
                end += 1;
            }
            let len = ((end - first) * BLOCK_BYTES).min(self.len - first * BLOCK_BYTES) as usize;
            source.read_exact_at(&mut bytes[..len], first * BLOCK_BYTES)?;
            target.write_all_at(&bytes[..len], first * BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// When the copy was last written to.
    pub fn modified(&self) -> io::Result<SystemTime> {
        std::fs::metadata(&self.path)?.modified()
    }
}

fn blocks_in_use(path: &Path) -> io::Result<Vec<u64>> {
    let mut file = File::open(path)?;
    let mut blocks = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(blocks);
        }
        for (nth, block) in buffer[..read].chunks(BLOCK_BYTES as usize).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                blocks.push(offset / BLOCK_BYTES + nth as u64);
            }
        }
        offset += read as u64;
    }
}

/// Harms one block in use of one of the files, and says what it did. Each file is as likely as another, so that small
/// ones have their share.
pub fn harm(files: &[Stored], random: &mut Random) -> io::Result<String> {
    let used: Vec<&Stored> = files.iter().filter(|file| !file.blocks.is_empty()).collect();
    let file = used[random.below(used.len() as u64) as usize];
    let any = |random: &mut Random| file.blocks[random.below(file.blocks.len() as u64) as usize];
    // Heads, superblocks and registers are few among many blocks of entries.
    let block = match random.below(4) {
        0 => file.blocks[random.below(file.blocks.len().min(64) as u64) as usize],
        _ => any(random),
    };
    let opened = OpenOptions::new().read(true).write(true).open(&file.path)?;
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    opened.read_exact_at(&mut bytes, block * BLOCK_BYTES)?;
    let what = match random.below(5) {
        0..2 => {
            let bit = random.below(8 * BLOCK_BYTES);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            format!("bit {bit} flipped")
        }
        2 => {
            bytes.fill(0);
            "zeros".to_string()
        }
        3 => {
            bytes.fill_with(|| random.next_u64() as u8);
            "random bytes".to_string()
        }
        _ => {
            let other = any(random);
            opened.read_exact_at(&mut bytes, other * BLOCK_BYTES)?;
            format!("what block {other} holds")
        }
    };
    opened.write_all_at(&bytes, block * BLOCK_BYTES)?;
    let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(format!("{name} block {block}: {what}"))
}
