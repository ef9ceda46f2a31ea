//! The last steps of a move: the placeholder leaves its node and is bound to another one (N2).

use std::time::Duration;

use super::{Decision, Step, Update, held, residents};
use crate::observed::{Observed, Placeholder, Pod, Record, Sight};

/// How long a moving placeholder may be unschedulable: the scheduler's cache of nodes may be behind, too.
const ARRIVAL: Duration = Duration::from_secs(10);
/// The time to the next look at a run with a moving placeholder, if no watch reports a change before.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// Takes the next step of a move.
pub(super) fn arrive(
    observed: &Observed,
    own: &Placeholder,
    pod: Option<&Pod>,
    decision: &mut Decision,
) {
    decision.look_in(UNDER_WAY);
    let Some((moving, pod)) = own.moving.as_ref().zip(pod) else {
        return;
    };
    if pod.object.deleting {
        return;
    }
    let update = |record: Record| Update {
        placeholder: own.object.name.clone(),
        record,
        reason: None,
    };
    match &pod.node {
        Some(node) if moving.nodes.contains(node) => decision.steps.push(Step::EndMove {
            update: update(own.record.clone()),
            lost: None,
        }),
        // The pod is still on the old node. Another pod may have started there that the placeholder must not leave.
        Some(node) if own.observed => {
            let held = held(observed, own, pod);
            let stays = residents(observed, own, node, &held);
            decision.steps.push(if stays.iter().any(|it| it.keeps) {
                Step::EndMove {
                    update: update(own.record.clone()),
                    lost: None,
                }
            } else {
                Step::Leave(pod.object.clone())
            });
        }
        None if pod.unscheduled.as_ref().is_some_and(|it| it.no_node) => {
            let lost = Sight::Lost(pod.object.uid.clone());
            if decision.lasts(observed, lost, ARRIVAL) {
                let mut record = own.record.clone();
                let refused = moving.nodes.iter().map(|node| (node.clone(), observed.now));
                record.refused.extend(refused);
                decision.steps.push(Step::EndMove {
                    update: update(record),
                    lost: Some(pod.object.clone()),
                });
            }
        }
        Some(_) | None => {}
    }
}
