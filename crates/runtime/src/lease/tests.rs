//! Tests of candidates with a paused clock and a scripted API server. Each test here plays one scene. Module `schedule` plays
//! random schedules of pauses, partitions, lost and late answers, deletions, stops and crashes.

mod api_server;
mod candidate;
mod schedule;

use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use tokio::time::{Instant, sleep};

use super::*;
use api_server::{ApiServer, Fault};
use candidate::{Candidate, Stage, TIMING};

const SECOND: Duration = Duration::from_secs(1);

/// Waits until `candidate` leads, and returns how long that took.
async fn led(candidate: &Candidate) -> Duration {
    let start = Instant::now();
    while !candidate.leadership.is_held() {
        sleep(Duration::from_millis(10)).await;
        assert!(
            start.elapsed() < 60 * SECOND,
            "{} does not lead",
            candidate.name
        );
    }
    start.elapsed()
}

/// Starts two candidates: the first leads, the second is the standby.
async fn two(stage: &Stage, server: &ApiServer) -> (Candidate, Candidate) {
    let leader = Candidate::start(stage, server, "a", TIMING);
    led(&leader).await;
    let standby = Candidate::start(stage, server, "b", TIMING);
    sleep(SECOND).await;
    (leader, standby)
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_at_once_and_renewed_sparingly() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let leader = Candidate::start(&stage, &server, "a", TIMING);
    assert!(led(&leader).await < SECOND);
    let standby = Candidate::start(&stage, &server, "b", TIMING);
    sleep(600 * SECOND).await;
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());
    // The leader writes twice in ten seconds, and the standby does not write.
    assert!(server.changes() <= 122, "{}", server.changes());
    assert_eq!(stage.actors(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_absent_may_have_been_deleted_under_its_holder_so_its_duration_is_waited_out()
 {
    let (stage, server) = (Stage::default(), ApiServer::new());
    let leader = Candidate::start(&stage, &server, "a", TIMING);
    let waited = led(&leader).await;
    assert!(
        waited >= TIMING.lease_duration && waited < TIMING.lease_duration + 3 * SECOND,
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_paused_leader_is_succeeded_after_the_duration_and_never_acts_again() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    leader.pause();
    let waited = led(&standby).await;
    assert!(
        waited > TIMING.lease_duration - TIMING.renew_deadline / 2,
        "{waited:?}"
    );
    assert!(waited < TIMING.lease_duration + SECOND, "{waited:?}");
    sleep(20 * SECOND).await;
    assert!(!leader.leadership.is_held());
    leader.resume();
    assert_eq!(leader.end().await.unwrap_err().lease, "lease");
    let (_, last) = stage.span("a");
    let (first, _) = stage.span("b");
    assert!(last < first);
    assert_eq!(stage.actors(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_ends_its_work_and_is_succeeded_at_once() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    leader.shutdown.cancel();
    assert!(led(&standby).await < SECOND);
    assert_eq!(leader.end().await, Ok(Some(())));
    assert!(server.holders().contains(&String::new()));
    let (_, last) = stage.span("a");
    let (first, _) = stage.span("b");
    assert!(last < first);
}

#[tokio::test(start_paused = true)]
async fn work_that_takes_long_to_end_keeps_its_lease() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    let leadership = leader.leadership.clone();
    let slow = tokio::spawn(async move { leadership.lead(sleep(60 * SECOND)).await });
    sleep(SECOND).await;
    leader.shutdown.cancel();
    sleep(50 * SECOND).await;
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());
    assert_eq!(slow.await.unwrap(), Ok(Some(())));
    assert!(led(&standby).await < SECOND);
    assert_eq!(leader.end().await, Ok(Some(())));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_stops_has_never_led() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    standby.shutdown.cancel();
    assert_eq!(standby.end().await, Ok(None));
    assert!(leader.leadership.is_held());
    assert_eq!(server.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn failures_that_end_before_the_deadline_do_no_harm() {
    for fault in [
        Fault::Refused,
        Fault::RefusedAfterAll,
        Fault::AnswerLost,
        Fault::RequestLost,
        Fault::Late(3000),
    ] {
        let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
        let (leader, standby) = two(&stage, &server).await;
        leader.connection.fault(fault);
        sleep(100 * SECOND).await;
        assert!(leader.leadership.is_held(), "{fault:?}");
        assert!(!standby.leadership.is_held(), "{fault:?}");
        // The same fault, but for the write that acquires the Lease.
        standby.connection.fault(fault);
        leader.kill();
        led(&standby).await;
    }
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_change_of_the_lease_is_a_conflict_that_the_leader_survives() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    for round in 0..50 {
        server.edit(|lease| lease["metadata"]["annotations"]["round"] = round.to_string().into());
        sleep(SECOND).await;
    }
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_api_server_stops_before_its_successor_starts() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    leader.connection.cut(true);
    led(&standby).await;
    assert!(leader.end().await.is_err());
    let (_, last) = stage.span("a");
    let (first, _) = stage.span("b");
    // The leader stops 10 s after it sent its last renewal. The standby waits 15 s after it saw this renewal. So at least 5 s lie
    // between them. The test allows one second less.
    assert!(first - last > 4 * SECOND, "{:?}", first - last);
}

#[tokio::test(start_paused = true)]
async fn a_standby_whose_watch_died_takes_over_nothing_that_is_held() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    standby.connection.cut(true);
    sleep(SECOND).await;
    standby.connection.cut(false);
    sleep(100 * SECOND).await;
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());
    // The standby has noticed its dead watch, and watches again.
    leader.shutdown.cancel();
    assert!(led(&standby).await < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_first_look_that_is_never_answered_is_taken_again() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let candidate = Candidate::start(&stage, &server, "a", TIMING);
    candidate.connection.cut(true);
    sleep(SECOND).await;
    candidate.connection.cut(false);
    assert!(led(&candidate).await < 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_made_again_by_its_holder() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let (leader, standby) = two(&stage, &server).await;
    server.edit(|lease| lease["metadata"]["labels"]["team"] = "ci".into());
    sleep(SECOND).await;
    server.delete();
    sleep(SECOND).await;
    assert_eq!(server.holder(), "a");
    server.edit(|lease| assert_eq!(lease["metadata"]["labels"]["team"], "ci"));
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());

    // If the leader dies and its Lease is deleted, the standby leads after the lease duration.
    leader.kill();
    server.delete();
    let waited = led(&standby).await;
    assert!(waited >= TIMING.lease_duration, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_holds_is_lost_at_once() {
    for holder in ["c", ""] {
        let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
        let leader = Candidate::start(&stage, &server, "a", TIMING);
        led(&leader).await;
        server.edit(|lease| lease["spec"]["holderIdentity"] = holder.into());
        let start = Instant::now();
        assert!(leader.end().await.is_err(), "{holder:?}");
        assert!(start.elapsed() < SECOND, "{holder:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_durations_of_the_holder_count_not_those_of_the_standby() {
    let (stage, server) = (Stage::default(), ApiServer::with_free_lease("lease"));
    let leader = Candidate::start(&stage, &server, "a", TIMING);
    led(&leader).await;
    let hasty = Timing {
        lease_duration: 3 * SECOND,
        renew_deadline: 2 * SECOND,
        retry_period: SECOND,
    };
    let standby = Candidate::start(&stage, &server, "b", hasty);
    sleep(60 * SECOND).await;
    assert!(leader.leadership.is_held() && !standby.leadership.is_held());
    leader.pause();
    assert!(led(&standby).await > TIMING.lease_duration - TIMING.renew_deadline / 2);
}

#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    lease: LeaseArgs,
}

fn timing(flags: &[&str]) -> Result<Timing, String> {
    let command = LeaseArgs::augment_args(clap::Command::new("service"));
    let matches = command
        .try_get_matches_from([&["service"], flags].concat())
        .map_err(|error| error.to_string())?;
    let args = LeaseArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    args.timing.checked().map_err(|error| error.to_string())
}

#[test]
fn durations_have_defaults_and_must_fit_together() {
    let defaults = timing(&[]).unwrap();
    assert_eq!(
        (
            defaults.lease_duration,
            defaults.renew_deadline,
            defaults.retry_period
        ),
        (
            TIMING.lease_duration,
            TIMING.renew_deadline,
            TIMING.retry_period
        )
    );
    #[track_caller]
    fn refused(flags: &[&str], expect: &str) {
        let error = timing(flags).unwrap_err();
        assert!(error.contains(expect), "{error}");
    }
    refused(
        &["--leader-elect-lease-duration", "1500ms"],
        "whole seconds",
    );
    refused(&["--leader-elect-lease-duration", "10s"], "must be shorter");
    refused(&["--leader-elect-retry-period", "6s"], "at most half");
    refused(&["--leader-elect-retry-period", "0s"], "above zero");
    refused(&["--leader-elect-retry-period", "soon"], "like 15s");
}

#[test]
fn no_two_processes_have_one_identity() {
    let (one, other) = (campaign::identity(), campaign::identity());
    assert_ne!(one, other);
    assert!(one.len() > 17, "{one}");
}
