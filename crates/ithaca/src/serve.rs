//! `ithaca dev` and `ithaca server`: a cluster, or a node of one, in this process.
//!
//! One line on stdout says that it serves, and where; nothing follows it. SIGINT or SIGTERM end it cleanly. A drive that
//! fails ends it too, with exit code 3: what was acknowledged is on its drives, and the next start finds it there.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use ithaca_chain::{
    CacheError, ChainOptions, ChangeError, Cleaning, MetadataError, OpenError, OptionsError, Placement,
};
use ithaca_env::Env;
use ithaca_env::drive::{DriveError, OpenDrive};
use ithaca_env::real::{self, files, give_back_idle_memory, process, shutdown_signal};
use ithaca_env::task::{Ended, race};
use ithaca_log::client::ClientOptions;
use ithaca_log::pos::NodeId;
use ithaca_log::server::register::RegisterError;
use ithaca_log::server::{
    CacheOptions, ClusterNode, LocalCluster, LocalOptions, NodeEnd, NodeOptions, StartError, ViewHost,
};
use ithaca_log::wire::{NodeStatus, Roles};
use ithaca_object::remote::{Host, HostOptions};

use crate::cli::{self, CacheKeeps, ServeArgs};
use crate::config;
use crate::drive::{not_opened, refuse_twice, sides_of};
use crate::failure::Failure;
use crate::fsck::is_chain;
use crate::http;
use crate::json::{Object, array, quoted};
use crate::output::Output;
use crate::quantity;
use crate::roles::Named;

/// Where everything listens.
struct Addresses {
    nodes: Vec<SocketAddr>,
    http: Option<SocketAddr>,
}

impl Addresses {
    /// Where clients connect: the first node tells them of the others.
    fn log(&self) -> SocketAddr {
        self.nodes[0]
    }

    fn json(&self) -> Object {
        let nodes = array(self.nodes.iter().map(|node| quoted(&node.to_string())));
        let object = Object::new().boolean("ready", true).string("log", &self.log().to_string());
        let object = match self.http {
            Some(http) => object.string("http", &http.to_string()),
            None => object,
        };
        object.raw("nodes", &nodes)
    }

    fn human(&self) -> String {
        let more: Vec<String> = self.nodes[1..].iter().map(ToString::to_string).collect();
        let more = if more.is_empty() { String::new() } else { format!(", more units {}", more.join(" ")) };
        let http = self.http.map_or_else(String::new, |http| format!(", http {http}"));
        format!("ready: log {}{http}{more}", self.log())
    }
}

/// Runs a cluster until a signal comes.
pub fn dev(arguments: &ServeArgs, out: Output) -> Result<(), Failure> {
    if arguments.node != 0 {
        return Err(Failure::usage("dev: --node is of a server; a whole cluster has no id".to_owned()));
    }
    run("dev", arguments, out, |out, at, _| out.either(|| at.human(), || at.json()))
}

/// Runs one node until a signal comes.
pub fn server(arguments: &ServeArgs, out: Output) -> Result<(), Failure> {
    run("server", arguments, out, |out, at, served| {
        let next = match served {
            Served::Cluster(_) => format!("echo hello | ithaca log append --endpoint {}", at.log()),
            Served::Node(node) if node.is_member() => {
                format!("ithaca cluster status --endpoint {}", at.log())
            }
            Served::Node(_) => {
                format!("ithaca cluster init or add {}={}", arguments.node, reached_at(at.log()))
            }
        };
        out.either(
            || format!("{}, data {}; next: {next}", at.human(), arguments.data.display()),
            || at.json(),
        )
    })
}

/// Where others reach who listens there.
fn reached_at(listen: SocketAddr) -> String {
    if listen.ip().is_unspecified() { format!("HOST:{}", listen.port()) } else { listen.to_string() }
}

