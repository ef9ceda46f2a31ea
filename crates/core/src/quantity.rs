//! Kubernetes quantities (`50m`, `100Mi`, `1e3`), read, compared and kept exactly.
//!
//! No float comes near them: a value is a whole number of billionths, as in Kubernetes itself
//! (`k8s.io/apimachinery/pkg/api/resource`, `ParseQuantity`), and the text is kept as it was
//! written.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// A Kubernetes quantity. Two quantities are equal when their values are: `1Gi` equals
/// `1073741824`.
#[derive(Debug, Clone)]
pub struct Quantity {
    text: String,
    nano: i128,
}

/// Billionths in one.
const NANO: i128 = 1_000_000_000;

/// Kubernetes caps every quantity here, and so do we.
const LARGEST: i128 = i64::MAX as i128 * NANO;

/// Decimal digits of [`LARGEST`] before the point.
const WHOLE_DIGITS: i64 = 19;

/// Decimal digits that are kept after the point.
const FRACTION_DIGITS: i64 = 9;

impl Quantity {
    /// The quantity as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The value in billionths, capped at plus or minus 2^63-1 whole units; what lies between two
    /// billionths is rounded away from zero, as Kubernetes does.
    pub fn nano(&self) -> i128 {
        self.nano
    }

    /// Whether the value is a whole number of thousandths: the finest CPU share Kubernetes hands
    /// out.
    pub fn is_whole_milli(&self) -> bool {
        self.nano % (NANO / 1000) == 0
    }

    /// Whether the value is a whole number of units: the finest amount of memory there is.
    pub fn is_whole(&self) -> bool {
        self.nano % NANO == 0
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nano.hash(state);
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a Kubernetes quantity; allowed: a decimal number, then nothing, one of \
     n u m k M G T P E Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
)]
pub struct InvalidQuantity(pub String);

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let nano = nano(text).ok_or_else(|| InvalidQuantity(text.to_owned()))?;
        Ok(Self {
            text: text.to_owned(),
            nano,
        })
    }
}

/// What a suffix multiplies by: `1024^binary * 10^decimal`.
struct Suffix {
    binary: u32,
    decimal: i64,
}

fn suffix(text: &str) -> Option<Suffix> {
    let (binary, decimal) = match text {
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (1, 0),
        "Mi" => (2, 0),
        "Gi" => (3, 0),
        "Ti" => (4, 0),
        "Pi" => (5, 0),
        "Ei" => (6, 0),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            // Rust reads a sign and digits, nothing else, as Go does.
            (0, i64::from(digits.parse::<i32>().ok()?))
        }
    };
    Some(Suffix { binary, decimal })
}

fn nano(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix_text) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let suffix = suffix(suffix_text)?;

    let mut digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|byte| byte - b'0')
        .collect();
    for _ in 0..suffix.binary {
        multiply_by_1024(&mut digits);
    }
    let leading_zeros = digits.iter().take_while(|digit| **digit == 0).count();
    let significant = &digits[leading_zeros..];
    if significant.is_empty() {
        return Some(0);
    }
    // Digits of the value before its point; negative where zeros follow the point.
    let whole_digits = significant.len() as i64 - fraction.len() as i64 + suffix.decimal;
    let magnitude = scaled(significant, whole_digits);
    Some(if negative { -magnitude } else { magnitude })
}

/// The billionths of `0.<digits> * 10^whole_digits`, rounded up and capped.
fn scaled(digits: &[u8], whole_digits: i64) -> i128 {
    if whole_digits > WHOLE_DIGITS {
        return LARGEST;
    }
    let kept = usize::try_from(whole_digits + FRACTION_DIGITS).unwrap_or(0);
    // At most 28 digits, which an i128 holds.
    let value = (0..kept).fold(0_i128, |value, index| {
        value * 10 + i128::from(digits.get(index).copied().unwrap_or(0))
    });
    let lost = digits.iter().skip(kept).any(|digit| *digit != 0);
    (value + i128::from(lost)).min(LARGEST)
}

