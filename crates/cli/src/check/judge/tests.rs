use serde_json::{Value, json};

use super::*;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn data(key: &str, value: &str) -> BTreeMap<String, String> {
    [(key.to_owned(), value.to_owned())].into()
}

#[test]
fn m9_the_flag_of_tekton_must_be_disabled() {
    let verdict = |flags: Option<&BTreeMap<String, String>>| tekton_flag(flags).0;
    assert_eq!(verdict(Some(&data("coschedule", "disabled"))), Verdict::Ok);
    assert_eq!(
        verdict(Some(&data("coschedule", "pipelineruns"))),
        Verdict::Failed
    );
    assert_eq!(
        verdict(Some(&BTreeMap::new())),
        Verdict::Failed,
        "Tekton's default"
    );
    assert_eq!(verdict(None), Verdict::Failed);
}

#[test]
fn a_configuration_that_is_not_valid_names_its_key() {
    let valid = configuration(Some(&data("coschedule", "workspaces")));
    assert_eq!(valid, ok("The mode of the cluster is workspaces."));
    let (verdict, message) = configuration(Some(&data("coschedule", "never")));
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.contains("coschedule: \"never\""), "{message}");
    assert_eq!(
        configuration(Some(&data("unknown", "x"))).0,
        Verdict::Warning
    );
    assert_eq!(configuration(None).0, Verdict::Warning);
    let claims = |value: &str| configuration(Some(&data("coschedule-claims", value)));
    assert_eq!(claims("node-bound"), valid);
    let (verdict, message) = claims("some");
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.contains("coschedule-claims: \"some\""), "{message}");
}

#[test]
fn webhooks_need_rules_and_a_certificate() {
    let check = |rules: Value, bundle: Value, policy: &str| {
        let webhook = json!({
            "name": "w", "rules": rules, "clientConfig": {"caBundle": bundle}, "failurePolicy": policy,
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
        });
        let found = object(json!({"metadata": {"name": "coscheduler.dev"}, "webhooks": [webhook]}));
        webhooks(Some(&found)).0
    };
    let (rules, bundle) = (json!([{"operations": ["CREATE"]}]), json!("aGk="));
    assert_eq!(check(rules.clone(), bundle.clone(), "Fail"), Verdict::Ok);
    assert_eq!(
        check(rules.clone(), bundle.clone(), "Ignore"),
        Verdict::Warning
    );
    assert_eq!(check(json!([]), bundle.clone(), "Fail"), Verdict::Failed);
    assert_eq!(check(Value::Null, bundle, "Fail"), Verdict::Failed);
    assert_eq!(check(rules, Value::Null, "Fail"), Verdict::Failed);
    let none = object(json!({"metadata": {"name": "coscheduler.dev"}}));
    let (verdict, message) = webhooks(Some(&none));
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.contains("has no webhooks"), "{message}");
    assert_eq!(webhooks(None).0, Verdict::Failed);
}

