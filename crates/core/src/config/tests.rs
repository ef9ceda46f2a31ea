//! Tests that read a ConfigMap: with each key, and with the flags of each of the eight rows of TEP-0135's table.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn m1_without_any_key_the_defaults_are_in_force() {
    let checked = check(&BTreeMap::new()).unwrap();
    assert_eq!(
        checked,
        Checked {
            configuration: Configuration {
                mode: Mode::Workspaces,
                isolation_scope: IsolationScope::Cluster,
                coschedule_claims: CoscheduledClaims::All,
                allowed_overrides: BTreeSet::new(),
                namespace_may_allow: BTreeSet::new(),
                placeholder: PlaceholderDefaults::default(),
                adopt_runs_in: BTreeSet::new(),
                tekton_coschedule: None,
                version: None,
            },
            warnings: vec![],
        }
    );
}

#[test]
fn every_word_of_every_key_is_read() {
    for mode in Mode::ALL {
        let checked = check(&data(&[("coschedule", mode.as_str())])).unwrap();
        assert_eq!(checked.configuration.mode, mode);
    }
    for scope in IsolationScope::ALL {
        let checked = check(&data(&[("isolation-scope", scope.as_str())])).unwrap();
        assert_eq!(checked.configuration.isolation_scope, scope);
    }
    for claims in CoscheduledClaims::ALL {
        let checked = check(&data(&[("coschedule-claims", claims.as_str())])).unwrap();
        assert_eq!(checked.configuration.coschedule_claims, claims);
        assert_eq!(checked.warnings, Vec::<String>::new());
    }
    for placement in Placement::ALL {
        let checked = check(&data(&[("placement", placement.as_str())])).unwrap();
        assert_eq!(checked.configuration.placeholder.placement, placement);
    }
    for reserves in Reserves::ALL {
        let checked = check(&data(&[("placeholder-reserves", reserves.as_str())])).unwrap();
        assert_eq!(checked.configuration.placeholder.reserves, reserves);
    }
}

/// The eight rows: `disable-affinity-assistant`, `coschedule`, mode during the migration, mode after it.
#[test]
fn m6_the_eight_rows_are_what_flags_do() {
    let modes = [
        "disabled",
        "workspaces",
        "pipelineruns",
        "isolate-pipelinerun",
    ];
    for (disable, during) in [
        ("false", [None, Some("workspaces"), None, None]),
        (
            "true",
            [
                Some("disabled"),
                Some("disabled"),
                Some("pipelineruns"),
                Some("isolate-pipelinerun"),
            ],
        ),
    ] {
        for (coschedule, during) in modes.into_iter().zip(during) {
            for phase in ["during", "after"] {
                let answer = answer(&data(&[
                    ("disable-affinity-assistant", disable),
                    ("coschedule", coschedule),
                    ("migration-phase", phase),
                ]));
                let row = format!("{disable}, {coschedule}, {phase}");
                assert_eq!(answer.during.map(Mode::as_str), during, "{row}");
                assert_eq!(answer.after.map(Mode::as_str), Some(coschedule), "{row}");
                let in_force = if phase == "during" {
                    during
                } else {
                    Some(coschedule)
                };
                match (&answer.outcome, in_force) {
                    (Ok(configuration), Some(mode)) => {
                        assert_eq!(configuration.mode.as_str(), mode, "{row}")
                    }
                    (Err(violations), None) => {
                        assert_eq!(violations.len(), 1, "{row}");
                        assert_eq!(violations[0].field, "coschedule", "{row}");
                        for part in [coschedule, "\"false\"", "allowed: workspaces", "\"during\""] {
                            assert!(
                                violations[0].description.contains(part),
                                "{row}: {}",
                                violations[0]
                            );
                        }
                    }
                    (outcome, expect) => panic!("{row}: {outcome:?}, expected {expect:?}"),
                }
                let warned = answer
                    .warnings
                    .iter()
                    .any(|warning| warning.contains("deprecated"));
                assert_eq!(warned, phase == "after", "{row}: {:?}", answer.warnings);
            }
        }
    }
}

#[test]
fn m6_absent_flags_take_their_defaults_in_both_phases() {
    let during = answer(&data(&[("migration-phase", "during")]));
    assert_eq!(
        (during.during, during.after),
        (Some(Mode::Workspaces), Some(Mode::Workspaces))
    );
    assert_eq!(during.outcome.unwrap().mode, Mode::Workspaces);
    assert_eq!(during.warnings, Vec::<String>::new());
}

