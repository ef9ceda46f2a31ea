//! `plan`: admits and plans the PipelineRuns of a file, in this process and without a cluster. It calls the functions that the
//! planner and the manager call.
//!
//! Names derive from the uids of the request and of the run, which only the API server knows. So the names in an answer about a
//! new run are examples. Their number and their relation to each other are those that the cluster gives.

mod answer;
mod documents;
mod placeholders;

use anyhow::anyhow;
use coscheduler_core::admit::{Question, TEKTON_CONTROLLER};
use coscheduler_core::annotations::{GROUP, MODE};
use coscheduler_core::config::{self, COSCHEDULE, Checked, Configuration};
use coscheduler_core::overrides::{Setting, Source};
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{Plan, Preview, is_stored, plan, preview};
use coscheduler_core::violation::Violation;

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::output;

use answer::{Answer, Binding, Note, RunPlan};
use documents::Documents;

/// Stands for the uid of the admission request.
const REQUEST_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Plans the runs of a file, and writes the answer.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let documents = Documents::read(&args.filename, &args.namespace)?;
    let checked = configuration(args)?;
    for warning in &checked.warnings {
        eprintln!("warning: ConfigMap coscheduler-config: {warning}");
    }
    let answer = plan_all(&documents, &checked.configuration)?;
    output::write(&answer, args.output.output)?;
    Ok(())
}

fn configuration(args: &PlanArgs) -> Result<Checked, Failure> {
    let mut data = match &args.config {
        Some(file) => documents::config_map(file)?,
        None => Default::default(),
    };
    if let Some(mode) = args.mode {
        data.insert(COSCHEDULE.to_owned(), mode.to_string());
    }
    let checked = config::check(&data);
    checked.map_err(|violations| denied("ConfigMap coscheduler-config is not valid", &violations))
}

fn denied(what: &str, violations: &[Violation]) -> Failure {
    let faults: Vec<_> = violations.iter().map(|it| format!("\n  {it}")).collect();
    anyhow!("{what}:{}", faults.concat()).into()
}

fn plan_all(documents: &Documents, configuration: &Configuration) -> Result<Answer, Failure> {
    let runs = documents.runs.iter();
    let runs = runs.map(|run| plan_one(documents, configuration, run));
    Ok(Answer {
        runs: runs.collect::<Result<_, _>>()?,
    })
}

fn plan_one(
    documents: &Documents,
    configuration: &Configuration,
    run: &PipelineRun,
) -> Result<RunPlan, Failure> {
    let pipeline = documents.pipeline_annotations(run);
    let pipeline = pipeline.as_ref();
    let namespace = documents.namespace_annotations(run);
    let namespace = namespace.as_ref();
    let planned = if is_stored(run) {
        plan(run).map(|plan| Preview {
            admission: Default::default(),
            stored: run.clone(),
            plan,
        })
    } else {
        let question = Question {
            run,
            request_uid: REQUEST_UID,
            created_by: "",
            pipeline_annotations: pipeline,
            namespace_annotations: namespace,
            owner_group: None,
        };
        let catalog = documents.catalog(run);
        preview(
            Ok(configuration),
            TEKTON_CONTROLLER,
            &question,
            Some(&catalog),
        )
    };
    let name = match run.name.as_str() {
        "" => &run.generate_name,
        name => name,
    };
    let Preview {
        admission,
        stored,
        plan,
    } = planned.map_err(|violations| {
        let what = format!("PipelineRun {}/{name} is refused", run.namespace);
        denied(&what, &violations)
    })?;
    let source = Source::of(Setting::Mode, [Some(&run.annotations), pipeline, namespace]);
    let placeholders = placeholders::of(&stored, &plan, documents);
    let Plan {
        mode,
        action: _,
        reasons,
    } = plan;
    Ok(RunPlan {
        group: stored.annotations.get(GROUP).cloned(),
        mode_from: match stored.annotations.contains_key(MODE) && is_stored(run) {
            true => format!("annotation {MODE} of the PipelineRun"),
            false => source.place(Setting::Mode),
        },
        mode: mode.to_string(),
        annotations: admission.set_annotations,
        removed_annotations: admission.remove_annotations,
        bindings: admission.bindings.into_iter().map(Binding::from).collect(),
        warnings: admission.warnings,
        reasons: reasons.into_iter().map(Note::from).collect(),
        placeholders,
        namespace: stored.namespace,
        name: stored.name,
    })
}

#[cfg(test)]
mod tests;
