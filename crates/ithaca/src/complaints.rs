//! Warnings and errors on stderr: of each kind no more than somebody reads.
//!
//! A client that asks thousands of times for what fails would fill a disk with lines, and stop a server whose stderr is a pipe that nobody
//! empties. So a place in the program says it a number of times in a while; how often it did not is said before its next line.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use ithaca_env::real::process;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one place in a [`WINDOW`].
const LINES_MAX: u32 = 50;
const WINDOW: Duration = Duration::from_secs(10);

/// Leaves out what was said often enough.
#[derive(Default)]
pub struct Complaints {
    /// Few places ever complain.
    places: Mutex<Vec<(Identifier, Place)>>,
}

/// What one place in the program has said of late.
#[derive(Default)]
struct Place {
    began: Duration,
    said: u32,
    left_out: u64,
}

impl Place {
    /// Whether one more line is written, and then how many were left out before it.
    fn one_more(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.began) >= WINDOW {
            (self.began, self.said) = (now, 0);
        }
        if self.said == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S: Subscriber> Layer<S> for Complaints {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return true;
        }
        let Ok(mut places) = self.places.lock() else { return true };
        let here = metadata.callsite();
        let at = places.iter().position(|(place, _)| *place == here).unwrap_or_else(|| {
            places.push((here, Place::default()));
            places.len() - 1
        });
        let left_out = places[at].1.one_more(process::monotonic());
        drop(places);
        if let Some(count @ 1..) = left_out {
            // Where nothing can be written, that cannot be said either.
            _ = writeln!(std::io::stderr(), "({count} lines like the next one were left out)");
        }
        left_out.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_says_too_much_is_cut_short_and_tells_how_much_of_it() {
        let (mut place, at) = (Place::default(), Duration::from_millis);
        let first: Vec<_> = (0..100).map(|ms| place.one_more(at(ms))).collect();
        assert!(first[..50].iter().all(|said| *said == Some(0)) && first[50..].iter().all(Option::is_none));
        assert_eq!(place.one_more(at(9_999)), None);
        assert_eq!((place.one_more(at(10_000)), place.one_more(at(10_001))), (Some(51), Some(0)));
        assert_eq!(place.one_more(at(3_600_000)), Some(0));
    }
}
