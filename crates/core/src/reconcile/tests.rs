//! Tests with one run in mode `pipelineruns`. The run uses a claim that was not made for it. Its placeholder is on node-1, and
//! there are two nodes. Each test changes one part of the observation.

/// The values of a decision's steps of one kind: `taken!(decision, Step::Delete(own) => own)`.
macro_rules! taken {
    ($decision:expr, $step:pat => $value:expr) => {
        $decision.steps.iter().filter_map(|step| match step {
            $step => Some($value),
            _ => None,
        })
    };
}

mod apart;
mod clean_up;
mod create;
mod evacuate;
mod make_room;
mod reserve;
mod tell;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::admit::{Question, TEKTON_CONTROLLER, admit};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::node::Node;
use crate::observed::PodPhase;
use crate::observed::{Answer, Done, Needs, Placeholder, PlaceholderLabels, Pod, Unscheduled};
use crate::pipeline_run::{PipelineRun, RunState};
use crate::plan::plan;
use crate::requests::Amounts;
use crate::volumes::{NodeRequirement, NodeTerm, Operator, SeenVolume};

const CLAIM: &str = "data";
const SECOND: Duration = Duration::from_secs(1);
/// What the scheduler says of a pod for which no node has room.
const NO_ROOM: &str = "0/2 nodes are available: 2 Insufficient cpu.";

/// The run as admission stores it, bound to these claims.
fn run(mode: Mode, claims: &[&str]) -> PipelineRun {
    let bound = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let run = PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u"},
        "spec": {"workspaces": claims.iter().map(bound).collect::<Vec<_>>()},
    }))
    .unwrap();
    let configuration = Configuration {
        mode,
        ..Configuration::default()
    };
    let question = Question::about(&run, "request", "alice");
    let admission = admit(Ok(&configuration), TEKTON_CONTROLLER, &question);
    admission.unwrap().apply(&run)
}

fn set_run(observed: &mut Observed, run: PipelineRun) {
    let planned = plan(&run);
    observed.presence = match run.state {
        RunState::Done => RunPresence::Done,
        RunState::Pending | RunState::Active => RunPresence::Active,
    };
    observed.run = Some((Arc::new(run), Arc::new(planned)));
}

fn change_run(observed: &mut Observed, change: impl FnOnce(&mut PipelineRun)) {
    let mut run = the_run(observed);
    change(&mut run);
    set_run(observed, run);
}

fn set_annotation(observed: &mut Observed, key: &str, value: &str) {
    change_run(observed, |run| {
        run.annotations.insert(key.to_owned(), value.to_owned());
    });
}

/// The observation with a change.
fn changed(observed: &Observed, change: impl FnOnce(&mut Observed)) -> Observed {
    let mut observed = observed.clone();
    change(&mut observed);
    observed
}

fn the_run(observed: &Observed) -> PipelineRun {
    let (run, _) = observed.run.as_ref().unwrap();
    (**run).clone()
}

fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

fn object(name: &str, uid: &str) -> ObjectRef {
    ObjectRef {
        name: name.to_owned(),
        uid: uid.to_owned(),
        resource_version: "7".to_owned(),
        deleting: false,
    }
}

fn cpu(milli_cpu: i128) -> Amounts {
    Amounts {
        milli_cpu,
        ..Amounts::default()
    }
}

/// This much CPU, and this number of GPUs.
fn with_gpus(milli_cpu: i128, gpus: i128) -> Amounts {
    let mut amounts = cpu(milli_cpu);
    amounts.others.insert("example.dev/gpu".to_owned(), gpus);
    amounts
}

/// The leader's observation of a run without objects.
fn bare(mode: Mode, claims: &[&str]) -> Observed {
    let mut observed = Observed {
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
        leads: true,
        ..Observed::default()
    };
    set_run(&mut observed, run(mode, claims));
    observed
}

