//! A git server with LFS on a free port of this machine: git's own CGI program for git, and the basic transfer of the
//! LFS specification for objects. One request for each connection.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

/// Serves `root/remote.git` until dropped.
pub struct Server {
    address: String,
    stop: Arc<AtomicBool>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Server {
    pub fn start(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let (root, own, stopped) = (root.to_owned(), address.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (root, own) = (root.clone(), own.clone());
                // A client that hangs up is its own affair.
                std::thread::spawn(move || answer(&stream, &root, &own));
            }
        });
        Self { address, stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}/remote.git", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(&self.address));
    }
}

fn answer(stream: &TcpStream, root: &Path, address: &str) -> Option<()> {
    let request = read(stream)?;
    let repository = root.join("remote.git");
    let reply = match request.path.split('/').collect::<Vec<_>>()[..] {
        ["", "remote.git", "info", "lfs", "objects", "batch"] => {
            let wanted: Value = serde_json::from_slice(&request.body).ok()?;
            reply("200 OK", "application/vnd.git-lfs+json", batch(&wanted, &repository, address).to_string().as_bytes())
        }
        ["", "objects", sha256] => {
            let path = object(&repository, sha256)?;
            if request.method == "PUT" {
                fs::create_dir_all(path.parent()?).ok()?;
                fs::write(path, &request.body).ok()?;
                reply("200 OK", "text/plain", b"")
            } else {
                reply("200 OK", "application/octet-stream", &fs::read(path).ok()?)
            }
        }
        _ => backend(&request, root)?,
    };
    let mut stream = stream;
    stream.write_all(&reply).ok()
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if headers.contains_key("expect") {
        let mut stream = stream;
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            line.clear();
            reader.read_line(&mut line).ok()?;
            let size = u64::from_str_radix(line.trim(), 16).ok()?;
            reader.by_ref().take(size).read_to_end(&mut body).ok()?;
            reader.read_line(&mut line).ok()?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = headers.get("content-length") {
        reader.take(length.parse().ok()?).read_to_end(&mut body).ok()?;
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    Some(Request { method, path: path.to_owned(), query: query.to_owned(), headers, body })
}

fn reply(status: &str, media_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn object(repository: &Path, sha256: &str) -> Option<PathBuf> {
    Some(repository.join("lfs/objects").join(sha256.get(..2)?).join(sha256.get(2..4)?).join(sha256))
}

fn batch(wanted: &Value, repository: &Path, address: &str) -> Value {
    let operation = wanted["operation"].as_str().unwrap_or_default();
    let one = |object_wanted: &Value| {
        let sha256 = object_wanted["oid"].as_str().unwrap_or_default();
        let there = object(repository, sha256).is_some_and(|path| path.is_file());
        let mut told = object_wanted.clone();
        match (operation, there) {
            ("upload", true) => {}
            ("download", false) => {
                told["error"] = json!({ "code": 404, "message": "Object does not exist on the server" })
            }
            _ => told["actions"] = json!({ operation: { "href": format!("http://{address}/objects/{sha256}") } }),
        }
        told
    };
    let objects: Vec<Value> = wanted["objects"].as_array().into_iter().flatten().map(one).collect();
    json!({ "transfer": "basic", "objects": objects })
}

fn backend(request: &Request, root: &Path) -> Option<Vec<u8>> {
    let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "test")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", &request.path)
        .env("QUERY_STRING", &request.query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut input = child.stdin.take()?;
    let body = request.body.clone();
    let writer = std::thread::spawn(move || input.write_all(&body));
    let output = child.wait_with_output().ok()?.stdout;
    drop(writer.join());
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let (head, rest) = (String::from_utf8_lossy(output.get(..end)?), output.get(end + 4..)?);
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
    let status = field("Status:").unwrap_or_else(|| "200 OK".to_owned());
    Some(reply(&status, &field("Content-Type:").unwrap_or_default(), rest))
}
