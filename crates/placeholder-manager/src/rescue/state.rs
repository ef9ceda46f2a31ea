//! What this process remembers of a run whose pods wait: what it did, how often, and what the scheduler made of it. Who leads
//! next begins anew.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use coscheduler_core::plan::ReasonCode;
use coscheduler_core::rescue::ScaleUp;
use tokio::time::Instant;

use crate::evacuate::pause;

/// How long something has to be wanted before it is done: caches are a moment behind each other.
const SETTLED: Duration = Duration::from_secs(1);
/// How long the scheduler may leave room that is there by what is counted.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a moved placeholder may find no node: the scheduler, too, learns of nodes a moment later.
const ARRIVAL: Duration = Duration::from_secs(10);
/// How long a node counts as refused.
const REFUSED: Duration = Duration::from_secs(120);
/// How often a pod is let go, where Tekton makes it with its affinity again.
const TRIES: u32 = 5;

/// What is remembered of a run.
#[derive(Debug, Default)]
pub(super) struct State {
    moves: u32,
    last_move: Option<Instant>,
    /// Since when a moved placeholder finds no node, by its pod's uid.
    lost: Option<(String, Instant)>,
    refused: HashMap<String, Refused>,
    pods: HashMap<String, OfPod>,
}

/// Nodes, and when they were refused.
type Refused = HashMap<String, Instant>;

#[derive(Debug, Default)]
struct OfPod {
    room_since: Option<(String, Instant)>,
    wanted_since: Option<Instant>,
    refused: Refused,
    triggered: Option<Instant>,
    node_added: Option<Instant>,
    let_go: u32,
    last_let_go: Option<Instant>,
    decided: Option<ReasonCode>,
    /// Whether the pod with this uid is the run's indeed.
    own: Option<(String, bool)>,
}

impl State {
    pub(super) fn is_empty(&self) -> bool {
        self.moves == 0 && self.lost.is_none() && self.refused.is_empty() && self.pods.is_empty()
    }

    /// Forgets the pods that do not wait any more, except how often they were let go.
    pub(super) fn keep(&mut self, waiting: &BTreeSet<String>) {
        self.pods
            .retain(|name, pod| waiting.contains(name) || pod.let_go > 0);
    }

