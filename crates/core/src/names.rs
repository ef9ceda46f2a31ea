//! The names of a run's objects. The names of placeholders and of their claim templates contain ten hex digits: the run's group,
//! or a hash of the group and the name of a claim or workspace. Each run has a group of its own, so the objects of two runs do
//! not get the same name (P7). If Kubernetes would refuse a name from an author, this module changes the name (P8).
//!
//! This module also computes the names of claims that Tekton creates.

use sha2::{Digest, Sha256};

/// The number of hex digits of a hash in a name (TEP-0135, "Placeholder pod + inter-pod affinity").
const HASH_LENGTH: usize = 10;

/// The greatest length of a DNS label (RFC 1123). Label values and the names of a pod's volumes have the same greatest length.
const LABEL_LENGTH: usize = 63;

/// The greatest length of the readable part of a label that ends in `-` and a hash.
const READABLE_LENGTH: usize = LABEL_LENGTH - HASH_LENGTH - 1;

const ASSISTANT_PREFIX: &str = "affinity-assistant-";

/// The readable part of a derived name if the author's claim template has no name.
const UNNAMED_TEMPLATE: &str = "pvc";

/// A text that is not a valid name of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidName {
    /// The invalid text.
    pub text: String,
    /// The kind of name, with the rule for it.
    pub expected: &'static str,
}

/// Declares a kind of name: a text that `$is_valid` accepts.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $is_valid:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let text = text.to_owned();
                match $is_valid(text.as_str()) {
                    true => Ok(Self(text)),
                    false => Err(InvalidName { text, expected: $expected }),
                }
            }
        }
    };
}

name!(
    /// A run's group: exactly ten lowercase hex digits, a hash of the admission request's uid (P7).
    Group,
    is_hash,
    "a group; allowed: exactly 10 lowercase hex digits"
);

name!(
    /// The name of a placeholder: `affinity-assistant-<10 hex>` (P1).
    AssistantName,
    |text: &str| text.strip_prefix(ASSISTANT_PREFIX).is_some_and(is_hash),
    "the name of a placeholder; allowed: affinity-assistant- and 10 lowercase hex digits"
);

name!(
    /// The name of a template in a placeholder's `volumeClaimTemplates`: `pvc-<hash>` or `<name of the author's template>-<hash>`
    /// (V2). The pod's volume has the same name, so the name must be a DNS label.
    ClaimTemplateName,
    |text: &str| text.rsplit_once('-').is_some_and(|(prefix, hash)| {
        is_dns_label(prefix) && is_hash(hash) && text.len() <= LABEL_LENGTH
    }),
    "the name of a placeholder's claim template; allowed: a DNS label of at most 63 characters that ends in - and 10 \
     lowercase hex digits"
);

impl Group {
    /// Derives a run's group from the uid of the admission request that creates the run.
    ///
    /// When the run is admitted, it has no uid, and with `generateName` it has no name. Each request has a new uid. So a run that
    /// is created again with the same name gets another group.
    pub fn from_request_uid(request_uid: &str) -> Self {
        Self(hash(request_uid))
    }
}

impl AssistantName {
    /// The name of the placeholder that serves a whole run. Its digits are the run's group.
    pub fn of(group: &Group) -> Self {
        Self(format!("{ASSISTANT_PREFIX}{group}"))
    }

    /// The name of the placeholder of one claim of a run (M1).
    ///
    /// Its digits are a hash of the text `<group>/<claim>`. A group always has ten characters, so two different pairs of group
    /// and claim never give the same text. Tekton hashes the names of workspace and run without a separator. So Tekton's
    /// assistants for workspace `src` of run `pr-a` and for workspace `s` of run `rcpr-a` have the same name.
    pub fn of_claim(group: &Group, claim_name: &str) -> Self {
        let hash = hash(&format!("{group}/{claim_name}"));
        Self(format!("{ASSISTANT_PREFIX}{hash}"))
    }

    /// The name of the placeholder for a subset of a run's tasks. No claim's name has a colon, so no claim has a placeholder with
    /// this name.
    pub(crate) fn of_subset(group: &Group, subset: &str) -> Self {
        Self::of_claim(group, &format!("subset:{subset}"))
    }

    /// The name of the assistant that Tekton itself creates for a workspace of a run, or for the whole run if `workspace` is
    /// empty (B7; Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`, `GetAffinityAssistantName`).
    pub fn of_tekton(workspace: &str, run_name: &str) -> Self {
        let hash = hash(&format!("{workspace}{run_name}"));
        Self(format!("{ASSISTANT_PREFIX}{hash}"))
    }
}

impl ClaimTemplateName {
    /// The name of the claim template for a workspace of the run with this group.
    ///
    /// A hash of `<group>/<workspace>` makes the name unique. The readable part is the author's `template_name` as a DNS label.
    /// A long name is cut. Capital letters become small letters, and other invalid characters become `-`. Then `-` at either
    /// end is removed. If nothing is left, the readable part is `pvc`.
    pub fn derive(group: &Group, workspace: &str, template_name: Option<&str>) -> Self {
        let hash = hash(&format!("{group}/{workspace}"));
        let readable = dns_label(template_name.unwrap_or_default(), READABLE_LENGTH);
        Self(match readable.as_str() {
            "" => format!("{UNNAMED_TEMPLATE}-{hash}"),
            readable => format!("{readable}-{hash}"),
        })
    }

