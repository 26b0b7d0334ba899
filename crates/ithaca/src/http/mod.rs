//! Health and metrics over HTTP: `/metrics`, `/livez`, `/readyz`, `/version`, and `/`, a page that lists them.
//!
//! It reads and never changes anything. Connections are few and short: each carries one request and ends by a deadline,
//! and past [`CONNECTIONS_MAX`] the oldest is closed for a new one, so that they cannot take memory from the log, nor those that ask
//! nothing keep others from an answer.

mod io;
mod metrics;
mod page;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use ithaca_env::Env;
use ithaca_env::net::{Conn, Listener};
use ithaca_env::task::TaskHandle;
use ithaca_log::wire::NodeStatus;

use io::HyperIo;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// Time for a connection: a request and its answer.
const CONNECTION_SPAN: Duration = Duration::from_secs(10);
/// The wait after an accept that failed, for want of descriptors perhaps.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// What the pages are made of.
pub trait Source {
    /// What each node of this process says of itself.
    fn nodes(&self) -> Vec<NodeStatus>;
    /// Whether clients are served.
    fn is_ready(&self) -> bool;
    /// Where clients connect.
    fn log_addr(&self) -> SocketAddr;
}

/// A server of pages. It serves until it is dropped.
pub struct Server {
    task: TaskHandle<()>,
}

impl Server {
    /// Serves `source` to those who connect to `listener`.
    pub fn start(env: &Env, listener: Listener, source: Rc<dyn Source>) -> Self {
        Self { task: env.spawn(accept_all(env.clone(), listener, source)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept_all(env: Env, listener: Listener, source: Rc<dyn Source>) {
    let open = Rc::new(RefCell::new(BTreeMap::<u64, TaskHandle<()>>::new()));
    for number in 0.. {
        let conn = match listener.accept().await {
            Ok(conn) => conn,
            Err(error) => {
                tracing::warn!(%error, "http: accept");
                env.sleep(ACCEPT_WAIT).await;
                continue;
            }
        };
        let (env_of_task, source, open_of_task) = (env.clone(), Rc::clone(&source), Rc::clone(&open));
        let task = env.spawn(async move {
            // A peer that is slow or speaks something else is cut off: nothing to say to it, nobody to tell.
            let _ = env_of_task.timeout(CONNECTION_SPAN, serve(conn, source)).await;
            open_of_task.borrow_mut().remove(&number);
        });
        let mut open = open.borrow_mut();
        open.insert(number, task);
        if open.len() > CONNECTIONS_MAX
            && let Some((_, oldest)) = open.pop_first()
        {
            oldest.abort();
        }
    }
}

async fn serve(conn: Conn, source: Rc<dyn Source>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &*source);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new().keep_alive(false).serve_connection(HyperIo::new(conn), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "http: connection");
    }
}

/// The answer to one request.
fn answer(method: &Method, path: &str, source: &dyn Source) -> Response<String> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/" => typed(StatusCode::OK, "text/html; charset=utf-8", page::index(source)),
        "/metrics" => typed(StatusCode::OK, metrics::CONTENT_TYPE, metrics::render(&source.nodes())),
        "/livez" => text(StatusCode::OK, "ok\n".into()),
        "/readyz" if source.is_ready() => text(StatusCode::OK, "ok\n".into()),
        "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n".into()),
        "/version" => {
            let version = crate::json::Object::new().string("version", env!("CARGO_PKG_VERSION")).finish();
            typed(StatusCode::OK, "application/json", format!("{version}\n"))
        }
        _ => text(StatusCode::NOT_FOUND, "not found; / lists what is here\n".into()),
    }
}

