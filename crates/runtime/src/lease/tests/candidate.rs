//! A candidate with its campaign and its work. A test can pause it, like SIGSTOP.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::*;
use super::api_server::{ApiServer, Connection};

/// The defaults of the flags.
pub(super) const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// The time between two acts of the work.
const ACT: Duration = Duration::from_millis(200);

/// Records the acts of several candidates, with their times.
#[derive(Clone, Default)]
pub(super) struct Stage {
    leaderships: Arc<Mutex<Vec<Leadership>>>,
    acts: Arc<Mutex<Vec<(String, Instant)>>>,
}

/// One candidate.
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) connection: Connection,
    pub(super) leadership: Leadership,
    pub(super) shutdown: CancellationToken,
    pause: Arc<Pause>,
    campaign: JoinHandle<Result<(), LostLease>>,
    /// `None` after [`Self::check`] found that the work has ended.
    work: Option<JoinHandle<Result<Option<()>, LostLease>>>,
}

#[derive(Default)]
struct Pause {
    paused: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Stage {
    /// The names of the candidates that acted, in order. Consecutive acts of one candidate count once.
    pub(super) fn actors(&self) -> Vec<String> {
        let mut actors: Vec<_> = self
            .acts
            .lock()
            .unwrap()
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        actors.dedup();
        actors
    }

    /// The times of the first and the last act of a candidate.
    pub(super) fn span(&self, name: &str) -> (Instant, Instant) {
        let acts = self.acts.lock().unwrap();
        let mut of = acts
            .iter()
            .filter(|(actor, _)| actor == name)
            .map(|(_, at)| *at);
        let first = of.next().expect("it never acted");
        (first, of.next_back().unwrap_or(first))
    }

    /// The number of candidates that believe that they lead. Fails if there are two.
    pub(super) fn leading(&self) -> usize {
        let leaderships = self.leaderships.lock().unwrap();
        let leading = leaderships
            .iter()
            .filter(|leadership| leadership.is_held())
            .count();
        assert!(leading <= 1, "{leading} lead at once");
        leading
    }

    fn act(&self, name: &str) {
        assert_eq!(self.leading(), 1, "{name} acts");
        self.acts
            .lock()
            .unwrap()
            .push((name.to_owned(), Instant::now()));
    }
}

impl Candidate {
    /// Starts a candidate whose work acts until its shutdown.
    pub(super) fn start(stage: &Stage, server: &ApiServer, name: &str, timing: Timing) -> Self {
        let connection = Connection::default();
        let api = Api::<Lease>::namespaced(server.client(&connection), "ns");
        let shutdown = CancellationToken::new();
        let (campaign, leadership) =
            Campaign::new(api, "lease", name.to_owned(), timing, shutdown.clone());
        stage.leaderships.lock().unwrap().push(leadership.clone());
        let pause = Arc::new(Pause::default());
        let work = {
            let (stage, name, shutdown) = (stage.clone(), name.to_owned(), shutdown.clone());
            let acting = async move {
                while !shutdown.is_cancelled() {
                    stage.act(&name);
                    tokio::time::sleep(ACT).await;
                }
            };
            let leadership = leadership.clone();
            async move { leadership.lead(acting).await }
        };
        Self {
            name: name.to_owned(),
            connection,
            leadership,
            shutdown,
            campaign: tokio::spawn(pausable(pause.clone(), campaign.run())),
            work: Some(tokio::spawn(pausable(pause.clone(), work))),
            pause,
        }
    }

    pub(super) fn pause(&self) {
        self.pause.paused.store(true, Ordering::SeqCst);
    }

    pub(super) fn resume(&self) {
        self.pause.paused.store(false, Ordering::SeqCst);
        for waker in self.pause.wakers.lock().unwrap().drain(..) {
            waker.wake();
        }
    }

    /// True if its process would have ended by now.
    pub(super) fn has_ended(&self) -> bool {
        self.campaign.is_finished()
    }

    /// Waits for the end of the campaign and the work, and returns how they ended.
    pub(super) async fn end(self) -> Result<Option<()>, LostLease> {
        let campaign = self.campaign.await.unwrap();
        let work = self.work.unwrap().await.unwrap();
        assert_eq!(campaign.is_ok(), work.is_ok());
        work
    }

    /// Ends the candidate at once, as SIGKILL would.
    pub(super) fn kill(&self) {
        self.campaign.abort();
        self.work.iter().for_each(JoinHandle::abort);
    }

    /// Fails if the work noticed a second leader.
    pub(super) async fn check(&mut self) {
        // If the work panicked, the test fails. If the work was killed, it does not.
        if let Some(ended) = self.work.take_if(|work| work.is_finished())
            && let Err(error) = ended.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Polls nothing while paused.
async fn pausable<F: Future>(pause: Arc<Pause>, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        if pause.paused.load(Ordering::SeqCst) {
            pause.wakers.lock().unwrap().push(context.waker().clone());
            return Poll::Pending;
        }
        future.as_mut().poll(context)
    })
    .await
}
