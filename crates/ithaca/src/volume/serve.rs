//! `ithaca volume serve`: a volume as a block device, over NBD, and for transactions, at a socket, until a signal comes.
//!
//! One line on stdout says that it serves, and where; nothing follows it. SIGINT and SIGTERM end it cleanly: what is under way is
//! answered, and everything that was answered is on stable storage. A drive that fails ends it too, with exit code 3.

use std::path::PathBuf;

use ithaca_env::Env;
use ithaca_env::net::LocalError;
use ithaca_env::real::{self, give_back_idle_memory, shutdown_signal};
use ithaca_env::task::{Ended, race};
use ithaca_volume::nbd::{Server, ServerOptions};
use ithaca_volume::{Volume, socket};

use super::arguments::{DirArgs, ServeVolumeArgs};
use super::reach::default_socket;
use super::rescue;
use super::sides::Rebuilt;
use super::{context, failed};
use crate::drive::sides_of;
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
        env.spawn(give_back_idle_memory(env.clone()));
        let listener = env.listen_soon(arguments.nbd).await;
        let listener = listener.map_err(|error| Failure::unreachable(format!("nbd: {error}")))?;
        let name = arguments.name.clone().unwrap_or_else(|| name_of(&arguments.at));
        let ServeVolumeArgs { at, rescue, read_cache, .. } = arguments;
        let (volume, rescued) = rescue::or_open(&env, at, *rescue, *read_cache).await?;
        let local = serve_locally(&env, at, arguments.socket.as_ref(), &volume)?;
        let server = Server::start(&env, listener, volume.clone(), ServerOptions::new(&name));
        let addr = server.addr().to_string();
        let socket = local.as_ref().map(|(_, path)| path.display().to_string());
        let rebuilt = Rebuilt::of(&volume);
        out.either(
            || {
                let socket = socket.iter().map(|path| format!(", socket {path}")).collect::<String>();
                let rescued = rescued.iter().map(|it| format!(", {it}")).collect::<String>();
                format!("ready: nbd {addr}, export {name}{socket}{rescued}{rebuilt}")
            },
            || {
                let ready = Object::new().boolean("ready", true).string("nbd", &addr).string("export", &name);
                let ready = socket.iter().fold(ready, |ready, path| ready.string("socket", path));
                let ready = rebuilt.add_to(ready);
                rescued.iter().fold(ready, |ready, it| it.add_to(ready.number("version", it.version.0)))
            },
        )?;
        out.flush()?;
        match race(signalled.join(), volume.failed()).await {
            Ended::First(Some(Ok(signal))) => tracing::info!(signal, "stopping"),
            Ended::First(Some(Err(error))) => return Err(Failure::unreachable(format!("signals: {error}"))),
            Ended::First(None) => unreachable!("nobody aborts the task"),
            Ended::Second(error) => return Err(failed(error)),
        }
        server.stop().await;
        if let Some((local, _)) = local {
            local.stop().await;
        }
        volume.close().await.map_err(failed)
    });
    served.map_err(|failure: Failure| failure.context(context("serve", &arguments.at)))
}

/// Serves at the socket that was asked for, or at the one that commands look for in the volume's directory: without that one
/// everything else works. Of one that is only read there is none.
pub fn serve_locally(
    env: &Env,
    at: &DirArgs,
    asked: Option<&PathBuf>,
    volume: &Volume,
) -> Result<Option<(socket::Server, PathBuf)>, Failure> {
    let Some(path) = asked.cloned().or_else(|| default_socket(at)).filter(|_| !volume.is_read_only()) else {
        return Ok(None);
    };
    match env.listen_local(&path) {
        Ok(listener) => {
            let options = socket::ServerOptions::default();
            Ok(Some((socket::Server::start(env, listener, volume.clone(), options), path)))
        }
        Err(error @ LocalError::TooLong { .. }) if asked.is_some() => {
            Err(Failure::usage(format!("socket: {error}")))
        }
        Err(error) if asked.is_some() => Err(Failure::unreachable(format!("socket: {error}"))),
        Err(error) => {
            tracing::warn!("no socket for transactions: {error}");
            Ok(None)
        }
    }
}

/// The name of the first directory, if it can be one: of a mirror that of its first side, which stays when another one is replaced.
pub fn name_of(at: &DirArgs) -> String {
    let sides = sides_of(&at.dirs[0]);
    let name = sides[0].file_name().and_then(|name| name.to_str());
    name.filter(|name| !name.contains('@')).unwrap_or(DEFAULT_NAME).to_owned()
}
