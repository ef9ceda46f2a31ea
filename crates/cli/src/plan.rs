//! `plan`: admits and plans the PipelineRuns of a file, in this process and without a cluster. It calls the functions that the
//! planner and the manager call. With `--server`, the planner admits the runs.
//!
//! Names derive from the uids of the request and of the run, which only the API server knows. So the names in an answer about a
//! new run are examples. In the cluster, the names are different, but the number of objects is the same, and they refer to each
//! other in the same way.

mod answer;
mod documents;
mod placeholders;

use anyhow::anyhow;
use coscheduler_core::admit::{Admission, Question, TEKTON_CONTROLLER, admit};
use coscheduler_core::annotations::{GROUP, MODE, MODE_SOURCE};
use coscheduler_core::config::{self, COSCHEDULE, Configuration};
use coscheduler_core::overrides::{Setting, Source};
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{Plan, Preview, is_stored, plan, preview_admitted};
use coscheduler_core::sizes;
use coscheduler_core::violation::Violation;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{AdmitPipelineRunResponse, PlanRequest};
use coscheduler_proto::{convert, error, json};
use serde_json::Value;

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::output;
use crate::server::Server;

use answer::{Answer, Binding, Note, RunPlan};
use documents::{Annotations, Documents};

/// Stands for the uid of the admission request.
const REQUEST_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Plans the runs of a file, and writes the answer.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let documents = Documents::read(&args.filename, &args.namespace)?;
    let admitting = match &args.server {
        Some(address) => {
            let certificates = &args.certificates;
            Admitting::Server(Server::connect("affinity-planner", address, certificates)?)
        }
        None => configuration(args)?,
    };
    let answer = plan_all(&documents, &admitting)?;
    output::write(&answer, args.output.output.as_ref())?;
    Ok(())
}

/// The place where runs are admitted.
enum Admitting {
    /// This process, with this configuration. `mode_from` says in words where the mode comes from.
    Here {
        configuration: Configuration,
        mode_from: String,
    },
    /// The affinity-planner.
    Server(Server),
}

impl Admitting {
    fn admit(&self, question: &Question<'_>, manifest: &Value) -> Result<Admission, Failure> {
        match self {
            Self::Here { configuration, .. } => {
                admit(Ok(configuration), TEKTON_CONTROLLER, question)
                    .map_err(|violations| denied(&refused(question.run), &violations))
            }
            Self::Server(server) => ask(server, question, manifest),
        }
    }
}

/// Asks the affinity-planner which changes admission would make on the run in `manifest`, under the configuration of the cluster.
fn ask(server: &Server, question: &Question<'_>, manifest: &Value) -> Result<Admission, Failure> {
    let annotations = |all: Option<&Annotations>| all.cloned().unwrap_or_default();
    let asked = PlanRequest {
        pipeline_run: Some(json::object_to_struct(manifest)),
        request_uid: question.request_uid.to_owned(),
        pipeline_annotations: annotations(question.pipeline_annotations),
        namespace_annotations: annotations(question.namespace_annotations),
        access_modes: convert::access_modes_to_wire(
            question.access_modes.cloned().unwrap_or_default(),
        ),
    };
    let answer = server.call(asked, async |channel, request| {
        PlannerServiceClient::new(channel).plan(request).await
    });
    let answer = answer.map_err(|status| match error::violations(&status).as_slice() {
        [] => server.failed(&status),
        violations => denied(&refused(question.run), violations),
    })?;
    let plan = answer.plan.unwrap_or_default();
    Ok(convert::admission(AdmitPipelineRunResponse {
        set_annotations: plan.annotations,
        bindings: plan.bindings,
        ..AdmitPipelineRunResponse::default()
    }))
}

/// The configuration in the command line. Prints its warnings.
fn configuration(args: &PlanArgs) -> Result<Admitting, Failure> {
    let mut data = match &args.config {
        Some(file) => documents::config_map(file)?,
        None => Default::default(),
    };
    let mode_from = match (args.mode, &args.config) {
        (Some(_), _) => "flag --mode".to_owned(),
        (None, Some(file)) if data.contains_key(COSCHEDULE) => {
            format!("key {COSCHEDULE} of {}", file.display())
        }
        (None, _) => format!("default of key {COSCHEDULE}"),
    };
    if let Some(mode) = args.mode {
        data.insert(COSCHEDULE.to_owned(), mode.to_string());
    }
    let checked = config::check(&data)
        .map_err(|violations| denied("ConfigMap coscheduler-config is not valid", &violations))?;
    for warning in &checked.warnings {
        eprintln!("warning: ConfigMap coscheduler-config: {warning}");
    }
    Ok(Admitting::Here {
        configuration: checked.configuration,
        mode_from,
    })
}

fn denied(what: &str, violations: &[Violation]) -> Failure {
    let faults: Vec<_> = violations.iter().map(|it| format!("\n  {it}")).collect();
    anyhow!("{what}:{}", faults.concat()).into()
}

/// The beginning of the text about a run that is refused.
fn refused(run: &PipelineRun) -> String {
    let name = match run.name.as_str() {
        "" => &run.generate_name,
        name => name,
    };
    format!("PipelineRun {}/{name} is refused", run.namespace)
}

fn plan_all(documents: &Documents, admitting: &Admitting) -> Result<Answer, Failure> {
    let runs = documents.runs.iter();
    let runs = runs.map(|(run, manifest)| plan_one(documents, admitting, run, manifest));
    Ok(Answer {
        runs: runs.collect::<Result<_, _>>()?,
    })
}

fn plan_one(
    documents: &Documents,
    admitting: &Admitting,
    run: &PipelineRun,
    manifest: &Value,
) -> Result<RunPlan, Failure> {
    let pipeline = documents.pipeline_annotations(run);
    let pipeline = pipeline.as_ref();
    let namespace = documents.namespace_annotations(run);
    let namespace = namespace.as_ref();
    // Module `documents` has removed the uid of a copied run.
    let is_stored = is_stored(run);
    let planned = if is_stored {
        plan(run).map(|plan| Preview {
            admission: Admission::default(),
            stored: run.clone(),
            plan,
        })
    } else {
        let catalog = documents.catalog(run);
        let access_modes = documents.access_modes(&run.namespace);
        let question = Question {
            pipeline_annotations: pipeline,
            namespace_annotations: namespace,
            catalog: Some(&catalog),
            access_modes: Some(&access_modes),
            ..Question::about(run, REQUEST_UID, "")
        };
        let mut admission = admitting.admit(&question, manifest)?;
        sizes::pin(&mut admission, run, Some(&catalog));
        preview_admitted(run, admission)
    };
    let Preview {
        admission,
        stored,
        plan,
    } = planned.map_err(|violations| denied(&refused(run), &violations))?;
    let source = Source::of(Setting::Mode, [Some(&run.annotations), pipeline, namespace]);
    let placeholders = placeholders::of(&stored, &plan, documents);
    let Plan {
        mode,
        action: _,
        reasons,
    } = plan;
    Ok(RunPlan {
        group: stored.annotations.get(GROUP).cloned(),
        mode_from: match (source, admitting) {
            (_, _) if is_stored && stored.annotations.contains_key(MODE) => {
                let source = stored.annotations.get(MODE_SOURCE).cloned();
                source.unwrap_or_else(|| format!("annotation {MODE} of the PipelineRun"))
            }
            (_, _) if is_stored => format!("the PipelineRun has no annotation {MODE}"),
            (Source::Cluster, Admitting::Here { mode_from, .. }) => mode_from.clone(),
            (source, _) => source.place(Setting::Mode),
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
