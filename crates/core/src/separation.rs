//! The rules that bring placeholders to different nodes or to the same node (M4, P4). Module `affinity` of crate `kubernetes`
//! builds the affinity terms for these rules.

use serde::{Deserialize, Serialize};

use crate::config::Reserves;
use crate::mode::IsolationScope;
use crate::words::words;

words! {
    /// The nodes that placeholders prefer in all modes except `isolate-pipelinerun` (P4).
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Placement: "a placement" {
        /// Nodes without another placeholder.
        #[default]
        Spread = "spread",
        /// Nodes with another placeholder.
        Pack = "pack",
        /// No preference.
        None = "none",
    }
}

/// The rule for other placeholders on a placeholder's node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Separation {
    /// The placeholder prefers a node without other placeholders. So runs use many nodes. Placeholders of all namespaces count
    /// (P4).
    #[default]
    Spread,
    /// The placeholder prefers a node with other placeholders. So runs use few nodes. Placeholders of all namespaces count (P4).
    Pack,
    /// There is no rule (P4).
    None,
    /// No other placeholder of this scope may be on the node (M4).
    Isolate(IsolationScope),
}

impl Separation {
    /// The rule for a placeholder in all modes except `isolate-pipelinerun` (P4, B3).
    ///
    /// A placeholder that reserves resources does not use `Spread`, because Karpenter treats a preferred anti-affinity like a
    /// required anti-affinity. So Karpenter would add a node for each placeholder.
    pub const fn shared(placement: Placement, reserves: Reserves) -> Self {
        match placement {
            Placement::Spread => match reserves {
                Reserves::Nothing => Self::Spread,
                Reserves::Placement | Reserves::Peak => Self::None,
            },
            Placement::Pack => Self::Pack,
            Placement::None => Self::None,
        }
    }
}
