//! `ithaca dump`: prints a stored file in readable form, and never changes it.

use std::path::Path;

use ithaca_chain::DumpOptions;
use ithaca_env::real::{self, files};
use ithaca_log::server::register::{self, Purpose};

use crate::failure::Failure;
use crate::fsck::{chain_failed, drive_failed, open, read_register};
use crate::json::Object;
use crate::output::Output;

/// Prints what `file` holds, a line a thing; with --json each line is a string in an object.
pub fn run(file: &Path, out: &mut Output) -> Result<(), Failure> {
    let context = format!("dump {}", file.display());
    if files::is_dir(file) {
        return Err(Failure::usage(format!("{context}: is a directory; name one of its files")));
    }
    let dumped = real::run(|env| async move {
        let drive = open(&env, file).await.map_err(drive_failed)?;
        if let Some(purpose) = Purpose::of(file) {
            let bytes = read_register(&drive, purpose).await?;
            let slots = register::describe(&bytes, purpose);
            for line in slots.into_iter().chain(register::describe_value(&bytes, purpose)) {
                print(out, line)?;
            }
            return out.flush();
        }
        // A line that cannot be printed ends the printing; the rest is read for nothing, which a closed pipe does not mind.
        let mut printed = Ok(());
        let all = DumpOptions { segment: None, groups: true, runs: true };
        let dumped = ithaca_chain::dump(&drive, all, |line| {
            if printed.is_ok() {
                printed = print(out, line);
            }
        });
        dumped.await.map_err(chain_failed)?;
        printed?;
        out.flush()
    });
    dumped.map_err(|failure| failure.context(&context))
}

fn print(out: &mut Output, line: String) -> Result<(), Failure> {
    let json = line.clone();
    out.either(|| line, || Object::new().string("line", &json))
}
