//! A drive that is asked again while it takes no more reads.
//!
//! For an open, a creation and a change of the drives, which would fail for what passes in a moment. Reads of records are refused
//! instead: whoever wants them knows best whether to wait.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveFuture, Wrapper};

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
