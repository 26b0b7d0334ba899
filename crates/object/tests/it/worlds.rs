//! A cluster in a directory of its own, and programs with objects.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::{Env, real};
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::StreamId;
use ithaca_log::server::{Answering, LocalCluster, LocalOptions, ViewHost};
use ithaca_object::remote::{Answer, Host, HostOptions, Refused};
use ithaca_object::{Runtime, RuntimeOptions};
use tempfile::TempDir;

/// A host that does not reach the log.
struct Away;

impl ViewHost for Away {
    fn ask(&self, _: StreamId, _: Bytes) -> Answering {
        let refused = Refused::Unavailable { why: "it is away".to_owned() };
        Box::pin(async { Answer::Refused(refused).to_bytes() })
    }

    fn forget(&self) {}
}

/// A cluster that serves.
pub struct World {
    pub env: Env,
    cluster: LocalCluster,
    options: LocalOptions,
    _dir: TempDir,
}

/// Runs `test` with a cluster of two units.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    run_with(|_| {}, test);
}

/// The same with other options.
pub fn run_with<F: Future<Output = ()>>(
    change: impl FnOnce(&mut LocalOptions),
    test: impl FnOnce(World) -> F,
) {
    let dir = TempDir::new().expect("a directory");
    real::run(async |env: Env| {
        let mut options = LocalOptions::new(dir.path(), ([127, 0, 0, 1], 0).into());
        options.units = 2;
        options.create_bytes = 64 << 20;
        options.chain.segment_bytes = 4 << 20;
        options.chain.capacity_bytes = 256 << 20;
        options.chain.grow_bytes = 64 << 20;
        change(&mut options);
        let cluster = LocalCluster::start(&env, options.clone()).await.expect("it starts");
        test(World { env, cluster, options, _dir: dir }).await;
    });
}

impl World {
    /// Starts the cluster once more, with a sequencer that knows what the units tell it.
    pub async fn restart(self) -> Self {
        self.cluster.stop().await;
        let cluster = LocalCluster::start(&self.env, self.options.clone()).await.expect("it starts");
        Self { cluster, ..self }
    }

    /// Has the nodes keep views.
    pub fn host(&self, change: impl FnOnce(&mut HostOptions)) -> Rc<Host> {
        let endpoints = vec![self.cluster.addrs()[0]];
        let client = ClientOptions { endpoints, ..ClientOptions::default() };
        let mut options = HostOptions { client, ..HostOptions::default() };
        change(&mut options);
        let host = Rc::new(Host::new(&self.env, options));
        self.cluster.host_views(&(Rc::clone(&host) as Rc<dyn ViewHost>));
        host
    }

    /// Has each node keep views by itself, but for those that are away: they answer that they do not reach the log.
    pub fn host_each(&self, is_away: impl Fn(usize) -> bool) {
        self.cluster.host_views_by(|nth| match is_away(nth) {
            true => Rc::new(Away),
            false => {
                let client =
                    ClientOptions { endpoints: vec![self.cluster.addrs()[0]], ..ClientOptions::default() };
                Rc::new(Host::new(&self.env, HostOptions { client, ..HostOptions::default() }))
            }
        });
    }

    /// A program of its own: a client, and no object open.
    pub async fn program(&self) -> Runtime {
        self.program_with(RuntimeOptions::default()).await
    }

    /// The same with options.
    pub async fn program_with(&self, objects: RuntimeOptions) -> Runtime {
        let endpoints = vec![self.cluster.addrs()[0]];
        let options = ClientOptions { endpoints, ..ClientOptions::default() };
        let client = Client::connect(&self.env, options).await.expect("it serves");
        Runtime::new(&self.env, client, objects)
    }
}
