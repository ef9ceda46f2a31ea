//! The names of a run's objects. They can only be derived, from the run's group and the names of
//! its workspaces or claims, so a name in hand is valid, and two runs, two workspaces or two claims never share one (P7,
//! P8).

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Hex digits of a hash in a name (TEP-0135, "Placeholder pod + inter-pod affinity").
const HASH_LENGTH: usize = 10;

/// The longest DNS label (RFC 1123), which is also the longest label value and the longest name of
/// a pod's volume.
const LABEL_LENGTH: usize = 63;

const ASSISTANT_PREFIX: &str = "affinity-assistant-";

/// What a claim template is called whose author gave it no name.
const UNNAMED_TEMPLATE: &str = "pvc";

/// A text that is not a name of the kind asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidName {
    /// The text.
    pub text: String,
    /// What it should have been.
    pub expected: &'static str,
}

/// A run's group: exactly ten lowercase hex digits, drawn once for each run (P7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(String);

impl Group {
    /// Draws the group of a run from the uid of the admission request that creates it.
    ///
    /// A run has no uid yet at that time and with `generateName` no name either; the API server
    /// draws a fresh uid for every admission request, so a run that is deleted and created again
    /// under its name gets another group.
    pub fn from_request_uid(request_uid: &str) -> Self {
        Self(hash(request_uid))
    }

    /// The ten digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Group {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_hash(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName {
                text: text.to_owned(),
                expected: "a group; allowed: exactly 10 lowercase hex digits",
            })
        }
    }
}

/// The name of a placeholder's StatefulSet: `affinity-assistant-<10 hex>` (P1).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssistantName(String);

impl AssistantName {
    /// The one placeholder of a whole run: the digits are its group.
    pub fn of(group: &Group) -> Self {
        Self(format!("{ASSISTANT_PREFIX}{group}"))
    }

    /// The placeholder of one claim of a run (M1).
    ///
    /// The digits are a hash over `<group>/<claim>`. A group is always ten characters long, so no two pairs make the
    /// same text. Tekton hashes workspace and run name with nothing between them, and so lets `src` of `pr-a` and `s` of
    /// `rcpr-a` share one assistant.
    pub fn of_claim(group: &Group, claim_name: &str) -> Self {
        Self(format!(
            "{ASSISTANT_PREFIX}{}",
            hash(&format!("{group}/{claim_name}"))
        ))
    }

    /// Whether the placeholder's StatefulSet makes a claim of this name.
    ///
    /// Necessary for a claim to be torn down, not sufficient: a user can give a claim any name
    /// (V4).
    pub fn owns_claim(&self, claim_name: &str) -> bool {
        assistant_of(claim_name).is_some_and(|assistant| assistant == *self)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AssistantName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix(ASSISTANT_PREFIX)
            .filter(|digits| is_hash(digits))
            .map(|_| Self(text.to_owned()))
            .ok_or_else(|| InvalidName {
                text: text.to_owned(),
                expected: "the name of a placeholder; allowed: affinity-assistant- and 10 lowercase hex digits",
            })
    }
}

/// The name of a `volumeClaimTemplate` of a placeholder: `pvc-<hash>` or `<template name>-<hash>`
/// (V2).
///
/// The StatefulSet controller also names the pod's volume so, hence it is a DNS label of at most 63
/// characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimTemplateName(String);