    /// How often placeholders of the run were moved.
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }

    /// Takes in that a placeholder is being moved.
    pub(super) fn moved(&mut self) {
        self.moves += 1;
        self.last_move = Some(Instant::now());
    }

    /// Whether this pod of a moved placeholder has found no node for long enough.
    pub(super) fn is_lost(&mut self, uid: &str) -> bool {
        let now = Instant::now();
        match &self.lost {
            Some((known, since)) if known == uid => now >= *since + ARRIVAL,
            Some(_) | None => {
                self.lost = Some((uid.to_owned(), now));
                false
            }
        }
    }

    /// Takes in that the scheduler takes none of these nodes for a placeholder.
    pub(super) fn refused_placeholder(&mut self, placeholder: &str, nodes: &[String]) {
        let refused = self.refused.entry(placeholder.to_owned()).or_default();
        refused.extend(nodes.iter().map(|node| (node.clone(), Instant::now())));
    }

    pub(super) fn refused_by_placeholder(&self, placeholder: &str) -> BTreeSet<String> {
        lately(self.refused.get(placeholder))
    }

    pub(super) fn refused_by_pod(&self, pod: &str) -> BTreeSet<String> {
        lately(self.pods.get(pod).map(|pod| &pod.refused))
    }

    /// Takes in what was decided about a pod: where there is room for it, and whether something is to be done or said.
    pub(super) fn seen(&mut self, pod: &str, room_on: Option<&str>, wanted: bool) {
        let pod = self.pods.entry(pod.to_owned()).or_default();
        let now = Instant::now();
        match (room_on, &pod.room_since) {
            (None, _) => pod.room_since = None,
            (Some(node), Some((before, since))) if node == before => {
                if now >= *since + PATIENCE {
                    pod.refused.insert(node.to_owned(), now);
                    pod.room_since = None;
                }
            }
            (Some(node), Some(_) | None) => pod.room_since = Some((node.to_owned(), now)),
        }
        if wanted {
            pod.wanted_since.get_or_insert(now);
        } else {
            pod.wanted_since = None;
        }
    }

    /// Takes in why something was decided about a pod; whether that is something else than before.
    pub(super) fn is_news(&mut self, pod: &str, code: ReasonCode) -> bool {
        let pod = self.pods.entry(pod.to_owned()).or_default();
        pod.decided.replace(code) != Some(code)
    }

    /// Whether the pod of that name and uid is the run's, where that was asked already.
    pub(super) fn is_own(&self, pod: &str, uid: &str) -> Option<bool> {
        let (known, own) = self.pods.get(pod)?.own.as_ref()?;
        (known == uid).then_some(*own)
    }

    /// Takes in whether it is.
    pub(super) fn own(&mut self, pod: &str, uid: &str, own: bool) {
        let pod = self.pods.entry(pod.to_owned()).or_default();
        pod.own = Some((uid.to_owned(), own));
    }

    /// How long it is until something has been wanted for a pod for a while; `None` where nothing is wanted.
    pub(super) fn settles_in(&self, pod: &str) -> Option<Duration> {
        let since = self.pods.get(pod)?.wanted_since?;
        Some(SETTLED.saturating_sub(since.elapsed()))
    }

    /// How long it is until what is wanted for a pod may be done; `None` where it may not be done again.
    pub(super) fn may_act_in(&self, pod: &str) -> Option<Duration> {
        let rest = |last: Option<Instant>, times: u32| {
            last.map_or(Duration::ZERO, |last| {
                pause(times).saturating_sub(last.elapsed())
            })
        };
        let of_pod = self.pods.get(pod).filter(|pod| pod.let_go < TRIES)?;
        let settles = self.settles_in(pod)?;
        let moved = rest(self.last_move, self.moves);
        let let_go = rest(of_pod.last_let_go, of_pod.let_go);
        Some(settles.max(moved).max(let_go))
    }

    /// How long it is until something is due about a pod that waits, but for what nobody foresees.
    pub(super) fn due_in(&self, pod: &str, hold: Duration) -> Option<Duration> {
        let of_pod = self.pods.get(pod)?;
        let held = of_pod.triggered.or(of_pod.node_added);
        let released = held.map(|since| hold.saturating_sub(since.elapsed()));
        let due = [self.may_act_in(pod), released].into_iter().flatten();
        due.filter(|due| !due.is_zero()).min()
    }

    pub(super) fn let_go(&mut self, pod: &str) {
        let pod = self.pods.entry(pod.to_owned()).or_default();
        pod.let_go += 1;
        pod.last_let_go = Some(Instant::now());
        pod.wanted_since = None;
    }

    /// Takes in that the autoscaler adds a node for a pod. The first news of either kind counts: what goes on and on is no
    /// reason to wait for ever.
    pub(super) fn scale_up_triggered(&mut self, pod: &str) {
        let pod = self.pods.entry(pod.to_owned()).or_default();
        if pod.node_added.is_none() {
            pod.triggered.get_or_insert_with(Instant::now);
        }
    }

    /// Takes in when a node was added last, as above.
    pub(super) fn scale_up(&mut self, pod: &str, added: Option<Instant>, hold: Duration) {
        let recent = added.filter(|added| added.elapsed() < hold);
        if recent.is_some() {
            let pod = self.pods.entry(pod.to_owned()).or_default();
            if pod.triggered.is_none() {
                pod.node_added = pod.node_added.or(recent);
            }
        }
    }

    /// What holds the pod's moves back.
    pub(super) fn scaling(&self, pod: &str, hold: Duration) -> ScaleUp {
        let pod = self.pods.get(pod);
        let ago = |since: Option<Instant>| since.map(|since| since.elapsed());
        ScaleUp {
            triggered: ago(pod.and_then(|pod| pod.triggered)),
            node_added: ago(pod.and_then(|pod| pod.node_added)),
            hold,
        }
    }
}

