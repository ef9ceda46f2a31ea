//! Tests of a pod's requests, one for each rule. The number after `b3_` in a test's name is the number of the rule in the
//! comment of module `pod`.

use super::*;
use serde_json::json;

/// Checks the requests of a pod of `task` in a run without settings.
#[track_caller]
fn check(task: Value, catalog: &Catalog, expect: &str) {
    check_with(task, json!({}), catalog, expect);
}

/// As [`check`], in a run with these settings.
#[track_caller]
fn check_with(task: Value, settings: Value, catalog: &Catalog, expect: &str) {
    let faults = crate::document::Faults::default();
    let settings = PodSettings::read(&Object::at("", &settings, &faults));
    let found = requests(&TaskSpec::read(&task), &settings, None, catalog);
    assert_eq!(found.to_string(), expect);
}

fn asking(cpu: &str, memory: &str) -> Value {
    json!({"requests": {"cpu": cpu, "memory": memory}})
}

/// A task with a step for each of these `computeResources`.
fn task(steps: &[Value]) -> Value {
    let steps = steps.iter().enumerate();
    let steps: Vec<_> = steps
        .map(|(index, resources)| json!({"name": format!("s{index}"), "computeResources": resources}))
        .collect();
    json!({"steps": steps})
}

fn with(mut object: Value, field: &str, value: Value) -> Value {
    object[field] = value;
    object
}

fn with_sidecar(task: Value) -> Value {
    with(task, "sidecars", json!([{"name": "db"}]))
}

fn limits(ranges: &[Value]) -> Catalog {
    let mut catalog = Catalog::default();
    for range in ranges {
        let limits = json!({"limits": [with(range.clone(), "type", "Container".into()), {"type": "Pod", "min": {"cpu": "9"}}]});
        catalog.limits.add(&limits);
    }
    catalog
}

fn configured(key: &str, text: &str) -> Catalog {
    let mut catalog = Catalog::default();
    catalog.configure(&[(key.to_owned(), text.to_owned())].into());
    catalog
}

fn defaults(text: &str) -> Catalog {
    configured("default-container-resource-requirements", text)
}

#[test]
fn b3_steps_and_sidecars_are_summed() {
    let steps = task(&[
        asking("500m", "1Gi"),
        json!({"requests": {"cpu": 1, "example.dev/gpu": "1"}}),
        json!({}),
    ]);
    let sidecars = json!([{"name": "db", "computeResources": asking("250m", "512Mi")}]);
    let all = with(steps, "sidecars", sidecars);
    let none = Catalog::default();
    check(all, &none, "cpu 1750m, memory 1536Mi, example.dev/gpu 1");
    for malformed in [
        json!(null),
        json!({"steps": 7}),
        task(&[json!({"requests": {"cpu": "much", "memory": true, "ephemeral-storage": "-1"}})]),
    ] {
        check(malformed, &none, "");
    }
}

#[test]
fn b3_1_the_step_template_lies_under_each_step() {
    let steps = task(&[
        json!({"requests": {"cpu": "500m"}}),
        json!({}),
        json!({"limits": {"memory": "1Gi"}}),
    ]);
    let template =
        json!({"computeResources": {"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi"}}});
    let all = with(steps, "stepTemplate", template);
    check(all, &Catalog::default(), "cpu 700m, memory 5Gi");
}

#[test]
fn b3_2_the_run_wins_over_steps_and_sidecars_by_name() {
    let all = with_sidecar(task(&[asking("500m", "1Gi"), asking("1", "1Gi")]));
    let settings = json!({
        "stepSpecs": [{"name": "s1", "computeResources": {"requests": {"cpu": "3"}}}, {"name": "other", "computeResources": asking("9", "9Gi")}],
        "sidecarSpecs": [{"name": "db", "computeResources": {"requests": {"cpu": "1m"}}}],
    });
    check_with(all, settings, &Catalog::default(), "cpu 3501m, memory 2Gi");
}

#[test]
fn b3_3_resources_of_the_task_are_divided_among_its_steps() {
    let three = task(&[asking("5", "5Gi"), json!({}), json!({})]);
    let check = |task: Value, resources: Value, expect: &str| {
        let settings = json!({"computeResources": resources});
        check_with(task, settings, &Catalog::default(), expect);
    };
    check(three.clone(), asking("1", "10"), "cpu 999m, memory 9");
    // The limit is not divided: each step gets all of it. The first step has a request, so it loses this request and gets no
    // share of the limit.
    check(three, json!({"limits": {"cpu": "3"}}), "cpu 5");
    let both = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "4", "memory": "1Gi"}});
    check(task(&[json!({}), json!({})]), both, "cpu 1, memory 2Gi");
}

