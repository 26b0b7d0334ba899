//! `ithaca volume mount`: a volume as a file, with transactions by control calls, until a signal comes or somebody unmounts it.
//!
//! One line on stdout says that it is mounted, and where; nothing follows it. SIGINT and SIGTERM unmount it cleanly: what is under way is
//! answered, and everything that was answered is on stable storage. So does `umount PATH`. A drive that fails ends it too, with
//! exit code 3.

use std::path::Path;

use ithaca_env::fuse::{FuseError, MountOptions};
use ithaca_env::real::{self, files, give_back_idle_memory, process, shutdown_signal};
use ithaca_env::task::{Ended, race};
use ithaca_volume::Planted;
use ithaca_volume::fuse::{Server, ServerOptions};

use super::arguments::{DirArgs, MountArgs};
use super::rescue;
use super::serve::{name_of, serve_locally};
use super::sides::Rebuilt;
use super::{context, failed, links};
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;

/// Refuses to hide the volume's own files behind what is mounted: no command would find them any more.
fn refuse_own(at: &DirArgs, path: &Path) -> Result<(), Failure> {
    let hidden = files::place(path).ok();
    for file in links(&at.dirs).into_iter().flatten() {
        let places = [Some(file.as_path()), file.parent()].into_iter().flatten().map(files::place);
        if places.map(Result::ok).any(|place| place.is_some() && place == hidden) {
            return Err(Failure::usage(format!("{} is where the volume lies", path.display())));
        }
    }
    Ok(())
}

/// Serves until a signal comes or the file is unmounted.
pub fn run(arguments: &MountArgs, mut out: Output) -> Result<(), Failure> {
    let served = real::run(|env| async move {
        // A task, so that signals are caught from here on: one that comes right after `ready` must stop it cleanly too.
        let signalled = env.spawn(shutdown_signal());
        env.spawn(give_back_idle_memory(env.clone()));
        let MountArgs { at, rescue, read_cache, .. } = arguments;
        refuse_own(at, &arguments.path)?;
        let (volume, rescued) = rescue::or_open(&env, at, *rescue, *read_cache).await?;
        let region =
            arguments.region.as_deref().map(|name| volume.region(name)).transpose().map_err(failed)?;
        let name = arguments.name.clone().unwrap_or_else(|| name_of(&arguments.at));
        let local = serve_locally(&env, &arguments.at, arguments.socket.as_ref(), &volume)?;
        let source = arguments.at.dirs[0].display().to_string();
        let options = MountOptions {
            path: arguments.path.clone(),
            source,
            allow_other: arguments.allow_other,
            read_only: rescued.is_some(),
        };
        let channel = env.mount_fuse(&options).map_err(|error| match error {
            FuseError::NotFound { .. } => Failure::usage(error.to_string()),
            error => Failure::unreachable(error.to_string()),
        })?;
        let file = if channel.is_folder() { arguments.path.join(&name) } else { arguments.path.clone() };
        let options = ServerOptions { name, region, group: process::group(), planted: Planted::default() };
        let server = Server::start(&env, channel, &volume, options);
        let socket = local.as_ref().map(|(_, path)| path.display().to_string());
        let rebuilt = Rebuilt::of(&volume);
        out.either(
            || {
                let socket = socket.iter().map(|path| format!(", socket {path}")).collect::<String>();
                let rescued = rescued.iter().map(|it| format!(", {it}")).collect::<String>();
                format!("ready: file {}{socket}{rescued}{rebuilt}", file.display())
            },
            || {
                let ready = Object::new().boolean("ready", true).string("file", &file.display().to_string());
                let ready =
                    rebuilt.add_to(socket.iter().fold(ready, |ready, path| ready.string("socket", path)));
                rescued.iter().fold(ready, |ready, it| it.add_to(ready.number("version", it.version.0)))
            },
        )?;
        out.flush()?;
        match race(signalled.join(), race(volume.failed(), server.ended())).await {
            Ended::First(Some(Ok(signal))) => tracing::info!(signal, "stopping"),
            Ended::First(Some(Err(error))) => return Err(Failure::unreachable(format!("signals: {error}"))),
            Ended::First(None) => unreachable!("nobody aborts the task"),
            Ended::Second(Ended::First(error)) => return Err(failed(error)),
            Ended::Second(Ended::Second(Ok(()))) => tracing::info!("unmounted"),
            Ended::Second(Ended::Second(Err(error))) => return Err(Failure::unreachable(error.to_string())),
        }
        server.stop().await;
        if let Some((local, _)) = local {
            local.stop().await;
        }
        volume.close().await.map_err(failed)
    });
    served.map_err(|failure: Failure| failure.context(context("mount", &arguments.at)))
}
