//! `ithaca volume serve`: a volume as a block device, over NBD, until a signal comes.
//!
//! One line on stdout says that it serves, and where; nothing follows it. SIGINT and SIGTERM end it cleanly: what is under way is
//! answered, and everything that was answered is on stable storage. A drive that fails ends it too, with exit code 3.

use ithaca_env::real::{self, shutdown_signal};
use ithaca_env::task::{Ended, race};
use ithaca_volume::nbd::{Server, ServerOptions};

use super::arguments::{DirArgs, ServeVolumeArgs};
use super::{context, failed, open};
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;

/// The export's name where the directory has none that could be one.
const DEFAULT_NAME: &str = "volume";

/// Serves until a signal comes.
pub fn run(arguments: &ServeVolumeArgs, mut out: Output) -> Result<(), Failure> {
    let served = real::run(|env| async move {
        // A task, so that signals are caught from here on: one that comes right after `ready` must stop it cleanly too.
        let signalled = env.spawn(shutdown_signal());
        let listener = env.listen(arguments.nbd);
        let listener = listener.map_err(|error| Failure::unreachable(format!("nbd: {error}")))?;
        let volume = open(&env, &arguments.at).await?;
        let name = arguments.name.clone().unwrap_or_else(|| name_of(&arguments.at));
        let server = Server::start(&env, listener, volume.clone(), ServerOptions::new(&name));
        let addr = server.addr().to_string();
        out.either(
            || format!("ready: nbd {addr}, export {name}"),
            || Object::new().boolean("ready", true).string("nbd", &addr).string("export", &name),
        )?;
        out.flush()?;
        match race(signalled.join(), volume.failed()).await {
            Ended::First(Some(Ok(signal))) => tracing::info!(signal, "stopping"),
            Ended::First(Some(Err(error))) => return Err(Failure::unreachable(format!("signals: {error}"))),
            Ended::First(None) => unreachable!("nobody aborts the task"),
            Ended::Second(error) => return Err(failed(error)),
        }
        server.stop().await;
        volume.close().await.map_err(failed)
    });
    served.map_err(|failure: Failure| failure.context(context("serve", &arguments.at)))
}

/// The name of the first directory, if it can be one.
fn name_of(at: &DirArgs) -> String {
    let name = at.dirs[0].file_name().and_then(|name| name.to_str()).unwrap_or(DEFAULT_NAME);
    if name.contains(['@', '+']) { DEFAULT_NAME.to_owned() } else { name.to_owned() }
}
