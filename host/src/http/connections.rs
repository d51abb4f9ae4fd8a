//! Clients' connections: how many there are, how long one may ask for nothing, and how they end.
//! The host starts it with the router, which answers what comes. A connection over the limit waits to be accepted; one
//! that does not say what it wants, or wants nothing any more, makes way.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::activity::{Activity, Watched};
use crate::config::HttpSection;

/// Pause after the system refused a connection, mostly for want of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a request's head; hyper answers a longer one with 431.
const HEAD_BYTES_MAX: usize = 128 << 10;
/// An HTTP/2 connection that does not answer a ping within this time is gone.
const PING: Duration = Duration::from_secs(20);
/// What an HTTP/2 connection begins with. Until the bytes differ, nobody knows which protocol is spoken.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time between two looks at a connection whose first bytes have come in part.
const PREFACE_PAUSE: Duration = Duration::from_millis(50);

/// Answers connections until `stopped`, then lets the requests that run come to their end.
pub async fn serve(listener: TcpListener, router: Router, limits: &HttpSection, stopped: impl Future<Output = ()>) {
    raise_file_limit();
    let (server, ending) = (server(limits), watch::Sender::new(false));
    let places = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(places as usize));
    let idle_max = Duration::from_secs(limits.head_seconds_max);
    let mut stopped = pin!(stopped);
    loop {
        let accepted = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, accept(&listener).await)
        };
        let (place, stream) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stopped => break,
        };
        let (server, router, ended) = (server.clone(), router.clone(), ending.subscribe());
        tokio::spawn(async move {
            let _place = place;
            connection(server, router, stream, (idle_max, ended)).await;
        });
    }
    drop(listener);
    ending.send_replace(true);
    // Every connection holds a place to its end.
    let _ = room.acquire_many(places).await;
}

fn server(limits: &HttpSection) -> Builder<TokioExecutor> {
    let mut server = Builder::new(TokioExecutor::new());
    let head_max = Duration::from_secs(limits.head_seconds_max);
    server.http1().timer(TokioTimer::new()).header_read_timeout(head_max).max_buf_size(HEAD_BYTES_MAX);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    server
}

/// One connection to its end.
async fn connection(
    server: Builder<TokioExecutor>,
    router: Router,
    stream: TcpStream,
    (idle_max, mut ended): (Duration, watch::Receiver<bool>),
) {
    tokio::select! {
        spoke = timeout(idle_max, speaks(&stream)) => if !matches!(spoke, Ok(Ok(()))) { return },
        _ = ended.wait_for(|ended| *ended) => return,
    }
    let activity = Arc::new(Activity::default());
    let service = Watched::new(TowerToHyperService::new(router), Arc::clone(&activity));
    let mut serving = pin!(server.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        done = serving.as_mut() => return told(done),
        () = activity.idle(idle_max) => {}
        _ = ended.wait_for(|ended| *ended) => {}
    }
    serving.as_mut().graceful_shutdown();
    told(serving.await);
}

/// Waits until the first bytes tell the protocol; from then on hyper's own time-outs hold.
async fn speaks(stream: &TcpStream) -> io::Result<()> {
    let mut seen = [0; PREFACE.len()];
    loop {
        let count = stream.peek(&mut seen).await?;
        let begun = seen.get(..count).is_some_and(|seen| PREFACE.starts_with(seen));
        if count == 0 || count == PREFACE.len() || !begun {
            return Ok(());
        }
        sleep(PREFACE_PAUSE).await;
    }
}

fn told(done: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = done {
        tracing::debug!(%error, "connection");
    }
}
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // The frames of a stream are small and must not wait for each other.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "connection.nodelay");
                }
                return stream;
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::error!(%error, "connections cannot be accepted; raise the limit of open files or lower http.connections_max");
                sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Systems allow 1,024 open files unless a program asks for what it may have.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "connections.file_limit");
    }
}