fn run(
    verb: &str,
    arguments: &ServeArgs,
    mut out: Output,
    announce: impl FnOnce(&mut Output, &Addresses, &Served) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Err(error) = process::raise_descriptors() {
        tracing::warn!(%error, "the limit of descriptors stays as it is");
    }
    let served = real::run(|env| async move {
        let roles = Named::of(arguments)?;
        refuse_idle(arguments)?;
        // A task, so that signals are caught from here on: one that comes right after `ready` must stop it cleanly too.
        let signalled = env.spawn(shutdown_signal());
        env.spawn(give_back_idle_memory(env.clone()));
        // Before the cluster starts: a port in use must not cost an epoch.
        let mut pages = None;
        if roles.http {
            let listener = env.listen_soon(arguments.http).await;
            let listener = listener.map_err(|error| Failure::unreachable(format!("http: {error}")))?;
            let addr = listener.local_addr();
            let source = Rc::new(Pages { served: RefCell::default(), listen: arguments.listen });
            // They answer while the start lasts, which may be long.
            let server = http::Server::start(&env, listener, Rc::clone(&source) as Rc<dyn http::Source>);
            pages = Some((addr, source, server));
        }
        refuse_unfit(&env, arguments).await?;
        let served = Rc::new(Served::start_in(&env, arguments, roles.offers).await?);
        if roles.views {
            served.host_views(&env);
        }
        let http = pages.as_ref().map(|(addr, source, _)| {
            source.served.replace(Rc::downgrade(&served));
            *addr
        });
        let at = Addresses { nodes: served.addrs(), http };
        announce(&mut out, &at, &served)?;
        out.flush()?;
        match race(signalled.join(), served.ended()).await {
            Ended::First(Some(Ok(signal))) => tracing::info!(signal, "stopping"),
            Ended::First(Some(Err(error))) => return Err(Failure::unreachable(format!("signals: {error}"))),
            Ended::First(None) => unreachable!("nobody aborts the task"),
            // A new start finds out what the drive holds; this process cannot know it any more.
            Ended::Second(failure) => return Err(failure),
        }
        drop(pages);
        let Some(served) = Rc::into_inner(served) else { unreachable!("pages hold it weakly") };
        served.stop().await;
        Ok(())
    });
    served.map_err(|failure: Failure| failure.context(verb))
}

fn make_data_dir(dir: &Path) -> Result<(), Failure> {
    files::create_dir(dir).map_err(|error| not_made(dir, &error))
}

/// Why there is no data directory: a path that can be none is wrong usage, and one that could be made if there was room is not.
fn not_made(dir: &Path, error: &std::io::Error) -> Failure {
    let line = match error.kind() {
        ErrorKind::AlreadyExists => format!("{}: what is there is no directory", dir.display()),
        _ => format!("{}: {error}", dir.display()),
    };
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Failure::unreachable(line),
        _ => Failure::usage(line),
    }
}

/// Refuses settings that would have no effect in what is started, unless they are as by default.
fn refuse_idle(arguments: &ServeArgs) -> Result<(), Failure> {
    let ServeArgs { units, replicas, drive_size, quota, cache, cache_size, cache_keeps, .. } = arguments;
    let (is_node, has_cache) = (arguments.node != 0, cache.is_some());
    let is_size = |text: &str, size| quantity::size_bytes(text).is_ok_and(|bytes| bytes == size);
    let is_span = |text: &str| quantity::duration(text) == Ok(arguments.rebuild_after);
    let line = if is_node && *units != 1 {
        format!("--units {units} is of a whole cluster; a node of several servers (--node) has one unit")
    } else if is_node && *replicas != 1 {
        let told = "`cluster init` says how many copies several servers (--node) keep";
        format!("--replicas {replicas} is of a whole cluster; {told}")
    } else if drive_size > quota && !config::is_default("drive-size", |text| is_size(text, *drive_size)) {
        format!("--drive-size {drive_size} is above --quota {quota}, to which a drive file may grow")
    } else if !has_cache && !config::is_default("cache-size", |text| is_size(text, *cache_size)) {
        "--cache-size is of a cache, and none is named (--cache)".to_owned()
    } else if !is_node && !config::is_default("rebuild-rate", |text| is_size(text, arguments.rebuild_rate)) {
        "--rebuild-rate is of a node of several servers (--node)".to_owned()
    } else if !is_node && !config::is_default("rebuild-after", is_span) {
        "--rebuild-after is of a node of several servers (--node)".to_owned()
    } else if !has_cache && *cache_keeps != CacheKeeps::Tail {
        "--cache-keeps is of a cache, and none is named (--cache)".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::usage(line))
}

