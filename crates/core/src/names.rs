//! The names of a run's objects. Names derive from the run's group and the names of its workspaces or claims, so every name
//! is valid, and two runs, two workspaces or two claims never share one (P7, P8).

use sha2::{Digest, Sha256};

/// Hex digits of a hash in a name (TEP-0135, "Placeholder pod + inter-pod affinity").
const HASH_LENGTH: usize = 10;

/// The longest DNS label (RFC 1123), label value and name of a pod's volume.
const LABEL_LENGTH: usize = 63;

/// Room in a label before `-` and a hash.
const READABLE_LENGTH: usize = LABEL_LENGTH - HASH_LENGTH - 1;

const ASSISTANT_PREFIX: &str = "affinity-assistant-";

/// Stands for the name of a claim template without one.
const UNNAMED_TEMPLATE: &str = "pvc";

/// A text that is not a name of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidName {
    /// The text.
    pub text: String,
    /// The kind of name, and its rule.
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
    /// A run's group: exactly ten lowercase hex digits, drawn once for each run (P7).
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
    /// The name of a placeholder's `volumeClaimTemplate`: `pvc-<hash>` or `<template name>-<hash>` (V2). The pod's volume has
    /// the same name, so it is a DNS label.
    ClaimTemplateName,
    |text: &str| text.rsplit_once('-').is_some_and(|(prefix, hash)| {
        is_dns_label(prefix) && is_hash(hash) && text.len() <= LABEL_LENGTH
    }),
    "the name of a placeholder's claim template; allowed: a DNS label of at most 63 characters that ends in - and 10 \
     lowercase hex digits"
);

impl Group {
    /// Makes a run's group from the uid of the admission request that creates the run.
    ///
    /// At this time a run has no uid, and with `generateName` it has no name. Each request has a new uid. So a run that is created
    /// again under its old name gets another group.
    pub fn from_request_uid(request_uid: &str) -> Self {
        Self(hash(request_uid))
    }
}

impl AssistantName {
    /// The one placeholder of a whole run: the digits are its group.
    pub fn of(group: &Group) -> Self {
        Self(format!("{ASSISTANT_PREFIX}{group}"))
    }

    /// The placeholder of one claim of a run (M1).
    ///
    /// The digits are a hash of `<group>/<claim>`. A group always has ten characters, so no two pairs make the same text.
    /// Tekton hashes workspace and run name without a separator. So in Tekton, workspace `src` of run `pr-a` and workspace `s` of
    /// run `rcpr-a` have the same assistant.
    pub fn of_claim(group: &Group, claim_name: &str) -> Self {
        let hash = hash(&format!("{group}/{claim_name}"));
        Self(format!("{ASSISTANT_PREFIX}{hash}"))
    }
}

impl ClaimTemplateName {
    /// The template of a workspace in a group.
    ///
    /// The hash of `<group>/<workspace>` makes the name unique. The author's `template_name` is there for people. If it is too long,
    /// it is cut, and each character that is invalid in a DNS label is replaced by `-`.
    pub fn derive(group: &Group, workspace: &str, template_name: Option<&str>) -> Self {
        let hash = hash(&format!("{group}/{workspace}"));
        let readable = dns_label(template_name.unwrap_or_default(), READABLE_LENGTH);
        Self(match readable.as_str() {
            "" => format!("{UNNAMED_TEMPLATE}-{hash}"),
            readable => format!("{readable}-{hash}"),
        })
    }
}

/// The claim that the placeholder's controller makes from a template: `<template>-<placeholder>-0`.
///
/// For claims with binding mode `Immediate`, external provisioners choose the zone by the placeholder's name, which is a part of
/// the claim's name. So all claims of a run are in one zone.
pub fn claim_name(template: &ClaimTemplateName, assistant: &AssistantName) -> String {
    format!("{template}-{assistant}-0")
}

/// The placeholder in a name that [`claim_name`] makes; `None` for every other name. A user can give a claim any name.
pub fn assistant_of(claim_name: &str) -> Option<AssistantName> {
    let rest = claim_name.strip_suffix("-0")?;
    let (template, digits) = rest.rsplit_once(&format!("-{ASSISTANT_PREFIX}"))?;
    template.parse::<ClaimTemplateName>().ok()?;
    format!("{ASSISTANT_PREFIX}{digits}").parse().ok()
}

/// The claim that Tekton makes from a run's `volumeClaimTemplate` while its own assistants are off (V3):
/// `<template name or pvc>-<10 hex>`, with a hash of the workspace's name and the run's uid (Tekton v1.12.0,
/// `pkg/reconciler/volumeclaim/pvchandler.go`, `GeneratePVCNameFromWorkspaceBinding`).
pub fn tekton_claim_name(workspace: &str, template_name: Option<&str>, run_uid: &str) -> String {
    let prefix = template_name
        .filter(|name| !name.is_empty())
        .unwrap_or(UNNAMED_TEMPLATE);
    format!("{prefix}-{}", hash(&format!("{workspace}{run_uid}")))
}

/// The claim of [`tekton_claim_name`] behind the name that Tekton looks for while its own flag is `pipelineruns` or
/// `isolate-pipelinerun` (M9; Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`,
/// `getPersistentVolumeClaimNameWithAffinityAssistant`).
pub fn claim_before_tekton_renamed_it<'a>(claim_name: &'a str, run_name: &str) -> Option<&'a str> {
    let suffix = format!("-{ASSISTANT_PREFIX}{}-0", hash(run_name));
    claim_name.strip_suffix(&suffix)
}

/// `text` as a label value: unchanged if it is one, else cut and cleaned, with a hash of the whole at the end (P8).
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

/// The parts of `text` that fit into a DNS label, at most `room` characters.
fn dns_label(text: &str, room: usize) -> String {
    let clean = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let cleaned: String = text.chars().map(clean).take(room).collect();
    cleaned.trim_matches('-').to_owned()
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty() && dns_label(text, LABEL_LENGTH) == text
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Kubernetes, "Labels and Selectors": empty, or at most 63 characters that begin and end with a letter or digit.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= LABEL_LENGTH
        && text.chars().all(is_label_char)
        && text.trim_matches(|c: char| !c.is_ascii_alphanumeric()) == text
}

#[cfg(test)]
mod tests;
