//! The one way out of the cage: a socket that leads to the gateway. Inside, the loopback address of the gateway is served
//! by this module (`reef` starts itself there) and goes through the socket; outside, the socket goes on to the gateway and
//! to nothing else.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// The hidden command of `reef` that runs inside.
pub const COMMAND: &str = "__bridge";
/// The socket's name in the home.
pub const SOCKET: &str = "gateway.sock";
/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;

/// Leads connections of the socket to the gateway, until dropped.
#[derive(Debug)]
pub struct Outside(JoinHandle<()>);

impl Outside {
    /// Makes the socket. `gateway`: host and port.
    pub fn open(socket: &Path, gateway: String) -> std::io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        Ok(Self(tokio::spawn(async move {
            let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
            while let Ok((mut inner, _)) = listener.accept().await {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let gateway = gateway.clone();
                tokio::spawn(async move {
                    if let Ok(mut outer) = tokio::net::TcpStream::connect(gateway).await {
                        // Either side may hang up; then both have ended.
                        let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
                    }
                    drop(place);
                });
            }
        })))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Inside: serves the port, runs the program, ends as it ends.
pub fn inside(socket: &Path, port: u16, program: &OsStr, arguments: &[OsString]) -> ExitCode {
    let listener = match TcpListener::bind(("127.0.0.1", port)) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("reef: port {port} cannot be served inside: {error}");
            return ExitCode::FAILURE;
        }
    };
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        let open = Arc::new(AtomicUsize::new(0));
        for stream in listener.incoming().flatten() {
            if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (socket, open) = (socket.clone(), Arc::clone(&open));
            std::thread::spawn(move || {
                // A connection that breaks is the program's to notice.
                let _ = lead(stream, &socket);
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    match Command::new(program).args(arguments).status() {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("reef: {} cannot be started inside: {error}", program.display());
            ExitCode::from(127)
        }
    }
}

fn lead(stream: TcpStream, socket: &Path) -> std::io::Result<()> {
    let way_out = UnixStream::connect(socket)?;
    let (mut from_program, mut to_gateway) = (stream.try_clone()?, way_out.try_clone()?);
    let asking = std::thread::spawn(move || {
        let done = copy(&mut from_program, &mut to_gateway);
        let _ = to_gateway.shutdown(Shutdown::Write);
        done
    });
    let (mut from_gateway, mut to_program) = (way_out, stream);
    let done = copy(&mut from_gateway, &mut to_program);
    let _ = to_program.shutdown(Shutdown::Both);
    let _ = from_gateway.shutdown(Shutdown::Both);
    let _ = asking.join();
    done
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    std::io::copy(from, to).map(drop)
}
