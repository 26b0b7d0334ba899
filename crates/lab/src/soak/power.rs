//! A file system of its own for a soak's data, in a loop device, whose power can be cut.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ithaca_env::Env;
use ithaca_env::real::files;

use super::process::complete;

/// Bytes of the file system: XFS asks for 300 MB at least.
const IMAGE_BYTES: u64 = 3 << 30;
/// A process that was killed may have its files open for a little longer.
const LET_GO: Duration = Duration::from_secs(5);

/// Which file system loses its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// A mounted file system. Unmounted and removed when dropped.
pub struct Powered {
    image: PathBuf,
    mount: PathBuf,
}

impl Powered {
    /// Makes a file system in a file below `folder` and mounts it beside; both are called `name`. Needs root, and the program
    /// that makes it (packages e2fsprogs, xfsprogs).
    pub fn new(folder: &Path, name: &str, kind: FileSystem) -> io::Result<Self> {
        let maker = match kind {
            FileSystem::Ext4 => "mkfs.ext4",
            FileSystem::Xfs => "mkfs.xfs",
        };
        let powered = Self { image: folder.join(format!("{name}.image")), mount: folder.join(name) };
        fs::create_dir_all(&powered.mount)?;
        File::create(&powered.image)?.set_len(IMAGE_BYTES)?;
        complete(Command::new(maker).arg("-q").arg(&powered.image))?;
        powered.mount()?;
        Ok(powered)
    }

    /// Where it is mounted.
    pub fn folder(&self) -> &Path {
        &self.mount
    }

    /// Cuts its power: what was not made durable before is gone, and everything on it fails.
    pub fn cut(&self) -> io::Result<()> {
        files::cut_power(&self.mount)
    }

    /// Brings it back as the cut left it. Who had files open on it must have ended.
    pub async fn restore(&self, env: &Env) -> io::Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.unmount() {
            if begun.elapsed() > LET_GO {
                return Err(error);
            }
            env.sleep(Duration::from_millis(50)).await;
        }
        self.mount()
    }

    fn mount(&self) -> io::Result<()> {
        complete(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mount))
    }

    fn unmount(&self) -> io::Result<()> {
        complete(Command::new("umount").arg(&self.mount))
    }
}

impl Drop for Powered {
    fn drop(&mut self) {
        // What cannot be taken down stays, and is seen by who looks for it; there is nobody to tell.
        if self.unmount().is_ok() {
            let _ = fs::remove_dir(&self.mount);
            let _ = fs::remove_file(&self.image);
        }
    }
}
