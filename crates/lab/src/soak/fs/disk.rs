//! A served volume as a block device of this machine: FUSE makes a file of it, nbdfuse's or the program's own, and a loop device a disk
//! of the file.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::Signal;

use crate::soak::process::{complete, panics_in, send};

/// A tool that takes longer hangs.
const TOOL_SECONDS: &str = "120";
/// How long the export may take to appear.
const APPEARS: Duration = Duration::from_secs(30);

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// What makes one, without the device.
    fn maker(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "-q", "-F"],
            Self::Xfs => &["mkfs.xfs", "-q", "-f"],
            Self::Btrfs => &["mkfs.btrfs", "-q", "-f"],
        }
    }

    /// How it is mounted. By default Btrfs may commit a larger size of a file before the block in which the file ended is zeroed behind that: on any
    /// drive what was there before a truncation is in the file again after a crash.
    fn options(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Xfs => "defaults",
            Self::Btrfs => "flushoncommit",
        }
    }

    /// What looks for damage and repairs nothing.
    fn checker(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["e2fsck", "-f", "-n"],
            Self::Xfs => &["xfs_repair", "-n"],
            Self::Btrfs => &["btrfs", "check", "--readonly"],
        }
    }

    /// Why it cannot be tried here; `None` if it can.
    pub fn missing(self, over: Over) -> Option<String> {
        let tools = [self.maker()[0], self.checker()[0], over.tool()];
        let tools = tools.into_iter().chain(["losetup", "mount", "fstrim"]);
        tools.filter(|tool| !is_there(tool)).map(|tool| format!("{tool} is not installed")).next()
    }
}

/// What makes a file of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// `ithaca volume serve`, and nbdfuse.
    Nbd,
    /// `ithaca volume mount`.
    File,
}

impl Over {
    /// The program that it needs besides.
    fn tool(self) -> &'static str {
        match self {
            Self::Nbd => "nbdfuse",
            Self::File => "fusermount3",
        }
    }
}