    /// The name that Tekton gives to the claim template of its own assistant (B7).
    ///
    /// # Errors
    /// The author's `template_name` is no DNS label. Tekton cannot create an assistant from such a template either.
    pub fn of_tekton(
        workspace: &str,
        template_name: Option<&str>,
        run_uid: &str,
    ) -> Result<Self, InvalidName> {
        shortened(&tekton_claim_name(workspace, template_name, run_uid)).parse()
    }
}

/// The name of a placeholder's pod. Each pod of the placeholder gets this name.
pub fn pod_name(placeholder: &str) -> String {
    format!("{placeholder}-0")
}

/// The name of the claim that is created from a placeholder's claim template: `<template>-<placeholder>-0`.
///
/// With binding mode `Immediate`, an external provisioner chooses the claim's zone from the claim's name: it hashes the part of
/// this name that is the same in all claims of the placeholder. So all these claims are in one zone.
pub fn claim_name(template: &ClaimTemplateName, assistant: &AssistantName) -> String {
    format!("{template}-{assistant}-0")
}

/// The name of the placeholder that a claim name contains, if the claim name has the form that [`claim_name`] returns. `None` for
/// every other claim name. The form does not prove that the claim belongs to a placeholder, because users can choose such a name
/// too.
pub fn assistant_of(claim_name: &str) -> Option<AssistantName> {
    let rest = claim_name.strip_suffix("-0")?;
    let (template, digits) = rest.rsplit_once(&format!("-{ASSISTANT_PREFIX}"))?;
    template.parse::<ClaimTemplateName>().ok()?;
    format!("{ASSISTANT_PREFIX}{digits}").parse().ok()
}

/// The name of the claim that Tekton creates from a run's `volumeClaimTemplate` while Tekton's own assistants are off (V3). It is
/// `<template name or pvc>-<10 hex>`, with a hash of the workspace's name and the run's uid (Tekton v1.12.0,
/// `pkg/reconciler/volumeclaim/pvchandler.go`, `GeneratePVCNameFromWorkspaceBinding`).
pub fn tekton_claim_name(workspace: &str, template_name: Option<&str>, run_uid: &str) -> String {
    let prefix = template_name
        .filter(|name| !name.is_empty())
        .unwrap_or(UNNAMED_TEMPLATE);
    format!("{prefix}-{}", hash(&format!("{workspace}{run_uid}")))
}

/// The names that Tekton uses in place of `made`, the real name of a run's claim, while Tekton's own flag `coschedule` is
/// `pipelineruns` or `isolate-pipelinerun` (M9; `pkg/reconciler/pipelinerun/affinity_assistant.go`,
/// `getPersistentVolumeClaimNameWithAffinityAssistant`). Tekton v1.12.0 only adds a suffix. Tekton v1.15.1 also cuts a long name
/// (`sanitizeVolumeName`).
pub fn renamed_by_tekton(made: &str, run_name: &str) -> [String; 2] {
    let assistant = AssistantName::of_tekton("", run_name);
    [made, &shortened(made)].map(|name| format!("{name}-{assistant}-0"))
}

/// The name of a claim as the name of a volume: Tekton v1.15.1 cuts a name that is too long (`sanitizeVolumeName`).
fn shortened(made: &str) -> String {
    match made.get(..READABLE_LENGTH) {
        Some(readable) if made.len() > LABEL_LENGTH => format!("{readable}-{}", hash(made)),
        Some(_) | None => made.to_owned(),
    }
}

/// Makes a label value from `text`. A valid label value stays as it is. Any other text is cut if it is too long, its invalid
/// characters are replaced by `-`, and a hash of the whole text is added at the end (P8).
pub fn label_value(text: &str) -> String {
    if is_label_value(text) {
        return text.to_owned();
    }
    let clean = |c| if is_label_char(c) { c } else { '-' };
    let cleaned: String = text.chars().map(clean).take(READABLE_LENGTH).collect();
    let hash = hash(text);
    match cleaned.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => hash,
        readable => format!("{readable}-{hash}"),
    }
}

/// The first ten hex digits of the SHA-256 of `text`.
pub(crate) fn hash(text: &str) -> String {
    let bytes = Sha256::digest(text);
    let bytes = bytes.iter().take(HASH_LENGTH / 2);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn is_hash(text: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == HASH_LENGTH && text.bytes().all(is_digit)
}

/// A DNS label made from the first `room` characters of `text`. Each invalid character becomes `-`. Then each `-` at the
/// beginning and at the end is removed, so the result may be empty.
fn dns_label(text: &str, room: usize) -> String {
    let clean = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let cleaned: String = text.chars().map(clean).take(room).collect();
    cleaned.trim_matches('-').to_owned()
}

/// RFC 1123: lowercase letters, digits and `-`, at most 63, with a letter or digit at both ends.
pub(crate) fn is_dns_label(text: &str) -> bool {
    !text.is_empty() && dns_label(text, LABEL_LENGTH) == text
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Kubernetes, "Labels and Selectors": a label value is empty, or has at most 63 characters and begins and ends with a letter or
/// digit.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= LABEL_LENGTH
        && text.chars().all(is_label_char)
        && text.trim_matches(|c: char| !c.is_ascii_alphanumeric()) == text
}

#[cfg(test)]
mod tests;
