//! Tests that write pinned annotations and read them again. Each of the other tests makes one annotation invalid.

use super::*;
use crate::annotations::{
    AWAITS_PIPELINE, MODE_SOURCE, PART_OF, PINNED, SIZES, SUBSETS, TRACEPARENT,
};
use crate::config::Reserves;
use crate::run_claims::{ClaimSource, RunClaim};
use crate::separation::Placement;
use proptest::prelude::*;
use serde_json::json;

fn example() -> Pinned {
    Pinned {
        mode: Mode::PipelineRuns,
        isolation_scope: IsolationScope::Cluster,
        group: "79340742ab".parse().unwrap(),
        placeholder: PlaceholderDefaults::default(),
        templates: [(
            "source".to_owned(),
            json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
        )]
        .into(),
        claims: [(
            "cache".to_owned(),
            ClaimSource::Name("build-cache".to_owned()).into(),
        )]
        .into(),
        adopted: None,
        subsets: Subsets::new(),
    }
}

#[test]
fn m8_exactly_the_pinned_annotations_are_written() {
    let annotations = example().to_annotations();
    let mut keys: Vec<_> = PINNED
        .into_iter()
        .filter(|key| {
            ![
                ADOPTED,
                AWAITS_PIPELINE,
                MODE_SOURCE,
                PART_OF,
                SIZES,
                SUBSETS,
                TRACEPARENT,
            ]
            .contains(key)
        })
        .collect();
    keys.sort_unstable();
    assert_eq!(
        annotations.keys().map(String::as_str).collect::<Vec<_>>(),
        keys
    );
    assert_eq!(annotations[SCHEMA_VERSION], "1");
    assert_eq!(annotations[MODE], "pipelineruns");
    assert_eq!(annotations[GROUP], "79340742ab");
    assert_eq!(
        annotations[TEKTON_AFFINITY_ASSISTANT],
        "affinity-assistant-79340742ab"
    );
    assert_eq!(annotations[ISOLATION_SCOPE], "cluster");
    assert_eq!(annotations[CLAIMS], r#"{"cache":{"name":"build-cache"}}"#);
    assert_eq!(
        serde_json::from_str::<Value>(&annotations[PLACEHOLDER]).unwrap(),
        json!({"cpu": "50m", "memory": "100Mi", "image": "registry.k8s.io/pause:3.10.1", "placement": "spread", "backend": "statefulset", "reserves": "placement"})
    );
    assert_eq!(
        annotations[VOLUME_CLAIM_TEMPLATES],
        r#"{"source":{"spec":{"accessModes":["ReadWriteOnce"]}}}"#
    );
}

#[test]
fn m1_a_run_with_a_placeholder_for_each_claim_has_none_for_all_its_pods() {
    let pinned = Pinned {
        mode: Mode::Workspaces,
        ..example()
    };
    assert_eq!(pinned.to_annotations()[TEKTON_AFFINITY_ASSISTANT], "");
}

#[test]
fn m5_nothing_is_pinned_without_a_mode() {
    let mut annotations = example().to_annotations();
    annotations.remove(MODE);
    assert_eq!(Pinned::read(&annotations), Ok(None));
    assert_eq!(Pinned::read(&BTreeMap::new()), Ok(None));
}

#[test]
fn m8_a_run_pinned_before_there_were_schema_versions_is_read() {
    let mut annotations = example().to_annotations();
    annotations.remove(SCHEMA_VERSION);
    assert_eq!(Pinned::read(&annotations), Ok(Some(example())));
}

#[test]
fn m8_p4_b3_a_run_pinned_before_a_key_was_known_has_the_keys_default() {
    let mut annotations = example().to_annotations();
    let older = r#"{"cpu":"50m","memory":"100Mi","image":"registry.k8s.io/pause:3.10.1"}"#;
    annotations.insert(PLACEHOLDER.to_owned(), older.to_owned());
    assert_eq!(Pinned::read(&annotations), Ok(Some(example())));
}

#[test]
fn p4_m4_b3_the_placement_counts_outside_isolation_and_what_reserves_does_not_spread() {
    for (placement, reserves, expect) in [
        (Placement::Spread, Reserves::Nothing, Separation::Spread),
        (Placement::Pack, Reserves::Nothing, Separation::Pack),
        (Placement::None, Reserves::Nothing, Separation::None),
        (Placement::Spread, Reserves::Placement, Separation::None),
        (Placement::Pack, Reserves::Placement, Separation::Pack),
        (Placement::None, Reserves::Placement, Separation::None),
    ] {
        let mut pinned = example();
        pinned.placeholder.placement = placement;
        pinned.placeholder.reserves = reserves;
        for mode in [Mode::Workspaces, Mode::PipelineRuns] {
            assert_eq!(
                Pinned {
                    mode,
                    ..pinned.clone()
                }
                .separation(),
                expect
            );
        }
        pinned.mode = Mode::IsolatePipelineRun;
        let isolated = Separation::Isolate(IsolationScope::Cluster);
        assert_eq!(pinned.separation(), isolated);
    }
}

#[test]
fn m8_annotations_of_an_unknown_schema_version_are_not_read() {
    for version in ["4", "0", "", "01", "1.1", "one"] {
        let mut annotations = example().to_annotations();
        annotations.insert(SCHEMA_VERSION.to_owned(), version.to_owned());
        annotations.insert(CLAIMS.to_owned(), "of another form".to_owned());
        let violations = Pinned::read(&annotations).unwrap_err();
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert_eq!(
            violations[0].to_string(),
            format!(
                "metadata.annotations[coscheduler.dev/schema-version]: is {version:?}; allowed: 1, 2, 3, or not set"
            )
        );
        let group = annotations.get(GROUP).map(String::as_str);
        assert_eq!(handed_on(&annotations, group), None);
    }
}

#[track_caller]
fn refused(key: &str, value: Option<&str>, expect: &[(&str, &str)]) {
    let mut annotations = example().to_annotations();
    match value {
        Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
        None => annotations.remove(key),
    };
    let violations = Pinned::read(&annotations).unwrap_err();
    let found: Vec<_> = violations
        .iter()
        .map(|fault| (fault.field.as_str(), fault.description.as_str()))
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn each_unreadable_annotation_is_refused_by_its_key() {
    let mode = "metadata.annotations[coscheduler.dev/mode]";
    refused(
        MODE,
        Some("disabled"),
        &[(
            mode,
            "\"disabled\" is not the mode of a coscheduled run; allowed: workspaces, pipelineruns, isolate-pipelinerun",
        )],
    );
    refused(
        MODE,
        Some("all"),
        &[(
            mode,
            "\"all\" is not a coschedule mode; allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled",
        )],
    );
    refused(
        ISOLATION_SCOPE,
        Some("zone"),
        &[(
            "metadata.annotations[coscheduler.dev/isolation-scope]",
            "\"zone\" is not an isolation scope; allowed: cluster, namespace",
        )],
    );
    for text in [
        "",
        "[]",
        r#"{"cache":"build-cache"}"#,
        r#"{"cache":{"claim":"x"}}"#,
    ] {
        let mut annotations = example().to_annotations();
        annotations.insert(CLAIMS.to_owned(), text.to_owned());
        let violations = Pinned::read(&annotations).unwrap_err();
        assert_eq!(
            violations[0].field,
            "metadata.annotations[coscheduler.dev/claims]"
        );
        let group = annotations.get(GROUP).map(String::as_str);
        assert_eq!(handed_on(&annotations, group), None);
    }
    let group = "metadata.annotations[coscheduler.dev/group]";
    refused(
        GROUP,
        Some("x"),
        &[(
            group,
            "\"x\" is not a group; allowed: exactly 10 lowercase hex digits",
        )],
    );
    refused(
        GROUP,
        None,
        &[(
            group,
            "is not set; allowed: the value that admission writes together with coscheduler.dev/mode",
        )],
    );
    let templates = "metadata.annotations[coscheduler.dev/volume-claim-templates]";
    refused(
        VOLUME_CLAIM_TEMPLATES,
        Some("[]"),
        &[(templates, "is a list, []; allowed: an object")],
    );
    refused(
        VOLUME_CLAIM_TEMPLATES,
        Some(r#"{"source":{"spec":3},"cache":{}}"#),
        &[
            (
                &format!("{templates}[cache].spec"),
                "is not set; allowed: an object, the spec of a PersistentVolumeClaim",
            ),
            (
                &format!("{templates}[source].spec"),
                "is a number, 3; allowed: an object",
            ),
        ],
    );
    refused(
        PLACEHOLDER,
        Some(r#"{"cpu":"0","memory":"100Mi","image":"pause"}"#),
        &[(
            "metadata.annotations[coscheduler.dev/placeholder].cpu",
            "\"0\" is not an amount a pod can ask for; allowed: more than 0, in whole thousandths of a CPU, such as 50m",
        )],
    );
    for text in [
        "",
        "{}",
        "null",
        r#"{"cpu":"50m","memory":"1Mi"}"#,
        r#"{"cpu":"50m","memory":"1Mi","image":"pause","placement":"near"}"#,
        r#"{"cpu":"50m","memory":"1Mi","image":"pause","reserves":"half"}"#,
    ] {
        let mut annotations = example().to_annotations();
        annotations.insert(PLACEHOLDER.to_owned(), text.to_owned());
        assert_eq!(
            Pinned::read(&annotations).unwrap_err()[0].field,
            "metadata.annotations[coscheduler.dev/placeholder]"
        );
    }
}

#[test]
fn all_violations_come_at_once() {
    let annotations = [(MODE.to_owned(), "x".to_owned())].into();
    assert_eq!(Pinned::read(&annotations).unwrap_err().len(), 6);
}

proptest! {
    #[test]
    fn m8_what_is_written_reads_back(
        mode in prop::sample::select(vec![Mode::Workspaces, Mode::PipelineRuns, Mode::IsolatePipelineRun]),
        isolation_scope in prop::sample::select(IsolationScope::ALL.to_vec()),
        claims in proptest::collection::btree_map("\\PC*", (prop_oneof![
            "\\PC*".prop_map(ClaimSource::Name),
            "\\PC*".prop_map(ClaimSource::Template),
        ], any::<bool>()).prop_map(|(source, shared)| RunClaim { source, shared }), 0..4),
        adopted in proptest::option::of("\\PC*"),
        request in "\\PC*",
        placement in prop::sample::select(Placement::ALL.to_vec()),
        reserves in prop::sample::select(Reserves::ALL.to_vec()),
        cpu in 1_u32..10_000,
        memory in 1_u32..10_000,
        templates in proptest::collection::btree_map("\\PC*", ("\\PC*", proptest::option::of(1_u64..u64::MAX)), 0..4),
    ) {
        let pinned = Pinned {
            mode,
            isolation_scope,
            claims,
            subsets: Subsets::new(),
            adopted,
            group: Group::from_request_uid(&request),
            placeholder: PlaceholderDefaults {
                cpu: format!("{cpu}m"),
                memory: format!("{memory}Ki"),
                image: format!("registry.example/pause:{cpu}"),
                placement,
                reserves,
                ..PlaceholderDefaults::default()
            },
            templates: templates
                .into_iter()
                .map(|(workspace, (name, storage))| {
                    let spec = json!({"resources": {"requests": {"storage": storage}}});
                    (workspace, json!({"metadata": {"name": name}, "spec": spec}))
                })
                .collect(),
        };
        prop_assert_eq!(Pinned::read(&pinned.to_annotations()), Ok(Some(pinned)));
    }
}
