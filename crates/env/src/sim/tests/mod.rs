//! What the simulator promises, a file for each part of the world.

mod capacity;
mod drives;
mod network;
mod plans;
mod processes;
mod speeds;

use std::net::IpAddr;
use std::path::PathBuf;

use bytes::Bytes;

use crate::drive::OpenDrive;
use crate::limits::BLOCK_BYTES;

fn machine(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

fn created(name: &str, blocks: u64) -> OpenDrive {
    let create_bytes = Some(blocks * BLOCK_BYTES as u64);
    OpenDrive { path: PathBuf::from(name), create_bytes, read_only: false }
}

fn block(fill: u8) -> Bytes {
    Bytes::from(vec![fill; BLOCK_BYTES])
}
