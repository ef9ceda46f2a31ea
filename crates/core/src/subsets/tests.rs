use super::*;
use crate::admit::{Question, TEKTON_CONTROLLER, admit};
use crate::config::Configuration;
use crate::plan::plan;
use proptest::prelude::*;

/// A run whose tasks have these node selectors (`amd64`, or with a value for `disk` too: `amd64 ssd`), and use these workspaces.
/// Tasks for arm64 tolerate a taint. Workspaces `a` and `b` are bound to templates, `shared` and `again` to one existing claim.
fn run(tasks: &[(&str, &str, &[&str])], of_run: &str) -> PipelineRun {
    let selector = |text: &str| {
        let mut words = text.split_whitespace();
        let mut selector = serde_json::Map::new();
        for key in ["arch", "disk"] {
            if let Some(value) = words.next() {
                selector.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(selector)
    };
    let specs = tasks.iter().filter(|(_, text, _)| !text.is_empty());
    let specs = specs.map(|(name, text, _)| {
        let mut template = json!({"nodeSelector": selector(text)});
        if text.starts_with("arm64") {
            template["tolerations"] = json!([{"key": "arm64"}, {"key": text}]);
        }
        json!({"pipelineTaskName": name, "podTemplate": template})
    });
    let of_pipeline = tasks.iter().map(|(name, _, workspaces)| {
        let workspaces = workspaces
            .iter()
            .map(|it| json!({"name": it, "workspace": it}));
        json!({"name": name, "taskSpec": {}, "workspaces": workspaces.collect::<Vec<_>>()})
    });
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    PipelineRun::parse(&json!({
        "metadata": {"name": "run", "namespace": "ci", "uid": "u"},
        "spec": {
            "taskRunTemplate": {"podTemplate": {"nodeSelector": selector(of_run), "tolerations": [{"key": "of-run"}]}},
            "taskRunSpecs": specs.collect::<Vec<_>>(),
            "pipelineSpec": {"tasks": of_pipeline.collect::<Vec<_>>()},
            "workspaces": [
                {"name": "a", "volumeClaimTemplate": template},
                {"name": "b", "volumeClaimTemplate": template},
                {"name": "shared", "persistentVolumeClaim": {"claimName": "brought"}},
                {"name": "again", "persistentVolumeClaim": {"claimName": "brought"}},
            ],
        },
    }))
    .unwrap()
}

/// The subsets in words: node selector, tasks and workspaces of each. The main subset comes first.
fn words(run: &PipelineRun, mode: Mode) -> Vec<String> {
    let subsets = of_run(run, mode, None);
    let words = subsets.values().map(|subset| {
        let selector: Vec<_> = subset.node_selector.values().cloned().collect();
        let tasks: Vec<_> = subset.tasks.iter().cloned().collect();
        let workspaces: Vec<_> = subset.workspaces.iter().cloned().collect();
        [selector, tasks, workspaces]
            .map(|it| it.join(" "))
            .join("; ")
    });
    words.collect()
}

#[test]
fn b1_tasks_that_do_not_contradict_each_other_are_no_subsets() {
    for (tasks, of_run) in [
        (&[("one", "", &["a"][..]), ("two", "", &[])][..], ""),
        (&[("one", "arm64", &["a"]), ("two", "", &[])], ""),
        (&[("one", "arm64", &[]), ("two", "arm64 ssd", &[])], ""),
        (&[("one", "arm64", &[]), ("two", "", &[])], "arm64"),
    ] {
        assert_eq!(
            words(&run(tasks, of_run), Mode::PipelineRuns),
            Vec::<String>::new()
        );
    }
}

#[test]
fn b1_tasks_of_two_architectures_are_two_subsets_each_with_its_own_claims() {
    let tasks: &[(&str, &str, &[&str])] = &[
        ("clone", "", &[]),
        ("build-amd", "amd64", &["a"]),
        ("build-arm", "arm64", &["b"]),
        ("test-arm", "arm64", &["b"]),
        ("manifest", "", &[]),
    ];
    let both = ["amd64; ; ", "arm64; build-arm test-arm; b"];
    assert_eq!(words(&run(tasks, ""), Mode::PipelineRuns), both);
    assert_eq!(words(&run(tasks, ""), Mode::IsolatePipelineRun), both);
    // In any order of the tasks, the main subset has node selector amd64, because the tasks without a node selector do not
    // tolerate the taint of arm64.
    let mut first = tasks.to_vec();
    first.reverse();
    assert_eq!(words(&run(&first, ""), Mode::PipelineRuns), both);
    // The run's own node selector decides about the main subset.
    let reverse = ["arm64; ; ", "amd64; build-amd; a"];
    assert_eq!(words(&run(tasks, "arm64"), Mode::PipelineRuns), reverse);
    // Each claim has a placeholder of its own, so there is no main subset.
    let mut each = words(&run(tasks, ""), Mode::Workspaces);
    each.sort();
    assert_eq!(
        each,
        ["amd64; build-amd; a", "arm64; build-arm test-arm; b"]
    );
}

#[test]
fn b1_a_task_that_shares_a_claim_with_another_subset_stays_in_the_main_subset() {
    let shared: &[(&str, &str, &[&str])] = &[
        ("clone", "", &["shared"]),
        ("build-amd", "amd64", &["shared"]),
        ("build-arm", "arm64", &["again", "b"]),
        ("scan-arm", "arm64", &["b"]),
        ("lint-arm", "arm64", &["a"]),
    ];
    assert_eq!(
        words(&run(shared, ""), Mode::PipelineRuns),
        ["arm64; lint-arm; a"]
    );
    // The main placeholder has no node selector, because it has to move between the nodes of `build-amd` and `build-arm`.
    let all: &[(&str, &str, &[&str])] = &[("x", "amd64", &["shared"]), ("y", "arm64", &["shared"])];
    assert_eq!(
        words(&run(all, ""), Mode::PipelineRuns),
        Vec::<String>::new()
    );
}

#[test]
fn b1_a_claim_that_all_pods_mount_leaves_one_placeholder() {
    let tasks: &[(&str, &str, &[&str])] = &[("one", "amd64", &["a"]), ("two", "arm64", &["b"])];
    let mut run = run(tasks, "");
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "cache"}});
    run.pod_template.as_mut().unwrap()["volumes"] = json!([volume]);
    assert_eq!(words(&run, Mode::PipelineRuns), Vec::<String>::new());
}

