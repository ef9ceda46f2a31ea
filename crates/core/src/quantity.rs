//! Kubernetes quantities, such as `50m`, `100Mi` and `1e3`. Each value is a whole number of billionths, as in Kubernetes itself
//! (`k8s.io/apimachinery/pkg/api/resource`, `ParseQuantity`). A fraction of a billionth is rounded away from zero.

use std::str::FromStr;

/// A Kubernetes quantity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    nano: i128,
}

/// The number of billionths in 1.
const NANO: i128 = 1_000_000_000;

/// The largest quantity: Kubernetes reduces every larger quantity to this one.
const LARGEST: i128 = i64::MAX as i128 * NANO;

/// A number with more digits than [`LARGEST`]. With one more digit, and multiplied by 1024, it still fits into an `i128`.
const ENOUGH: i128 = 10_i128.pow(30);

impl Quantity {
    /// The value in billionths. The greatest value is 2^63-1 whole units, and the least is minus this value. A fraction of a
    /// billionth is rounded away from zero, as in Kubernetes.
    pub fn nano(&self) -> i128 {
        self.nano
    }

    /// The part of the value that each of `count` containers gets, as Tekton computes it. `unit` is a number of billionths. The
    /// value is first rounded up to whole `unit`s and then divided by `count`. The result is rounded down to whole `unit`s.
    pub(crate) fn share(&self, count: usize, unit: i128) -> Self {
        let units = self.nano.div_euclid(unit) + i128::from(self.nano.rem_euclid(unit) != 0);
        Self {
            nano: units / (count.max(1) as i128) * unit,
        }
    }

    /// True if the value is a whole number of thousandths, the smallest unit of CPU in Kubernetes.
    pub fn is_whole_milli(&self) -> bool {
        self.nano % (NANO / 1000) == 0
    }

    /// True if the value is a whole number, for example of bytes.
    pub fn is_whole(&self) -> bool {
        self.nano % NANO == 0
    }
}

/// A text that is not a quantity.
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
        Ok(Self { nano })
    }
}

fn nano(text: &str) -> Option<i128> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (binary, decimal) = factor(suffix)?;
    // The absolute value in billionths is digits * 1024^binary * 10^exponent. If `lost` is true, it is a little greater, because
    // digits were dropped.
    let mut digits = 0;
    let mut exponent = decimal + 9 - fraction.len() as i64;
    let mut lost = false;
    for byte in whole.bytes().chain(fraction.bytes()) {
        let digit = i128::from(byte - b'0');
        if digits < ENOUGH {
            digits = digits * 10 + digit;
        } else {
            lost |= digit != 0;
            exponent += 1;
        }
    }
    let mut drop_digit = |digits: &mut i128, exponent: &mut i64| {
        lost |= *digits % 10 != 0;
        *digits /= 10;
        *exponent += 1;
    };
    for _ in 0..binary {
        digits *= 1024;
        while digits > ENOUGH {
            drop_digit(&mut digits, &mut exponent);
        }
    }
    while exponent < 0 && digits > 0 {
        drop_digit(&mut digits, &mut exponent);
    }
    while exponent > 0 && (1..LARGEST).contains(&digits) {
        digits *= 10;
        exponent -= 1;
    }
    let nano = (digits + i128::from(lost)).min(LARGEST);
    Some(if text.starts_with('-') { -nano } else { nano })
}

/// The factor of a suffix as `(binary, decimal)`: `1024^binary * 10^decimal`.
fn factor(suffix: &str) -> Option<(usize, i64)> {
    let place = |suffixes: &[&str]| suffixes.iter().position(|known| *known == suffix);
    if let Some(thousands) = place(&["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]) {
        return Some((0, 3 * thousands as i64 - 9));
    }
    if let Some(binary) = place(&["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]) {
        return Some((binary + 1, 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    // Like Go, Rust accepts only an optional sign and digits here.
    Some((0, exponent.parse::<i32>().ok()?.into()))
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
        // The last digit counts, although there are many zeros before it.
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
    fn equal_values_are_equal() {
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
        }
        // Floating-point numbers cannot tell these two values apart.
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
            let _ = text.parse::<Quantity>();
        }
    }
}
