//! How a node comes to belong to a cluster, and how it knows that it does after a restart.
//!
//! The cluster's id is stored before the unit's drives are created, so that a formation that was interrupted is taken up
//! again, and drives that belong to another cluster, or to this one whose register was lost, are refused.

use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes};
use ithaca_chain::limits::SUPERBLOCK_ZONE_BYTES;
use ithaca_chain::{Label, OpenError, identify};
use ithaca_env::Env;
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::drive::{Drive, DriveError, OpenDrive};

use super::local::StartError;
use super::register::{Purpose, Register};
use crate::layout::Acceptor;
use crate::planted::Planted;
use crate::pos::{ClusterId, NodeId};
use ithaca_env::record::{self, RecordError};

/// A register that holds a cluster's id and no layout yet: magic `ITcf`, version 1, body `cluster u128`.
const FORMING_MAGIC: [u8; 4] = *b"ITcf";
/// What the chains of units say that they are, before the id of the unit's node.
const UNIT: &str = "unit ";

/// What a register says of its node.
pub(super) enum Formed {
    /// It belongs to no cluster.
    Not,
    /// It was about to belong to this one: its drives may or may not be there.
    Begun(ClusterId),
    /// It knows the cluster's layouts.
    Done(ClusterId),
}

/// An open register and what it says.
pub(super) struct Opened {
    pub(super) register: Register,
    pub(super) acceptor: Acceptor,
    pub(super) formed: Formed,
}

/// Refuses, before anything is made, the first start of a node in `data` that is given drives which are not new; whether it is the first. A
/// directory that has a register is left to [`open_register`], which knows more.
pub(super) async fn look_first(
    env: &Env,
    data: &Path,
    named: impl Iterator<Item = PathBuf>,
) -> Result<bool, StartError> {
    for purpose in [Purpose::Layouts, Purpose::Drives] {
        let open = OpenDrive { create_bytes: None, read_only: true, ..purpose.in_directory(data) };
        match env.open_drive(open).await {
            Err(DriveError::NotFound { .. }) => {}
            _ => return Ok(false),
        }
    }
    check_drives_are_new(env, named, &[], &Purpose::Layouts.in_directory(data).path).await?;
    Ok(true)
}

/// Opens the register of the node `me` in `data`, made if it is not there. An empty one beside drives in use is the register of a cluster that
/// was lost: an error. `named` are the drives that this start is given, `had` those that units of this directory are known to have had. Nothing
/// is written.
pub(super) async fn open_register(
    env: &Env,
    me: NodeId,
    data: &Path,
    named: impl Iterator<Item = PathBuf>,
    had: &[PathBuf],
    planted: Planted,
) -> Result<Opened, StartError> {
    let open = Purpose::Layouts.in_directory(data);
    let path = open.path.clone();
    let (register, value) = Register::open(env, open, Purpose::Layouts).await?;
    let damaged = |error| StartError::Layouts { path: path.display().to_string(), error };
    let Some(value) = value else {
        check_drives_are_new(env, named, had, &path).await?;
        return Ok(Opened { register, acceptor: Acceptor::new(me, planted), formed: Formed::Not });
    };
    if value.first_chunk() == Some(&FORMING_MAGIC) {
        let cluster = decode(&value).map_err(damaged)?;
        let mut acceptor = Acceptor::new(me, planted);
        acceptor.belong_to(cluster);
        return Ok(Opened { register, acceptor, formed: Formed::Begun(cluster) });
    }
    let acceptor = Acceptor::recover(me, &value, planted).map_err(damaged)?;
    let formed = match acceptor.latest() {
        Some(layout) => Formed::Done(layout.cluster),
        // Its first layout was about to be decided.
        None => Formed::Begun(acceptor.cluster()),
    };
    Ok(Opened { register, acceptor, formed })
}

/// What a register holds while its node comes to belong to `cluster`.
pub(super) fn encode(cluster: ClusterId) -> Bytes {
    record::encode(FORMING_MAGIC, 1, |out| out.put_u128_le(cluster.0))
}

fn decode(value: &[u8]) -> Result<ClusterId, RecordError> {
    let (_, body) = record::decode(FORMING_MAGIC, 1, value)?;
    let mut decoder = Decoder::new(body);
    let (low, high) = (decoder.u64("cluster")?, decoder.u64("cluster")?);
    decoder.finish()?;
    Ok(ClusterId(u128::from(high) << 64 | u128::from(low)))
}

/// Refuses a drive that is not blank if something else than a unit's data is on it. One that is called as those are that units make for
/// themselves was one, and is damaged.
pub(super) async fn refuse_other(drive: &Drive, path: &Path) -> Result<(), StartError> {
    let is_called_so = path.extension().is_some_and(|extension| extension == "chain");
    let label = match identify(drive).await {
        Ok(Some(identity)) if !is_unit(&identity.label) => Some(identity.label.to_string()),
        Ok(None)
        | Err(OpenError::SuperblockLost { valid: 0, first_fault: DecodeError::Invalid { .. }, .. })
            if !is_called_so =>
        {
            None
        }
        _ => return Ok(()),
    };
    Err(StartError::OtherDrive { drive: drive.name(), label })
}

/// What the chain of a node's unit says that it is.
pub fn unit_label(node: NodeId) -> Label {
    Label::new(&format!("{UNIT}{}", node.0)).expect("a short label")
}

fn is_unit(label: &Label) -> bool {
    label.as_str().starts_with(UNIT)
}

/// Refuses drives that are in use: the register of their cluster is not this one, which is empty, or is lost.
async fn check_drives_are_new(
    env: &Env,
    named: impl Iterator<Item = PathBuf>,
    had: &[PathBuf],
    register: &Path,
) -> Result<(), StartError> {
    // A unit's drive whose superblocks are all harmed looks like something else: what units are known to have had is damaged.
    let drives = had.iter().map(|path| (path.clone(), true));
    for (path, was_had) in drives.chain(named.map(|path| (path, false))) {
        let open = OpenDrive { path: path.clone(), create_bytes: None, read_only: true };
        let drive = match env.open_drive(open).await {
            Err(DriveError::NotFound { .. }) => continue,
            opened => opened.map_err(|error| StartError::Chain(error.into()))?,
        };
        let bytes = drive.size_bytes().min(SUPERBLOCK_ZONE_BYTES) as usize;
        let start = drive.read(0, bytes).await.map_err(|error| StartError::Chain(error.into()))?;
        if start.iter().any(|&byte| byte != 0) {
            if !was_had {
                refuse_other(&drive, &path).await?;
            }
            let (register, drive) = (register.display().to_string(), path.display().to_string());
            return Err(StartError::RegisterLost { register, drive });
        }
    }
    Ok(())
}
