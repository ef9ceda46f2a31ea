//! Placeholders that do not exist, and those whose pod does not (N3, N6).

use std::time::Duration;

use super::{Decision, Step, Update, pause};
use crate::observed::{Done, Observed, Placeholder, Record, Sight, elapsed};
use crate::plan::PlaceholderSpec;

/// A report of the run normally brings the call that creates a placeholder. The leader steps in after this time.
const MISSING: Duration = Duration::from_secs(2);
/// Before the first further try to create a pod.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Between two tries at most, jitter included: nobody waits for more than 30 seconds.
const LONGEST_RETRY: Duration = Duration::from_secs(20);

/// Creates what is missing, and retries what has no pod.
pub(super) fn create(observed: &Observed, decision: &mut Decision) {
    for spec in observed.planned() {
        let own = observed.placeholders.get(spec.name.as_str());
        // An object of the right name with another controller is never adopted (P7): creating it says so.
        match own.filter(|own| {
            own.controller
                .as_ref()
                .is_some_and(|it| it.uid == own.run_uid)
        }) {
            None => missing(observed, spec, decision),
            Some(placeholder) if observed.leads => retry(observed, placeholder, decision),
            Some(_) => {}
        }
    }
}

fn missing(observed: &Observed, spec: &PlaceholderSpec, decision: &mut Decision) {
    let sight = Sight::Missing(spec.name.to_string());
    if observed.called || (observed.leads && decision.lasts(observed, sight, MISSING)) {
        decision.steps.push(Step::Create(Box::new(spec.clone())));
    }
}

/// The placeholder's controller waits longer and longer between its tries, up to a quarter of an hour (client-go's default rate
/// limiter). A change of the object makes it try
/// at once. The rule is about state: a placeholder without a pod is retried whether or not there is a complaint. In an
/// ordinary run, and after an eviction, the pod is there before the first try is due.
fn retry(observed: &Observed, placeholder: &Placeholder, decision: &mut Decision) {
    let pod = observed.pods.values().find(|pod| {
        let labels = pod.placeholder.as_ref();
        labels.is_some_and(|it| it.name == placeholder.object.name)
    });
    if pod.is_some() || placeholder.object.deleting {
        return;
    }
    let sight = Sight::NoPod(placeholder.object.name.clone());
    let since = observed.since.get(&sight).copied().unwrap_or_default();
    decision.sights.insert(sight);
    // Tries before that were for an earlier pod.
    let before = placeholder.record.retried.as_ref();
    let before = before.filter(|done| elapsed(done.last, observed.now) <= since);
    let times = before.map_or(1, |done| done.times.saturating_add(1));
    let pause = pause(times, FIRST_RETRY, LONGEST_RETRY) + jitter(&placeholder.object.uid);
    let rested = before.map_or(since, |done| elapsed(done.last, observed.now));
    let left = pause.saturating_sub(rested);
    if left.is_zero() {
        let record = Record {
            retried: Done::again(before, observed.now, ""),
            ..placeholder.record.clone()
        };
        decision.steps.push(Step::Retry(Update {
            placeholder: placeholder.object.name.clone(),
            record,
            reason: None,
        }));
    }
    decision.look_in(if left.is_zero() { pause } else { left });
}

/// Up to two seconds, different for different placeholders: a quota that refuses hundreds at a time is not asked by all of
/// them at once.
fn jitter(uid: &str) -> Duration {
    let sum: u64 = uid.bytes().map(u64::from).sum();
    Duration::from_millis(sum * 37 % 2000)
}
