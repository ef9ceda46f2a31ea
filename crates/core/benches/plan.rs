//! Measures the time to admit a PipelineRun and to plan its placeholders, with 1, 10 and 100 workspaces. Half of the workspaces
//! have a `volumeClaimTemplate`. The other half have an existing claim. Run it with `cargo bench -p coscheduler-core`.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use coscheduler_core::admit::{Question, TEKTON_CONTROLLER, admit};
use coscheduler_core::config::Configuration;
use coscheduler_core::mode::Mode;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::plan;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};

fn run(workspaces: usize) -> PipelineRun {
    let workspaces: Vec<Value> = (0..workspaces)
        .map(|index| {
            let name = format!("workspace-{index}");
            if index % 2 == 0 {
                json!({"name": name, "volumeClaimTemplate": {"spec": {
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                }}})
            } else {
                json!({"name": name, "persistentVolumeClaim": {"claimName": format!("claim-{index}")}})
            }
        })
        .collect();
    PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build-x7k2p", "uid": "705ab4f5-6393-11e8-b7cc-42010a800002"},
        "spec": {"workspaces": workspaces},
    }))
    .unwrap()
}

fn question(run: &PipelineRun) -> Question<'_> {
    Question::about(run, "b0bd8d0e-7f37-4d4f-9c1b-2d9f0f3a1c55", "alice")
}

fn benches(criterion: &mut Criterion) {
    for mode in [
        Mode::Workspaces,
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
    ] {
        let configuration = Configuration {
            mode,
            ..Configuration::default()
        };
        for workspaces in [1, 10, 100] {
            let run = run(workspaces);
            let admitted = |run| admit(Ok(&configuration), TEKTON_CONTROLLER, &question(run));
            let stored = admitted(&run).unwrap().apply(&run);
            criterion.bench_function(&format!("admit/{mode}/{workspaces}"), |bencher| {
                bencher.iter(|| admitted(black_box(&run)));
            });
            criterion.bench_function(&format!("plan/{mode}/{workspaces}"), |bencher| {
                bencher.iter(|| plan(black_box(&stored)));
            });
        }
    }
}

criterion_group!(all, benches);
criterion_main!(all);
