//! Decides which configuration is in force, from the contents of two ConfigMaps: ours, and Tekton's `feature-flags`.

use std::collections::BTreeMap;

use coscheduler_core::config::{self, Configuration, version_number};
use coscheduler_core::violation::Violation;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::{Resource as _, ResourceExt as _};

/// The configuration in force, and the current problems of both ConfigMaps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    /// Our ConfigMap. `None` until the ConfigMap was read, or was found not to exist.
    ours: Option<Ours>,
    /// Tekton's ConfigMap. `None` until the ConfigMap was read, or was found not to exist.
    tekton: Option<Tekton>,
}

/// The state of our ConfigMap.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ours {
    /// The last valid configuration. Its field `tekton_coschedule` is not set.
    pub configuration: Option<Configuration>,
    /// The version of the ConfigMap from which `configuration` was read.
    pub resource_version: String,
    /// A reference to the current version of the ConfigMap. `None` if the ConfigMap does not exist.
    pub now: Option<ObjectReference>,
    /// The violations in the current version of the ConfigMap.
    pub violations: Vec<Violation>,
    warnings: Vec<String>,
}

/// The state of Tekton's ConfigMap.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tekton {
    /// The value of flag `coschedule`. `None` if the value is `disabled`.
    pub coschedule: Option<String>,
    /// The version from which the flag was read. Empty if this process has never seen the ConfigMap.
    pub resource_version: String,
    warnings: Vec<String>,
}

impl State {
    /// Stores the new state of our ConfigMap. `map` is `None` if the ConfigMap does not exist.
    pub(crate) fn apply(&mut self, name: &str, map: Option<ConfigMap>) {
        let ours = self.ours.get_or_insert_default();
        let version = map.as_ref().and_then(|map| map.resource_version());
        ours.now = map.as_ref().map(|map| ObjectReference {
            resource_version: version.clone(),
            ..map.object_ref(&())
        });
        let checked = match map {
            Some(map) => config::check(&map.data.unwrap_or_default()),
            None => Err(vec![Violation::new(name, "there is no such ConfigMap")]),
        };
        match checked {
            Ok(checked) => {
                ours.configuration = Some(checked.configuration);
                ours.resource_version = version.unwrap_or_default();
                ours.violations = Vec::new();
                ours.warnings = checked.warnings;
            }
            Err(violations) => {
                ours.violations = violations;
                ours.warnings = Vec::new();
            }
        }
    }

    /// Stores the new state of Tekton's ConfigMap. If the ConfigMap was deleted (`None`), its last flag stays in force, as in
    /// Tekton itself. If this process has never seen the ConfigMap, Tekton's default counts, so its own assistant is on.
    /// Admission then leaves new runs to Tekton with a warning, or adopts them, so that two products never place the same pods.
    pub(crate) fn apply_tekton(&mut self, name: &str, map: Option<ConfigMap>) {
        let tekton = self.tekton.get_or_insert_default();
        let mut warnings = Vec::new();
        match map {
            Some(map) => {
                tekton.resource_version = map.resource_version().unwrap_or_default();
                tekton.coschedule = config::tekton_coschedule(&map.data.unwrap_or_default());
            }
            None if tekton.resource_version.is_empty() => {
                tekton.coschedule = config::tekton_coschedule(&BTreeMap::new());
                warnings.push(format!(
                    "there is no ConfigMap {name}, so Tekton's default counts; if Tekton runs in another namespace, name it \
                     in --tekton-namespace"
                ));
            }
            None => warnings.push(format!(
                "ConfigMap {name} has gone; its last flag still counts, as it does in Tekton"
            )),
        }
        if let Some(flag) = &tekton.coschedule {
            warnings.push(format!(
                "new runs are left to Tekton, because its own flag coschedule is {flag:?}; set it to \"disabled\" in \
                 ConfigMap {name}"
            ));
        }
        tekton.warnings = warnings;
    }

    /// The states of both ConfigMaps. `None` until both are known.
    pub(crate) fn read(&self) -> Option<(&Ours, &Tekton)> {
        self.ours.as_ref().zip(self.tekton.as_ref())
    }

    /// The number of the configuration: the larger `resourceVersion` of the two ConfigMap versions in force. It increases with
    /// every change. Replicas that read configuration and Tekton's flag from the same versions of the ConfigMaps have the same
    /// number. 0 if there is no configuration.
    pub(crate) fn generation(&self) -> i64 {
        let Some((ours, tekton)) = self.read() else {
            return 0;
        };
        let latest =
            version_number(&ours.resource_version).max(version_number(&tekton.resource_version));
        ours.configuration.as_ref().map_or(0, |_| latest)
    }

