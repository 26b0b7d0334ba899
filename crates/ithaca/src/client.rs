//! Runs a client command: connects, does the work on one environment, and turns errors into exit codes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::{Env, real};
use ithaca_log::client::{Client, ClientError, ClientOptions, ErrorClass, Lookup, Observer};

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

/// The endpoints, for a line that says where something was tried.
pub fn endpoints(global: &Global) -> String {
    let endpoints: Vec<String> = global.endpoint.iter().map(ToString::to_string).collect();
    endpoints.join(",")
}

/// A failure with what was tried, and where, before it.
pub fn told_at(global: &Global, verb: &str, failure: Failure) -> Failure {
    failure.context(format_args!("{verb} at {}", endpoints(global)))
}

/// What an endpoint stands for; blocks while a name is looked up.
type Ask = fn(&Endpoint) -> Result<Vec<SocketAddr>, EndpointError>;

/// Has `connect` reach one of the endpoints, with what a command asks of its client: nothing is tried again at a later position behind the back
/// of a script. Endpoints that are addresses are tried at once, and names as soon as they have been looked up.
///
/// Errors: those of `connect`, followed by each name that no address is known for; unreachable, with those alone, if that is every endpoint.
async fn reach<T>(
    env: &Env,
    global: &Global,
    connect: impl AsyncFnOnce(ClientOptions, Vec<Lookup>) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    reach_by(env, global, Endpoint::addresses, connect).await
}

/// The same, with how names are looked up.
async fn reach_by<T>(
    env: &Env,
    global: &Global,
    ask: Ask,
    connect: impl AsyncFnOnce(ClientOptions, Vec<Lookup>) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    let endpoints = global.endpoint.iter().filter_map(Endpoint::address).collect();
    let options = ClientOptions { endpoints, timeout: global.timeout, ..ClientOptions::default() };
    let (mut lookups, without): (Vec<Lookup>, Rc<RefCell<BTreeMap<usize, EndpointError>>>) =
        Default::default();
    for (nth, name) in global.endpoint.iter().enumerate().filter(|(_, endpoint)| endpoint.address().is_none())
    {
        without.borrow_mut().insert(nth, name.unresolved("it is still being looked up".to_owned()));
        let (env, name, without) = (env.clone(), name.clone(), Rc::clone(&without));
        lookups.push(Box::pin(async move {
            let found = real::unblock(&env, move || ask(&name)).await;
            without.borrow_mut().remove(&nth);
            found.unwrap_or_else(|error| {
                without.borrow_mut().insert(nth, error);
                Vec::new()
            })
        }));
    }
    connect(options, lookups).await.map_err(|error| {
        let names: Vec<String> = without.borrow().values().map(ToString::to_string).collect();
        match names.len() == global.endpoint.len() {
            true => Failure::unreachable(names.join("; ")),
            false => names.into_iter().fold(error.into(), Failure::and),
        }
    })
}

