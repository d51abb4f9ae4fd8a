//! A small HTTP server for the tests of the install script: fixed answers by the start of the request line, and a list
//! of what was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

#[derive(Clone)]
pub struct Answer {
    code: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    pub fn ok(body: &str) -> Self {
        Self { code: 200, headers: Vec::new(), body: body.to_owned() }
    }

    pub fn code(self, code: u16) -> Self {
        Self { code, ..self }
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

#[derive(Clone)]
pub struct Request {
    pub head: String,
    pub body: String,
}

impl Request {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

#[derive(Default)]
struct State {
    answers: Vec<(String, Answer)>,
    seen: Vec<Request>,
    stopped: bool,
}

pub struct Server {
    pub url: String,
    address: String,
    state: Arc<Mutex<State>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(Mutex::new(State::default()));
        let own = Arc::clone(&state);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if own.lock().expect("state").stopped {
                    return;
                }
                // A client that goes away is its own business.
                let _ended = serve(stream, &own);
            }
        });
        Self { url: format!("http://{address}"), address, state, thread: Some(thread) }
    }

    /// The answer to requests whose first line starts so; the last one given and longest start wins.
    pub fn answer(&self, start: &str, answer: Answer) {
        let mut state = self.state.lock().expect("state");
        state.answers.retain(|(own, _)| own != start);
        state.answers.push((start.to_owned(), answer));
        state.answers.sort_by_key(|(own, _)| std::cmp::Reverse(own.len()));
    }

    pub fn seen(&self) -> Vec<Request> {
        self.state.lock().expect("state").seen.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.lock().expect("state").stopped = true;
        let _woken = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().expect("a length"))];
    reader.read_exact(&mut body)?;
    let answer = {
        let mut state = state.lock().expect("state");
        let found =
            state.answers.iter().find(|(start, _)| head.starts_with(start.as_str())).map(|(_, answer)| answer.clone());
        state.seen.push(Request { head: head.clone(), body: String::from_utf8(body).expect("UTF-8") });
        found.unwrap_or_else(|| Answer::ok("{}").code(404))
    };
    let headers: String = answer.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = answer.body.len();
    write!(stream, "HTTP/1.1 {} x\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n", answer.code)?;
    if !head.starts_with("HEAD") {
        stream.write_all(answer.body.as_bytes())?;
    }
    stream.flush()
}
