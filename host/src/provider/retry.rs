//! When an upstream is asked again: only while nothing of an answer has come, and within bounds of number and time.
//! Pure decisions; `upstream` waits and asks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The first pause; each later one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause, also where the upstream asks for one: who must wait longer is told so instead.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// All pauses of one request together.
const PAUSES_MAX: Duration = Duration::from_secs(30);

/// The tries of one request.
#[derive(Debug)]
pub struct Tries {
    left: u32,
    made: u32,
    waited: Duration,
    /// Makes the pauses of requests that failed together differ.
    salt: u64,
}

impl Tries {
    /// `retries_max` tries after the first.
    pub fn new(retries_max: u32, salt: u64) -> Self {
        Self { left: retries_max, made: 0, waited: Duration::ZERO, salt }
    }

    /// How long to wait before the next try; none if there is none.
    pub fn next_pause(&mut self, asked: Option<Duration>) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let pause = asked.unwrap_or_else(|| self.backoff());
        self.made += 1;
        self.waited = self.waited.saturating_add(pause);
        (pause <= PAUSE_MAX && self.waited <= PAUSES_MAX).then_some(pause)
    }

    /// From half the pause to all of it.
    fn backoff(&self) -> Duration {
        let full = PAUSE_FIRST.saturating_mul(1 << self.made.min(16)).min(PAUSE_MAX);
        let mut hasher = DefaultHasher::new();
        (self.salt, self.made).hash(&mut hasher);
        let share = (hasher.finish() % 1024) as u32;
        full / 2 + full / 2 * share / 1024
    }
}

/// Statuses after which the same request may succeed, and which mean that none was answered.
pub fn is_passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504 | 529)
}

/// `Retry-After` in seconds; dates are not read, since clocks differ.
pub fn asked_pause(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_differ_and_end() {
        let pauses = |salt| {
            let mut tries = Tries::new(10, salt);
            std::iter::from_fn(move || tries.next_pause(None)).collect::<Vec<_>>()
        };
        let (first, second) = (pauses(1), pauses(2));
        assert_ne!(first, second);
        assert!(first.windows(2).take(4).all(|pair| pair[0] < pair[1]), "{first:?}");
        assert!(first.iter().sum::<Duration>() <= PAUSES_MAX);
        assert_eq!(pauses(1), first);
        assert_eq!(Tries::new(0, 1).next_pause(None), None);
    }

    #[test]
    fn what_the_upstream_asks_for_is_honoured_up_to_a_bound() {
        let mut tries = Tries::new(4, 0);
        assert_eq!(tries.next_pause(Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(tries.next_pause(Some(Duration::from_secs(u64::MAX))), None);
        assert_eq!(tries.next_pause(Some(Duration::from_secs(u64::MAX))), None);
    }

    #[test]
    fn only_whole_seconds_are_read() {
        let asked = |value: &str| {
            let headers = [(RETRY_AFTER, value.parse().expect("a header"))].into_iter().collect();
            asked_pause(&headers)
        };
        assert_eq!(asked("2"), Some(Duration::from_secs(2)));
        for other in ["-1", "soon", "", "Wed, 21 Oct 2015 07:28:00 GMT", "99999999999999999999"] {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
