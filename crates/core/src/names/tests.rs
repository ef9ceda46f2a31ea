//! Tests of names: tables of examples, and properties such as validity and uniqueness.

use super::*;
use proptest::prelude::*;

const GROUP: &str = "79340742ab";

fn group(text: &str) -> Group {
    text.parse().unwrap()
}

fn assistant() -> AssistantName {
    AssistantName::of(&group(GROUP))
}

#[test]
fn p1_the_placeholder_is_named_after_the_group() {
    assert_eq!(assistant().as_str(), "affinity-assistant-79340742ab");
    assert_eq!("affinity-assistant-79340742ab".parse(), Ok(assistant()));
}

/// The digits are the beginning of the output of `printf <text> | sha256sum`.
#[test]
fn m9_tekton_1_15_cuts_long_names_of_claims_that_it_renames() {
    let suffix = "-affinity-assistant-44575cf5b2-0";
    let short = renamed_by_tekton("src-0123456789", "build");
    assert_eq!(short, [0, 1].map(|_| format!("src-0123456789{suffix}")));
    let made = format!("{}-0123456789", "c".repeat(57));
    let cut = format!("{}-4472b88d86{suffix}", "c".repeat(52));
    assert_eq!(
        renamed_by_tekton(&made, "build"),
        [format!("{made}{suffix}"), cut]
    );
}

/// The digits are the beginning of the output of `printf <text> | sha256sum`.
#[test]
fn p7_the_group_is_drawn_from_the_request() {
    assert_eq!(
        Group::from_request_uid("705ab4f5-6393-11e8-b7cc-42010a800002").as_str(),
        "58989f2cda"
    );
    assert_eq!(Group::from_request_uid("").as_str(), "e3b0c44298");
}

/// The digits are the beginning of the output of `printf 79340742ab/build-cache | sha256sum`.
#[test]
fn m1_p7_the_placeholder_of_a_claim_is_named_after_group_and_claim() {
    let name = AssistantName::of_claim(&group(GROUP), "build-cache");
    assert_eq!(name.as_str(), "affinity-assistant-8bb725fd67");
    assert_eq!(name.as_str().parse(), Ok(name));
}

/// Tekton gives both assistants the same name, because it hashes workspace and run name without a separator.
#[test]
fn p7_workspace_src_of_pr_a_and_workspace_s_of_rcpr_a_have_placeholders_of_their_own() {
    let of = |run_uid: &str, workspace: &str| {
        let group = Group::from_request_uid(&format!("request of {run_uid}"));
        AssistantName::of_claim(&group, &tekton_claim_name(workspace, None, run_uid))
    };
    assert_eq!(
        format!("{}{}", "src", "pr-a"),
        format!("{}{}", "s", "rcpr-a")
    );
    assert_ne!(of("pr-a", "src"), of("rcpr-a", "s"));
    // They differ even if Tekton gives both claims the same name. Two claims of one group have different placeholders too.
    assert_eq!(
        tekton_claim_name("src", None, "pr-a"),
        tekton_claim_name("s", None, "rcpr-a")
    );
    let group = group(GROUP);
    assert_ne!(
        AssistantName::of_claim(&group, "src"),
        AssistantName::of_claim(&group, "s")
    );
}

/// The digits are the beginning of the output of `printf sourceb0bd8d0e-7f37-4d4f-9c1b-2d9f0f3a1c55 | sha256sum`.
#[test]
fn v3_claims_that_tekton_makes_are_known_by_name() {
    let uid = "b0bd8d0e-7f37-4d4f-9c1b-2d9f0f3a1c55";
    assert_eq!(tekton_claim_name("source", None, uid), "pvc-a5024afe3e");
    assert_eq!(tekton_claim_name("source", Some(""), uid), "pvc-a5024afe3e");
    assert_eq!(
        tekton_claim_name("source", Some("my.src"), uid),
        "my.src-a5024afe3e"
    );
    let long = "a".repeat(57);
    assert_eq!(
        tekton_claim_name("source", Some(&long), uid),
        format!("{long}-a5024afe3e")
    );
}

#[test]
fn v2_claims_are_named_after_template_and_placeholder() {
    let claim = |name| {
        claim_name(
            &ClaimTemplateName::derive(&group(GROUP), "source", name),
            &assistant(),
        )
    };
    assert_eq!(
        claim(None),
        "pvc-13f4f56ded-affinity-assistant-79340742ab-0"
    );
    assert_eq!(claim(Some("")), claim(None));
    assert_eq!(
        claim(Some("cache")),
        "cache-13f4f56ded-affinity-assistant-79340742ab-0"
    );
}

#[test]
fn p8_names_of_claim_templates_an_author_may_choose_become_names_of_volumes() {
    #[track_caller]
    fn check(template_name: &str, expect: &str) {
        let derived = ClaimTemplateName::derive(&group(GROUP), "source", Some(template_name));
        assert_eq!(derived.as_str(), format!("{expect}-13f4f56ded"));
    }
    check("my.cache", "my-cache");
    check("Cache_2", "cache-2");
    check("-.-", "pvc");
    check(&"a".repeat(253), &"a".repeat(52));
    check(&format!("{}-tail", "a".repeat(51)), &"a".repeat(51));
    check("größe", "gr--e");
}