/// Whether a program is in the path.
pub fn is_there(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

/// Runs a tool to its end, which must come.
fn tool<S: AsRef<OsStr>>(program: &[&str], arguments: &[S]) -> io::Result<()> {
    complete(Command::new("timeout").arg(TOOL_SECONDS).args(program).args(arguments))
}

/// A volume in a folder of its own, with what is said about it.
pub struct Disk {
    program: PathBuf,
    folder: PathBuf,
}

impl Disk {
    /// A new volume of this size.
    pub fn create(program: PathBuf, folder: PathBuf, size: &str) -> io::Result<Self> {
        for name in ["export", "files"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let disk = Self { program, folder };
        let mut create = Command::new(&disk.program);
        complete(create.args(["volume", "create"]).arg(disk.volume()).args(["--size", size]))?;
        Ok(disk)
    }

    fn volume(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Where the file system is mounted.
    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    fn stderr(&self) -> PathBuf {
        self.folder.join("stderr.txt")
    }

    /// Verifies every checksum of the volume, which nobody serves.
    pub fn verify(&self) -> io::Result<()> {
        complete(Command::new(&self.program).args(["volume", "check"]).arg(self.volume()))
    }

    /// What of the server's words speaks of a panic.
    pub fn panics(&self) -> io::Result<Vec<String>> {
        panics_in(&self.stderr())
    }

    /// Removes everything.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.folder)
    }

    /// Serves the volume and makes a block device of it.
    pub fn attach(&self, over: Over) -> io::Result<Attached> {
        let said = OpenOptions::new().create(true).append(true).open(self.stderr())?;
        let (folder, image) = (self.folder.join("export"), self.folder.join("disk.img"));
        let mut serve = Command::new(&self.program);
        match over {
            Over::Nbd => {
                serve.args(["volume", "serve"]).arg(self.volume()).args(["--nbd", "127.0.0.1:0", "--json"]);
            }
            Over::File => {
                // What a killed server has left mounted here is not looked at: the next one takes it down.
                let _ = OpenOptions::new().create(true).append(true).open(&image);
                serve.args(["volume", "mount"]).arg(self.volume()).arg(&image).arg("--json");
            }
        }
        let server = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said.try_clone()?).spawn()?;
        let mut attached =
            Attached { server, fuse: None, export: folder.clone(), device: None, files: self.files() };
        let mut ready = String::new();
        if let Some(stdout) = attached.server.stdout.take() {
            BufReader::new(stdout).read_line(&mut ready)?;
        }
        if !ready.contains("\"ready\":true") {
            return Err(io::Error::other(format!("the server says `{}`", ready.trim())));
        }
        let file = match over {
            Over::Nbd => {
                let addr = ready.split("\"nbd\":\"").nth(1).and_then(|rest| rest.split('"').next());
                let mut fuse = Command::new(over.tool());
                fuse.arg(&folder).arg(format!("nbd://{}", addr.unwrap_or_default()));
                fuse.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
                attached.fuse = Some(fuse.spawn()?);
                appears(folder.join("nbd"))?
            }
            Over::File => image,
        };
        let losetup = Command::new("losetup").args(["--find", "--show"]).arg(&file).output()?;
        if !losetup.status.success() {
            let said = String::from_utf8_lossy(&losetup.stderr).trim().to_owned();
            return Err(io::Error::other(format!("losetup: {said}")));
        }
        attached.device = Some(String::from_utf8_lossy(&losetup.stdout).trim().to_owned());
        Ok(attached)
    }
}

/// Waits until a file is there.
fn appears(file: PathBuf) -> io::Result<PathBuf> {
    let began = Instant::now();
    while !file.exists() {
        if began.elapsed() > APPEARS {
            return Err(io::Error::other(format!("{}: nbdfuse does not show it", file.display())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// The block device, and what is mounted of it. Taken down when dropped, in whatever state it is.
pub struct Attached {
    server: Child,
    fuse: Option<Child>,
    export: PathBuf,
    device: Option<String>,
    files: PathBuf,
}

impl Attached {
    fn device(&self) -> &str {
        self.device.as_deref().unwrap_or_default()
    }

    /// Makes a file system on it.
    pub fn make(&self, kind: Kind) -> io::Result<()> {
        tool(kind.maker(), &[self.device()])
    }

    /// Mounts it; a journal is replayed.
    pub fn mount(&self, kind: Kind) -> io::Result<()> {
        tool(&["mount", "-t", kind.name(), "-o", kind.options(), self.device()], &[&self.files])
    }

    /// Unmounts it.
    pub fn unmount(&self) -> io::Result<()> {
        tool(&["umount"], &[&self.files])
    }

    /// Looks for damage. Errors: there is some.
    pub fn check(&self, kind: Kind) -> io::Result<()> {
        tool(kind.checker(), &[self.device()])
    }

    /// Tells the volume what the file system does not use.
    pub fn trim(files: &Path) -> io::Result<()> {
        tool(&["fstrim"], &[files])
    }

    /// Ends the server as a crash would.
    pub fn kill(&mut self) -> io::Result<()> {
        self.server.kill()?;
        self.server.wait().map(drop)
    }

    /// Takes everything down in order, the server last. Errors: it does not end well.
    pub fn stop(mut self) -> io::Result<()> {
        self.detach();
        send(&self.server, Signal::TERM)?;
        let status = self.server.wait()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("the server ended: {status}"))) }
    }

    /// Takes down what is above the server. Each may be down already, or its server gone.
    fn detach(&mut self) {
        if tool(&["umount"], &[&self.files]).is_err() {
            let _ = tool(&["umount", "--lazy"], &[&self.files]);
        }
        if let Some(device) = self.device.take() {
            let _ = tool(&["losetup", "--detach"], &[device]);
        }
        if let Some(mut fuse) = self.fuse.take() {
            let _ = tool(&["umount", "--lazy"], &[&self.export]);
            let _ = fuse.kill();
            let _ = fuse.wait();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.detach();
        if matches!(self.server.try_wait(), Ok(None)) {
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}
