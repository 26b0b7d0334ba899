//! What a volume must hold at each version.

use std::collections::BTreeMap;

/// Blocks of a commit, each with the number that it is filled with; 0 reads as zeros.
pub type Writes = Vec<(u64, u64)>;

/// What each block holds.
pub type Blocks = BTreeMap<u64, u64>;

/// Every commit in order: the first has version 1.
#[derive(Default)]
pub struct Model {
    pub commits: Vec<Writes>,
    /// A commit that was asked for and not answered.
    pub asked: Option<Writes>,
    /// Everything up to this version is known to be durable.
    pub durable: u64,
    /// Commits that were known to be durable, in all lives.
    pub acked: u64,
    /// Snapshots whose names are known to be durable.
    pub names: BTreeMap<String, u64>,
    /// One that was asked for, or asked to be forgotten, and not answered.
    pub unsure: Option<String>,
    pub serial: u64,
}

impl Model {
    /// What blocks hold at a version; those that read as zeros are left out.
    pub fn at(&self, version: u64) -> Blocks {
        let mut blocks = Blocks::new();
        for &(block, number) in self.commits[..version as usize].iter().flatten() {
            if number == 0 {
                blocks.remove(&block)
            } else {
                blocks.insert(block, number)
            };
        }
        blocks
    }

    pub fn newest(&self) -> u64 {
        self.commits.len() as u64
    }

    /// A commit was answered with this version.
    pub fn answered(&mut self, version: u64) {
        let asked = self.asked.take();
        if version > self.newest() {
            assert_eq!(version, self.newest() + 1, "one commit, one version");
            self.commits.extend(asked);
        }
    }

    /// Everything up to this version is durable.
    pub fn note_durable(&mut self, version: u64) {
        self.acked += version.saturating_sub(self.durable);
        self.durable = self.durable.max(version);
    }

    /// The volume was opened again and its newest version is this one: the others are lost.
    pub fn settle(&mut self, newest: u64) {
        if let Some(asked) = self.asked.take() {
            self.commits.push(asked);
        }
        assert!(newest >= self.durable, "version {newest} is the newest, {} was durable", self.durable);
        assert!(newest <= self.newest(), "version {newest} was never written");
        self.commits.truncate(newest as usize);
        self.durable = newest;
    }
}
