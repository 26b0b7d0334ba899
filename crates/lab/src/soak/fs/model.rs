//! One file against a byte array: random reads, writes, truncations, holes and syncs, as the tester fsx makes them, and what may be
//! in the file after a crash.
//!
//! While the file system lives a read gives exactly what the array holds. After a crash each byte has the value that it had at
//! the last fsync that was answered, or one that it was given since; a file that was not touched since has exactly the synced bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ithaca_env::sim::Random;
use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of a file at the most.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Bytes of one read, write or hole at the most.
const SPAN_MAX_BYTES: u64 = 128 << 10;

/// A change that was begun and not synced yet.
enum Change {
    /// These bytes from there on.
    Bytes { at: usize, data: Vec<u8> },
    /// Zeros from there to there.
    Zeros { at: usize, end: usize },
    /// So many bytes.
    Size { bytes: usize },
}

/// A file and what it must hold.
pub struct Modelled {
    path: PathBuf,
    now: Vec<u8>,
    synced: Vec<u8>,
    since: Vec<Change>,
}

/// What is wrong, or why an operation failed.
pub enum Ended {
    /// The file does not hold what it must.
    Wrong(String),
    /// The file system refuses: after the server below it was killed it may.
    Refused(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

impl Modelled {
    /// A new empty file.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        File::create(&path)?.sync_all()?;
        Ok(Self { path, now: Vec::new(), synced: Vec::new(), since: Vec::new() })
    }

    /// Whether everything in it was synced.
    pub fn is_settled(&self) -> bool {
        self.since.is_empty()
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(&self.path)
    }

    /// One random operation.
    pub fn step(&mut self, random: &mut Random) -> Result<(), Ended> {
        match random.below(12) {
            0..3 => self.read(random),
            3..8 => Ok(self.write(random)?),
            8 => Ok(self.truncate(random)?),
            9 => Ok(self.punch(random)?),
            _ => Ok(self.sync()?),
        }
    }

    fn write(&mut self, random: &mut Random) -> io::Result<()> {
        let len = 1 + random.below(SPAN_MAX_BYTES) as usize;
        let at = random.below(FILE_MAX_BYTES - len as u64) as usize;
        let data: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(len).collect();
        if self.now.len() < at + len {
            self.now.resize(at + len, 0);
        }
        self.now[at..at + len].copy_from_slice(&data);
        self.since.push(Change::Bytes { at, data });
        self.open()?.write_all_at(&self.now[at..at + len], at as u64)
    }

    fn truncate(&mut self, random: &mut Random) -> io::Result<()> {
        let bytes = random.below(FILE_MAX_BYTES) as usize;
        self.now.resize(bytes, 0);
        self.since.push(Change::Size { bytes });
        self.open()?.set_len(bytes as u64)
    }

    fn punch(&mut self, random: &mut Random) -> io::Result<()> {
        if self.now.is_empty() {
            return Ok(());
        }
        let at = random.below(self.now.len() as u64) as usize;
        let end = self.now.len().min(at + 1 + random.below(SPAN_MAX_BYTES) as usize);
        self.now[at..end].fill(0);
        self.since.push(Change::Zeros { at, end });
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.open()?, flags, at as u64, (end - at) as u64)?)
    }

    /// Makes the file durable. What is wrong with the file after a crash is judged by what was answered here.
    pub fn sync(&mut self) -> io::Result<()> {
        self.open()?.sync_all()?;
        self.synced.clone_from(&self.now);
        self.since.clear();
        Ok(())
    }

    fn read(&self, random: &mut Random) -> Result<(), Ended> {
        let at = random.below(FILE_MAX_BYTES) as usize;
        let mut found = vec![0; 1 + random.below(SPAN_MAX_BYTES) as usize];
        let file = self.open()?;
        let mut len = 0;
        loop {
            match file.read_at(&mut found[len..], (at + len) as u64)? {
                0 => break,
                more => len += more,
            }
        }
        let expected = &self.now[at.min(self.now.len())..(at + found.len()).min(self.now.len())];
        match found[..len] == *expected {
            true => Ok(()),
            false => Err(Ended::Wrong(format!("{}: bytes {at}.. are not as written", self.path.display()))),
        }
    }

    /// After a crash: what is there is what may be, and counts as synced from now on. Errors: it is not, or cannot be read.
    pub fn recovered(&mut self, folder: &Path) -> Result<(), Ended> {
        let name = self.path.file_name().unwrap_or_default().to_owned();
        let found = std::fs::read(folder.join(name))?;
        self.judge(&found).map_err(Ended::Wrong)?;
        self.now.clone_from(&found);
        self.synced = found;
        self.since.clear();
        Ok(())
    }

    fn judge(&self, found: &[u8]) -> Result<(), String> {
        let mut sizes = vec![self.synced.len()];
        for change in &self.since {
            let before = sizes[sizes.len() - 1];
            sizes.push(match change {
                Change::Bytes { at, data } => before.max(at + data.len()),
                Change::Zeros { .. } => before,
                Change::Size { bytes } => *bytes,
            });
        }
        let (least, most) =
            (sizes.iter().min().copied().unwrap_or(0), sizes.iter().max().copied().unwrap_or(0));
        if found.len() < least || found.len() > most {
            let path = self.path.display();
            return Err(format!("{path}: {} bytes, expected {least} to {most}", found.len()));
        }
        // Zeros are what lies beyond the end of a file that grows again.
        let may_be_zero_from = least;
        let mut allowed: Vec<bool> = (0..found.len())
            .map(|at| self.synced.get(at) == Some(&found[at]) || (at >= may_be_zero_from && found[at] == 0))
            .collect();
        for change in &self.since {
            match change {
                Change::Bytes { at, data } => {
                    for (nth, byte) in data.iter().enumerate().take(found.len().saturating_sub(*at)) {
                        allowed[at + nth] |= found[at + nth] == *byte;
                    }
                }
                Change::Zeros { at, end } => {
                    for at in *at..(*end).min(found.len()) {
                        allowed[at] |= found[at] == 0;
                    }
                }
                Change::Size { .. } => {}
            }
        }
        match allowed.iter().position(|allowed| !allowed) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{}: byte {at} is {}, which it never was since the last sync ({} changes since)",
                self.path.display(),
                found[at],
                self.since.len()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(synced: &[u8], since: Vec<Change>) -> Modelled {
        Modelled { path: "f".into(), now: Vec::new(), synced: synced.to_vec(), since }
    }

    #[test]
    fn after_a_crash_a_settled_file_is_exactly_what_was_synced() {
        let settled = file(b"abcd", Vec::new());
        assert!(settled.judge(b"abcd").is_ok());
        assert!(settled.judge(b"abcx").is_err() && settled.judge(b"abc").is_err());
        assert!(settled.judge(b"abcd\0").is_err());
    }

    #[test]
    fn a_file_that_was_in_motion_has_old_or_new_bytes_and_nothing_else() {
        let since = || vec![Change::Bytes { at: 2, data: b"XYZ".to_vec() }, Change::Zeros { at: 0, end: 1 }];
        for found in [&b"abcd"[..], b"abXd", b"abXYZ", b"\0bcdZ", b"abcd\0"] {
            assert!(file(b"abcd", since()).judge(found).is_ok(), "{found:?}");
        }
        for found in [&b"aXcd"[..], b"abYd", b"abc", b"abcd1", b"abcdZ1"] {
            assert!(file(b"abcd", since()).judge(found).is_err(), "{found:?}");
        }
        let shrunk = file(b"abcd", vec![Change::Size { bytes: 1 }, Change::Size { bytes: 3 }]);
        assert!(shrunk.judge(b"a\0\0").is_ok() && shrunk.judge(b"ab").is_ok());
        assert!(shrunk.judge(b"").is_err() && shrunk.judge(b"\0bc").is_err());
    }

    #[test]
    fn a_file_of_this_system_agrees_with_its_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = Modelled::create(folder.path().join("f")).expect("writable");
        let mut random = Random::new(3);
        for _ in 0..300 {
            assert!(file.step(&mut random).is_ok(), "a local file");
        }
        assert!(file.recovered(folder.path()).is_ok() && file.is_settled());
    }
}
