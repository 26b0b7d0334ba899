//! A drive that is asked again while it takes no more reads, and one that is only read.
//!
//! The first is for an open, a creation and a change of the drives, which would fail for what passes in a moment. Reads of records are refused
//! instead: whoever wants them knows best whether to wait. The second is for whoever must not change anything, whatever he meets.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, Pieces, Wrapper};

use crate::limits::REFUSED_REST;
use crate::read::is_refusal;

struct Patient {
    drive: Drive,
    env: Env,
}

/// The same drive; no read of it fails with `Busy`. Its lock is another one.
pub(crate) fn patient(env: &Env, drive: &Drive) -> Drive {
    Drive::new(Rc::new(Patient { drive: drive.clone(), env: env.clone() }))
}

impl Wrapper for Patient {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let (drive, env, first) = (self.drive.clone(), self.env.clone(), self.drive.read(offset, len));
        Box::pin(async move {
            let mut answered = first.await;
            while answered.as_ref().is_err_and(is_refusal) {
                env.sleep(REFUSED_REST).await;
                answered = drive.read(offset, len).await;
            }
            answered
        })
    }
}

struct OnlyRead(Drive);

/// The same drive; whatever would change it fails, and the drive is not asked. Its lock is another one.
pub(crate) fn only_read(drive: &Drive) -> Drive {
    Drive::new(Rc::new(OnlyRead(drive.clone())))
}

impl OnlyRead {
    fn refuse<T: 'static>(&self, operation: &'static str, offset: u64) -> DriveFuture<T> {
        let message = "it is only read".to_owned();
        let refused = DriveError::Io { path: self.0.name(), operation, offset, message };
        Box::pin(std::future::ready(Err(refused)))
    }
}

impl Wrapper for OnlyRead {
    fn drive(&self) -> &Drive {
        &self.0
    }

    fn write(&self, offset: u64, _: Pieces, _: Durability) -> DriveFuture<()> {
        self.refuse("write", offset)
    }

    fn sync(&self) -> DriveFuture<()> {
        self.refuse("sync", 0)
    }

    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        self.refuse("grow", size_bytes)
    }

    fn discard(&self, offset: u64, _: usize) -> DriveFuture<()> {
        self.refuse("discard", offset)
    }
}