/// Multiplies a decimal number, most significant digit first, in place; the place of its point
/// stays the same seen from the right.
fn multiply_by_1024(digits: &mut Vec<u8>) {
    let mut carry = 0_u32;
    for digit in digits.iter_mut().rev() {
        let product = u32::from(*digit) * 1024 + carry;
        *digit = (product % 10) as u8;
        carry = product / 10;
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push((carry % 10) as u8);
        carry /= 10;
    }
    digits.splice(0..0, front.into_iter().rev());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, nano: Option<i128>) {
        assert_eq!(
            text.parse::<Quantity>()
                .ok()
                .map(|quantity| quantity.nano()),
            nano,
            "{text:?}"
        );
    }

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (text, nano) in [
            ("0", 0),
            ("-0", 0),
            ("0Ki", 0),
            ("0e99", 0),
            ("1", NANO),
            ("+1", NANO),
            ("-1", -NANO),
            ("007", 7 * NANO),
            ("0.5", NANO / 2),
            (".5", NANO / 2),
            ("5.", 5 * NANO),
            ("500m", NANO / 2),
            ("-50m", -NANO / 20),
            ("1n", 1),
            ("1u", 1_000),
            ("1k", 1_000 * NANO),
            ("1M", 1_000_000 * NANO),
            ("1G", 1_000_000_000 * NANO),
            ("1T", 1_000_000_000_000 * NANO),
            ("1P", 1_000_000_000_000_000 * NANO),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("1Ki", 1024 * NANO),
            ("1.5Ki", 1536 * NANO),
            ("1Mi", 1_048_576 * NANO),
            ("1Gi", 1_073_741_824 * NANO),
            ("1Ti", 1_099_511_627_776 * NANO),
            ("1Pi", 1_125_899_906_842_624 * NANO),
            ("1Ei", 1_152_921_504_606_846_976 * NANO),
            ("1e3", 1_000 * NANO),
            ("1E3", 1_000 * NANO),
            ("1e+3", 1_000 * NANO),
            ("1e-3", NANO / 1000),
            ("12.345e2", 1_234_500_000_000),
        ] {
            check(text, Some(nano));
        }
    }

    #[test]
    fn what_is_finer_than_a_billionth_is_rounded_away_from_zero() {
        check("0.1n", Some(1));
        check("-0.1n", Some(-1));
        check("1.0000000001", Some(NANO + 1));
        check("1e-100", Some(1));
        // 0.0000000001 * 1024 = 0.0000001024
        check("0.0000000001Ki", Some(103));
        // The last digit decides although it comes late.
        check("0.00000000000000000000000000000000000000001Ei", Some(1));
    }

    #[test]
    fn what_is_larger_than_64_bits_is_capped() {
        check("9223372036854775807", Some(LARGEST));
        check("9223372036854775808", Some(LARGEST));
        check("-9223372036854775809", Some(-LARGEST));
        check("8Ei", Some(LARGEST));
        check("10E", Some(LARGEST));
        check("1e2147483647", Some(LARGEST));
        check("9223372036854775806.999999999", Some(LARGEST - 1));
        check(&format!("{}Ei", "9".repeat(400)), Some(LARGEST));
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            " ",
            "1 ",
            " 1",
            "m",
            ".",
            "+",
            "-",
            "--1",
            "+-1",
            "1.2.3",
            "1K",
            "1ki",
            "1g",
            "1mi",
            "1kB",
            "1Gib",
            "1Ki1",
            "1e",
            "1e1.5",
            "1ee3",
            "1e99999999999",
            "0x10",
            "1_000",
            "1,5",
            "½",
            "NaN",
            "inf",
            "１",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn equal_values_are_equal_and_texts_are_kept() {
        for (left, right) in [
            ("1Gi", "1073741824"),
            ("0.5", "500m"),
            ("1k", "1e3"),
            ("1000Mi", "1048576000"),
        ] {
            let (left, right) = (
                left.parse::<Quantity>().unwrap(),
                right.parse::<Quantity>().unwrap(),
            );
            assert_eq!(left, right);
            assert_ne!(left.as_str(), right.as_str());
        }
        // A float takes these for equal.
        let (less, more) = ("9007199254740992", "9007199254740993");
        assert!(less.parse::<Quantity>().unwrap() < more.parse::<Quantity>().unwrap());
    }

    proptest! {
        #[test]
        fn whole_numbers_compare_as_integers(left: i64, right: i64) {
            prop_assume!(left != i64::MIN && right != i64::MIN);
            let parse = |value: i64| value.to_string().parse::<Quantity>().unwrap();
            prop_assert_eq!(parse(left).cmp(&parse(right)), left.cmp(&right));
            prop_assert_eq!(parse(left).nano(), i128::from(left) * NANO);
        }

        #[test]
        fn a_binary_suffix_is_a_shift(value in 0_i64..8192, power in 1_u32..=5) {
            let suffix = ["Ki", "Mi", "Gi", "Ti", "Pi"][power as usize - 1];
            let suffixed: Quantity = format!("{value}{suffix}").parse().unwrap();
            let plain: Quantity = (i128::from(value) << (10 * power)).to_string().parse().unwrap();
            prop_assert_eq!(suffixed, plain);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+.0-9eEinumkKMGTP]{0,12}|\\PC*") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(quantity.as_str(), text);
            }
        }
    }
}
