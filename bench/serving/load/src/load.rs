//! Sends chat completions to one server and prints what they took as one line of JSON.
//!
//!   load closed  URL CONNECTIONS SECONDS BODY_BYTES         each connection sends its next request when it has its answer
//!   load open    URL CONNECTIONS SECONDS BODY_BYTES RATE    RATE requests a second on a schedule, whatever the server does;
//!                                                           a time counts from the moment the schedule says, so a server
//!                                                           that stalls pays for every request that it kept waiting
//!   load streams URL CONNECTIONS SECONDS BODY_BYTES         CONNECTIONS streams at once; a time is that of one chunk, from
//!                                                           the upstream to here; SECONDS spreads their starts

mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use client::{Connection, Target};

/// What one connection measured.
#[derive(Default)]
struct Seen {
    nanoseconds: Vec<u64>,
    answered: u64,
    failed: u64,
    last_error: Option<String>,
}

impl Seen {
    fn note(&mut self, outcome: Result<Vec<u64>, String>) {
        match outcome {
            Ok(times) => {
                self.answered += 1;
                self.nanoseconds.extend(times);
            }
            Err(error) => {
                self.failed += 1;
                self.last_error = Some(error);
            }
        }
    }
}

struct Order {
    target: Target,
    connections: usize,
    span: Duration,
    rate: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word =
        |at: usize, name: &str| words.get(at).ok_or_else(|| format!("{name} is missing; see the head of load.rs"));
    let number = |at: usize, name: &str| -> Result<f64, String> {
        let text = word(at, name)?;
        let value: f64 = text.parse().map_err(|_| format!("{name} must be a number, and '{text}' is none"))?;
        if value > 0.0 { Ok(value) } else { Err(format!("{name} must be over 0")) }
    };
    let mode = word(0, "the kind of load")?.as_str();
    let order = Order {
        target: Target::new(word(1, "URL")?, number(4, "BODY_BYTES")? as usize, mode == "streams")?,
        connections: number(2, "CONNECTIONS")? as usize,
        span: Duration::from_secs_f64(number(3, "SECONDS")?),
        rate: if mode == "open" { number(5, "RATE")? } else { 0.0 },
    };
    let began = Instant::now();
    let seen = match mode {
        "closed" => closed(&order).await,
        "open" => open(&order).await,
        "streams" => streams(&order).await,
        other => return Err(format!("'{other}' is no kind of load; known are closed, open and streams")),
    };
    println!("{}", summary(seen, began.elapsed()));
    Ok(())
}

async fn closed(order: &Order) -> Seen {
    let end = Instant::now() + order.span;
    let mut tasks = JoinSet::new();
    for _ in 0..order.connections {
        let mut connection = Connection::new(order.target.clone());
        tasks.spawn(async move {
            let mut seen = Seen::default();
            while Instant::now() < end {
                let asked = Instant::now();
                let outcome = connection.ask().await;
                seen.note(outcome.map(|()| vec![nanoseconds(asked)]));
            }
            seen
        });
    }
    together(tasks).await
}

async fn open(order: &Order) -> Seen {
    let planned = (order.span.as_secs_f64() * order.rate) as u64;
    let period = Duration::from_secs_f64(1.0 / order.rate);
    // Connections are open before the schedule starts.
    let start = Instant::now() + Duration::from_millis(200);
    let due = Arc::new(Semaphore::new(0));
    let taken = Arc::new(AtomicU64::new(0));
    // A thread of its own keeps the schedule: the runtime's timer has steps of a millisecond.
    let pacer = Arc::clone(&due);
    std::thread::spawn(move || {
        for ticket in 0..planned {
            let at = start + period.mul_f64(ticket as f64);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            pacer.add_permits(1);
        }
        pacer.close();
    });
    let mut tasks = JoinSet::new();
    for _ in 0..order.connections {
        let mut connection = Connection::new(order.target.clone());
        let (due, taken) = (Arc::clone(&due), Arc::clone(&taken));
        tasks.spawn(async move {
            let mut seen = Seen::default();
            loop {
                match due.acquire().await {
                    Ok(permit) => permit.forget(),
                    // The schedule is over; what was not taken by then is taken here.
                    Err(_) if taken.load(Ordering::Relaxed) < planned => {}
                    Err(_) => return seen,
                }
                let ticket = taken.fetch_add(1, Ordering::Relaxed);
                if ticket >= planned {
                    return seen;
                }
                let scheduled = start + period.mul_f64(ticket as f64);
                let outcome = connection.ask().await;
                seen.note(outcome.map(|()| vec![nanoseconds(scheduled)]));
            }
        });
    }
    together(tasks).await
}

async fn streams(order: &Order) -> Seen {
    let mut tasks = JoinSet::new();
    for index in 0..order.connections {
        let mut connection = Connection::new(order.target.clone());
        let wait = order.span.mul_f64(index as f64 / order.connections as f64);
        tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            let mut seen = Seen::default();
            seen.note(connection.ask_stream().await);
            seen
        });
    }
    together(tasks).await
}

async fn together(mut tasks: JoinSet<Seen>) -> Seen {
    let mut all = Seen::default();
    while let Some(Ok(seen)) = tasks.join_next().await {
        all.nanoseconds.extend(seen.nanoseconds);
        all.answered += seen.answered;
        all.failed += seen.failed;
        all.last_error = all.last_error.or(seen.last_error);
    }
    all
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn summary(mut seen: Seen, took: Duration) -> Value {
    seen.nanoseconds.sort_unstable();
    let quantile = |share: f64| {
        let at = (seen.nanoseconds.len() as f64 * share) as usize;
        seen.nanoseconds.get(at.min(seen.nanoseconds.len().saturating_sub(1))).map(|ns| *ns as f64 / 1e6)
    };
    json!({
        "answered": seen.answered,
        "failed": seen.failed,
        "last_error": seen.last_error,
        "seconds": took.as_secs_f64(),
        "answered_per_second": seen.answered as f64 / took.as_secs_f64(),
        "times": seen.nanoseconds.len(),
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
    })
}
