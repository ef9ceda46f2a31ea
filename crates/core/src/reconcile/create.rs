//! Creates missing placeholders, and retries placeholders that have no pod (N3, N6).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::apart::left_out;
use super::reserve::first_sizes;
use super::{Decision, Step, pause};
use crate::config::Backend;
use crate::observed::{Done, Observed, Placeholder, Record, Sight};
use crate::plan::PlaceholderSpec;

/// Normally, a call of `Ensure` creates a placeholder. If the placeholder is still missing after this time, the leader creates
/// it without a call.
const MISSING: Duration = Duration::from_secs(2);
/// The pause before the first retry, without jitter, if there is a warning Event about the placeholder.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The pause before the first retry, without jitter, if there is no such Event: the placeholder's controller may only be slow, or
/// the Event may be lost.
const FIRST_SILENT_RETRY: Duration = Duration::from_secs(5);
/// The longest pause between two retries, without jitter. Even with jitter, every placeholder is retried within 30 seconds.
const LONGEST_RETRY: Duration = Duration::from_secs(20);

/// Creates missing placeholders, and retries those without a pod.
pub(super) fn create(observed: &Observed, decision: &mut Decision) {
    let mut before_is_bound = true;
    for (index, spec) in in_order(observed).into_iter().enumerate() {
        let may_take_node = before_is_bound;
        let pod = observed.pod_named_for(spec.name.as_str());
        before_is_bound &= !spec.is_isolated() || pod.is_some_and(|pod| pod.node.is_some());
        let own = observed.placeholders.get(spec.name.as_str());
        // An object with this name is never adopted if the run is not its controller (P7). The step that creates the
        // placeholder then fails, and the error names the object's owner. If the specification has `Backend::Controlled`, a
        // placeholder that is only a pod does not count either.
        match own.filter(|own| {
            let is_own = own.controller.as_ref().map(|it| &it.uid) == Some(&own.run_uid);
            is_own && (own.backend == Backend::Controlled || spec.backend == Backend::Pod)
        }) {
            None if may_take_node => missing(observed, spec, index > 0, decision),
            None => {}
            Some(placeholder) if observed.leads => retry(observed, spec, placeholder, decision),
            Some(_) => {}
        }
    }
}

/// The planned placeholders. Two runs in `isolate-pipelinerun` could each hold a node that the other needs (M4, B1). To prevent
/// this, the placeholders of each isolated run take their nodes in the order of their node selectors.
fn in_order(observed: &Observed) -> Vec<&PlaceholderSpec> {
    let mut specs: Vec<_> = observed.planned().iter().collect();
    if specs.iter().any(|spec| spec.is_isolated()) {
        let selector = |spec: &&PlaceholderSpec| {
            let selector = spec.pod_template.get("nodeSelector");
            selector.map(Value::to_string)
        };
        specs.sort_by_key(selector);
    }
    specs
}

/// Creates a placeholder. `follows` is true if another placeholder of the run comes first. In an isolated run, such a
/// placeholder is created only when the earlier ones have nodes. Perhaps no call of `Ensure` comes after that. So the leader
/// creates it without a call, and does not wait for [`MISSING`] first.
fn missing(observed: &Observed, spec: &PlaceholderSpec, follows: bool, decision: &mut Decision) {
    let sight = Sight::Missing(spec.name.to_string());
    let no_call = follows && spec.is_isolated();
    let leader_acts = observed.leads && (no_call || decision.lasts(observed, sight, MISSING));
    if observed.created.contains(spec.name.as_str()) {
        return decision.look_in(MISSING);
    }
    if observed.called || leader_acts {
        let mut spec = Box::new(without_left_out(observed, spec));
        // If somebody deletes the controller of a pod but not the pod, a new controller takes the pod back.
        let pod = observed.pod_named_for(spec.name.as_str());
        let labels = pod.and_then(|pod| pod.placeholder.as_ref());
        if labels.is_some_and(|labels| labels.orphaned) {
            spec.backend = Backend::Controlled;
        }
        let sizes = first_sizes(observed, &spec, decision);
        decision.steps.push(Step::Create { spec, sizes });
    }
}

/// The specification without the claims that the placeholder leaves out.
pub(super) fn without_left_out(observed: &Observed, spec: &PlaceholderSpec) -> PlaceholderSpec {
    let left_out = left_out(observed, spec);
    let mut spec = spec.clone();
    let lists = [&mut spec.claim_names, &mut spec.unmounted_claim_names];
    for claims in lists {
        claims.retain(|claim| !left_out.contains(claim));
    }
    spec
}

/// Retries a placeholder without a pod. Without these retries, the placeholder's controller would wait up to 17 minutes between
/// two tries (client-go's default rate limiter). The controller tries at once when the placeholder's object changes.
fn retry(
    observed: &Observed,
    spec: &PlaceholderSpec,
    placeholder: &Arc<Placeholder>,
    decision: &mut Decision,
) {
    let pod = observed.pod_named_for(&placeholder.object.name);
    if pod.is_some() || placeholder.object.deleting {
        return;
    }
    if placeholder.parked && spec.backend == Backend::Pod {
        decision.steps.push(Step::Start(placeholder.clone()));
        return decision.look_in(FIRST_RETRY);
    }
    let sight = Sight::NoPod(placeholder.object.name.clone());
    let since = observed.since.get(&sight).copied().unwrap_or_default();
    decision.sights.insert(sight);
    // Retries from before the placeholder lost its pod do not count, because they were for an earlier pod.
    let before = placeholder.record.retried.as_ref();
    let before = before.filter(|done| done.age(observed.now) <= since);
    let times = before.map_or(1, |done| done.times.saturating_add(1));
    let first = match observed.refused.contains_key(&placeholder.object.name) {
        true => FIRST_RETRY,
        false => FIRST_SILENT_RETRY,
    };
    let pause = pause(times, first, LONGEST_RETRY) + jitter(&placeholder.object.uid);
    let rested = before.map_or(since, |done| done.age(observed.now));
    let left = pause.saturating_sub(rested);
    if left.is_zero() {
        let record = Record {
            retried: Done::again(before, observed.now, ""),
            ..placeholder.record.clone()
        };
        decision
            .steps
            .push(Step::Retry(placeholder.clone(), record));
    }
    decision.look_in(if left.is_zero() { pause } else { left });
}

/// An addition to the pause, less than two seconds. It depends on the placeholder's uid. So if a quota refuses the pods of
/// hundreds of placeholders, the manager does not retry all of them at the same time.
fn jitter(uid: &str) -> Duration {
    let sum: u64 = uid.bytes().map(u64::from).sum();
    Duration::from_millis(sum * 37 % 2000)
}