#[test]
fn m6_a_bad_truth_value_counts_only_where_the_flag_does() {
    let flags = |phase| {
        data(&[
            ("disable-affinity-assistant", "yes"),
            ("migration-phase", phase),
        ])
    };
    let during = answer(&flags("during"));
    assert_eq!(
        (during.during, during.after),
        (None, Some(Mode::Workspaces))
    );
    let violations = during.outcome.unwrap_err();
    assert_eq!(violations[0].field, "disable-affinity-assistant");
    assert!(
        violations[0].description.starts_with("\"yes\""),
        "{}",
        violations[0]
    );
    let after = check(&flags("after")).unwrap();
    assert_eq!(after.configuration.mode, Mode::Workspaces);
    assert!(
        after.warnings[0].contains("deprecated"),
        "{:?}",
        after.warnings
    );
}

#[test]
fn m6_modes_are_answered_even_where_another_key_is_bad() {
    let answer = answer(&data(&[
        ("coschedule", "pipelineruns"),
        ("placeholder-cpu", "many"),
    ]));
    assert_eq!(
        (answer.during, answer.after),
        (None, Some(Mode::PipelineRuns))
    );
    assert_eq!(answer.outcome.unwrap_err().len(), 1);
}

#[test]
fn b1_overrides_are_lists_of_modes_placements_and_reservations() {
    for key in ["allowed-overrides", "namespace-may-allow"] {
        let allowed = |text| {
            let configuration = check(&data(&[(key, text)])).unwrap().configuration;
            let (filled, empty) = match key {
                "allowed-overrides" => (
                    configuration.allowed_overrides,
                    configuration.namespace_may_allow,
                ),
                _ => (
                    configuration.namespace_may_allow,
                    configuration.allowed_overrides,
                ),
            };
            assert_eq!(empty, [].into());
            filled
        };
        let disabled = Override::Mode(Mode::Disabled);
        assert_eq!(allowed(""), [].into());
        assert_eq!(allowed("disabled"), [disabled].into());
        let three = [
            disabled,
            Override::Placement(Placement::Pack),
            Override::Reserves(Reserves::Placement),
        ];
        for text in [
            "disabled,placement=pack,placeholder-reserves=placement",
            "placeholder-reserves=placement, placement=pack, disabled",
            " disabled\nplacement=pack\n\nplaceholder-reserves=placement\n",
            "disabled,,placement=pack,,placeholder-reserves=placement,",
        ] {
            assert_eq!(allowed(text), three.into(), "{text:?}");
        }
        let violations = check(&data(&[(key, "all, none disabled pack placement=all")]));
        let violations = violations.unwrap_err();
        assert_eq!(violations.len(), 4);
        for (violation, word) in violations
            .iter()
            .zip(["all", "none", "pack", "placement=all"])
        {
            assert_eq!(violation.field, key);
            for part in [word, "allowed: workspaces", "placement=pack"] {
                assert!(violation.description.contains(part), "{violation}");
            }
        }
    }
}

#[test]
fn p1_p3_p4_p5_b3_the_placeholder_is_configurable() {
    let image = "registry.example:5000/pause@sha256:7031c1b283388c2c57d1ad30bbd4d8f1d2c5a8e9a8f0d4fb4d4d9b8c1a2b3c4d";
    let checked = check(&data(&[
        ("coschedule", "pipelineruns"),
        ("placeholder-cpu", "0.1"),
        ("placeholder-memory", "64Mi"),
        ("placeholder-image", image),
        (
            "default-affinity-assistant-pod-template",
            "nodeSelector:\n  disk: ssd\n",
        ),
        ("placement", "pack"),
        ("placeholder-reserves", "placement"),
        ("placeholder-backend", "pod"),
    ]));
    assert_eq!(
        checked.unwrap().configuration.placeholder,
        PlaceholderDefaults {
            cpu: "0.1".to_owned(),
            memory: "64Mi".to_owned(),
            image: image.to_owned(),
            pod_template: json!({"nodeSelector": {"disk": "ssd"}})
                .as_object()
                .cloned()
                .unwrap(),
            placement: Placement::Pack,
            reserves: Reserves::Placement,
            backend: Backend::Pod,
        }
    );
}

#[test]
fn an_unknown_key_is_a_warning() {
    let checked = check(&data(&[("placeholder_cpu", "1")])).unwrap();
    assert_eq!(
        checked.warnings,
        [
            "key \"placeholder_cpu\" is not known and was ignored; known keys: coschedule, disable-affinity-assistant, \
             migration-phase, isolation-scope, coschedule-claims, allowed-overrides, namespace-may-allow, \
             default-affinity-assistant-pod-template, placement, placeholder-reserves, placeholder-backend, placeholder-cpu, placeholder-memory, placeholder-image, adopt-runs-in"
        ]
    );
}