/// Refuses what can be no drive, before anything is made beside it. While there is nothing in the data directory every drive that is named is
/// needed: also one that somebody else has is refused then, and one that is not there and has no place where it could be made.
async fn refuse_unfit(env: &Env, arguments: &ServeArgs) -> Result<(), Failure> {
    let named: Vec<PathBuf> = absolute_drives(arguments).iter().flat_map(|drive| sides_of(drive)).collect();
    let shared = [("cache", &arguments.cache), ("metadata", &arguments.metadata)];
    let shared = shared.map(|(name, path)| path.as_deref().map(|path| (name, absolute(path))));
    let shared: Vec<(&str, PathBuf)> = shared.into_iter().flatten().collect();
    refuse_twice(named.iter().chain(shared.iter().map(|(_, path)| path)))?;
    let data = &arguments.data;
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", data.display()));
    let listed = if files::is_dir(data) { files::list(data).map_err(failed)? } else { Vec::new() };
    let is_new = listed.is_empty();
    for path in listed.into_iter().filter(|file| is_chain(file)).chain(named) {
        let has_place = has_place(&path);
        let open = OpenDrive { path, create_bytes: None, read_only: !is_new };
        match env.open_drive(open).await {
            Err(DriveError::NotFound { .. }) if has_place || !is_new => {}
            Err(error) if is_new || error.is_unfit() => return Err(not_opened(&error, error.to_string())),
            _ => {}
        }
    }
    // One of these that fails is done without, and may be made at any start.
    for (name, path) in shared {
        let has_place = has_place(&path);
        match env.open_drive(OpenDrive { path, create_bytes: None, read_only: false }).await {
            Err(DriveError::NotFound { .. }) if has_place => {}
            Err(error) if error.is_unfit() => return Err(not_opened(&error, format!("{name}: {error}"))),
            _ => {}
        }
    }
    Ok(())
}

/// Whether there is a directory for it.
fn has_place(path: &Path) -> bool {
    path.parent().is_some_and(files::is_dir)
}

/// What this process serves.
enum Served {
    /// A whole cluster.
    Cluster(LocalCluster),
    /// One node of a cluster of servers.
    Node(ClusterNode),
}

impl Served {
    /// Starts in the data directory, made if it is not there. Where it was made for nothing it is gone again.
    async fn start_in(env: &Env, arguments: &ServeArgs, offers: Roles) -> Result<Self, Failure> {
        let was_there = files::is_dir(&arguments.data);
        make_data_dir(&arguments.data)?;
        let started = Self::start(env, arguments, offers).await;
        if started.is_err() && !was_there {
            // One that is not empty stays: what a start has begun the next one goes on with.
            let _ = files::remove_empty_dir(&arguments.data);
        }
        started
    }

    async fn start(env: &Env, arguments: &ServeArgs, offers: Roles) -> Result<Self, Failure> {
        match arguments.node {
            0 => LocalCluster::start(env, options(arguments)?).await.map(Self::Cluster).map_err(failed),
            id => {
                let options = NodeOptions { offers, ..node_options(NodeId(id), arguments)? };
                ClusterNode::start(env, options).await.map(Self::Node).map_err(failed)
            }
        }
    }

    fn addrs(&self) -> Vec<SocketAddr> {
        match self {
            Self::Cluster(cluster) => cluster.addrs().to_vec(),
            Self::Node(node) => vec![node.addr()],
        }
    }

