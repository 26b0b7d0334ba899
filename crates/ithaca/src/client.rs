//! Runs a client command: connects, does the work on one environment, and turns errors into exit codes.

use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::task::gather;
use ithaca_env::{Env, real};
use ithaca_log::client::{Client, ClientError, ClientOptions, ErrorClass};

use crate::cli::{Endpoint, EndpointError, Global};
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
///
/// Errors: unreachable if the endpoints are names, and none has an address.
pub async fn options(env: &Env, global: &Global) -> Result<ClientOptions, Failure> {
    Ok(ClientOptions {
        endpoints: addresses(env, global).await?,
        timeout: global.timeout,
        retry_appends: false,
        ..ClientOptions::default()
    })
}

/// The endpoints, for a line that says where something was tried.
pub fn endpoints(global: &Global) -> String {
    let endpoints: Vec<String> = global.endpoint.iter().map(ToString::to_string).collect();
    endpoints.join(",")
}

/// Where the endpoints are. Names are looked up at the same time; those without an address are left out where others have one.
async fn addresses(env: &Env, global: &Global) -> Result<Vec<SocketAddr>, Failure> {
    let lookups = global.endpoint.iter().map(|endpoint| look_up(env, endpoint, global.timeout)).collect();
    let (mut addresses, mut lost) = (Vec::new(), None);
    for found in gather(lookups, |_| false).await.into_iter().flatten() {
        match found {
            Ok(found) => addresses.extend(found),
            Err(error) => lost = lost.or(Some(error)),
        }
    }
    match lost {
        Some(error) if addresses.is_empty() => Err(Failure::unreachable(error.to_string())),
        _ => Ok(addresses),
    }
}

async fn look_up(
    env: &Env,
    endpoint: &Endpoint,
    timeout: Duration,
) -> Result<Vec<SocketAddr>, EndpointError> {
    if let Some(addr) = endpoint.address() {
        return Ok(vec![addr]);
    }
    let asked = endpoint.clone();
    let found = env.timeout(timeout, real::unblock(env, move || asked.addresses())).await;
    found.unwrap_or_else(|_| Err(endpoint.unresolved(format!("timed out after {timeout:?}"))))
}

/// The address by which a node is told to others: of several that its name has the first where somebody listens.
pub async fn address_of(env: &Env, endpoint: &Endpoint, timeout: Duration) -> Result<SocketAddr, Failure> {
    let found = look_up(env, endpoint, timeout).await;
    let found = found.map_err(|error| Failure::unreachable(error.to_string()))?;
    Ok(if found.len() > 1 { first_that_listens(env, &found, timeout).await } else { found[0] })
}

/// The first of them where somebody listens, or the first.
async fn first_that_listens(env: &Env, found: &[SocketAddr], timeout: Duration) -> SocketAddr {
    for &addr in found {
        if let Ok(Ok(_)) = env.timeout(timeout / found.len() as u32, env.connect(addr)).await {
            return addr;
        }
    }
    found[0]
}

/// Connects and runs `work`; its failure is told with `verb` and the endpoints before it.
pub fn with_client<T>(
    global: &Global,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_options(global, |_| {}, verb, work)
}

/// The same with a client that is set up otherwise.
pub fn with_options<T>(
    global: &Global,
    change: impl FnOnce(&mut ClientOptions),
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let done = real::run(|env| async move {
        let mut options = options(&env, global).await?;
        change(&mut options);
        let client = Client::connect(&env, options).await?;
        work(env, client).await
    });
    done.map_err(|failure| failure.context(format_args!("{verb} at {}", endpoints(global))))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::cli::{self, Cli};
    use crate::config;
    use crate::failure::Exit;

    fn found(endpoints: &str) -> Result<Vec<SocketAddr>, Failure> {
        let command = config::apply(cli::command(), &config::File::default());
        let matches = command.try_get_matches_from(["ithaca", "log", "check", "--endpoint", endpoints]);
        let cli = Cli::from_arg_matches(&matches.expect(endpoints)).expect(endpoints);
        real::run(async |env| addresses(&env, &cli.global).await)
    }

    #[test]
    fn a_name_without_an_address_is_not_reached() {
        // RFC 6761: no such name is ever given to anybody.
        let Err(Failure::Told { exit, line: told }) = found("nobody.invalid:0") else {
            panic!("it is found")
        };
        assert_eq!(exit, Exit::Unreachable);
        assert!(told.starts_with("nobody.invalid:0: no address is known for this name: "), "{told}");
    }

    #[test]
    fn a_name_without_an_address_hides_no_other() {
        let found = found("nobody.invalid:0,127.0.0.1:0,localhost:0").expect("two have one");
        assert_eq!(found[0], SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(found.len() > 1 && found.iter().all(|addr| addr.ip().is_loopback()), "{found:?}");
    }

    #[test]
    fn a_node_is_told_of_by_the_address_of_its_name_where_it_listens() {
        // Where `localhost` is `::1` first, servers at 127.0.0.1 could not be made one cluster by it.
        real::run(async |env| {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = env.listen(any).expect("a free port");
            let nobody = env.listen(any).expect("a free port").local_addr();
            let second = Duration::from_secs(1);
            let found = [nobody, listener.local_addr()];
            assert_eq!(first_that_listens(&env, &found, second).await, listener.local_addr());
            assert_eq!(first_that_listens(&env, &[nobody, nobody], second).await, nobody);
        });
    }
}