fn lately(refused: Option<&Refused>) -> BTreeSet<String> {
    let refused = refused.into_iter().flatten();
    let lately = refused.filter(|(_, since)| since.elapsed() < REFUSED);
    lately.map(|(node, _)| node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn later(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn n2_only_what_is_wanted_for_a_while_is_done_and_moves_wait_longer_and_longer() {
        let mut state = State::default();
        let second = Duration::from_secs(1);
        state.seen("pod", None, true);
        assert_eq!(state.may_act_in("pod"), Some(SETTLED));
        later(SETTLED).await;
        state.seen("pod", None, true);
        assert_eq!(state.may_act_in("pod"), Some(Duration::ZERO));
        state.moved();
        state.moved();
        assert_eq!(state.may_act_in("pod"), Some(2 * second), "after two moves");
        later(2 * second).await;
        assert_eq!(state.may_act_in("pod"), Some(Duration::ZERO));
        state.seen("pod", None, false);
        state.seen("pod", None, true);
        assert_eq!(state.may_act_in("pod"), Some(SETTLED), "wanted anew");
    }

    #[tokio::test(start_paused = true)]
    async fn n2_room_that_the_scheduler_leaves_counts_as_refused_for_a_while() {
        let mut state = State::default();
        state.seen("pod", Some("node-1"), false);
        later(PATIENCE / 2).await;
        state.seen("pod", Some("node-2"), false);
        later(PATIENCE / 2).await;
        state.seen("pod", Some("node-2"), false);
        assert!(
            state.refused_by_pod("pod").is_empty(),
            "the other node's time does not count"
        );
        later(PATIENCE / 2).await;
        state.seen("pod", Some("node-2"), false);
        assert_eq!(state.refused_by_pod("pod"), ["node-2".to_owned()].into());
        assert!(state.refused_by_pod("other").is_empty());
        later(REFUSED).await;
        assert!(state.refused_by_pod("pod").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn n2_a_moved_placeholder_has_a_while_to_find_its_node() {
        let mut state = State::default();
        assert!(!state.is_lost("one"));
        later(ARRIVAL / 2).await;
        assert!(!state.is_lost("two"));
        later(ARRIVAL / 2).await;
        assert!(!state.is_lost("two"));
        later(ARRIVAL / 2).await;
        assert!(state.is_lost("two"));
    }

    #[tokio::test(start_paused = true)]
    async fn n4_nodes_that_are_added_again_and_again_hold_back_once() {
        let mut state = State::default();
        let hold = Duration::from_secs(60);
        for _ in 0..5 {
            state.scale_up("pod", Some(Instant::now()), hold);
            later(hold / 4).await;
        }
        state.scale_up_triggered("pod");
        let scaling = state.scaling("pod", hold);
        assert_eq!(scaling.node_added, Some(5 * hold / 4));
        assert_eq!(scaling.triggered, None, "one hold, not one after the other");
        state.scale_up_triggered("another");
        state.scale_up("another", Some(Instant::now()), hold);
        assert_eq!(state.scaling("another", hold).node_added, None);
        later(hold / 4).await;
        state.scale_up_triggered("another");
        assert_eq!(state.scaling("another", hold).triggered, Some(hold / 4));
        assert_eq!(state.due_in("another", hold), Some(hold * 3 / 4));
        state.seen("another", None, true);
        assert_eq!(state.due_in("another", hold), Some(SETTLED));
        later(hold).await;
        assert_eq!(state.due_in("another", hold), None, "nothing is foreseen");
        let long_ago = Instant::now();
        later(hold).await;
        state.scale_up("other", Some(long_ago), hold);
        assert_eq!(state.scaling("other", hold).node_added, None);
    }

    #[tokio::test(start_paused = true)]
    async fn n2_a_pod_is_let_go_a_few_times() {
        let mut state = State::default();
        for _ in 0..TRIES {
            state.seen("pod", None, true);
            later(REFUSED).await;
            assert_eq!(state.may_act_in("pod"), Some(Duration::ZERO));
            state.let_go("pod");
            state.keep(&BTreeSet::new());
        }
        state.seen("pod", None, true);
        later(REFUSED).await;
        assert_eq!(state.may_act_in("pod"), None);
    }
}