    /// Keeps views of objects for programs that have not the objects themselves.
    fn host_views(&self, env: &Env) {
        let client = ClientOptions { endpoints: self.addrs(), ..ClientOptions::default() };
        let host = Host::new(env, HostOptions { client, ..HostOptions::default() });
        let host: Rc<dyn ViewHost> = Rc::new(host);
        match self {
            Self::Cluster(cluster) => cluster.host_views(&host),
            Self::Node(node) => node.host_views(&host),
        }
    }

    /// Whether clients are served.
    fn is_ready(&self) -> bool {
        match self {
            Self::Cluster(_) => true,
            Self::Node(node) => node.is_ready(),
        }
    }

    fn status(&self) -> Vec<NodeStatus> {
        match self {
            Self::Cluster(cluster) => cluster.status(),
            Self::Node(node) => vec![node.status()],
        }
    }

    /// Waits until it cannot go on and says why.
    async fn ended(&self) -> Failure {
        match self {
            Self::Cluster(cluster) => {
                Failure::unreachable(format!("a unit has stopped: {}", cluster.failed().await))
            }
            Self::Node(node) => match node.ended().await {
                NodeEnd::Failed(why) => Failure::unreachable(format!("a unit has stopped: {why}")),
                end @ NodeEnd::Outdated(_) => Failure::damaged(end.to_string()),
                end @ NodeEnd::Removed { .. } => Failure::no(end.to_string()),
            },
        }
    }

    async fn stop(self) {
        match self {
            Self::Cluster(cluster) => cluster.stop().await,
            Self::Node(node) => node.stop().await,
        }
    }
}

fn node_options(id: NodeId, arguments: &ServeArgs) -> Result<NodeOptions, Failure> {
    Ok(NodeOptions {
        cache: cache(arguments),
        metadata: arguments.metadata.clone(),
        chain: chain(arguments)?,
        drives: absolute_drives(arguments),
        create_bytes: arguments.drive_size.min(arguments.quota),
        rebuild_bytes_per_second: arguments.rebuild_rate,
        rebuild_after: arguments.rebuild_after,
        ..NodeOptions::new(id, &absolute(&arguments.data), arguments.listen)
    })
}

