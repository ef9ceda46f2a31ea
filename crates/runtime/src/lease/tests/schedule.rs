//! Random events for three candidates and their Lease. At no time do two candidates lead, and after the last event one leads.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::sleep;

use super::api_server::{ApiServer, Fault};
use super::candidate::{Candidate, Stage, TIMING};

/// A random event.
#[derive(Clone, Debug)]
enum Happening {
    /// No event for this many milliseconds.
    Time(u64),
    Pause(usize),
    Resume(usize),
    Cut(usize),
    Mend(usize),
    Fault(usize, Fault),
    Stop(usize),
    Kill(usize),
    /// A new process replaces one that has ended.
    Restart(usize),
    DeleteLease,
    EditLease,
}

const CANDIDATES: usize = 3;

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::RequestLost),
        Just(Fault::AnswerLost),
        (0_u64..30_000).prop_map(Fault::Late),
        Just(Fault::Refused),
        Just(Fault::RefusedAfterAll),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let one = 0..CANDIDATES;
    prop_oneof![
        6 => (1_u64..9_000).prop_map(Happening::Time),
        2 => one.clone().prop_map(Happening::Pause),
        2 => one.clone().prop_map(Happening::Resume),
        1 => one.clone().prop_map(Happening::Cut),
        1 => one.clone().prop_map(Happening::Mend),
        3 => (one.clone(), fault()).prop_map(|(which, fault)| Happening::Fault(which, fault)),
        1 => one.clone().prop_map(Happening::Stop),
        1 => one.clone().prop_map(Happening::Kill),
        2 => one.prop_map(Happening::Restart),
        1 => Just(Happening::DeleteLease),
        1 => Just(Happening::EditLease),
    ]
}

/// The processes of the candidates. Each process has a unique name.
struct Processes {
    stage: Stage,
    server: ApiServer,
    running: Vec<Candidate>,
    started: usize,
}

impl Processes {
    fn start(&mut self) -> Candidate {
        self.started += 1;
        let name = format!("process-{}", self.started);
        Candidate::start(&self.stage, &self.server, &name, TIMING)
    }

    async fn restart(&mut self, which: usize) {
        if self.running[which].has_ended() {
            let next = self.start();
            std::mem::replace(&mut self.running[which], next)
                .check()
                .await;
        }
    }

    async fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Time(milliseconds) => sleep(Duration::from_millis(milliseconds)).await,
            Happening::Pause(which) => self.running[which].pause(),
            Happening::Resume(which) => self.running[which].resume(),
            Happening::Cut(which) => self.running[which].connection.cut(true),
            Happening::Mend(which) => self.running[which].connection.mend(),
            Happening::Fault(which, fault) => self.running[which].connection.fault(fault),
            Happening::Stop(which) => self.running[which].shutdown.cancel(),
            Happening::Kill(which) => self.running[which].kill(),
            Happening::Restart(which) => self.restart(which).await,
            Happening::DeleteLease => self.server.delete(),
            Happening::EditLease => self.server.edit(|lease| {
                lease["metadata"]["annotations"]["edited"] = "by hand".into();
            }),
        }
        self.stage.leading();
        for candidate in &mut self.running {
            candidate.check().await;
        }
    }
}

async fn play(schedule: Vec<Happening>) {
    let mut processes = Processes {
        stage: Stage::default(),
        server: ApiServer::with_free_lease("lease"),
        running: Vec::new(),
        started: 0,
    };
    for _ in 0..CANDIDATES {
        let candidate = processes.start();
        processes.running.push(candidate);
    }
    for happening in schedule {
        processes.happen(happening).await;
    }
    for which in 0..CANDIDATES {
        processes.running[which].resume();
        processes.running[which].connection.mend();
    }
    // Candidates that were stopped or lost their Lease end within 20 s. New candidates replace them, and one candidate leads
    // within 60 s.
    processes.happen(Happening::Time(20_000)).await;
    for which in 0..CANDIDATES {
        processes.restart(which).await;
    }
    processes.happen(Happening::Time(60_000)).await;
    assert_eq!(processes.stage.leading(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn never_do_two_lead_at_once(schedule in proptest::collection::vec(happening(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(schedule));
    }
}