#[test]
fn what_is_no_group_is_refused() {
    for text in [
        "",
        "79340742a",
        "79340742abc",
        "79340742AB",
        "79340742ag",
        "79340742a\n",
        "７９３４０７４２",
    ] {
        assert!(text.parse::<Group>().is_err(), "{text:?}");
        assert!(
            format!("affinity-assistant-{text}")
                .parse::<AssistantName>()
                .is_err(),
            "{text:?}"
        );
        assert!(
            format!("pvc-{text}").parse::<ClaimTemplateName>().is_err(),
            "{text:?}"
        );
    }
    for text in [
        "79340742ab",
        "-79340742ab",
        "a.b-79340742ab",
        "A-79340742ab",
    ] {
        assert!(text.parse::<ClaimTemplateName>().is_err(), "{text:?}");
    }
    assert_eq!(
        "x".parse::<Group>().unwrap_err().to_string(),
        "\"x\" is not a group; allowed: exactly 10 lowercase hex digits"
    );
}

#[test]
fn v4_only_claims_of_the_set_are_its_own() {
    for claim in [
        "build-cache",
        "affinity-assistant-79340742ab-0",
        "-affinity-assistant-79340742ab-0",
        "pvc-affinity-assistant-79340742ab-0",
        "pvc-13f4f56ded-affinity-assistant-79340742ac-0",
        "pvc-13f4f56ded-affinity-assistant-79340742ab-1",
        "pvc-13f4f56ded-affinity-assistant-79340742ab-00",
        "pvc-13f4f56ded",
        "",
    ] {
        assert_ne!(assistant_of(claim), Some(assistant()), "{claim}");
    }
    let claim = "pvc-13f4f56ded-affinity-assistant-79340742ab-0";
    assert_eq!(assistant_of(claim), Some(assistant()));
}

#[test]
fn p8_label_values_are_the_text_wherever_possible() {
    for text in ["", "build-x7k2p", "a.b_C-9", &"a".repeat(63)] {
        assert_eq!(label_value(text), text);
    }
    let long = label_value(&"a".repeat(64));
    assert_eq!(
        (long.len(), &long[..53]),
        (63, &*format!("{}-", "a".repeat(52)))
    );
    assert_eq!(label_value("-"), hash("-"));
}

proptest! {
    #[test]
    fn p7_other_pairs_of_group_and_claim_get_other_placeholders(
        left in ("[0-9a-f]{10}", "[0-9a-f\\-/.]{0,4}"),
        right in ("[0-9a-f]{10}", "[0-9a-f\\-/.]{0,4}"),
    ) {
        let derive = |(of, claim): &(String, String)| AssistantName::of_claim(&group(of), claim);
        prop_assert_eq!(derive(&left) == derive(&right), left == right);
        // It also differs from the name of the placeholder of a whole run.
        prop_assert_ne!(derive(&left), AssistantName::of(&group(&left.0)));
        prop_assert_ne!(derive(&left), AssistantName::of(&group(&right.0)));
    }

    #[test]
    fn p8_every_placeholder_of_a_claim_has_a_valid_name(request in "\\PC*", claim in "\\PC{0,300}") {
        let name = AssistantName::of_claim(&Group::from_request_uid(&request), &claim);
        prop_assert!(is_dns_label(name.as_str()) && is_label_value(name.as_str()));
        prop_assert_eq!(&name.as_str().parse::<AssistantName>().unwrap(), &name);
        // With suffixes, the name of the pod and label `controller-revision-hash` are still valid.
        prop_assert!(name.as_str().len() == 29);
    }

    #[test]
    fn p7_other_requests_get_other_groups(left in "\\PC*", right in "\\PC*") {
        prop_assert_eq!(Group::from_request_uid(&left) == Group::from_request_uid(&right), left == right);
    }

    #[test]
    fn p7_other_pairs_of_group_and_workspace_get_other_names(
        left in ("[0-9a-f]{10}", "[0-9a-f\\-/]{0,4}"),
        right in ("[0-9a-f]{10}", "[0-9a-f\\-/]{0,4}"),
        name in proptest::option::of("[a-z.]{0,80}"),
    ) {
        let derive = |(of, workspace): &(String, String)| {
            ClaimTemplateName::derive(&group(of), workspace, name.as_deref())
        };
        prop_assert_eq!(derive(&left) == derive(&right), left == right);
    }

    #[test]
    fn p8_every_derived_name_is_valid(request in "\\PC*", workspace in "\\PC*", name in proptest::option::of("\\PC{0,300}")) {
        let group = Group::from_request_uid(&request);
        prop_assert_eq!(&group.as_str().parse::<Group>().unwrap(), &group);
        let assistant = AssistantName::of(&group);
        let template = ClaimTemplateName::derive(&group, &workspace, name.as_deref());
        prop_assert!(is_dns_label(template.as_str()) && template.as_str().len() <= 63, "{}", template);
        prop_assert_eq!(&template.as_str().parse::<ClaimTemplateName>().unwrap(), &template);
        let claim = claim_name(&template, &assistant);
        prop_assert!(claim.len() <= 253);
        prop_assert_eq!(assistant_of(&claim), Some(assistant));
    }

    #[test]
    fn p8_every_label_value_is_valid_and_its_own(left in "\\PC{0,80}", right in "[A-Za-z._-]{0,80}") {
        for text in [&left, &right] {
            prop_assert!(is_label_value(&label_value(text)), "{}", label_value(text));
        }
        prop_assert_eq!(label_value(&left) == label_value(&right), left == right);
    }
}