/// The observation of a run with its placeholders on node-1. Node-2 exists too.
fn observed_in(mode: Mode, claims: &[&str]) -> Observed {
    let mut observed = bare(mode, claims);
    let specs = observed.planned().to_vec();
    for (index, spec) in specs.iter().enumerate() {
        let (name, uid) = (spec.name.to_string(), format!("s{index}"));
        let claims: Vec<String> = spec.claims().collect();
        let own = Placeholder {
            object: object(&name, &uid),
            namespace: "ci".to_owned(),
            controller: Some(owner("PipelineRun", "build", "u")),
            run_uid: "u".to_owned(),
            created: Some(observed.now),
            claims: claims.clone(),
            needs: Needs {
                requests: cpu(50),
                ..Needs::default()
            },
            observed: true,
            ..Placeholder::default()
        };
        let pod = Pod {
            object: object(&format!("{name}-0"), &format!("p{index}")),
            controller: Some(owner("StatefulSet", &name, &uid)),
            placeholder: Some(PlaceholderLabels {
                name: name.clone(),
                ..PlaceholderLabels::default()
            }),
            phase: PodPhase::Running,
            started: true,
            node: Some("node-1".to_owned()),
            claims,
            ..task("", "", 50)
        };
        observed.placeholders.insert(name, Arc::new(own));
        add(&mut observed, pod);
    }
    for claim in claims {
        let seen = observed.volumes.entry((*claim).to_owned()).or_default();
        (seen.name, seen.volume) = ((*claim).to_owned(), Some(SeenVolume::default()));
    }
    let nodes = Arc::make_mut(&mut observed.nodes);
    for name in ["node-1", "node-2"] {
        Arc::make_mut(nodes.entry(name.to_owned()).or_default()).name = name.to_owned();
    }
    observed
}

fn observed() -> Observed {
    observed_in(Mode::PipelineRuns, &[CLAIM])
}

/// A TaskRun's pod that follows the placeholder, asks for this much CPU, and is not bound.
fn task(name: &str, follows: &str, milli_cpu: i128) -> Pod {
    let (task_run, uid) = (format!("task-of-{name}"), format!("t-{name}"));
    Pod {
        object: object(name, &format!("uid-of-{name}")),
        namespace: "ci".to_owned(),
        run_uid: "u".to_owned(),
        controller: Some(owner("TaskRun", &task_run, &uid)),
        follows: vec![follows.to_owned()],
        phase: PodPhase::Pending,
        claims: vec![CLAIM.to_owned()],
        needs: Needs {
            requests: cpu(milli_cpu),
            ..Needs::default()
        },
        ..Pod::default()
    }
}

fn add(observed: &mut Observed, pod: Pod) {
    observed.pods.insert(pod.object.name.clone(), Arc::new(pod));
}

/// The name of the only placeholder.
fn name(observed: &Observed) -> String {
    let planned = observed.planned().first().map(|spec| spec.name.to_string());
    // A run that is done has no plan any more.
    let mut pods = observed.pods.values();
    let labels = pods.find_map(|pod| pod.placeholder.as_ref());
    let known = observed.placeholders.keys().next().cloned();
    let left = known.or_else(|| labels.map(|labels| labels.name.clone()));
    planned.or(left).unwrap()
}

fn pod_name(observed: &Observed) -> String {
    format!("{}-0", name(observed))
}

/// The only placeholder.
fn own(observed: &mut Observed) -> &mut Placeholder {
    let name = name(observed);
    Arc::make_mut(observed.placeholders.get_mut(&name).unwrap())
}

fn pod<'a>(observed: &'a mut Observed, name: &str) -> &'a mut Pod {
    Arc::make_mut(observed.pods.get_mut(name).unwrap())
}

/// The only placeholder's pod.
fn own_pod(observed: &mut Observed) -> &mut Pod {
    let name = pod_name(observed);
    pod(observed, &name)
}

fn node<'a>(observed: &'a mut Observed, name: &str) -> &'a mut Node {
    let nodes = Arc::make_mut(&mut observed.nodes);
    Arc::make_mut(nodes.get_mut(name).unwrap())
}

/// Ties a claim to node-1.
fn pin(observed: &mut Observed, claim: &str) {
    restrict(observed, claim, "metadata.name", "node-1");
    let seen = observed.volumes.get_mut(claim).unwrap();
    let term = &mut seen.volume.as_mut().unwrap().terms[0];
    std::mem::swap(&mut term.fields, &mut term.expressions);
}

/// Lets only nodes with this label reach the volume of a claim.
fn restrict(observed: &mut Observed, claim: &str, key: &str, value: &str) {
    let mut term = NodeTerm::default();
    term.expressions.push(NodeRequirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: vec![value.to_owned()],
    });
    let seen = observed.volumes.get_mut(claim).unwrap();
    seen.volume = Some(SeenVolume { terms: vec![term] });
}

