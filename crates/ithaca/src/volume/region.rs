//! `ithaca volume region`: parts of a volume with names.

use ithaca_env::real;
use ithaca_volume::Region;
use ithaca_volume::limits::VOLUME_BLOCK_BYTES;

use super::arguments::{RegionAct, RegionArgs, ServedArgs};
use super::context;
use super::reach::reach;
use crate::cli::Global;
use crate::failure::Failure;
use crate::json::{Object, array};
use crate::output::Output;
use crate::quantity::short_bytes;

const BLOCK: u64 = VOLUME_BLOCK_BYTES as u64;

/// Makes, lists or removes.
pub fn run(global: &Global, arguments: &RegionArgs, out: &mut Output) -> Result<(), Failure> {
    let ServedArgs { at, socket } = match &arguments.act {
        RegionAct::Add { served, size, .. } => {
            check_size(*size)?;
            served
        }
        RegionAct::Ls { served } | RegionAct::Rm { served, .. } => served,
    };
    let done = real::run(|env| async move {
        let reached = reach(&env, at, socket.as_deref(), global.timeout).await?;
        let done = match &arguments.act {
            RegionAct::Add { name, size, .. } => {
                reached.create_region(name, size / BLOCK).await.map(|it| vec![it])
            }
            RegionAct::Ls { .. } => reached.regions().await,
            RegionAct::Rm { name, .. } => reached.delete_region(name).await.map(|()| Vec::new()),
        };
        reached.leave().await?;
        done
    });
    let regions = done.map_err(|failure: Failure| failure.context(context("region", at)))?;
    match &arguments.act {
        RegionAct::Rm { name, .. } => out.either(
            || format!("region {name} is gone"),
            || Object::new().string("region", name).boolean("deleted", true),
        )?,
        _ => out.either(|| human(&regions), || json(&regions))?,
    }
    out.flush()
}

/// Errors: the size is not whole blocks.
fn check_size(size: u64) -> Result<(), Failure> {
    if size > 0 && size.is_multiple_of(BLOCK) {
        return Ok(());
    }
    Err(Failure::usage(format!("--size {size}: expected a multiple of {BLOCK}, at least {BLOCK}")))
}

fn human(regions: &[Region]) -> String {
    let line = |Region { name, blocks }: &Region| {
        let bytes = short_bytes((blocks.end - blocks.start) * BLOCK);
        format!("region {name}: {bytes}, from block {} on", blocks.start)
    };
    match regions {
        [] => "no regions".to_owned(),
        some => some.iter().map(line).collect::<Vec<_>>().join("\n"),
    }
}

fn json(regions: &[Region]) -> Object {
    let region = |Region { name, blocks }: &Region| {
        let object = Object::new().string("name", name).number("first_block", blocks.start);
        object.number("blocks", blocks.end - blocks.start).finish()
    };
    Object::new().raw("regions", &array(regions.iter().map(region)))
}
