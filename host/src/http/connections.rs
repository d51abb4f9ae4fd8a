//! Clients' connections: how many there are, how long the head of a request may take, and how they end.
//! The host starts it with the router, which answers what comes. A connection over the limit waits to be accepted.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::config::HttpSection;

/// Pause after the system refused a connection, mostly for want of file descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a request's head; hyper answers a longer one with 431.
const HEAD_BYTES_MAX: usize = 128 << 10;
/// An HTTP/2 connection that does not answer a ping within this time is gone.
const PING: Duration = Duration::from_secs(20);

/// Answers connections until `stopped`, then lets the requests that run come to their end.
pub async fn serve(listener: TcpListener, router: Router, limits: &HttpSection, stopped: impl Future<Output = ()>) {
    raise_file_limit();
    let (server, peace) = (server(limits), GracefulShutdown::new());
    let room = Arc::new(Semaphore::new(limits.connections_max));
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
        let service = TowerToHyperService::new(router.clone());
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = peace.watch(connection);
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection");
            }
        });
    }
    drop(listener);
    peace.shutdown().await;
}

fn server(limits: &HttpSection) -> Builder<TokioExecutor> {
    let mut server = Builder::new(TokioExecutor::new());
    let head_max = Duration::from_secs(limits.head_seconds_max);
    server.http1().timer(TokioTimer::new()).header_read_timeout(head_max).max_buf_size(HEAD_BYTES_MAX);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
    server
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
                tokio::time::sleep(REFUSED_PAUSE).await;
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
