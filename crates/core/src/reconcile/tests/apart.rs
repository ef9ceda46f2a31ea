//! Pods that use claims that their placeholder leaves out (V7).

use super::make_room::{let_go, waiting_in};
use super::*;

#[test]
fn v7_a_pod_whose_claim_the_placeholder_does_without_is_let_go_beside_its_running_pods() {
    let mut observed = waiting_in(Mode::PipelineRuns, &[CLAIM, "far"], "far");
    own(&mut observed).claims.retain(|claim| claim == CLAIM);
    own_pod(&mut observed).claims.retain(|claim| claim == CLAIM);
    own_pod(&mut observed).bound = Some(observed.now);
    restrict(&mut observed, CLAIM, "zone", "a");
    restrict(&mut observed, "far", "zone", "b");
    node(&mut observed, "node-1").labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let mut runs = task("runs", &name(&observed), 100);
    runs.node = Some("node-1".to_owned());
    add(&mut observed, runs);
    let decision = settled(&mut observed);
    assert_eq!(let_go(&decision), [("waits", 1)]);
    // If the pod also used a claim of the placeholder, it would have to wait.
    pod(&mut observed, "waits").claims = vec![CLAIM.to_owned()];
    assert_eq!(let_go(&settled(&mut observed)), []);
}
