//! Derives the names of a run's placeholders. Most names derive from the run's group. But in an adopted run, the placeholders
//! keep the names that Tekton gave them, because the run's pods have an affinity to placeholders with these names (B7).

use crate::mode::Mode;
use crate::names::{AssistantName, Group};
use crate::run_claims::RunClaims;
use crate::subsets::MAIN;

/// The source of the names of a run's placeholders.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Naming<'a> {
    /// The run's group.
    Group(&'a Group),
    /// The name of the run. In an adopted run, Tekton has derived the names of the placeholders from it.
    Tekton(&'a str),
}

impl<'a> Naming<'a> {
    /// `adopted` is the run's annotation [`ADOPTED`](crate::annotations::ADOPTED), if it has one.
    pub(crate) fn of(group: &'a Group, adopted: Option<&'a str>, run_name: &'a str) -> Self {
        match adopted {
            None => Self::Group(group),
            Some("") => Self::Tekton(run_name),
            Some(name) => Self::Tekton(name),
        }
    }

    /// The placeholder that serves the whole run. `None` in modes without such a placeholder.
    pub(crate) fn whole_run(self, mode: Mode) -> Option<AssistantName> {
        match mode {
            Mode::PipelineRuns | Mode::IsolatePipelineRun => Some(match self {
                Self::Group(group) => AssistantName::of(group),
                Self::Tekton(run) => AssistantName::of_tekton("", run),
            }),
            Mode::Workspaces | Mode::Disabled => None,
        }
    }

    /// The placeholder of a subset of the run's tasks. `None` in modes without a placeholder for the whole run.
    pub(crate) fn of_subset(self, mode: Mode, subset: &str) -> Option<AssistantName> {
        let whole_run = self.whole_run(mode)?;
        Some(match self {
            Self::Group(group) if subset != MAIN => AssistantName::of_subset(group, subset),
            Self::Group(_) | Self::Tekton(_) => whole_run,
        })
    }

    /// The placeholder of one of the run's `claims`, in mode `workspaces`. In an adopted run, its name derives from the claim's
    /// workspace, as in Tekton.
    pub(crate) fn of_claim(
        self,
        claim_name: &str,
        claims: &RunClaims,
        run_uid: &str,
    ) -> AssistantName {
        match self {
            Self::Group(group) => AssistantName::of_claim(group, claim_name),
            Self::Tekton(run) => {
                let mut claims = claims.iter();
                let of =
                    claims.find(|(workspace, claim)| claim.name(workspace, run_uid) == claim_name);
                AssistantName::of_tekton(of.map_or("", |(workspace, _)| workspace), run)
            }
        }
    }
}
