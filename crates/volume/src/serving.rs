//! What every front end of a volume that has connections does the same way: it accepts them up to a limit, ends them when it stops,
//! and gives the client that ends a moment to take its last replies.
//!
//! A [`Serving`] belongs to the server and a [`Gate`] to everybody: it knows how many connections there are and whether the
//! server stops. What is said on a connection is the front end's own.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::net::{Conn, Listener, Writer};
use ithaca_env::sync::{Count, Notify};
use ithaca_env::task::{Ended, TaskHandle, race};

/// How long a connection that ends waits for its client to take the last replies.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long it is until one more connection is accepted after that has failed: the system is short of something.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A front end, for log lines, and how many connections it has at the most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    pub(crate) name: &'static str,
    pub(crate) connections_max: usize,
    /// Says on a connection why it is closed: it is one too many.
    pub(crate) refuse: fn(&Writer),
}

/// Whether a server stops, and how many connections it has.
pub(crate) struct Gate {
    pub(crate) env: Env,
    stopping: Cell<bool>,
    stopped: Notify,
    connections: Count,
}

impl Gate {
    /// Nobody is connected.
    pub(crate) fn new(env: &Env) -> Rc<Self> {
        let env = env.clone();
        Rc::new(Self {
            env,
            stopping: Cell::new(false),
            stopped: Notify::default(),
            connections: Count::default(),
        })
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Waits until the server stops.
    pub(crate) async fn stopping(&self) {
        self.stopped.until(|| self.stopping.get().then_some(())).await;
    }

    /// Waits until what is under way of a connection that has ended is done; if the server stops meanwhile, not for long for a client
    /// that does not take its replies: those that wait for it get an end. `all_done` is asked for anew after that.
    pub(crate) async fn finish<F: Future<Output = ()>>(&self, writer: &Writer, all_done: impl Fn() -> F) {
        if let Ended::Second(()) = race(all_done(), self.stopping()).await
            && self.env.timeout(FAREWELL, all_done()).await.is_err()
        {
            writer.close();
            all_done().await;
        }
    }

    /// Waits a moment for the client to take the last replies.
    pub(crate) async fn farewell(&self, writer: &Writer) {
        let _ = self.env.timeout(FAREWELL, writer.below(1)).await;
    }

    fn stop(&self) {
        self.stopping.set(true);
        self.stopped.ring();
    }
}

/// A server's task that accepts. Dropping it stops the server, and waits for nothing.
pub(crate) struct Serving {
    gate: Rc<Gate>,
    accepting: TaskHandle<()>,
}

impl Serving {
    /// Accepts at `listener` and has `serve` talk on each connection.
    pub(crate) fn start<F: Future<Output = ()> + 'static>(
        gate: Rc<Gate>,
        front: Front,
        listener: Listener,
        serve: impl Fn(Conn) -> F + 'static,
    ) -> Self {
        let accepting = gate.env.spawn(accept(Rc::clone(&gate), front, listener, serve));
        Self { gate, accepting }
    }

    /// Connections that are open.
    pub(crate) fn connections(&self) -> usize {
        self.gate.connections.get()
    }

    /// Accepts no more, tells every connection to end, and waits until they have.
    pub(crate) async fn stop(self) {
        self.accepting.abort();
        self.gate.stop();
        self.gate.connections.below(1).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
        self.gate.stop();
    }
}

async fn accept<F: Future<Output = ()> + 'static>(
    gate: Rc<Gate>,
    front: Front,
    listener: Listener,
    serve: impl Fn(Conn) -> F + 'static,
) {
    let Front { name, connections_max, refuse } = front;
    loop {
        match listener.accept().await {
            Ok(conn) if gate.connections.get() >= connections_max => {
                let peer = conn.reader.peer_addr();
                tracing::warn!(%peer, limit = connections_max, "{name}: too many connections, one more is closed");
                refuse(&conn.writer);
                let gate = Rc::clone(&gate);
                gate.env.clone().spawn(async move {
                    let conn = conn;
                    gate.farewell(&conn.writer).await;
                });
            }
            Ok(conn) => {
                let open = gate.connections.one_more();
                let served = serve(conn);
                gate.env.spawn(async move {
                    served.await;
                    drop(open);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "{name}: no connection is accepted");
                gate.env.sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}
