//! A drive for each node, in a loop device: it hangs, is slow, is full, loses its power.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ithaca_env::Env;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::super::power::{FileSystem, Powered};

/// A slow drive takes no writes for so many seconds, and then for a short while.
const STUTTER: (f64, f64) = (0.15, 0.03);

/// A node's file system.
pub struct Disk {
    powered: Powered,
    /// Who keeps it from being written to, and ends by itself.
    helper: Option<Child>,
}

impl Disk {
    /// A new one in `folder`, mounted.
    pub fn new(folder: &Path, name: &str) -> io::Result<Self> {
        Ok(Self { powered: Powered::new(folder, name, FileSystem::Ext4)?, helper: None })
    }

    /// Where a node's data lies on it.
    pub fn data(&self) -> PathBuf {
        self.powered.folder().join("data")
    }

    /// Takes all room but `bytes`.
    pub fn leave(&self, bytes: u64) -> io::Result<()> {
        let room = statvfs(self.powered.folder())?;
        let taken = (room.f_bfree * room.f_frsize).saturating_sub(bytes);
        let ballast = File::create(self.ballast())?;
        Ok(fallocate(&ballast, FallocateFlags::empty(), 0, taken)?)
    }

    /// Gives the room back.
    pub fn free(&self) -> io::Result<()> {
        std::fs::remove_file(self.ballast())
    }

    /// Lets no write end for so long.
    pub fn hang(&mut self, span: Duration) -> io::Result<()> {
        self.help(&format!("fsfreeze -f \"$0\"; sleep {}; fsfreeze -u \"$0\"", span.as_secs_f64()))
    }

    /// Lets writes end now and then only, for so long.
    pub fn stutter(&mut self, span: Duration) -> io::Result<()> {
        let (still, open) = STUTTER;
        let times = (span.as_secs_f64() / (still + open)).ceil();
        let once = format!("fsfreeze -f \"$0\"; sleep {still}; fsfreeze -u \"$0\"; sleep {open}");
        self.help(&format!("for i in $(seq {times}); do {once}; done"))
    }

    /// Runs a script that thaws what it has frozen even if this process is gone: nobody can end a process that waits for a
    /// frozen file system, nor unmount it. In a group of its own, which an interrupt from the terminal does not reach.
    fn help(&mut self, script: &str) -> io::Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(self.powered.folder()).process_group(0).stdin(Stdio::null());
        self.helper = Some(command.spawn()?);
        Ok(())
    }

    /// Waits until writes end again.
    pub async fn thawed(&mut self, env: &Env) -> io::Result<()> {
        while let Some(helper) = &mut self.helper {
            match helper.try_wait()? {
                Some(_) => self.helper = None,
                None => env.sleep(Duration::from_millis(5)).await,
            }
        }
        Ok(())
    }

    /// Cuts its power.
    pub fn cut(&self) -> io::Result<()> {
        self.powered.cut()
    }

    /// Brings it back as the cut left it; its node must have ended.
    pub async fn restore(&self, env: &Env) -> io::Result<()> {
        self.powered.restore(env).await
    }

    fn ballast(&self) -> PathBuf {
        self.powered.folder().join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(helper) = &mut self.helper {
            let _ = helper.wait();
        }
    }
}
