//! `ithaca volume check` and `ithaca volume scrub`: whether everything that a volume holds is whole.

use ithaca_env::real;

use super::arguments::{DirArgs, ServedArgs};
use super::reach::reach;
use super::{context, links, refuse_others};
use crate::cli::Global;
use crate::failure::Failure;
use crate::fsck::{self, check_chain, drive_failed};
use crate::json::{Object, array, quoted};
use crate::output::Output;

/// Verifies every checksum, and changes nothing. It needs no more than to read the files.
pub fn check(at: &DirArgs, out: &mut Output) -> Result<(), Failure> {
    let context = context("check", at);
    let checked = real::run(|env| async move {
        let mut drives = Vec::new();
        for path in links(&at.dirs).iter().flatten() {
            drives.push(fsck::open(&env, path).await.map_err(drive_failed)?);
        }
        refuse_others(drives.iter()).await?;
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
        let done = reached.scrub().await;
        reached.leave().await?;
        let scrub = done?;
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