fn text(status: StatusCode, body: String) -> Response<String> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use ithaca_env::real;

    use super::*;

    struct Fake {
        ready: bool,
        nodes: usize,
    }

    impl Source for Fake {
        fn nodes(&self) -> Vec<NodeStatus> {
            vec![NodeStatus { cpu_us: 1_500_000, ..NodeStatus::default() }; self.nodes]
        }

        fn is_ready(&self) -> bool {
            self.ready
        }

        fn log_addr(&self) -> SocketAddr {
            SocketAddr::from(([127, 0, 0, 1], 0))
        }
    }

    /// Sends `request` to a server on a free port and returns all that it answers.
    fn ask(ready: bool, request: &'static str) -> String {
        real::run(|env| async move {
            let listener = env.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
            let addr = listener.local_addr();
            let _server = Server::start(&env, listener, Rc::new(Fake { ready, nodes: 1 }));
            all_of(&env, addr, request).await
        })
    }

    /// All that a server answers to `request`.
    async fn all_of(env: &Env, addr: SocketAddr, request: &str) -> String {
        let mut conn = env.connect(addr).await.expect("it listens");
        conn.writer.push(|out| out.put_slice(request.as_bytes()));
        let mut got = BytesMut::new();
        while conn.reader.read(&mut got).await.is_ok_and(|len| len > 0) {}
        String::from_utf8(got.to_vec()).expect("text")
    }

    #[test]
    fn every_page_that_the_index_names_is_there() {
        let index = ask(true, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        for path in ["/metrics", "/livez", "/readyz", "/version"] {
            assert!(index.contains(&format!("href=\"{path}\"")), "{index}");
            let response = answer(&Method::GET, path, &Fake { ready: true, nodes: 1 });
            assert_eq!(response.status(), StatusCode::OK, "{path}");
        }
    }

    #[test]
    fn a_scrape_gets_metrics_and_the_connection_ends() {
        let got = ask(true, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
        assert!(got.contains("\nithaca_node_cpu_seconds_total{node=\"0\"} 1.500000\n"), "{got}");
    }

    #[test]
    fn a_page_is_whole_however_large_it_is_and_however_late_its_reader_begins() {
        // More than the system takes at once. The connection is not closed before the rest has gone out.
        let got = real::run(|env| async move {
            let listener = env.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
            let addr = listener.local_addr();
            let _server = Server::start(&env, listener, Rc::new(Fake { ready: true, nodes: 50_000 }));
            let mut conn = env.connect(addr).await.expect("it listens");
            conn.writer.push(|out| out.put_slice(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n"));
            // What another connection is told comes after all that could be sent on this one.
            all_of(&env, addr, "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
            let mut got = BytesMut::new();
            while conn.reader.read(&mut got).await.is_ok_and(|len| len > 0) {}
            String::from_utf8(got.to_vec()).expect("text")
        });
        let (head, body) = got.split_once("\r\n\r\n").expect("a head");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.expect("a length").parse::<usize>().expect("a number");
        assert!(length > 8 << 20, "{length}");
        assert_eq!(body.len(), length);
    }

    #[test]
    fn a_node_that_is_not_ready_is_alive_all_the_same() {
        assert!(ask(false, "GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n").starts_with("HTTP/1.1 503 "));
        assert!(ask(false, "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn connections_that_ask_nothing_keep_nobody_from_an_answer() {
        real::run(|env| async move {
            let listener = env.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
            let addr = listener.local_addr();
            let _server = Server::start(&env, listener, Rc::new(Fake { ready: true, nodes: 1 }));
            let mut idle = Vec::new();
            for _ in 0..=CONNECTIONS_MAX {
                idle.push(env.connect(addr).await.expect("it listens"));
            }
            assert!(
                all_of(&env, addr, "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
                    .await
                    .starts_with("HTTP/1.1 200 ")
            );
            // The two oldest are closed, the others are not.
            for closed in &mut idle[..2] {
                assert!(!closed.reader.read(&mut BytesMut::new()).await.is_ok_and(|len| len > 0));
            }
            idle[2].writer.push(|out| out.put_slice(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"));
            assert!(idle[2].reader.read(&mut BytesMut::new()).await.is_ok_and(|len| len > 0));
        });
    }

    #[test]
    fn what_is_not_there_and_what_would_change_something_are_refused() {
        assert!(ask(true, "GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(true, "DELETE / HTTP/1.1\r\nhost: a\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(true, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }
}
