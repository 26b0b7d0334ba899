//! Filling a log: one entry after another from several clients, as fast as the cluster takes them.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_log::client::{Client, ClientError, ClientOptions};

use super::load::CALL_TIMEOUT;

/// Bytes of appends that each client has under way at the most.
const IN_FLIGHT_BYTES: usize = 512 << 10;

/// Clients for filling and reading a log in bulk.
pub async fn clients(env: &Env, addr: SocketAddr, count: u32) -> Result<Vec<Client>, ClientError> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let options = ClientOptions {
            endpoints: vec![addr],
            timeout: CALL_TIMEOUT,
            max_in_flight_bytes: IN_FLIGHT_BYTES,
            ..ClientOptions::default()
        };
        clients.push(Client::connect(env, options).await?);
    }
    Ok(clients)
}

/// Appends what `next` gives until it gives no more, on all clients at once, and returns when everything is durable.
pub async fn fill(
    env: &Env,
    clients: &[Client],
    next: impl FnMut() -> Option<Bytes> + 'static,
) -> Result<(), ClientError> {
    let next = Rc::new(std::cell::RefCell::new(next));
    let mut fillers = Vec::new();
    for client in clients {
        let (client, next) = (client.clone(), Rc::clone(&next));
        fillers.push(env.spawn(fill_one(env.clone(), client, move || (next.borrow_mut())())));
    }
    for filler in fillers {
        filler.join().await.unwrap_or(Err(ClientError::Closed))?;
    }
    Ok(())
}

async fn fill_one(
    env: Env,
    client: Client,
    mut next: impl FnMut() -> Option<Bytes>,
) -> Result<(), ClientError> {
    let state = Rc::new(State::default());
    while let Some(entry) = next() {
        client.room().await;
        if state.failed.borrow().is_some() {
            break;
        }
        let append = client.append(entry);
        let shared = Rc::clone(&state);
        shared.outstanding.set(shared.outstanding.get() + 1);
        env.spawn(async move {
            if let Err(error) = append.await {
                shared.failed.replace(Some(error));
            }
            shared.outstanding.set(shared.outstanding.get() - 1);
            if shared.outstanding.get() == 0 {
                shared.ended.ring();
            }
        });
    }
    state.ended.until(|| (state.outstanding.get() == 0).then_some(())).await;
    state.failed.take().map_or(Ok(()), Err)
}

#[derive(Default)]
struct State {
    outstanding: std::cell::Cell<u64>,
    failed: std::cell::RefCell<Option<ClientError>>,
    ended: Notify,
}
