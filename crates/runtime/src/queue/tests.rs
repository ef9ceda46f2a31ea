//! Tests of the queue: keys that are pushed, fail, or must be worked on later.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, Semaphore};

const QUICK: Options = Options {
    concurrency: 4,
    first_retry: Duration::from_millis(1),
    longest_retry: Duration::from_millis(2),
};

/// Names of tests' keys, all of one namespace.
impl Namespaced for &str {
    fn namespace(&self) -> &str {
        ""
    }
}

impl Namespaced for i32 {
    fn namespace(&self) -> &str {
        ""
    }
}

fn key(namespace: &str, name: usize) -> (String, String) {
    (namespace.to_owned(), name.to_string())
}

#[tokio::test(start_paused = true)]
async fn n8_the_slow_work_of_one_namespace_leaves_tasks_for_another() {
    let metrics = Metrics::new(crate::Service::EXAMPLE);
    let (queue, worker) = queue("test", QUICK, &metrics);
    let shutdown = CancellationToken::new();
    let (began, mut seen) = mpsc::unbounded_channel();
    for name in 0..100 {
        queue.push(key("slow", name));
    }
    queue.push(key("quick", 0));
    let work = worker.run(shutdown, move |(namespace, _)| {
        let began = began.clone();
        async move {
            began.send(namespace.clone()).unwrap();
            if namespace == "slow" {
                std::future::pending::<()>().await;
            }
            Outcome::Done
        }
    });
    let quick = async { while seen.recv().await.unwrap() != "quick" {} };
    tokio::select! {
        () = work => panic!("the worker ended"),
        quick = tokio::time::timeout(Duration::from_secs(1), quick) => quick.unwrap(),
    }
}

#[test]
fn n8_namespaces_take_turns() {
    let mut schedule = Schedule::new(QUICK);
    for (namespace, keys) in [("a", 3), ("b", 1), ("c", 2)] {
        (0..keys).for_each(|name| schedule.pushed(key(namespace, name)));
    }
    let mut order = String::new();
    while let Some(key) = schedule.next() {
        order += &key.0;
        schedule.finished(key, Outcome::Done);
    }
    assert_eq!(order, "abcaca");
    assert_eq!(schedule.ready.len(), 0);
}

#[tokio::test]
async fn a_key_pushed_during_its_work_is_worked_on_once_more() {
    let metrics = Metrics::new(crate::Service::EXAMPLE);
    let (queue, worker) = queue("test", QUICK, &metrics);
    let shutdown = CancellationToken::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let started = Arc::new(Notify::new());
    queue.push("run");
    let task = tokio::spawn({
        let (shutdown, runs) = (shutdown.clone(), runs.clone());
        let (gate, started) = (gate.clone(), started.clone());
        worker.run(shutdown, move |_| {
            let (runs, gate, started) = (runs.clone(), gate.clone(), started.clone());
            async move {
                started.notify_one();
                gate.acquire().await.unwrap().forget();
                runs.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        })
    });
    started.notified().await;
    queue.push("run");
    queue.push("run");
    // The worker must receive both pushes before the current work ends. Otherwise, the second push could cause a third run.
    tokio::task::yield_now().await;
    gate.add_permits(1);
    started.notified().await;
    gate.add_permits(1);
    drop(queue);
    task.await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn work_for_later_is_done_at_its_time_or_when_it_is_pushed() {
    const LATER: Duration = Duration::from_secs(20);
    let metrics = Metrics::new(crate::Service::EXAMPLE);
    let (queue, worker) = queue("test", QUICK, &metrics);
    let shutdown = CancellationToken::new();
    let (worked, mut seen) = mpsc::unbounded_channel();
    let began = tokio::time::Instant::now();
    queue.push(7);
    let task = tokio::spawn({
        let shutdown = shutdown.clone();
        worker.run(shutdown, move |_| {
            let worked = worked.clone();
            async move {
                worked.send(began.elapsed()).unwrap();
                Outcome::Later(LATER)
            }
        })
    });
    let mut next = async || seen.recv().await.unwrap();
    assert_eq!(next().await, Duration::ZERO);
    assert!(next().await >= LATER);
    let before = began.elapsed();
    queue.push(7);
    assert_eq!(next().await, before);
    shutdown.cancel();
    task.await.unwrap();
    let encoded = metrics.encode().unwrap();
    let line = r#"coscheduler_reconciles_total{queue="test",outcome="later"} 3"#;
    assert!(encoded.lines().any(|found| found == line), "{encoded}");
}

/// The push came after the failed work had begun, so perhaps this work has not seen the change.
#[tokio::test(start_paused = true)]
async fn a_key_pushed_during_work_that_fails_does_not_wait_for_the_backoff() {
    let options = Options {
        first_retry: Duration::from_secs(3600),
        longest_retry: Duration::from_secs(3600),
        ..QUICK
    };
    let metrics = Metrics::new(crate::Service::EXAMPLE);
    let (queue, worker) = queue("test", options, &metrics);
    let shutdown = CancellationToken::new();
    let (worked, mut seen) = mpsc::unbounded_channel();
    let began = tokio::time::Instant::now();
    queue.push(7);
    let task = tokio::spawn({
        let (shutdown, queue) = (shutdown.clone(), queue.clone());
        let pushes = Arc::new(AtomicUsize::new(2));
        worker.run(shutdown, move |key| {
            let (queue, worked, pushes) = (queue.clone(), worked.clone(), pushes.clone());
            async move {
                if pushes.load(Ordering::SeqCst) > 0 {
                    pushes.fetch_sub(1, Ordering::SeqCst);
                    queue.push(key);
                    tokio::task::yield_now().await;
                }
                worked.send(began.elapsed()).unwrap();
                Outcome::Retry
            }
        })
    });
    let mut next = async || seen.recv().await.unwrap();
    for _ in 0..3 {
        assert_eq!(next().await, Duration::ZERO);
    }
    assert!(next().await >= options.first_retry);
    shutdown.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn failed_work_is_retried_until_it_succeeds() {
    let metrics = Metrics::new(crate::Service::EXAMPLE);
    let (queue, worker) = queue("test", QUICK, &metrics);
    let shutdown = CancellationToken::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(Notify::new());
    queue.push(7);
    let task = tokio::spawn({
        let (shutdown, runs, done) = (shutdown.clone(), runs.clone(), done.clone());
        worker.run(shutdown, move |_| {
            let (runs, done) = (runs.clone(), done.clone());
            async move {
                if runs.fetch_add(1, Ordering::SeqCst) < 4 {
                    return Outcome::Retry;
                }
                done.notify_one();
                Outcome::Done
            }
        })
    });
    done.notified().await;
    shutdown.cancel();
    task.await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    let encoded = metrics.encode().unwrap();
    for line in [
        r#"coscheduler_reconciles_total{queue="test",outcome="done"} 1"#,
        r#"coscheduler_reconciles_total{queue="test",outcome="retry"} 4"#,
        r#"coscheduler_reconcile_seconds_count{queue="test"} 5"#,
        r#"coscheduler_queue_keys{queue="test",stage="retrying"} 0"#,
    ] {
        assert!(encoded.lines().any(|found| found == line), "{encoded}");
    }
}