#[test]
fn b3_4_the_results_sidecar_is_a_container_like_others() {
    let mut catalog = defaults("sidecar-tekton-log-results: {requests: {cpu: 30m}}");
    let one = task(&[asking("1", "1Gi")]);
    let results = with(one.clone(), "results", json!([{"name": "r"}]));
    check(results.clone(), &catalog, "cpu 1, memory 1Gi");
    catalog.results_sidecar = true;
    check(results, &catalog, "cpu 1030m, memory 1Gi");
    check(one, &catalog, "cpu 1, memory 1Gi");
}

#[test]
fn b3_5_tektons_defaults_are_for_containers_without_resources() {
    let text = "
        default: {requests: {cpu: 10m}}
        prepare: {requests: {memory: 1Gi}}
        step-s1: {limits: {cpu: 200m}}
        prefix-sidecar: {requests: {cpu: 50m}}
        prefix-s: {requests: {cpu: 7}}
        empty: {}";
    let steps = [json!({}), json!({}), json!({"limits": {"memory": "1Mi"}})];
    // CPU: 10m of s0, 200m of s1 and 50m of the sidecar. The init container requests more memory than s2.
    let all = with_sidecar(task(&steps));
    check(all, &defaults(text), "cpu 260m, memory 1Gi");
    let catalog = defaults("step-unnamed-0: {requests: {cpu: 1}}");
    check(json!({"steps": [{}]}), &catalog, "cpu 1");
    check(task(&[json!({})]), &defaults("{"), "");
}

#[test]
fn b3_6_7_defaults_of_limit_ranges_are_divided_among_steps_only() {
    let range = json!({"defaultRequest": {"cpu": "1", "memory": "100", "example.dev/gpu": "1"}, "min": {"cpu": "100m"}});
    let catalog = limits(&[range]);
    let all = with_sidecar(task(&[json!({}), json!({}), asking("2", "0")]));
    // Steps: 333m CPU, 333m CPU and 2 CPUs, and 33 bytes each. The sidecar gets the whole default.
    check(all, &catalog, "cpu 3666m, memory 199, example.dev/gpu 4");
    // Rounded down, the shares of the steps together are less than the request of an init container.
    let three = task(&[json!({}), json!({}), json!({})]);
    check(three, &catalog, "cpu 1, memory 100, example.dev/gpu 3");
    // For a step, the LimitRange's default is used before the step's own limit. For a sidecar, its own limit is used first.
    let limited = json!({"limits": {"cpu": "4"}});
    let all = with(
        task(std::slice::from_ref(&limited)),
        "sidecars",
        json!([{"name": "db", "computeResources": limited}]),
    );
    let range = json!({"defaultRequest": {"cpu": "500m"}});
    check(all, &limits(&[range]), "cpu 4500m");
    // A share is never less than the LimitRange's minimum.
    let range = json!({"defaultRequest": {"cpu": "300m"}, "min": {"cpu": "200m"}});
    let two = task(&[json!({}), json!({})]);
    check(two, &limits(&[range]), "cpu 400m");
}

#[test]
fn b3_6_of_more_than_one_limit_range_the_smallest_default_counts_for_steps() {
    let catalog = limits(&[
        json!({"defaultRequest": {"cpu": "400m"}}),
        json!({"defaultRequest": {"cpu": "600m"}, "min": {"memory": "1Mi"}}),
    ]);
    let all = with_sidecar(task(&[json!({}), json!({})]));
    check(all, &catalog, "cpu 1, memory 2Mi");
}

#[test]
fn b3_7_a_runtime_class_has_an_overhead() {
    let mut catalog = configured("default-pod-template", "runtimeClassName: small");
    let overhead = |cpu: &str| resource_list(&json!({"cpu": cpu}));
    catalog.overheads = [
        ("small".to_owned(), overhead("10m")),
        ("large".to_owned(), overhead("20m")),
    ]
    .into();
    let one = TaskSpec::read(&task(&[asking("1", "1Gi")]));
    let mut settings = PodSettings::default();
    let cpu = |settings: &PodSettings, run: Option<&str>| {
        requests(&one, settings, run, &catalog).milli_cpu
    };
    assert_eq!(cpu(&settings, None), 1010);
    assert_eq!(cpu(&settings, Some("large")), 1020);
    assert_eq!(cpu(&settings, Some("absent")), 1000);
    settings.runtime_class = Some("small".to_owned());
    assert_eq!(cpu(&settings, Some("large")), 1010);
}