impl ClaimTemplateName {
    /// The template of a workspace of a group. `template_name` is what the author called it, if
    /// anything.
    ///
    /// The hash is over `<group>/<workspace>` and tells templates apart: a group is always ten
    /// characters long, so no two pairs make the same text. The author's name is for people, so it
    /// is cut short, and characters a volume's name may not have become `-`.
    pub fn derive(group: &Group, workspace: &str, template_name: Option<&str>) -> Self {
        let hash = hash(&format!("{group}/{workspace}"));
        let readable = dns_label(
            template_name.unwrap_or_default(),
            LABEL_LENGTH - HASH_LENGTH - 1,
        );
        let prefix = if readable.is_empty() {
            UNNAMED_TEMPLATE
        } else {
            &readable
        };
        Self(format!("{prefix}-{hash}"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClaimTemplateName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.rsplit_once('-')
            .filter(|(prefix, hash)| is_dns_label(prefix) && is_hash(hash) && text.len() <= LABEL_LENGTH)
            .map(|_| Self(text.to_owned()))
            .ok_or_else(|| InvalidName {
                text: text.to_owned(),
                expected: "the name of a placeholder's claim template; allowed: a DNS label of at most 63 characters \
                           that ends in - and 10 lowercase hex digits",
            })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for AssistantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ClaimTemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The claim the StatefulSet controller makes of a template for replica 0: `<template>-<set>-0`.
///
/// External provisioners choose the zone of an `Immediate` claim by the set's name when the claim
/// is named so, which is what puts all claims of a run into one zone.
pub fn claim_name(template: &ClaimTemplateName, assistant: &AssistantName) -> String {
    format!("{template}-{assistant}-0")
}

/// The placeholder whose StatefulSet makes claims of such a name; `None` for a name that no [`claim_name`] has.
///
/// A user can give a claim any name, so this says what a claim is called, not whose it is.
pub fn assistant_of(claim_name: &str) -> Option<AssistantName> {
    let rest = claim_name.strip_suffix("-0")?;
    let (template, digits) = rest.rsplit_once(&format!("-{ASSISTANT_PREFIX}"))?;
    template.parse::<ClaimTemplateName>().ok()?;
    format!("{ASSISTANT_PREFIX}{digits}").parse().ok()
}

/// The claim that Tekton makes of a run's `volumeClaimTemplate` while its own assistants are off (V3):
/// `<template name or pvc>-<10 hex>`, over workspace name and uid of the run with nothing between them (Tekton v1.12.0,
/// `pkg/reconciler/volumeclaim/pvchandler.go`, `GeneratePVCNameFromWorkspaceBinding`).
pub fn tekton_claim_name(workspace: &str, template_name: Option<&str>, run_uid: &str) -> String {
    let prefix = template_name
        .filter(|name| !name.is_empty())
        .unwrap_or(UNNAMED_TEMPLATE);
    format!("{prefix}-{}", hash(&format!("{workspace}{run_uid}")))
}

/// The claim that Tekton takes a claim of [`tekton_claim_name`] for while its own flag is `pipelineruns` or
/// `isolate-pipelinerun` (Tekton v1.12.0, `pkg/reconciler/pipelinerun/affinity_assistant.go`,
/// `getPersistentVolumeClaimNameWithAffinityAssistant`): back to that claim, in the run of this name (M9).
pub fn claim_before_tekton_renamed_it<'a>(claim_name: &'a str, run_name: &str) -> Option<&'a str> {
    let suffix = format!("-{ASSISTANT_PREFIX}{}-0", hash(run_name));
    claim_name.strip_suffix(&suffix)
}

/// `text` as a label value: itself where it is one, else cut and cleaned, with a hash of the whole
/// at the end (P8).
pub fn label_value(text: &str) -> String {
    if is_label_value(text) {
        return text.to_owned();
    }
    let room = LABEL_LENGTH - HASH_LENGTH - 1;
    let cleaned: String = text
        .chars()
        .map(|c| if is_label_char(c) { c } else { '-' })
        .take(room)
        .collect();
    let readable = cleaned.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let hash = hash(text);
    if readable.is_empty() {
        hash
    } else {
        format!("{readable}-{hash}")
    }
}

/// The first ten hex digits of the SHA-256 of `text`.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .take(HASH_LENGTH / 2)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn is_hash(text: &str) -> bool {
    text.len() == HASH_LENGTH
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// What of `text` can be part of a DNS label, at most `room` characters of it.
fn dns_label(text: &str, room: usize) -> String {
    let cleaned: String = text
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .take(room)
        .collect();
    cleaned.trim_matches('-').to_owned()
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty() && dns_label(text, LABEL_LENGTH) == text
}

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Kubernetes, "Labels and Selectors": empty, or at most 63 characters that start and end with a
/// letter or digit.
fn is_label_value(text: &str) -> bool {
    text.len() <= LABEL_LENGTH
        && text.chars().all(is_label_char)
        && text.trim_matches(|c: char| !c.is_ascii_alphanumeric()) == text
}

#[cfg(test)]
mod tests;