/// A path as it is wherever a later start or an order comes from.
fn absolute(path: &Path) -> PathBuf {
    // Without a working directory it is left as it is: there is nothing to put before it.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The same of drives, of which `A+B` names the sides of one.
fn absolute_drives(arguments: &ServeArgs) -> Vec<PathBuf> {
    let drive = |drive: &PathBuf| {
        let sides: Vec<_> = sides_of(drive).iter().map(|side| absolute(side).into_os_string()).collect();
        sides.join("+".as_ref()).into()
    };
    arguments.drive.iter().map(drive).collect()
}

fn cache(arguments: &ServeArgs) -> Option<CacheOptions> {
    arguments.cache.clone().map(|path| CacheOptions { path, size_bytes: arguments.cache_size })
}

fn options(arguments: &ServeArgs) -> Result<LocalOptions, Failure> {
    let units = arguments.units as usize;
    let drives = arguments.drive.len();
    if drives > units && !drives.is_multiple_of(units) {
        let line = format!("{drives} drives for {units} units: more than one each must be as many for each");
        return Err(Failure::usage(line));
    }
    Ok(LocalOptions {
        units,
        replicas: arguments.replicas as usize,
        cache: cache(arguments),
        metadata: arguments.metadata.clone(),
        chain: chain(arguments)?,
        drives: absolute_drives(arguments),
        create_bytes: arguments.drive_size.min(arguments.quota),
        ..LocalOptions::new(&absolute(&arguments.data), arguments.listen)
    })
}

fn chain(arguments: &ServeArgs) -> Result<ChainOptions, Failure> {
    let options = ChainOptions {
        body_cache: arguments.cache_keeps == CacheKeeps::All,
        placement: match arguments.placement {
            cli::Placement::Fill => Placement::Fill,
            cli::Placement::RoundRobin => Placement::RoundRobin,
        },
        cleaning: match arguments.cleaning {
            cli::Cleaning::Tail => Cleaning::MoveToTail,
            cli::Cleaning::Body => Cleaning::CompactInBody,
            cli::Cleaning::Off => Cleaning::Off,
        },
        scrub_bytes_per_second: arguments.scrub_rate,
        sleep_after: arguments.sleep_after,
        capacity_bytes: arguments.quota,
        ..ChainOptions::default()
    };
    options.validate().map_err(|error| match error {
        OptionsError::OutOfRange { name: "capacity_bytes", found, min, max } => {
            Failure::usage(format!("--quota: a quota of {found} bytes is given, allowed are {min} to {max}"))
        }
        error => Failure::usage(error.to_string()),
    })?;
    Ok(options)
}

/// What cannot be put right by starting again is wrong usage; damage has its own code.
fn failed(error: StartError) -> Failure {
    let line = error.to_string();
    match error {
        error if error.is_damage() => Failure::damaged(line),
        StartError::Removed { .. } => Failure::no(line),
        StartError::Chain(
            OpenError::DriveMissing { .. }
            | OpenError::NotAMember { .. }
            | OpenError::NotBlank { .. }
            | OpenError::WrongChain { .. }
            | OpenError::StaleDrive { .. }
            | OpenError::Disagree { .. }
            | OpenError::GivenTwice { .. }
            | OpenError::TooManyDrives { .. }
            | OpenError::BadMirror { .. },
        ) => Failure::usage(line),
        StartError::Chain(OpenError::Drive(ref error))
        | StartError::AddDrive(ChangeError::Open(OpenError::Drive(ref error)))
        | StartError::Cache(CacheError::Drive(ref error))
        | StartError::Metadata(MetadataError::Drive(ref error))
        | StartError::Register(RegisterError::Drive(ref error)) => not_opened(error, line),
        // A drive to be added that is none which can be.
        StartError::AddDrive(ChangeError::Open(_)) => Failure::usage(line),
        StartError::OtherDrive { .. }
        | StartError::OtherNode { .. }
        | StartError::OneOfServers { .. }
        | StartError::Cache(_)
        | StartError::Metadata(_)
        | StartError::Units { .. }
        | StartError::Replicas { .. }
        | StartError::ReplicasChanged { .. }
        | StartError::Layout(_)
        | StartError::RoleLeftOut { .. }
        | StartError::NotAllGiven { .. } => Failure::usage(line),
        // Nobody remembers where it is: it lay in the directory, or `drives.register` is gone.
        StartError::DriveMissing { .. } => {
            Failure::usage(line).and("if its drives lie elsewhere, name all of them with --drive")
        }
        _ => Failure::unreachable(line),
    }
}

/// What is served as its pages show it.
struct Pages {
    /// Nothing while it starts. Held weakly: a page that is being sent must not keep it from stopping.
    served: RefCell<Weak<Served>>,
    /// Where it will listen.
    listen: SocketAddr,
}

impl Pages {
    fn served(&self) -> Option<Rc<Served>> {
        self.served.borrow().upgrade()
    }
}

impl http::Source for Pages {
    fn nodes(&self) -> Vec<NodeStatus> {
        self.served().map(|served| served.status()).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        self.served().is_some_and(|served| served.is_ready())
    }

    fn log_addr(&self) -> SocketAddr {
        self.served().map_or(self.listen, |served| served.addrs()[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn a_directory_that_is_not_made_for_want_of_room_is_no_wrong_usage() {
        // Scripts start again what failed with the one, and give up what failed with the other.
        let exit = |kind: ErrorKind| match not_made(Path::new("data"), &kind.into()) {
            Failure::Told { exit, line } if line.starts_with("data: ") => exit,
            other => panic!("{other:?}"),
        };
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            assert_eq!(exit(kind), Exit::Unreachable, "{kind}");
        }
        assert_eq!(exit(ErrorKind::NotADirectory), Exit::Usage);
        // `File exists` was no help to whoever is told of it.
        let line = "data: what is there is no directory".to_owned();
        let told = Failure::Told { exit: Exit::Usage, line };
        assert_eq!(not_made(Path::new("data"), &ErrorKind::AlreadyExists.into()), told);
    }
}
