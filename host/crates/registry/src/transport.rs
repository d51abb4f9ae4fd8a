//! One HTTP/1.1 request over one connection, in TLS unless the origin is plain. The session calls it.
//! It follows nothing, retries nothing and knows no credentials; head and body of an answer are bounded, and a
//! connection ends when its answer is dropped.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, HOST, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::RegistryError;
use crate::origin::{Address, Origin, is_public};

/// Time to reach one address of a host, and to agree on TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Time without a byte until a connection counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Addresses of one host that are tried.
const ADDRESSES_MAX: usize = 8;
/// Bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Headers of an answer.
const HEADERS_MAX: usize = 64;

/// A request.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) at: &'a Address,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Refuse addresses of this machine and of private networks.
    pub(crate) public_only: bool,
}

/// The head of an answer, and the connection that still carries its body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    _connection: JoinSet<()>,
}

/// Why there is no answer, or not all of it.
#[derive(Debug)]
pub(crate) enum Fault {
    /// May succeed when tried again.
    Passing(String),
    /// More bytes than the bound; the count of those declared or read.
    TooLong(u64),
    /// Will not succeed.
    Final(RegistryError),
}

/// Opens connections.
#[derive(Debug)]
pub(crate) struct Transport {
    root_certificates: Vec<Vec<u8>>,
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Transport {
    pub(crate) fn new(root_certificates: Vec<Vec<u8>>) -> Self {
        Self { root_certificates, tls: OnceLock::new() }
    }

    /// Sends the request and waits for the head of the answer.
    pub(crate) async fn send(&self, ask: Ask<'_>) -> Result<Answer, Fault> {
        let origin = &ask.at.origin;
        let tcp = connect(origin, ask.public_only).await?;
        if !origin.secure() {
            return exchange(tcp, ask).await;
        }
        let name = ServerName::try_from(origin.bare_host().to_owned())
            .map_err(|_| Fault::Final(RegistryError::Config(format!("'{}' is no name for TLS", origin.bare_host()))))?;
        let connector = TlsConnector::from(self.tls()?);
        let tls = within(CONNECT_MAX, "agreeing on TLS", connector.connect(name, tcp)).await?;
        exchange(tls, ask).await
    }

    /// TLS with the system's root certificates and the configured ones, read at the first use.
    fn tls(&self) -> Result<Arc<ClientConfig>, Fault> {
        let made = self.tls.get_or_init(|| tls_config(&self.root_certificates).map(Arc::new));
        made.clone().map_err(|problem| Fault::Final(RegistryError::Config(problem)))
    }
}

fn tls_config(extra: &[Vec<u8>]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for pem in extra {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate =
                certificate.map_err(|error| format!("a root certificate of the settings is no PEM: {error}"))?;
            roots
                .add(certificate)
                .map_err(|error| format!("a root certificate of the settings is not valid: {error}"))?;
        }
    }
    if roots.is_empty() {
        return Err(
            "there are no root certificates to trust registries by; install them (Debian: ca-certificates)".to_owned()
        );
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let versions =
        builder.with_safe_default_protocol_versions().map_err(|error| format!("TLS cannot be set up: {error}"))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}

async fn connect(origin: &Origin, public_only: bool) -> Result<TcpStream, Fault> {
    let found = within(CONNECT_MAX, "looking up the host", lookup_host((origin.bare_host(), origin.port()))).await?;
    let addresses: Vec<_> = found.take(ADDRESSES_MAX).filter(|a| !public_only || is_public(a.ip())).collect();
    if addresses.is_empty() && public_only {
        return Err(Fault::Final(RegistryError::Refused {
            origin: origin.to_string(),
            problem: "another registry sends us to it, and it lies in a private network; let that registry serve its \
                      files itself (docker-registry: storage.redirect.disable)"
                .to_owned(),
        }));
    }
    let mut last = Fault::Passing("the host has no address".to_owned());
    for address in addresses {
        match within(CONNECT_MAX, "connecting", TcpStream::connect(address)).await {
            Ok(connected) => return Ok(connected),
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

async fn exchange(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, ask: Ask<'_>) -> Result<Answer, Fault> {
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
    let (mut sender, connection) = builder.handshake(TokioIo::new(io)).await.map_err(passing)?;
    let mut driver = JoinSet::new();
    // The sender reports what goes wrong on the connection.
    driver.spawn(async move { drop(connection.await) });
    let mut request = Request::builder()
        .method(ask.method)
        .uri(&ask.at.path)
        .header(HOST, ask.at.origin.authority())
        .header(USER_AGENT, concat!("reef/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(ask.body))
        .map_err(|error| Fault::Final(RegistryError::Config(format!("the request cannot be written: {error}"))))?;
    request.headers_mut().extend(ask.headers);
    let (head, body) = sender.send_request(request).await.map_err(passing)?.into_parts();
    Ok(Answer { status: head.status, headers: head.headers, body, _connection: driver })
}

impl Answer {
    /// Bytes of the body as declared.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Reads the body, at most `bytes_max` bytes; a longer one is dropped at once.
    pub(crate) async fn read(mut self, bytes_max: u64) -> Result<Vec<u8>, Fault> {
        if let Some(declared) = self.declared().filter(|declared| *declared > bytes_max) {
            return Err(Fault::TooLong(declared));
        }
        let mut bytes: Vec<u8> = Vec::new();
        while let Some(frame) = timeout(SILENCE_MAX, self.body.frame()).await.map_err(|_| silent(bytes.len()))? {
            let frame = frame.map_err(|error| {
                Fault::Passing(format!("the answer ended after {} bytes ({})", bytes.len(), chain(&error)))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() as u64 + data.len() as u64 > bytes_max {
                return Err(Fault::TooLong(bytes.len() as u64 + data.len() as u64));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }
}

fn silent(bytes: usize) -> Fault {
    Fault::Passing(format!("no byte came for {} s after {bytes} bytes", SILENCE_MAX.as_secs()))
}

async fn within<T, E: std::error::Error>(
    limit: Duration,
    doing: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| Fault::Passing(format!("{doing}: {}", chain(&error)))),
        Err(_) => Err(Fault::Passing(format!("{doing}: no answer within {} s", limit.as_secs()))),
    }
}

fn passing(error: impl std::error::Error) -> Fault {
    Fault::Passing(chain(&error))
}

/// An error with its causes, which hyper keeps apart.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}
