//! Runs a client command: connects, does the work on one environment, and turns errors into exit codes.

use std::net::SocketAddr;

use ithaca_env::{Env, real};
use ithaca_log::client::{Client, ClientError, ClientOptions, ErrorClass};

use crate::cli::{Endpoint, Global};
use crate::failure::Failure;

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let line = error.to_string();
        match error.class() {
            ErrorClass::No => Self::no(line),
            ErrorClass::Usage => Self::usage(line),
            ErrorClass::Unavailable => Self::unreachable(line),
            ErrorClass::Damaged => Self::damaged(line),
        }
    }
}

/// What a command asks of its client. Nothing is tried again at a later position behind the back of a script.
pub fn options(global: &Global) -> ClientOptions {
    ClientOptions {
        endpoints: addresses(global).collect(),
        timeout: global.timeout,
        retry_appends: false,
        ..ClientOptions::default()
    }
}

/// The endpoints, for a line that says where something was tried.
pub fn endpoints(global: &Global) -> String {
    let endpoints: Vec<String> = addresses(global).map(|addr| addr.to_string()).collect();
    endpoints.join(",")
}

fn addresses(global: &Global) -> impl Iterator<Item = SocketAddr> {
    global.endpoint.iter().flat_map(|Endpoint(addresses)| addresses.iter().copied())
}

/// Connects and runs `work`; its failure is told with `verb` and the endpoints before it.
pub fn with_client<T>(
    global: &Global,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_options(global, options(global), verb, work)
}

/// The same with a client that is set up otherwise.
pub fn with_options<T>(
    global: &Global,
    options: ClientOptions,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let done = real::run(|env| async move {
        let client = Client::connect(&env, options).await?;
        work(env, client).await
    });
    done.map_err(|failure| failure.context(format_args!("{verb} at {}", endpoints(global))))
}