#[test]
fn b1_while_the_pipeline_is_not_known_the_main_placeholder_can_move() {
    let tasks: &[(&str, &str, &[&str])] = &[("one", "amd64", &[]), ("two", "arm64", &[])];
    let mut run = run(tasks, "");
    run.pipeline_tasks.clear();
    assert_eq!(words(&run, Mode::PipelineRuns), ["arm64; two; "]);
    run.workspaces.clear();
    assert_eq!(
        words(&run, Mode::PipelineRuns),
        ["amd64; ; ", "arm64; two; "]
    );
}

#[test]
fn b1_a_claim_of_all_tasks_leaves_the_other_placeholders_of_workspaces_their_node_selectors() {
    let tasks: &[(&str, &str, &[&str])] = &[
        ("one", "amd64", &["a", "shared"]),
        ("two", "arm64", &["b", "again"]),
    ];
    let mut each = words(&run(tasks, ""), Mode::Workspaces);
    each.sort();
    assert_eq!(each, ["amd64; one; a", "arm64; two; b"]);
}

#[test]
fn b1_a_subset_has_what_all_its_tasks_have() {
    let tasks: &[(&str, &str, &[&str])] = &[
        ("one", "amd64", &[]),
        ("two", "arm64 ssd", &[]),
        ("three", "arm64 hdd", &[]),
        ("four", "arm64 ssd", &[]),
    ];
    let subsets = of_run(&run(tasks, ""), Mode::PipelineRuns, None);
    let of = |task: &str| &subsets[of_task(&subsets, task)];
    assert_eq!(of("two").tasks, ["four", "two"].map(str::to_owned).into());
    assert_eq!(of("three").tasks, ["three"].map(str::to_owned).into());
    assert_eq!(of("two").node_selector["disk"], "ssd");
    assert_eq!(
        of("two").tolerations,
        [json!({"key": "arm64"}), json!({"key": "arm64 ssd"})]
    );
    assert_eq!(of_task(&subsets, "one"), MAIN);
    assert_eq!(of_task(&subsets, "unknown"), MAIN);
}

fn coscheduled(run: &PipelineRun, mode: Mode) -> PipelineRun {
    let configuration = Configuration {
        mode,
        ..Configuration::default()
    };
    let question = Question::about(run, "request", "alice");
    admit(Ok(&configuration), TEKTON_CONTROLLER, &question)
        .unwrap()
        .apply(run)
}

