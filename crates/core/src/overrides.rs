//! The settings for which a run, its Pipeline or its Namespace may choose another value than the cluster's (B1). Module
//! `admit/overrides.rs` decides which choice has an effect.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::annotations::{CHOSEN_PLACEMENT, CHOSEN_RESERVES, OVERRIDE};
use crate::config::{COSCHEDULE, PLACEHOLDER_RESERVES, PLACEMENT, PlaceholderDefaults, Reserves};
use crate::mode::Mode;
use crate::separation::Placement;
use crate::words::UnknownWord;

/// A setting that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// The mode.
    Mode,
    /// The nodes that placeholders prefer (P4).
    Placement,
    /// The resources that placeholders request in addition to their own (B3).
    Reserves,
}

impl Setting {
    /// Every setting. The mode comes first, because without coscheduling no other setting has an effect.
    pub const ALL: [Self; 3] = [Self::Mode, Self::Placement, Self::Reserves];

    /// The key of the ConfigMap that sets the cluster's value.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Mode => COSCHEDULE,
            Self::Placement => PLACEMENT,
            Self::Reserves => PLACEHOLDER_RESERVES,
        }
    }

    /// The annotation that chooses a value.
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::Mode => OVERRIDE,
            Self::Placement => CHOSEN_PLACEMENT,
            Self::Reserves => CHOSEN_RESERVES,
        }
    }

    /// The setting's name in warnings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::Placement | Self::Reserves => self.key(),
        }
    }

    /// The value that `text` names.
    ///
    /// # Errors
    /// `text` names no value of this setting.
    pub fn parse(self, text: &str) -> Result<Override, UnknownWord> {
        Ok(match self {
            Self::Mode => Override::Mode(text.parse()?),
            Self::Placement => Override::Placement(text.parse()?),
            Self::Reserves => Override::Reserves(text.parse()?),
        })
    }

    /// The value of this setting in a configuration with this mode and these placeholder defaults.
    pub(crate) const fn value(self, mode: Mode, placeholder: &PlaceholderDefaults) -> Override {
        match self {
            Self::Mode => Override::Mode(mode),
            Self::Placement => Override::Placement(placeholder.placement),
            Self::Reserves => Override::Reserves(placeholder.reserves),
        }
    }
}

/// The object whose value of a setting is in force for a run (B1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The annotation of the run itself.
    PipelineRun,
    /// The annotation of the run's Pipeline.
    Pipeline,
    /// The annotation of the run's Namespace.
    Namespace,
    /// ConfigMap `coscheduler-config`.
    Cluster,
}

impl Source {
    /// The first object that chooses a value for `setting`, from the annotations of the run, its Pipeline and its Namespace.
    pub fn of(setting: Setting, annotations: [Option<&BTreeMap<String, String>>; 3]) -> Self {
        let chooses = |annotations: &Option<&BTreeMap<String, String>>| {
            annotations.is_some_and(|all| all.contains_key(setting.annotation()))
        };
        let sources = [Self::PipelineRun, Self::Pipeline, Self::Namespace];
        let mut choosing = sources.into_iter().zip(annotations);
        choosing
            .find(|(_, annotations)| chooses(annotations))
            .map_or(Self::Cluster, |(source, _)| source)
    }

    /// The place of the setting's value, in words.
    pub fn place(self, setting: Setting) -> String {
        let kind = match self {
            Self::PipelineRun => "PipelineRun",
            Self::Pipeline => "Pipeline",
            Self::Namespace => "Namespace",
            Self::Cluster => {
                return format!("key {} of ConfigMap coscheduler-config", setting.key());
            }
        };
        format!("annotation {} of the {kind}", setting.annotation())
    }
}

/// A value of a setting. As text, it is a word of key `allowed-overrides`: the name of a mode, or the key of another setting with
/// a value, such as `placement=pack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Override {
    /// A mode.
    Mode(Mode),
    /// The nodes that placeholders prefer.
    Placement(Placement),
    /// The resources that placeholders request in addition to their own.
    Reserves(Reserves),
}

impl Override {
    /// Every value of every setting.
    pub fn all() -> impl Iterator<Item = Self> {
        let modes = Mode::ALL.into_iter().map(Self::Mode);
        let placements = Placement::ALL.into_iter().map(Self::Placement);
        let reserves = Reserves::ALL.into_iter().map(Self::Reserves);
        modes.chain(placements).chain(reserves)
    }

    /// The setting of this value.
    pub const fn setting(self) -> Setting {
        match self {
            Self::Mode(_) => Setting::Mode,
            Self::Placement(_) => Setting::Placement,
            Self::Reserves(_) => Setting::Reserves,
        }
    }

    /// The value as text in the setting's ConfigMap key and annotation.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mode(mode) => mode.as_str(),
            Self::Placement(placement) => placement.as_str(),
            Self::Reserves(reserves) => reserves.as_str(),
        }
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Placement(_) | Self::Reserves(_) => {
                write!(f, "{}={}", self.setting().key(), self.word())
            }
        }
    }
}

impl FromStr for Override {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::all().find(|known| known.to_string() == text);
        known.ok_or_else(|| UnknownWord {
            text: text.to_owned(),
            expected: "an override",
            allowed: listed(Self::all()),
        })
    }
}

/// The words of key or annotation `allowed-overrides`.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|word| !word.is_empty())
}

/// The items as one text, separated by commas. [`words`] can read this text.
pub(crate) fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_the_first_object_that_chooses_a_value_is_its_source() {
        let chooses = BTreeMap::from([(OVERRIDE.to_owned(), "disabled".to_owned())]);
        let (some, none) = (Some(&chooses), None);
        for (annotations, source) in [
            ([some, some, some], Source::PipelineRun),
            ([none, some, some], Source::Pipeline),
            ([none, none, some], Source::Namespace),
            ([none, none, none], Source::Cluster),
        ] {
            assert_eq!(Source::of(Setting::Mode, annotations), source);
            assert_eq!(Source::of(Setting::Reserves, annotations), Source::Cluster);
        }
    }

    #[test]
    fn b1_every_value_reads_back_as_itself_and_no_word_has_two_meanings() {
        for value in Override::all() {
            assert_eq!(value.to_string().parse(), Ok(value));
            assert_eq!(value.setting().parse(value.word()), Ok(value));
        }
        for text in ["placement", "none", "placement=", "coschedule=disabled"] {
            let error = text.parse::<Override>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{text:?} is not an override; allowed: {}",
                    listed(Override::all())
                )
            );
            assert!(
                error.contains("allowed: workspaces, ") && error.contains(", placement=pack, ")
            );
        }
    }
}
