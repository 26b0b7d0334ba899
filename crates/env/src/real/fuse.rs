//! Mounts: made and taken down by `fusermount3`, which any user may run, and served through `/dev/fuse`.
//!
//! `fusermount3` opens the device, mounts it, and hands it over through a socket. Where it may (root, or what is open to other users) it
//! stays and unmounts when this process ends, however it ends. Elsewhere what a killed process has left is taken down by the
//! next one that mounts there.

use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use bytes::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::FileType;
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::process;
use super::reactor::{Reactor, Readiness};
use crate::fuse::{Channel, FuseError, Kernel, MESSAGE_MAX_BYTES, MountOptions};
use crate::net::LocalFuture;

const FUSERMOUNT: &str = "fusermount3";
/// The descriptor of the socket that it hands the device over through.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
const ROOT: u32 = 0;

struct Mount {
    device: OwnedFd,
    path: PathBuf,
    /// What stays and unmounts, and the socket whose end it waits for.
    keeper: RefCell<Option<(Child, OwnedFd)>>,
    buffer: RefCell<Vec<u8>>,
    /// Somebody else has unmounted it: what may be mounted there by now is not ours.
    is_gone: Cell<bool>,
    readiness: Rc<Readiness>,
    reactor: Rc<Reactor>,
    key: usize,
}

fn failed(path: &Path, operation: &'static str) -> impl Fn(Errno) -> FuseError {
    move |error| FuseError::Io { path: path.to_owned(), operation, message: error.to_string() }
}

/// Mounts; see [`Env::mount_fuse`](crate::Env::mount_fuse).
pub(super) fn mount(reactor: &Rc<Reactor>, options: &MountOptions) -> Result<Channel, FuseError> {
    let path = options.path.as_path();
    if matches!(rustix::fs::stat(path), Err(Errno::NOTCONN)) {
        take_down(path);
    }
    let is_folder = rustix::fs::stat(path)
        .map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
        .map_err(|error| match error {
            Errno::NOENT => FuseError::NotFound { path: path.to_owned() },
            error => failed(path, "find what to mount on")(error),
        })?;
    let keeps = options.allow_other || process::user() == ROOT;
    let (child, socket) = start(options, keeps)?;
    let device = match receive_device(&socket) {
        Ok(Some(device)) => device,
        Ok(None) => return Err(refused(path, child)),
        Err(error) => return Err(failed(path, "take the device")(error)),
    };
    let keeper = keeper_of(child, socket, keeps);
    let ready = |device: &OwnedFd| -> Result<(Rc<Readiness>, usize), Errno> {
        rustix::io::ioctl_fionbio(device, true)?;
        rustix::io::fcntl_setfd(device, FdFlags::CLOEXEC)?;
        let readiness = Rc::new(Readiness::default());
        let key = reactor.add_listener(device, Rc::clone(&readiness))?;
        Ok((readiness, key))
    };
    let (readiness, key) = ready(&device).map_err(failed(path, "watch the device"))?;
    let (path, reactor) = (path.to_owned(), Rc::clone(reactor));
    let buffer = RefCell::new(vec![0; MESSAGE_MAX_BYTES]);
    let keeper = RefCell::new(keeper);
    let mount = Mount { device, path, keeper, buffer, is_gone: Cell::new(false), readiness, reactor, key };
    Ok(Channel::new(Box::new(mount), is_folder))
}

/// Starts the program that mounts, with its end of a socket.
fn start(options: &MountOptions, keeps: bool) -> Result<(Child, OwnedFd), FuseError> {
    let path = options.path.as_path();
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(failed(path, "make a socket"))?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(failed(path, "make a socket"))?;
    // A comma or backslash in the name would end the option.
    let source: String =
        options.source.chars().map(|c| if matches!(c, ',' | '\\') { '_' } else { c }).collect();
    let mut how = format!("fsname={source},subtype=ithaca,nosuid,nodev,default_permissions");
    if options.allow_other {
        how.push_str(",allow_other");
    }
    if options.read_only {
        how.push_str(",ro");
    }
    if keeps {
        how.push_str(",auto_unmount");
    }
    let mut command = Command::new(FUSERMOUNT);
    command.args(["-o", &how, "--"]).arg(path).env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = spawned.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => FuseError::NoFusermount { path: path.to_owned() },
        _ => FuseError::Io { path: path.to_owned(), operation: FUSERMOUNT, message: error.to_string() },
    })?;
    Ok((child, ours))
}

/// The device that comes through the socket; `None` if it ends without one.
fn receive_device(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let (mut byte, mut space) = ([0u8; 1], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let mut devices = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(devices.next())
}

fn refused(path: &Path, mut child: Child) -> FuseError {
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What cannot be read is left out of the error.
        let _ = stderr.read_to_string(&mut said);
    }
    let _ = child.wait();
    let said = said.trim().trim_start_matches("fusermount3: ").replace('\n', "; ");
    FuseError::Refused { path: path.to_owned(), said }
}

fn keeper_of(mut child: Child, socket: OwnedFd, keeps: bool) -> Option<(Child, OwnedFd)> {
    if keeps {
        return Some((child, socket));
    }
    drop(socket);
    let _ = child.wait();
    None
}

/// Unmounts, also while somebody has a file open. What cannot be taken down stays; there is nobody to tell.
fn take_down(path: &Path) {
    let mut command = Command::new(FUSERMOUNT);
    command.args(["-u", "-z", "-q", "--"]).arg(path);
    let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

impl Kernel for Mount {
    fn receive(&self) -> LocalFuture<'_, Result<Option<Bytes>, FuseError>> {
        Box::pin(async move {
            loop {
                std::future::poll_fn(|cx| self.readiness.poll_readable(cx)).await;
                let mut buffer = self.buffer.borrow_mut();
                match rustix::io::read(&self.device, &mut buffer[..]) {
                    Ok(len) => return Ok(Some(Bytes::copy_from_slice(&buffer[..len]))),
                    Err(Errno::AGAIN) => self.readiness.clear_readable(),
                    // Whoever asked has gone before it was read.
                    Err(Errno::INTR | Errno::NOENT) => {}
                    Err(Errno::NODEV) => {
                        self.is_gone.set(true);
                        return Ok(None);
                    }
                    Err(error) => return Err(failed(&self.path, "read a request")(error)),
                }
            }
        })
    }

    fn send(&self, message: &[&[u8]]) -> Result<(), FuseError> {
        let parts: Vec<IoSlice<'_>> = message.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            match rustix::io::writev(&self.device, &parts) {
                // Whoever asked has gone, or nothing is mounted any more.
                Ok(_) | Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(&self.path, "answer")(error)),
            }
        }
    }

    fn thread_started(&self, thread: u32) -> Result<Option<u64>, FuseError> {
        process::started(thread).map_err(|error| FuseError::Io {
            path: self.path.clone(),
            operation: "ask for a thread",
            message: error.to_string(),
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.reactor.remove(self.key, &self.device);
        if !self.is_gone.get() {
            take_down(&self.path);
        }
        if let Some((mut child, socket)) = self.keeper.take() {
            drop(socket);
            let _ = child.wait();
        }
    }
}
