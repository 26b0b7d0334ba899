//! What `Env` holds of a simulated process.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::Time;
use crate::drive::{Drive, DriveError, OpenDrive};
use crate::net::{Conn, Listener, LocalError, NetError};
use crate::task::TaskHandle;

use super::process::{Life, ProcessId};
use super::random::Domain;
use super::world::{Sleep, World};
use super::{drive, net};

/// How long it takes to open a drive.
const OPEN_DRIVE: Duration = Duration::from_micros(50);

/// One life of a simulated process, as `Env` holds it. After the process's end nothing done through it has an effect
/// and nothing that it waits for comes.
#[derive(Clone)]
pub struct Handle {
    pub(super) world: Rc<World>,
    pub(super) process: ProcessId,
    pub(super) life: Life,
}

impl Handle {
    pub(crate) fn now(&self) -> Time {
        self.world.local_time(self.process)
    }

    pub(crate) fn wall_clock_ms(&self) -> u64 {
        let processes = self.world.processes.borrow();
        processes[self.process.0 as usize].clock.wall_ms(self.world.now.get())
    }

    pub(crate) fn random_u64(&self) -> u64 {
        let mut processes = self.world.processes.borrow_mut();
        let process = &mut processes[self.process.0 as usize];
        process.draws += 1;
        self.world.dice.draw(Domain::Process, u64::from(self.process.0), process.draws)
    }

    pub(crate) fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> TaskHandle<T> {
        let task = self.world.executor.spawn(self.life.group(), future);
        if !self.world.is_alive(self.process, self.life) {
            // A destructor that spawns during its process's end.
            task.abort();
        }
        task
    }

    pub(crate) async fn sleep_until(&self, deadline: Time) {
        Sleep::new(&self.world, self.process, deadline).await;
    }

    pub(crate) fn listen(&self, addr: SocketAddr) -> Result<Listener, NetError> {
        net::listen(&self.world, (self.process, self.life), addr)
    }

    pub(crate) async fn connect(&self, addr: SocketAddr) -> Result<Conn, NetError> {
        net::connect(&self.world, (self.process, self.life), addr, false).await
    }

    pub(crate) fn listen_local(&self, path: &Path) -> Result<Listener, LocalError> {
        net::listen_local(&self.world, (self.process, self.life), path)
    }

    pub(crate) async fn connect_local(&self, path: &Path) -> Result<Conn, LocalError> {
        net::connect_local(&self.world, (self.process, self.life), path).await
    }

    pub(crate) fn user(&self) -> u32 {
        self.world.processes.borrow()[self.process.0 as usize].user
    }

    pub(crate) async fn open_drive(&self, open: OpenDrive) -> Result<Drive, DriveError> {
        self.sleep_until(self.now() + OPEN_DRIVE).await;
        if !self.world.is_alive(self.process, self.life) {
            return std::future::pending().await;
        }
        drive::open(&self.world, self.process, self.life, &open)
    }
}
