//! Does anybody want something of a connection? HTTP/2 keeps one open as long as pings are answered, so a connection
//! that asks for nothing would keep its place for ever. Requests are counted from their heads to the last byte of their
//! answers.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct Activity {
    running: AtomicUsize,
    begun: AtomicU64,
}

impl Activity {
    /// Ends when for this long no request ran and none began.
    pub async fn idle(&self, time: Duration) {
        loop {
            let begun = self.begun.load(Ordering::Acquire);
            tokio::time::sleep(time).await;
            if self.running.load(Ordering::Acquire) == 0 && self.begun.load(Ordering::Acquire) == begun {
                return;
            }
        }
    }
}

/// A request that runs.
#[derive(Debug)]
struct Running(Arc<Activity>);

impl Running {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.running.fetch_add(1, Ordering::AcqRel);
        activity.begun.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(activity))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A service whose requests are counted.
#[derive(Debug, Clone)]
pub struct Watched<S> {
    inner: S,
    activity: Arc<Activity>,
}

impl<S> Watched<S> {
    /// Counts the requests of `inner`.
    pub fn new(inner: S, activity: Arc<Activity>) -> Self {
        Self { inner, activity }
    }
}

impl<S> Service<Request<Incoming>> for Watched<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<WatchedBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (running, answer) = (Running::begin(&self.activity), self.inner.call(request));
        Box::pin(async move { Ok(answer.await?.map(|inner| WatchedBody { inner, _running: running })) })
    }
}

/// A body whose request runs until it is dropped.
#[derive(Debug)]
pub struct WatchedBody {
    inner: Body,
    _running: Running,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