/// The address by which a node is told to others: of several that its name has the first where somebody listens.
pub async fn address_of(env: &Env, endpoint: &Endpoint, timeout: Duration) -> Result<SocketAddr, Failure> {
    let asked = endpoint.clone();
    let found = env.timeout(timeout, real::unblock(env, move || asked.addresses())).await;
    let found = found.unwrap_or_else(|_| Err(endpoint.unresolved(format!("timed out after {timeout:?}"))));
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

/// Watches the cluster without using it.
pub async fn observe(env: &Env, global: &Global) -> Result<Observer, Failure> {
    reach(env, global, async |options, lookups| Observer::connect_by(env, options, lookups).await).await
}

/// Connects and runs `work`; its failure is told with `verb` and the endpoints before it. What certainly did not get its position is appended
/// at another.
pub fn with_client<T>(
    global: &Global,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    real::run(async |env| with_client_in(&env, global, verb, work).await)
}

/// The same in an environment that there is.
pub async fn with_client_in<T>(
    env: &Env,
    global: &Global,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let done = async { work(env.clone(), connect(env, global, true).await?).await };
    done.await.map_err(|failure| told_at(global, verb, failure))
}

/// The same as [`with_client`], for entries whose order matters: what does not get its own position is not appended at a later one.
pub fn with_client_in_order<T>(
    global: &Global,
    verb: &str,
    work: impl AsyncFnOnce(Env, Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let done = real::run(async |env| work(env.clone(), connect(&env, global, false).await?).await);
    done.map_err(|failure| told_at(global, verb, failure))
}

async fn connect(env: &Env, global: &Global, retry_appends: bool) -> Result<Client, Failure> {
    let connect = async |options, lookups| {
        Client::connect_by(env, ClientOptions { retry_appends, ..options }, lookups).await
    };
    reach(env, global, connect).await
}

#[cfg(test)]
pub mod tests {
    use std::sync::Barrier;

    use clap::FromArgMatches;

    use super::*;
    use crate::cli::{self, Cli};
    use crate::config;
    use crate::failure::Exit;

    /// A command with these endpoints, that waits for a second.
    pub fn given(endpoints: &str) -> Global {
        let command = config::apply(cli::command(), &config::File::default());
        let arguments = ["ithaca", "log", "check", "--timeout", "1s", "--endpoint", endpoints];
        let matches = command.try_get_matches_from(arguments).expect(endpoints);
        Cli::from_arg_matches(&matches).expect(endpoints).global
    }

    /// What a client that ends with `end` when all is looked up was given, and how that is told.
    fn tried(endpoints: &str, end: ClientError) -> (Vec<SocketAddr>, Failure) {
        let mut found = Vec::new();
        let told = real::run(async |env| {
            let connect = async |options: ClientOptions, lookups: Vec<Lookup>| -> Result<(), ClientError> {
                found.extend(options.endpoints);
                for lookup in lookups {
                    found.extend(lookup.await);
                }
                Err(end)
            };
            reach(&env, &given(endpoints), connect).await
        });
        (found, told.expect_err("it ends so"))
    }

    #[test]
    fn a_name_without_an_address_is_not_reached() {
        // RFC 6761: no such name is ever given to anybody.
        let (found, told) = tried("nobody.invalid:0", ClientError::NoEndpoint);
        let Failure::Told { exit, line } = told else { panic!("it is told") };
        assert_eq!((found.len(), exit), (0, Exit::Unreachable));
        assert!(line.starts_with("nobody.invalid:0: no address is known for this name: "), "{line}");
    }

    #[test]
    fn a_name_without_an_address_hides_no_other_and_is_named_where_none_is_reached() {
        let end = ClientError::NoCluster { addr: ([127, 0, 0, 1], 0).into() };
        let (found, told) = tried("nobody.invalid:0,127.0.0.1:0,localhost:0", end.clone());
        assert_eq!(found[0], SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(found.len() > 1 && found.iter().all(|addr| addr.ip().is_loopback()), "{found:?}");
        let Failure::Told { exit, line } = told else { panic!("it is told") };
        let expected = format!("{end}; nobody.invalid:0: no address is known for this name: ");
        assert!(exit == Exit::Unreachable && line.starts_with(&expected), "{line}");
    }

    #[test]
    fn what_is_an_address_is_tried_while_a_name_is_still_being_looked_up() {
        // A server that is asked for names and does not answer would hold up whoever has another endpoint for all of `--timeout`.
        static RESOLVER: Barrier = Barrier::new(2);
        let ask: Ask = |name| {
            RESOLVER.wait();
            name.addresses()
        };
        real::run(async |env| {
            let connect = async |options: ClientOptions, lookups: Vec<Lookup>| {
                assert_eq!(options.endpoints, [SocketAddr::from(([127, 0, 0, 1], 0))]);
                let lookups: Vec<_> = lookups.into_iter().map(|lookup| env.spawn(lookup)).collect();
                assert_eq!(lookups.len(), 1);
                env.yield_now().await;
                RESOLVER.wait();
                for lookup in lookups {
                    let found = lookup.join().await.expect("it ends");
                    assert!(
                        !found.is_empty() && found.iter().all(|addr| addr.ip().is_loopback()),
                        "{found:?}"
                    );
                }
                Ok(())
            };
            let reached = reach_by(&env, &given("localhost:0,127.0.0.1:0"), ask, connect).await;
            assert_eq!(reached, Ok(()));
            let connect = async |_, _| Err::<(), _>(ClientError::NoEndpoint);
            let told = reach_by(&env, &given("localhost:0"), ask, connect).await;
            let line = "localhost:0: no address is known for this name: it is still being looked up";
            assert_eq!(told, Err(Failure::unreachable(line)));
        });
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