#[test]
fn m7_all_violations_come_at_once_with_key_value_and_what_is_allowed() {
    let bad = [
        (
            "coschedule",
            "\"sideways\"",
            "allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled",
        ),
        ("migration-phase", "\"later\"", "allowed: during, after"),
        ("isolation-scope", "\"zone\"", "allowed: cluster, namespace"),
        ("coschedule-claims", "\"some\"", "allowed: all, node-bound"),
        ("allowed-overrides", "\"all\"", "allowed: workspaces"),
        ("namespace-may-allow", "\"any\"", "allowed: workspaces"),
        (
            "adopt-runs-in",
            "\"Team_A\"",
            "allowed: names of namespaces",
        ),
        (
            "default-affinity-assistant-pod-template",
            "is not an object",
            "allowed: an object with some of affinity",
        ),
        ("placement", "\"near\"", "allowed: spread, pack, none"),
        (
            "placeholder-reserves",
            "\"half\"",
            "allowed: nothing, placement, peak",
        ),
        (
            "placeholder-backend",
            "\"deployment\"",
            "allowed: statefulset, pod",
        ),
        ("placeholder-cpu", "\"50 m\"", "allowed: a decimal number"),
        ("placeholder-memory", "\"0\"", "allowed: more than 0"),
        ("placeholder-image", "\"\"", "allowed: [registry/]path"),
    ];
    let flags = bad.map(|(key, value, _)| {
        let value = if key.starts_with("default") {
            "7"
        } else {
            value
        };
        (key, value.trim_matches('"'))
    });
    let violations = check(&data(&flags)).unwrap_err();
    assert_eq!(violations.len(), bad.len(), "{violations:?}");
    for (violation, (key, value, allowed)) in violations.iter().zip(bad) {
        assert_eq!(violation.field, key);
        assert!(violation.description.contains(value), "{violation}");
        assert!(violation.description.contains(allowed), "{violation}");
    }
}

#[test]
fn m7_each_bad_value_is_refused_by_its_key() {
    for (key, values) in [
        (
            COSCHEDULE,
            &["isolate", "", "PipelineRuns", "disabled\n"][..],
        ),
        (MIGRATION_PHASE, &["", "During", "before"]),
        (ISOLATION_SCOPE, &["", "Cluster", "node"]),
        (PLACEMENT, &["", "Spread", "packed", "nothing"]),
        (PLACEHOLDER_RESERVES, &["", "Nothing", "none", "true"]),
        (
            PLACEHOLDER_CPU,
            &["", "-1", "0m", "0.5m", "1n", "fifty", "1e"],
        ),
        (
            PLACEHOLDER_MEMORY,
            &["", "100m", "1.5", "-1Gi", "100MB", "lots"],
        ),
        (
            PLACEHOLDER_IMAGE,
            &[
                "a b",
                "/pause",
                "pause/",
                "Pause",
                "pause:",
                "pause@sha256:12",
                "a:b:c",
                ":tag",
                "a//b",
            ],
        ),
    ] {
        for value in values {
            let violations = check(&data(&[(key, value)])).unwrap_err();
            assert_eq!(violations.len(), 1, "{key}={value:?}: {violations:?}");
            assert_eq!(violations[0].field, key);
            assert!(
                violations[0].description.starts_with(&format!("{value:?}")),
                "{}",
                violations[0]
            );
        }
    }
}

#[test]
fn m9_tekton_is_out_of_the_way_only_where_its_own_flag_is_disabled() {
    for (flags, expect) in [
        (&[("coschedule", "disabled")][..], None),
        (&[("coschedule", "Disabled")], None),
        (&[("coschedule", "workspaces")], Some("workspaces")),
        (&[("coschedule", "pipelineruns")], Some("pipelineruns")),
        (&[("enable-api-fields", "beta")], Some("workspaces")),
    ] {
        assert_eq!(tekton_coschedule(&data(flags)).as_deref(), expect);
    }
}

#[test]
fn versions_compare_as_numbers() {
    assert!(version_number("9") < version_number("10"));
    assert_eq!(version_number(""), 0);
}

proptest! {
    #[test]
    fn m7_whatever_is_set_there_is_a_configuration_or_a_reason(
        flags in proptest::collection::btree_map(
            prop::sample::select(KEYS.to_vec()),
            "workspaces|pipelineruns|disabled|true|false|during|after|cluster|1|[a-z{}: ]{0,6}",
            0..6,
        ),
    ) {
        let flags = flags.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let answer = answer(&flags);
        match answer.outcome {
            Ok(configuration) => prop_assert!([answer.during, answer.after].contains(&Some(configuration.mode))),
            Err(violations) => {
                prop_assert!(!violations.is_empty());
                prop_assert!(violations.iter().all(|violation| violation.description.contains("allowed: ")), "{violations:?}");
            }
        }
    }
}
