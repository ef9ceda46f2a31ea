//! Macro `words!` declares an enum with one word for each value. ConfigMaps, annotations and Kubernetes objects contain these
//! words.

/// A text that is not one of the allowed words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}; allowed: {allowed}")]
pub struct UnknownWord {
    pub(crate) text: String,
    pub(crate) expected: &'static str,
    pub(crate) allowed: String,
}

/// Declares an enum with one word for each value. The enum gets `ALL`, `as_str`, `Display` and `FromStr`. `$expected` describes a
/// value in the error text of `FromStr`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $expected:literal {
            $($(#[$doc:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All values, in the order in which messages list them.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// The word of this value.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let known = Self::ALL.into_iter().find(|known| known.as_str() == text);
                known.ok_or_else(|| $crate::words::UnknownWord {
                    text: text.to_owned(),
                    expected: $expected,
                    allowed: Self::ALL.map(Self::as_str).join(", "),
                })
            }
        }
    };
}

pub(crate) use words;
