//! Whether this process has gone on without a break. One that stood still (SIGSTOP, a frozen cgroup) wakes up with old
//! caches and with calls in its sockets that were given up long ago, and nothing tells it when it has caught up. So it
//! writes nothing any more, and ends; the next process starts by listing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Process;

/// How often the process shows that it goes on.
const BEAT: Duration = Duration::from_secs(1);

/// The longest break that is none: as long as a leader counts on a Lease that it has not renewed.
const LONGEST_BREAK: Duration = Duration::from_secs(10);

/// The process stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process stood still for {} seconds; what it knows is too old to act on", .0.as_secs()
)]
pub(super) struct StoodStill(Duration);

/// The pulse of this process, felt before anything is written.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    last: Arc<Mutex<Instant>>,
}

impl Pulse {
    /// Watches over `process`: after a break it ends.
    pub(super) fn watch(process: &Process) -> Self {
        let pulse = Self::new(Instant::now());
        let beating = pulse.clone();
        process.spawn("pulse", async move {
            let mut beats = interval(BEAT);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                beats.tick().await;
                beating.beat(Instant::now())?;
            }
        });
        pulse
    }

    fn new(now: Instant) -> Self {
        Self {
            last: Arc::new(Mutex::new(now)),
        }
    }

    /// Lets a request pass that reads, and one that writes as long as the process has gone on.
    ///
    /// # Errors
    /// It stood still, and will not write again.
    pub(super) fn pass<B>(&self, request: Request<B>) -> Result<Request<B>, StoodStill> {
        if !request.method().is_safe() {
            gone_on(*self.last(), Instant::now())?;
        }
        Ok(request)
    }

    fn beat(&self, now: Instant) -> Result<(), StoodStill> {
        let mut last = self.last();
        gone_on(*last, now)?;
        *last = now;
        Ok(())
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Instant> {
        // A panic elsewhere cannot leave an instant half-written.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gone_on(last: Instant, now: Instant) -> Result<(), StoodStill> {
    let pause = now.saturating_duration_since(last);
    if pause > LONGEST_BREAK {
        return Err(StoodStill(pause));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stood_still_is_never_trusted_again() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.beat(after(10)), Ok(()));
        assert_eq!(pulse.beat(after(20)), Ok(()));
        assert_eq!(
            pulse.beat(after(31)),
            Err(StoodStill(Duration::from_secs(11)))
        );
        // The break stays where it was: a later beat does not begin anew.
        assert_eq!(
            pulse.beat(after(32)),
            Err(StoodStill(Duration::from_secs(12)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_between_a_break_and_the_next_beat() {
        let pulse = Pulse::new(Instant::now());
        let passes = |method| {
            let request = Request::builder().method(method).body(()).unwrap();
            pulse.pass(request).is_ok()
        };
        tokio::time::advance(LONGEST_BREAK).await;
        assert!(passes("POST") && passes("GET"));
        tokio::time::advance(BEAT).await;
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            assert!(!passes(method), "{method}");
        }
        assert!(passes("GET"));
    }
}