#[test]
fn b1_each_subset_has_a_placeholder_with_its_node_selector_and_its_claims() {
    let tasks: &[(&str, &str, &[&str])] = &[
        ("one", "amd64", &["a"]),
        ("two", "arm64", &["b"]),
        ("three", "", &["shared"]),
    ];
    for mode in [
        Mode::PipelineRuns,
        Mode::IsolatePipelineRun,
        Mode::Workspaces,
    ] {
        let stored = coscheduled(&run(tasks, ""), mode);
        let action = plan(&stored).unwrap().action;
        let mut placeholders: Vec<_> = (action.placeholders().iter())
            .map(|spec| {
                let selector = &spec.pod_template["nodeSelector"]["arch"];
                (
                    selector.as_str().unwrap_or_default().to_owned(),
                    spec.claims().count(),
                )
            })
            .collect();
        placeholders.sort();
        let expect: &[(&str, usize)] = match mode {
            Mode::Workspaces => &[("", 1), ("amd64", 1), ("arm64", 1)],
            _ => &[("amd64", 2), ("arm64", 1)],
        };
        let expect: Vec<_> = expect
            .iter()
            .map(|(arch, claims)| ((*arch).to_owned(), *claims))
            .collect();
        assert_eq!(placeholders, expect, "{mode}");
        // A copy of the stored run has fresh claims and the same subsets.
        let copy = PipelineRun {
            uid: "v".to_owned(),
            ..stored.clone()
        };
        let question = Question::about(&copy, "another", "alice");
        let configuration = Configuration {
            mode,
            ..Configuration::default()
        };
        let again = admit(Ok(&configuration), TEKTON_CONTROLLER, &question)
            .unwrap()
            .apply(&copy);
        assert_eq!(
            plan(&again).unwrap().action.placeholders().len(),
            placeholders.len()
        );
    }
}

proptest! {
    /// Every task is in at most one subset, every claim too, and all users of a claim are in the claim's subset.
    #[test]
    fn b1_subsets_share_no_task_and_no_claim(
        tasks in prop::collection::vec(
            (prop::sample::select(vec!["", "amd64", "arm64", "arm64 ssd", "amd64 hdd"]),
             prop::collection::btree_set(prop::sample::select(vec!["a", "b", "shared", "again"]), 0..3)), 0..8),
        of_run in prop::sample::select(vec!["", "amd64", "arm64", "arm64 ssd"]),
        mode in prop::sample::select(vec![Mode::PipelineRuns, Mode::IsolatePipelineRun, Mode::Workspaces]),
    ) {
        let names: Vec<String> = (0..tasks.len()).map(|number| format!("task-{number}")).collect();
        let used: Vec<Vec<&str>> = tasks.iter().map(|(_, used)| used.iter().copied().collect()).collect();
        let listed: Vec<_> = names.iter().zip(&tasks).zip(&used)
            .map(|((name, (selector, _)), used)| (name.as_str(), *selector, used.as_slice()))
            .collect();
        let run = run(&listed, of_run);
        let subsets = of_run_twice(&run, mode);
        for (key, subset) in &subsets {
            for (other, another) in subsets.iter().filter(|(other, _)| *other != key) {
                prop_assert!(subset.tasks.is_disjoint(&another.tasks), "{key} {other}");
                prop_assert!(subset.workspaces.is_disjoint(&another.workspaces), "{key} {other}");
            }
        }
        let same = |one: &str, other: &str| one == other || [one, other].iter().all(|it| ["shared", "again"].contains(it));
        let one_placeholder_each = mode == Mode::Workspaces;
        for (name, _, used) in listed.iter().filter(|_| !one_placeholder_each) {
            let own = of_task(&subsets, name);
            for workspace in *used {
                for (key, subset) in &subsets {
                    if subset.workspaces.iter().any(|it| same(it, workspace)) {
                        prop_assert_eq!(own, key.as_str());
                    }
                }
            }
        }
        let stored = coscheduled(&run, mode);
        prop_assert!(plan(&stored).is_ok(), "{:?}", plan(&stored));
    }
}

/// The subsets of a run, which do not depend on the order of evaluation.
fn of_run_twice(run: &PipelineRun, mode: Mode) -> Subsets {
    let subsets = of_run(run, mode, None);
    assert_eq!(of_run(run, mode, None), subsets);
    let text = serde_json::to_string(&subsets).unwrap();
    assert_eq!(serde_json::from_str::<Subsets>(&text).unwrap(), subsets);
    subsets
}
