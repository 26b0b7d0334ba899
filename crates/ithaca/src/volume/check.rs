//! `ithaca volume check` and `ithaca volume scrub`: whether everything that a volume holds is whole.

use ithaca_chain::limits::SUPERBLOCK_ZONE_BYTES;
use ithaca_chain::{OpenError, identify};
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::real;
use ithaca_volume::socket::Summary;

use super::arguments::{DirArgs, ServedArgs};
use super::reach::reach;
use super::sides::CUT_WAY_OUT;
use super::{context, failed, is_foreign, links, refuse_others, refuse_twice};
use crate::cli::Global;
use crate::failure::Failure;
use crate::fsck::{self, check_chain, drive_failed};
use crate::json::{Object, array, quoted};
use crate::output::Output;

/// Verifies every checksum, and changes nothing. It needs no more than to read the files.
pub fn check(at: &DirArgs, out: &mut Output) -> Result<(), Failure> {
    let context = context("check", at);
    let checked = real::run(|env| async move {
        refuse_twice(at)?;
        let mut drives = Vec::new();
        for path in links(&at.dirs).iter().flatten() {
            drives.push(fsck::open(&env, path).await.map_err(drive_failed)?);
        }
        refuse_others(drives.iter()).await?;
        for drive in &drives {
            // As every other command says of what was never a volume.
            match identify(drive).await {
                Ok(None) => return Err(failed(OpenError::NotAChain { drive: drive.name() }.into())),
                Err(error) if is_foreign(&error) => return Err(failed(error.into())),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        let is_whole = check_chain(&drives, None, out).await?;
        out.flush()?;
        is_whole.then_some(()).ok_or_else(|| Failure::damaged("the volume is damaged"))
    });
    checked.map_err(|failure: Failure| failure.context(context))
}

/// Reads everything that closed segments hold, and writes again what one side of a mirror lacks and another has.
pub fn scrub(global: &Global, arguments: &ServedArgs, out: &mut Output) -> Result<(), Failure> {
    let context = context("scrub", &arguments.at);
    let scrubbed = real::run(|env| async move {
        let reached = reach(&env, &arguments.at, arguments.socket.as_deref(), global.timeout).await?;
        let done = match reached.scrub().await {
            Ok(scrub) => reached.info().await.map(|told| (scrub, told.info)),
            Err(failure) => Err(failure),
        };
        reached.leave().await?;
        let (mut scrub, info) = done?;
        let unfit = unfit(&env, &arguments.at, &info).await;
        scrub.damaged += unfit.len() as u64;
        scrub.damage.extend(unfit);
        out.either(
            || {
                let told = format!("{} segments read, {} places repaired", scrub.segments, scrub.repaired);
                scrub.damage.iter().fold(told, |told, damage| format!("{told}\n  {damage}"))
            },
            || {
                Object::new()
                    .number("segments", scrub.segments)
                    .number("repaired", scrub.repaired)
                    .raw("damage", &array(scrub.damage.iter().map(|damage| quoted(damage))))
            },
        )?;
        out.flush()?;
        match scrub.damaged {
            0 => Ok(()),
            places => Err(Failure::damaged(format!("{places} places are damaged"))),
        }
    });
    scrubbed.map_err(|failure: Failure| failure.context(context))
}

/// The files that a start refuses, in words: they are shorter than what the volume has on them, until what is written behind their end makes
/// them longer again, or do not say any more what they are, which nothing that is written to a volume mends. A server goes on with both.
async fn unfit(env: &Env, at: &DirArgs, info: &Summary) -> Vec<String> {
    let mut unfit = Vec::new();
    for link in links(&at.dirs) {
        let way_out = if link.len() > 1 { format!("; {CUT_WAY_OUT}") } else { String::new() };
        for path in link {
            // Of one that cannot be opened other commands say so.
            let open = OpenDrive { path, create_bytes: None, read_only: true };
            let Ok(drive) = env.open_drive(open).await else { continue };
            let (name, found) = (drive.name(), drive.size_bytes());
            // A server may call it by another path.
            let known = info.drives.iter().find(|it| it.drive == name).map(|it| it.segments);
            let segments = known.or_else(|| info.drives.iter().map(|it| it.segments).min()).unwrap_or(0);
            let needed = SUPERBLOCK_ZONE_BYTES + segments * info.segment_bytes;
            // A start reads the same of it before anything else; while it is written, two of its four copies are whole.
            let told = match identify(&drive).await {
                _ if found < needed => format!("{name} has {found} bytes, the volume has {needed} on it"),
                Ok(Some(_)) => continue,
                Ok(None) => format!("{name} holds no volume"),
                Err(error) => error.to_string(),
            };
            unfit.push(format!("{told}: the next start refuses it{way_out}"));
        }
    }
    unfit
}
