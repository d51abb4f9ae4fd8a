//! When an upstream is asked again: only while nothing of an answer has come, and within bounds of number and time.
//! Pure decisions; `upstream` waits and asks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

/// The first pause; each later one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
/// The longest pause, also where the upstream asks for one: who must wait longer is told so instead.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// All pauses of one request together.
const PAUSES_MAX: Duration = Duration::from_secs(30);

/// A pause that is written with a point is shorter.
const SECONDS_MAX: f64 = 1e9;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days from 1 March of the year 0 to 1 January 1970.
const EPOCH_DAYS: i64 = 719_468;

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

/// `Retry-After`, in whole seconds, rounded up. A date counts from the answer's own, since clocks differ, or else from
/// `now_s`, seconds since the epoch.
pub fn asked_pause(headers: &HeaderMap, now_s: i64) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    if asked.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let seconds: f64 = asked.parse().ok()?;
        return (seconds.ceil() < SECONDS_MAX).then(|| Duration::from_secs(seconds.ceil() as u64));
    }
    let from = text(DATE).and_then(epoch_seconds).unwrap_or(now_s);
    Some(Duration::from_secs(u64::try_from(epoch_seconds(asked)? - from).unwrap_or(0)))
}

/// Seconds since the epoch of a date as HTTP has it: `Wed, 21 Oct 2015 07:28:00 GMT`.
fn epoch_seconds(date: &str) -> Option<i64> {
    let (_, rest) = date.split_once(", ")?;
    let mut fields = rest.split(' ');
    let day: i64 = fields.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = fields.next()?;
    let month = (0_i64..).zip(MONTHS).find_map(|(month, known)| (known == name).then_some(month))?;
    let year: i64 = fields.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock =
        fields.next()?.splitn(3, ':').map(|part| part.parse::<i64>().ok().filter(|part| (0..=60).contains(part)));
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    if fields.next() != Some("GMT") {
        return None;
    }
    // Days since the epoch, with a year that begins in March so that the leap day is its last.
    let (month, year) = if month < 2 { (month + 10, year - 1) } else { (month - 2, year) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - EPOCH_DAYS;
    Some(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
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
    fn seconds_fractions_and_dates_are_read() {
        const DATED: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
        let asked = |value: &str, date: Option<&str>| {
            let date = date.map(|date| (DATE, date.parse().expect("a header")));
            let asked = (RETRY_AFTER, value.parse().expect("a header"));
            asked_pause(&[asked].into_iter().chain(date).collect(), 1_445_412_470)
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (value, pause) in [("2", 2), ("0.2", 1), ("1.0", 1), ("59.5", 60), (DATED, 10)] {
            assert_eq!(asked(value, None), seconds(pause), "{value}");
        }
        assert_eq!(asked(DATED, Some("Wed, 21 Oct 2015 07:27:00 GMT")), seconds(60));
        assert_eq!(asked(DATED, Some("Wed, 21 Oct 2015 08:00:00 GMT")), seconds(0));
        for other in ["-1", "soon", "", ".", "1.5.2", "Wed, 21 Okt 2015 07:28:00 GMT", "99999999999999999999.0"] {
            assert_eq!(asked(other, None), None, "{other}");
        }
    }

    #[test]
    fn dates_become_seconds_since_the_epoch() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 1_445_412_480),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
        ] {
            assert_eq!(epoch_seconds(date), Some(seconds), "{date}");
        }
    }
}