/// Gives a pod the condition that the scheduler has found no node for it.
fn unschedulable(pod: &mut Pod, message: &str) {
    pod.node = None;
    pod.phase = PodPhase::Pending;
    pod.unscheduled = Some(Unscheduled {
        no_node: true,
        failed: false,
        nominated: None,
        message: Some(message.to_owned()),
        written: None,
        is_newest: true,
    });
}

/// Decides, and lets this time pass. Like the memory of a replica, it records how long each condition has lasted.
fn pass(observed: &mut Observed, time: Duration) -> Decision {
    let decision = reconcile(observed);
    let seen = decision.sights.iter().map(|sight| {
        let before = observed.since.get(sight).copied().unwrap_or_default();
        (sight.clone(), before + time)
    });
    observed.since = seen.collect();
    observed.now += time;
    decision
}

/// Gives the API server's answers to the questions in the decision: the pods are the run's own. `change` may change an answer.
fn answer(observed: &mut Observed, decision: &Decision, change: impl Fn(&mut Answer)) {
    for pod in taken!(decision, Step::Ask { pod, .. } => pod) {
        let mut answer = Answer {
            at: observed.now,
            own: true,
            let_go: 0,
        };
        change(&mut answer);
        observed.answers.insert(pod.uid.clone(), answer);
    }
}

/// The decision after all conditions have lasted for two seconds, and after the API server has answered.
fn settled(observed: &mut Observed) -> Decision {
    settled_with(observed, |_| ())
}

fn settled_with(observed: &mut Observed, change: impl Fn(&mut Answer)) -> Decision {
    pass(observed, 2 * SECOND);
    let decision = reconcile(observed);
    answer(observed, &decision, change);
    reconcile(observed)
}

fn codes(reasons: &[Reason]) -> Vec<&str> {
    reasons.iter().map(|reason| reason.code.as_str()).collect()
}

/// The new reason code in the annotation. `None` if the annotation stays as it is, and empty if it is removed.
fn blocked(decision: &Decision) -> Option<&str> {
    let blocked = decision.blocked.as_ref()?;
    Some(blocked.as_ref().map_or("", |reason| reason.code.as_str()))
}

/// This number of earlier actions. The last action was this long `ago`.
fn once(observed: &Observed, times: u32, ago: Duration) -> Option<Done> {
    Some(Done {
        times,
        last: observed.now - ago,
        why: String::new(),
    })
}

#[test]
fn a_run_with_its_placeholder_in_place_needs_nothing() {
    let nothing = Decision {
        released: Some(Released::RunActive),
        blocked: Some(None),
        ..Decision::default()
    };
    assert_eq!(reconcile(&observed()), nothing);
}

#[test]
fn when_to_look_again_is_the_soonest_of_all_times() {
    let mut decision = Decision::default();
    decision.look_in(3 * SECOND);
    decision.look_in(SECOND);
    decision.look_in(2 * SECOND);
    assert_eq!(decision.again, Again::After(SECOND));
}

#[test]
fn a_record_reads_back_as_it_was_written_and_an_empty_one_is_short() {
    let observed = observed();
    let record = Record {
        ended: 2,
        evacuated: once(&observed, 1, SECOND),
        moved: Done::again(once(&observed, 1, SECOND).as_ref(), observed.now, "no room"),
        retried: None,
        left: Some("node-2".to_owned()),
        keeps_room: true,
    };
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    assert_eq!(record.moved.unwrap().times, 2);
    assert_eq!(serde_json::to_string(&Record::default()).unwrap(), "{}");
}

#[test]
fn n6_a_replica_with_a_fast_clock_does_not_stop_the_next_one_for_longer_than_the_pause() {
    let observed = observed();
    let done = Done::again(None, observed.now + 300 * SECOND, "no room").unwrap();
    assert_eq!(done.rests(observed.now, 10 * SECOND), Duration::ZERO);
    assert_eq!(done.rests(done.last, 10 * SECOND), 10 * SECOND);
    assert_eq!(done.rests(done.last + 4 * SECOND, 10 * SECOND), 6 * SECOND);
}
