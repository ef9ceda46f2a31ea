//! Tests of tasks: when the first task ends, the process stops in order, and a stop waits for graceful tasks.

use std::sync::Arc;

use anyhow::bail;
use coscheduler_runtime::GrpcServices;
use tokio::sync::Notify;

use super::{Running, within};

/// Checks the error of a process that stops because `task` ended.
#[track_caller]
fn check(
    task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    starts: &'static str,
    ends: &'static str,
) -> impl Future {
    async move {
        let running = Running::start(GrpcServices::new()).await;
        running.process.spawn("example loop", task);
        let reason = within(running.ended).await.unwrap().unwrap_err();
        let reason = format!("{reason:#}");
        assert!(
            reason.starts_with(starts) && reason.ends_with(ends),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn a_task_that_ends_ends_the_process() {
    check(async { Ok(()) }, r#"task "example loop" ended"#, "").await;
}

#[tokio::test]
async fn a_task_that_fails_ends_the_process() {
    check(
        async { bail!("lost the watch") },
        r#"task "example loop" failed: "#,
        ": lost the watch",
    )
    .await;
}

#[tokio::test]
async fn a_task_that_panics_ends_the_process() {
    check(
        async { panic!("out of luck") },
        r#"task "example loop" failed: "#,
        r#" panicked with message "out of luck""#,
    )
    .await;
}

#[tokio::test]
async fn a_failed_start_ends_the_process() {
    let args = coscheduler_runtime::ProcessArgs::loopback();
    let supervisor = coscheduler_runtime::Supervisor::bind(super::SERVICE, &args)
        .await
        .unwrap();
    let reason = within(supervisor.run(std::future::pending(), async { bail!("no cluster") }))
        .await
        .unwrap_err();
    assert_eq!(format!("{reason:#}"), "failed to start example: no cluster");
}

#[tokio::test]
async fn loops_go_on_until_graceful_tasks_have_finished() {
    let running = Running::start(GrpcServices::new()).await;
    let (asked, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));

    let (question, answer) = (asked.clone(), answered.clone());
    let alive = Arc::new(());
    let held = alive.clone();
    running
        .process
        .spawn("loop that is needed to the end", async move {
            let _held = held;
            loop {
                question.notified().await;
                answer.notify_one();
            }
        });
    let finished = Arc::new(Notify::new());
    let done = finished.clone();
    running
        .process
        .spawn_graceful("task that finishes", |shutdown| async move {
            shutdown.cancelled().await;
            asked.notify_one();
            answered.notified().await;
            done.notify_one();
            Ok(())
        });

    running.stopped().await.unwrap();
    within(finished.notified()).await;
    assert_eq!(Arc::strong_count(&alive), 1, "the loop is dropped by then");
}

#[tokio::test]
async fn a_task_that_fails_while_the_process_stops_does_not_turn_a_clean_stop_into_a_failure() {
    let running = Running::start(GrpcServices::new()).await;
    running
        .process
        .spawn_graceful("sore loser", |shutdown| async move {
            shutdown.cancelled().await;
            bail!("could not say goodbye")
        });
    running.stopped().await.unwrap();
}
