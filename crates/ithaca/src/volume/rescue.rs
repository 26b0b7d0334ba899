//! `--rescue`: what is left of a volume that has lost groups of its chain, as it was before them. Nothing on its drives is changed.

use std::fmt;

use ithaca_chain::{ChainOptions, Drives, LeftOut, index_of, link_of};
use ithaca_env::Env;
use ithaca_volume::{Version, Volume, VolumeSettings};

use super::arguments::DirArgs;
use super::{Told, failed, human, json, links, refuse_others, refuse_twice, sides, with_read_cache};
use crate::failure::Failure;
use crate::fsck::{self, drive_failed};
use crate::json::Object;
use crate::output::Output;

/// What is told of a volume that is refused.
pub const WAY_OUT: &str = "`volume info --rescue` says what is left, `volume serve --rescue` shows it";

/// What is shown of a volume.
pub struct Rescued {
    pub version: Version,
    pub left_out: Option<LeftOut>,
    /// Whether something is damaged of what is shown.
    pub has_damage: bool,
}

impl fmt::Display for Rescued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(LeftOut { segment, offset, seqs, groups, newest_version }) = &self.left_out else {
            let lost = if self.has_damage { "what is damaged cannot be read" } else { "nothing is lost" };
            return write!(f, "read-only, {lost}");
        };
        let (link, index) = (link_of(*segment), index_of(*segment));
        let link = if link == 0 { String::new() } else { format!(" of link {link}") };
        let lost = if seqs.end - seqs.start == 1 {
            format!("group {} is lost", seqs.start)
        } else {
            format!("groups {} to {} are lost", seqs.start, seqs.end - 1)
        };
        let newer = if *newest_version > self.version.0 {
            format!(" with versions up to {newest_version}")
        } else {
            String::new()
        };
        write!(
            f,
            "read-only as of version {}: {lost} (segment {index}{link}, byte {offset}), {groups} behind are left out{newer}",
            self.version
        )
    }
}

impl Rescued {
    /// Adds what is shown to an object.
    pub fn add_to(&self, object: Object) -> Object {
        let object = object.boolean("read_only", true);
        let Some(left_out) = &self.left_out else { return object };
        let lost = Object::new()
            .number("segment", u64::from(left_out.segment))
            .number("offset", u64::from(left_out.offset))
            .number("first_group", left_out.seqs.start)
            .number("last_group", left_out.seqs.end - 1)
            .number("groups_behind", left_out.groups)
            .number("newest_version", left_out.newest_version);
        object.raw("left_out", &lost.finish())
    }
}

/// Opens the volume of these directories to be used, or with `rescue` what is left of it.
pub async fn or_open(
    env: &Env,
    at: &DirArgs,
    rescue: bool,
    read_cache: u64,
) -> Result<(Volume, Option<Rescued>), Failure> {
    let chain = with_read_cache(read_cache);
    if !rescue {
        return Ok((sides::open(env, at, chain).await?, None));
    }
    let (volume, left_out) = open(env, at, chain).await?;
    let told = Told::of(&volume);
    let rescued = Rescued { version: told.info.version, left_out, has_damage: told.known.damaged > 0 };
    Ok((volume, Some(rescued)))
}

/// Shows the volume of these directories as it was before what is lost of it, for reading. Where its files cannot be written to they are
/// not locked, and nobody else may have them open.
pub async fn open(
    env: &Env,
    at: &DirArgs,
    chain: ChainOptions,
) -> Result<(Volume, Option<LeftOut>), Failure> {
    refuse_twice(at)?;
    let mut drives = Vec::new();
    for link in links(&at.dirs) {
        let mut sides = Vec::new();
        for path in link {
            sides.push(fsck::open(env, &path).await.map_err(drive_failed)?);
        }
        drives.push(sides);
    }
    refuse_others(drives.iter().flatten()).await?;
    let settings = VolumeSettings { chain, ..VolumeSettings::default() };
    Volume::rescue(env, Drives::from(drives), settings).await.map_err(failed)
}

/// What is left of a volume.
pub async fn info(env: &Env, at: &DirArgs, out: &mut Output) -> Result<(), Failure> {
    let (volume, left_out) = open(env, at, with_read_cache(0)).await?;
    let told = Told::of(&volume);
    let rescued = Rescued { version: told.info.version, left_out, has_damage: told.known.damaged > 0 };
    out.either(|| format!("{}\n  {rescued}", human(&told)), || rescued.add_to(json(&told)))?;
    out.flush()?;
    volume.close().await.map_err(failed)
}
