//! `ithaca volume check` and `ithaca volume scrub`: whether everything that a volume holds is whole.

use ithaca_chain::Damage;
use ithaca_env::real;

use super::arguments::DirArgs;
use super::{context, failed, open, open_drives, refuse_others};
use crate::failure::Failure;
use crate::fsck::check_chain;
use crate::json::{Object, array, quoted};
use crate::output::Output;

/// Verifies every checksum, and changes nothing.
pub fn check(at: &DirArgs, out: &mut Output) -> Result<(), Failure> {
    let context = context("check", at);
    let checked = real::run(|env| async move {
        let drives: Vec<_> = open_drives(&env, at, None).await?.into_iter().flatten().collect();
        refuse_others(drives.iter()).await?;
        let is_whole = check_chain(&drives, out).await?;
        out.flush()?;
        is_whole.then_some(()).ok_or_else(|| Failure::damaged("the volume is damaged"))
    });
    checked.map_err(|failure: Failure| failure.context(context))
}

/// Reads everything that closed segments hold, and writes again what one side of a mirror lacks and another has.
pub fn scrub(at: &DirArgs, out: &mut Output) -> Result<(), Failure> {
    let context = context("scrub", at);
    let scrubbed = real::run(|env| async move {
        let volume = open(&env, at).await?;
        let done = volume.scrub().await;
        let stats = volume.info().chain;
        volume.close().await.map_err(failed)?;
        done.map_err(failed)?;
        let damage: Vec<String> =
            stats.damage.iter().map(|damage: &Damage| damage.in_words("blocks")).collect();
        out.either(
            || {
                let told =
                    format!("{} segments read, {} places repaired", stats.scrubbed.segments, stats.repaired);
                damage.iter().fold(told, |told, damage| format!("{told}\n  {damage}"))
            },
            || {
                Object::new()
                    .number("segments", stats.scrubbed.segments)
                    .number("repaired", stats.repaired)
                    .raw("damage", &array(damage.iter().map(|damage| quoted(damage))))
            },
        )?;
        out.flush()?;
        match damage.len() {
            0 => Ok(()),
            places => Err(Failure::damaged(format!("{places} places are damaged"))),
        }
    });
    scrubbed.map_err(|failure: Failure| failure.context(context))
}
