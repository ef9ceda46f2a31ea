//! Writes the settings and claims of a run into its pinned annotations (M8).

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Admission, Question, multiple_claims};
use crate::annotations::MODE_SOURCE;
use crate::config::Configuration;
use crate::mode::{CoscheduledClaims, Mode};
use crate::names::Group;
use crate::overrides::{Setting, Source};
use crate::pinned::Pinned;
use crate::run_claims::{self, AccessModes};
use crate::subsets::Subsets;

/// The parts of a run's pins that do not follow from its configuration and its claims.
pub(super) struct Drawn {
    pub(super) group: Group,
    /// The templates that admission replaced by claims.
    pub(super) templates: BTreeMap<String, Value>,
    pub(super) subsets: Subsets,
}

/// Pins the settings in `configuration`, and the claims of the run in `question`.
pub(super) fn pin(
    configuration: Configuration,
    question: &Question<'_>,
    drawn: Drawn,
    admission: &mut Admission,
) {
    let Drawn {
        group,
        templates,
        subsets,
    } = drawn;
    let run = question.run;
    let mode = configuration.mode;
    let mut claims = run_claims::of_run(run, question.catalog);
    claims.retain(|workspace, _| !templates.contains_key(workspace));
    if mode == Mode::Workspaces {
        match configuration.coschedule_claims {
            CoscheduledClaims::All => {}
            CoscheduledClaims::NodeBound => {
                let none = AccessModes::default();
                let known = question.access_modes.unwrap_or(&none);
                admission.claims_to_read = run_claims::mark_shared(&mut claims, run, known);
            }
        }
        let warnings = multiple_claims::warnings(run, &claims);
        admission.warnings.extend(warnings);
    } else {
        claims.extend(run_claims::of_volumes(run, question.catalog));
    }
    let pinned = Pinned {
        mode,
        isolation_scope: configuration.isolation_scope,
        group,
        placeholder: configuration.placeholder,
        templates,
        claims,
        adopted: None,
        subsets,
    };
    admission.set_annotations.extend(pinned.to_annotations());
    let sources = [
        Some(&run.annotations),
        question.pipeline_annotations,
        question.namespace_annotations,
    ];
    let source = Source::of(Setting::Mode, sources);
    let place = match (source, configuration.version) {
        (Source::Cluster, Some(version)) => {
            format!("{}, resourceVersion {version}", source.place(Setting::Mode))
        }
        _ => source.place(Setting::Mode),
    };
    admission
        .set_annotations
        .insert(MODE_SOURCE.to_owned(), place);
}
