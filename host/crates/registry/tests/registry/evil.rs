//! A registry that lies: HTTP/1.1 by hand over TCP, one request a connection, answers chosen by each test.
//! It counts what it was asked and what it got rid of; it ends when dropped.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Bytes of one request.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What the server was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The head as it came, in lower case.
    pub head: String,
}

/// A body, honest or not.
#[derive(Debug, Clone)]
pub enum Body {
    /// All of it, with its length.
    Whole(Vec<u8>),
    /// Ends with the connection, without a length.
    Unmeasured(Vec<u8>),
    /// Fewer bytes than declared, then the connection ends.
    Cut(usize, Vec<u8>),
    /// Zeros for ever, without a length.
    Endless,
    /// Zeros for ever in chunks.
    EndlessChunks,
    /// One byte, then a pause, for ever; declares this length.
    Dribble(usize),
    /// Not even HTTP.
    Garbage(Vec<u8>),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
}

impl Reply {
    pub fn ok(media_type: &str, body: Body) -> Self {
        Self { status: 200, headers: vec![("content-type", media_type.to_owned())], body }
    }

    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::Whole(Vec::new()) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A running server.
#[derive(Debug)]
pub struct Evil {
    /// `127.0.0.1:port`
    pub host: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    sent: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Evil {
    pub async fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let host = listener.local_addr().expect("bound").to_string();
        let (asked, sent) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let (answer, log, count) = (Arc::new(answer), Arc::clone(&asked), Arc::clone(&sent));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log, count) = (Arc::clone(&answer), Arc::clone(&log), Arc::clone(&count));
                connections.spawn(async move {
                    // A client that hangs up is what many of the tests want.
                    let _ = serve(stream, |asked| answer(asked), &log, &count).await;
                });
            }
        });
        Self { host, asked, sent, _tasks: tasks }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("unpoisoned").clone()
    }

    /// Requests whose path has this part.
    pub fn count(&self, part: &str) -> usize {
        self.asked().iter().filter(|asked| asked.path.contains(part)).count()
    }

    /// Body bytes that left, as far as the kernel took them.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

async fn serve(
    mut stream: TcpStream,
    answer: impl Fn(&Asked) -> Reply,
    log: &Mutex<Vec<Asked>>,
    sent: &AtomicU64,
) -> std::io::Result<()> {
    let Some(asked) = read_request(&mut stream).await? else { return Ok(()) };
    log.lock().expect("unpoisoned").push(asked.clone());
    let reply = answer(&asked);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let declared = match &reply.body {
        Body::Whole(bytes) => Some(bytes.len()),
        Body::Cut(length, _) | Body::Dribble(length) => Some(*length),
        _ => None,
    };
    if let Some(length) = declared {
        let _ = write!(head, "content-length: {length}\r\n");
    }
    if matches!(reply.body, Body::EndlessChunks) {
        head.push_str("transfer-encoding: chunked\r\n");
    }
    head.push_str("\r\n");
    if let Body::Garbage(bytes) = &reply.body {
        return stream.write_all(bytes).await;
    }
    stream.write_all(head.as_bytes()).await?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    send_body(&mut stream, reply.body, sent).await
}

async fn send_body(stream: &mut TcpStream, body: Body, sent: &AtomicU64) -> std::io::Result<()> {
    match body {
        Body::Whole(bytes) | Body::Unmeasured(bytes) | Body::Cut(_, bytes) | Body::Garbage(bytes) => {
            stream.write_all(&bytes).await?;
            sent.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            stream.shutdown().await
        }
        Body::Endless => loop {
            sent.fetch_add(stream.write(&[0; 16 * 1024]).await? as u64, Ordering::SeqCst);
        },
        Body::EndlessChunks => loop {
            let mut chunk = b"4000\r\n".to_vec();
            chunk.extend_from_slice(&[0; 0x4000]);
            chunk.extend_from_slice(b"\r\n");
            stream.write_all(&chunk).await?;
            sent.fetch_add(0x4000, Ordering::SeqCst);
        },
        Body::Dribble(_) => loop {
            stream.write_all(&[0]).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        },
    }
}

/// Reads the head and, by its length, the body.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Asked>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await?;
        // A TLS hello is none of ours.
        if count == 0 || part[0] == 0x16 || bytes.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        bytes.extend_from_slice(&part[..count]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let missing = (end + length.unwrap_or(0)).saturating_sub(bytes.len());
    let mut rest = vec![0; missing.min(REQUEST_BYTES_MAX)];
    stream.read_exact(&mut rest).await?;
    Ok(Some(Asked { method, path, head }))
}
