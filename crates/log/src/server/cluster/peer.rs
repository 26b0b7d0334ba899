//! Another node of the cluster, as this one reaches it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::{Env, Time};

use crate::client::{CallError, Connection, Identity};
use crate::pos::{ClientId, ClusterId, Epoch, NodeId};
use crate::wire::Message;

/// How long a node may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_millis(300);

/// A node and the connection to it, made when it is needed and made again when it was lost.
pub(super) struct Peer {
    env: Env,
    addr: SocketAddr,
    who: Identity,
    connection: RefCell<Option<Connection>>,
}

impl Peer {
    /// The node `node` of `cluster` at `addr`.
    pub(super) fn new(env: &Env, node: NodeId, addr: SocketAddr, cluster: ClusterId) -> Self {
        let who = Identity { client: ClientId(0), node, cluster };
        Self { env: env.clone(), addr, who, connection: RefCell::default() }
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// One call: the reply, its data and its epoch. An error may mean that the connection is gone; the next call makes a new one.
    pub(super) async fn call<M: Message, R: Message>(
        &self,
        epoch: Epoch,
        request: &M,
        deadline: Time,
    ) -> Result<(R, Bytes, Epoch), CallError> {
        let open = self.connection.borrow().clone().filter(Connection::is_open);
        let connection = match open {
            Some(connection) => connection,
            None => {
                let patience = deadline.min(self.env.now() + CONNECT_PATIENCE);
                let connection = Connection::open(&self.env, self.addr, self.who, patience).await?;
                self.connection.replace(Some(connection.clone()));
                connection
            }
        };
        connection.call::<M, R>(&self.env, epoch, request, deadline).await
    }
}