#[test]
fn the_certificate_that_ends_last_must_not_have_ended() {
    let pem = |year: i32| {
        let mut params = rcgen::CertificateParams::new(["w".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    };
    let check = |bundle: Option<String>, now: &str| {
        let mut found: MutatingWebhookConfiguration = object(json!({"webhooks": [{
            "name": "w", "clientConfig": {}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        }]}));
        let webhooks = found.webhooks.as_mut().unwrap();
        webhooks[0].client_config.ca_bundle =
            bundle.map(|it| k8s_openapi::ByteString(it.into_bytes()));
        certificates(Some(&found), now.parse().unwrap())
    };
    let both = || Some(pem(2027) + &pem(2028));
    let (verdict, message) = check(both(), "2027-06-01T00:00:00Z");
    assert_eq!(verdict, Verdict::Ok);
    assert!(message.contains("2028-01-01T00:00:00Z"), "{message}");
    assert_eq!(check(both(), "2029-01-01T00:00:00Z").0, Verdict::Failed);
    let broken = check(Some("no certificate".to_owned()), "2027-01-01T00:00:00Z");
    assert_eq!(broken.0, Verdict::Failed);
    assert_eq!(check(None, "2027-01-01T00:00:00Z").0, Verdict::Failed);
}

#[test]
fn rights_that_lack_are_named() {
    assert_eq!(rights(&[]).0, Verdict::Ok);
    let (verdict, message) = rights(&[("list", "nodes"), ("watch", "pods")]);
    assert_eq!(verdict, Verdict::Warning);
    assert!(message.contains("list nodes, watch pods"), "{message}");
}

#[test]
fn services_must_be_available_and_of_one_version() {
    let of = |of_watcher: (i32, &str)| {
        let all = SERVICES.map(|name| {
            let (replicas, version) = match name {
                "watcher" => of_watcher,
                _ => (2, "1.0"),
            };
            object::<Deployment>(json!({
                "metadata": {"name": name, "labels": {"app.kubernetes.io/version": version}},
                "spec": {"selector": {}, "template": {}},
                "status": {"availableReplicas": replicas},
            }))
        });
        services("ns", &all, None)
    };
    assert_eq!(
        of((1, "1.0")),
        ok("All services are available in version 1.0.")
    );
    let (verdict, message) = of((0, "1.0"));
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.ends_with("replica: watcher."), "{message}");
    let (verdict, message) = of((1, "1.1"));
    assert_eq!(verdict, Verdict::Warning);
    assert!(message.contains("1.0, 1.1"), "{message}");
    let called_by = |client: Value| {
        let webhook = json!({
            "name": "w", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": client,
        });
        services("ns", &[], Some(&object(json!({"webhooks": [webhook]}))))
    };
    let (verdict, message) = called_by(json!({"service": {"name": "s", "namespace": "ns"}}));
    assert_eq!(verdict, Verdict::Failed);
    let none = "Found no Deployments of the services in namespace ns. ";
    assert!(message.starts_with(none), "{message}");
    assert_eq!(services("ns", &[], None), failed(message));
    assert_eq!(
        called_by(json!({"url": "https://127.0.0.1:9443"})),
        warning(format!(
            "{none}This is expected with `cargo xtask services`, which runs the services as local processes."
        ))
    );
}

#[test]
fn each_node_needs_a_hostname_of_its_own() {
    let check = |[one, two]: [Value; 2]| {
        let node = |name: &str, labels: Value| {
            object::<Node>(json!({"metadata": {"name": name, "labels": labels}}))
        };
        nodes(&[node("a", one), node("b", two)])
    };
    let named = |name: &str| json!({HOSTNAME: name});
    assert_eq!(check([named("a"), named("b")]).0, Verdict::Ok);
    let (verdict, message) = check([named("a"), named("a")]);
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.contains("Nodes a and b"), "{message}");
    let (verdict, message) = check([named("a"), json!({})]);
    assert_eq!(verdict, Verdict::Failed);
    assert!(message.contains("Node b lacks"), "{message}");
}

#[test]
fn what_only_limits_the_product_is_a_warning() {
    let class = |mode: &str| {
        object::<StorageClass>(json!({
            "metadata": {"name": mode}, "provisioner": "p", "volumeBindingMode": mode,
        }))
    };
    assert_eq!(
        storage_classes(&[class("WaitForFirstConsumer")]).0,
        Verdict::Ok
    );
    let (verdict, message) = storage_classes(&[class("Immediate")]);
    assert_eq!(verdict, Verdict::Warning);
    assert!(message.contains("Immediate"), "{message}");
    let core = |name: &str| {
        let resource = json!({
            "name": name, "singularName": "", "namespaced": true, "kind": "Pod", "verbs": [],
        });
        object(json!({"groupVersion": "v1", "resources": [resource]}))
    };
    assert_eq!(pods_resize(&core("pods/resize")).0, Verdict::Ok);
    assert_eq!(pods_resize(&core("pods")).0, Verdict::Warning);
    let groups = |name: &str| object(json!({"groups": [{"name": name, "versions": []}]}));
    assert_eq!(
        autoscaler(&groups("karpenter.sh")),
        ok("Karpenter is installed.")
    );
    assert!(autoscaler(&groups("apps")).1.contains("not installed"));
}

#[test]
fn n8_the_priority_class_of_placeholders_must_exist() {
    let named = |key, value| named_class(Some(&data(key, value)));
    let template = |text| named(config::POD_TEMPLATE, text);
    assert_eq!(
        template("priorityClassName: high"),
        Ok(Some("high".to_owned()))
    );
    assert_eq!(template("priorityClassName: ''"), Ok(None));
    assert_eq!(template("nodeSelector: {disk: ssd}"), Ok(None));
    assert_eq!(named_class(None), Ok(None));
    assert!(named("coschedule", "never").is_err());
    assert_eq!(no_priority_class(None).0, Verdict::Ok);
    let unused = no_priority_class(Some(&PriorityClass::default()));
    assert_eq!(unused.0, Verdict::Warning);
    assert_eq!(needed_classes("high"), ["high"]);
    let ours = needed_classes("coscheduler-placeholder");
    let there = || Some(PriorityClass::default());
    assert_eq!(priority_classes(&ours, &[there(), there()]).0, Verdict::Ok);
    for (found, missing, expect) in [
        ([None, there()], ours[0], Verdict::Failed),
        ([there(), None], ours[1], Verdict::Warning),
    ] {
        let (verdict, message) = priority_classes(&ours, &found);
        assert_eq!(verdict, expect);
        let expect = format!("PriorityClass {missing} does not exist");
        assert!(message.contains(&expect), "{message}");
    }
}
