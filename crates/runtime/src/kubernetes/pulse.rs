//! Detects that the process was suspended (SIGSTOP, a frozen cgroup). When the process continues, its caches are old, and it
//! cannot find out when they are up to date again. So it writes nothing more and ends. The next process starts with new lists.
//! To detect a suspension, a task notes the time once a second (a beat).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Request;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Process;

const BEAT: Duration = Duration::from_secs(1);

/// The longest pause between two beats that is harmless. It equals the default of `--leader-elect-renew-deadline`, the time for
/// which a leader relies on its Lease without a renewal.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The process was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process was suspended for {} seconds; its caches are too old to act on", .0.as_secs())]
pub(super) struct Suspended(Duration);

/// The time of the last beat of this process.
#[derive(Clone, Debug)]
pub(super) struct Pulse(Arc<Mutex<Instant>>);

impl Pulse {
    /// Starts the beats of `process`. A pause that is too long ends the process.
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
        Self(Arc::new(Mutex::new(now)))
    }

    /// Lets every read through. Lets a write through only if the process was not suspended.
    ///
    /// # Errors
    /// The request writes, and the process was suspended.
    pub(super) fn pass<B>(&self, request: Request<B>) -> Result<Request<B>, Suspended> {
        if !request.method().is_safe() {
            check(*self.last(), Instant::now())?;
        }
        Ok(request)
    }

    fn beat(&self, now: Instant) -> Result<(), Suspended> {
        let mut last = self.last();
        check(*last, now)?;
        *last = now;
        Ok(())
    }

    fn last(&self) -> MutexGuard<'_, Instant> {
        // No panic can leave an instant half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(last: Instant, now: Instant) -> Result<(), Suspended> {
    let pause = now.saturating_duration_since(last);
    if pause > LONGEST_PAUSE {
        return Err(Suspended(pause));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_suspended_never_writes_again() {
        let start = Instant::now();
        let pulse = Pulse::new(start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.beat(after(10)), Ok(()));
        assert_eq!(pulse.beat(after(20)), Ok(()));
        assert_eq!(
            pulse.beat(after(31)),
            Err(Suspended(Duration::from_secs(11)))
        );
        // After a pause that was too long, every later beat fails too.
        assert_eq!(
            pulse.beat(after(32)),
            Err(Suspended(Duration::from_secs(12)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_between_a_pause_and_the_next_beat() {
        let pulse = Pulse::new(Instant::now());
        let passes = |method| {
            let request = Request::builder().method(method).body(()).unwrap();
            pulse.pass(request).is_ok()
        };
        tokio::time::advance(LONGEST_PAUSE).await;
        assert!(passes("POST") && passes("GET"));
        tokio::time::advance(BEAT).await;
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            assert!(!passes(method), "{method}");
        }
        assert!(passes("GET"));
    }
}
