//! The mode of coscheduling, the isolation scope, and the claims that are coscheduled. Every `match` on [`Mode`] names all modes.
//! So if somebody adds a mode, the compiler lists all places that must handle the new mode.

use crate::words::words;

words! {
    /// Values of the flag `coschedule` (TEP-0135, "Configuration").
    #[derive(Default)]
    pub enum Mode: "a coschedule mode" {
        /// The pods of a PipelineRun that use the same claim share a node (M1). This mode is also Tekton's default.
        #[default]
        Workspaces = "workspaces",
        /// All pods of a PipelineRun run on one node (M3).
        PipelineRuns = "pipelineruns",
        /// All pods of a PipelineRun run on one node. No other placeholder of the [`IsolationScope`] is on this node (M4).
        IsolatePipelineRun = "isolate-pipelinerun",
        /// The run is not coscheduled (M5).
        Disabled = "disabled",
    }
}

words! {
    /// The other placeholders that must not share a node with an isolated run's placeholder (M4).
    #[derive(Default)]
    pub enum IsolationScope: "an isolation scope" {
        /// Placeholders of all namespaces.
        #[default]
        Cluster = "cluster",
        /// Placeholders of the run's own namespace. Tekton's built-in assistant has this scope too.
        Namespace = "namespace",
    }
}

words! {
    /// The claims that tie pods to a node in [`Mode::Workspaces`] (V8). The other modes do not depend on this value.
    #[derive(Default)]
    pub enum CoscheduledClaims: "a value of coschedule-claims" {
        /// All claims.
        #[default]
        All = "all",
        /// Only claims that one node at a time can mount. Other claims get no placeholder.
        NodeBound = "node-bound",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_and_scope_reads_back_as_itself() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        for scope in IsolationScope::ALL {
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
    }

    #[test]
    fn what_is_not_set_is_what_the_requirements_say() {
        assert_eq!(Mode::default(), Mode::Workspaces);
        assert_eq!(IsolationScope::default(), IsolationScope::Cluster);
    }

    #[test]
    fn an_unknown_mode_is_refused_by_name_with_the_modes_allowed() {
        for text in [
            "workspace",
            "isolate-pipelineruns",
            "Disabled",
            "",
            " pipelineruns",
        ] {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{text:?} is not a coschedule mode; allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled"
                )
            );
            assert!(text.parse::<IsolationScope>().is_err());
        }
    }
}