    /// Warnings about settings that are allowed but probably wrong.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let ours = self.ours.iter().flat_map(|ours| &ours.warnings);
        let tekton = self.tekton.iter().flat_map(|tekton| &tekton.warnings);
        ours.chain(tekton).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::Mode;

    const TEKTON: &str = "tekton-pipelines/feature-flags";

    fn read(mode: &str, resource_version: &str) -> Option<ConfigMap> {
        let mut map = ConfigMap {
            data: Some([("coschedule".to_owned(), mode.to_owned())].into()),
            ..ConfigMap::default()
        };
        map.metadata.resource_version = Some(resource_version.to_owned());
        Some(map)
    }

    fn ours(state: &State) -> &Ours {
        state.read().unwrap().0
    }

    fn with_tekton_disabled() -> State {
        let mut state = State::default();
        state.apply_tekton(TEKTON, read("disabled", "1"));
        state
    }

    #[test]
    fn m7_a_bad_config_map_leaves_the_last_good_configuration_in_force() {
        let mut state = with_tekton_disabled();
        state.apply("c", read("pipelineruns", "2"));
        state.apply("c", read("sideways", "3"));
        assert_eq!(state.generation(), 2);
        assert_eq!(ours(&state).resource_version, "2");
        assert_eq!(
            ours(&state).configuration.as_ref().unwrap().mode,
            Mode::PipelineRuns
        );
        assert_eq!(ours(&state).violations[0].field, "coschedule");
        let now = ours(&state).now.as_ref().unwrap();
        assert_eq!(now.resource_version.as_deref(), Some("3"));
        state.apply("c", read("disabled", "4"));
        assert_eq!(
            (state.generation(), ours(&state).resource_version.as_str()),
            (4, "4")
        );
        assert!(ours(&state).violations.is_empty());
    }

    #[test]
    fn replicas_that_saw_the_same_have_the_same_generation_and_later_is_greater() {
        let mut steady = with_tekton_disabled();
        steady.apply("c", read("disabled", "9"));
        let before = steady.generation();
        steady.apply("c", read("pipelineruns", "10"));
        steady.apply_tekton(TEKTON, read("workspaces", "12"));
        assert!(before < steady.generation());

        let mut restarted = State::default();
        restarted.apply_tekton(TEKTON, read("workspaces", "12"));
        assert_eq!(restarted.generation(), 0);
        restarted.apply("c", read("pipelineruns", "10"));
        assert_eq!(restarted.generation(), steady.generation());
    }

    #[test]
    fn m7_without_a_config_map_there_is_no_configuration_and_a_reason() {
        let mut state = with_tekton_disabled();
        state.apply("coscheduler-config", None);
        assert_eq!(ours(&state).configuration, None);
        assert_eq!(ours(&state).violations[0].field, "coscheduler-config");
        assert_eq!(state.generation(), 0);
    }

    #[test]
    fn nothing_is_answered_before_both_were_read() {
        let mut state = State::default();
        state.apply("c", read("pipelineruns", "2"));
        assert_eq!(state.read(), None);
        state.apply_tekton(TEKTON, None);
        assert!(state.read().is_some());
    }

    #[test]
    fn m9_tektons_flag_is_what_it_said_last_or_its_default() {
        #[track_caller]
        fn check(state: &State, flag: Option<&str>, warnings: &[&str]) {
            assert_eq!(state.read().unwrap().1.coschedule.as_deref(), flag);
            let told = state.warnings();
            assert_eq!(told.len(), warnings.len(), "{told:?}");
            for (told, part) in told.iter().zip(warnings) {
                assert!(told.contains(part), "{told}");
            }
        }
        let mut state = State::default();
        state.apply("c", read("pipelineruns", "2"));
        state.apply_tekton(TEKTON, None);
        check(
            &state,
            Some("workspaces"),
            &["--tekton-namespace", "left to Tekton"],
        );
        state.apply_tekton(TEKTON, read("pipelineruns", "3"));
        check(&state, Some("pipelineruns"), &["left to Tekton"]);
        state.apply_tekton(TEKTON, read("disabled", "4"));
        check(&state, None, &[]);
        state.apply_tekton(TEKTON, None);
        check(&state, None, &["has gone"]);
    }
}
