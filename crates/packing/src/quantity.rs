//! Kubernetes resource quantities as exact fixed-point numbers: what is parsed is what is compared, and what is
//! printed is the canonical form the API server would print.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The smallest amount a quantity can hold: one billionth.
const NANO: i128 = 1_000_000_000;
/// The largest magnitude: larger input is capped, as Kubernetes does.
const CAP: i128 = i64::MAX as i128 * NANO;

/// How a quantity was written, which decides how its canonical form is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `12`, `250m`, `3k`
    #[default]
    DecimalSuffix,
    /// `128Mi`
    BinarySuffix,
    /// `12e6`
    DecimalExponent,
}

/// A resource amount in billionths. Equality and order look at the amount alone, not at how it was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a quantity: {problem}; write a number with an optional suffix such as 250m, 2, 1.5Gi or 12e6"
)]
pub struct ParseQuantityError {
    text: String,
    problem: &'static str,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity {
        nanos: 0,
        format: Format::DecimalSuffix,
    };

    pub const fn from_nanos(nanos: i128) -> Self {
        Quantity {
            nanos,
            format: Format::DecimalSuffix,
        }
    }

    pub const fn from_units(units: i64) -> Self {
        Quantity {
            nanos: units as i128 * NANO,
            format: Format::DecimalSuffix,
        }
    }

    pub const fn from_millis(millis: i64) -> Self {
        Quantity {
            nanos: millis as i128 * (NANO / 1000),
            format: Format::DecimalSuffix,
        }
    }

    pub const fn nanos(self) -> i128 {
        self.nanos
    }

    pub const fn with_format(self, format: Format) -> Self {
        Quantity {
            nanos: self.nanos,
            format,
        }
    }

    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The amount as whole units, rounded away from zero as Kubernetes' `Value()` does.
    pub fn value(self) -> i64 {
        clamp_i64(div_away_from_zero(self.nanos, NANO))
    }

    /// The amount in thousandths, rounded away from zero as Kubernetes' `MilliValue()` does.
    pub fn milli_value(self) -> i64 {
        clamp_i64(div_away_from_zero(self.nanos, NANO / 1000))
    }

    /// For prices and ratios only: never compared with another quantity.
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / NANO as f64
    }
}

fn clamp_i64(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

fn div_away_from_zero(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    let remainder = value % by;
    match remainder.cmp(&0) {
        Ordering::Equal => quotient,
        Ordering::Greater => quotient + 1,
        Ordering::Less => quotient - 1,
    }
}

/// A suffix as (binary shift or decimal exponent, format).
fn suffix(text: &str) -> Option<(Suffix, Format)> {
    let binary = |shift| Some((Suffix::Binary(shift), Format::BinarySuffix));
    let decimal = |exponent| Some((Suffix::Decimal(exponent), Format::DecimalSuffix));
    match text {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = text.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // Beyond any amount that is not capped or rounded up to one billionth: the exact exponent is moot.
            let exponent = exponent
                .strip_prefix('+')
                .unwrap_or(exponent)
                .parse::<i32>()
                .ok()?
                .clamp(-100, 100);
            Some((Suffix::Decimal(exponent), Format::DecimalExponent))
        }
    }
}

enum Suffix {
    Decimal(i32),
    Binary(u32),
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |problem| ParseQuantityError {
            text: text.to_owned(),
            problem,
        };
        let (negative, rest) = match text.as_bytes().first() {
            None => return Err(fail("it is empty")),
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            Some(_) => (false, text),
        };
        let number_end = rest
            .bytes()
            .position(|byte| !byte.is_ascii_digit() && byte != b'.')
            .unwrap_or(rest.len());
        let (number, suffix_text) = rest.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(fail("it has no number"));
        }
        let (scale, format) = suffix(suffix_text).ok_or_else(|| fail("its suffix is unknown"))?;
        let nanos = scaled(whole, fraction, &scale);
        Ok(Quantity {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }
}

/// `whole.fraction` times the suffix, in billionths: anything below one billionth is rounded up, anything beyond the
/// cap is the cap.
fn scaled(whole: &str, fraction: &str, scale: &Suffix) -> i128 {
    // value = digits * 10^-places * scale; digits as a decimal string without leading zeros.
    let digits: Vec<u8> = whole
        .bytes()
        .chain(fraction.bytes())
        .map(|byte| byte - b'0')
        .skip_while(|digit| *digit == 0)
        .collect();
    if digits.is_empty() {
        return 0;
    }
    let places = fraction.len() as i64;
    match scale {
        Suffix::Decimal(exponent) => {
            // In billionths: digits * 10^(9 + exponent - places).
            let shift = 9 + i64::from(*exponent) - places;
            decimal_shift(&digits, shift)
        }
        Suffix::Binary(bits) => {
            let multiplier = 1_i128 << bits;
            let whole_nanos = decimal_shift(&digits[..digits.len().saturating_sub(fraction.len())], 0);
            let whole_part = whole_nanos
                .saturating_mul(multiplier)
                .saturating_mul(NANO)
                .min(CAP);
            // The fraction is exact as long as its digits times 2^60 * 10^9 stay inside i128: eleven places. Later
            // places only decide whether the result is rounded up.
            let exact = fraction.len().min(11);
            let mut numerator = 0_i128;
            for byte in fraction.bytes().take(exact) {
                numerator = numerator * 10 + i128::from(byte - b'0');
            }
            let sticky = fraction.bytes().skip(exact).any(|byte| byte != b'0');
            let denominator = 10_i128.pow(exact as u32);
            let scaled = numerator.saturating_mul(multiplier).saturating_mul(NANO);
            let mut part = scaled / denominator;
            if scaled % denominator != 0 || sticky {
                part += 1;
            }
            (whole_part + part).min(CAP)
        }
    }
}

/// digits * 10^shift, rounded up and capped.
fn decimal_shift(digits: &[u8], shift: i64) -> i128 {
    let length = digits.len() as i64 + shift;
    if length > 30 {
        return CAP;
    }
    if length < 0 {
        return i128::from(digits.iter().any(|digit| *digit != 0));
    }
    let keep = (length.min(digits.len() as i64)) as usize;
    let mut value = 0_i128;
    for digit in &digits[..keep] {
        value = value * 10 + i128::from(*digit);
    }
    if shift > 0 {
        value *= 10_i128.pow(shift as u32);
    }
    if digits[keep..].iter().any(|digit| *digit != 0) {
        value += 1;
    }
    value.min(CAP)
}

impl fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return formatter.write_str("0");
        }
        let sign = if self.nanos < 0 { "-" } else { "" };
        let mut magnitude = self.nanos.unsigned_abs();
        let unit = NANO.unsigned_abs();
        // A binary form needs whole units and at least 1024 of them; otherwise the decimal form is the canonical one.
        if self.format == Format::BinarySuffix && magnitude.is_multiple_of(unit) && magnitude / unit >= 1024 {
            magnitude /= unit;
            let mut step = 0;
            while step < 6 && magnitude.is_multiple_of(1024) {
                magnitude /= 1024;
                step += 1;
            }
            return write!(
                formatter,
                "{sign}{magnitude}{}",
                ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]
            );
        }
        let mut exponent = -9_i32;
        while exponent < 18 && magnitude.is_multiple_of(1000) {
            magnitude /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 {
                write!(formatter, "{sign}{magnitude}")
            } else {
                write!(formatter, "{sign}{magnitude}e{exponent}")
            };
        }
        let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][((exponent + 9) / 3) as usize];
        write!(formatter, "{sign}{magnitude}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Quantity;

    /// Keeps the left side's format unless it is zero, as Kubernetes does.
    fn add(self, other: Quantity) -> Quantity {
        let format = if self.nanos == 0 {
            other.format
        } else {
            self.format
        };
        Quantity {
            nanos: self.nanos + other.nanos,
            format,
        }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.nanos == 0 {
            other.format
        } else {
            self.format
        };
        Quantity {
            nanos: self.nanos - other.nanos,
            format,
        }
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}

impl Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity {
            nanos: -self.nanos,
            format: self.format,
        }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(iterator: I) -> Quantity {
        iterator.fold(Quantity::ZERO, |total, quantity| total + quantity)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;

        impl Visitor<'_> for QuantityVisitor {
            type Value = Quantity;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a quantity such as \"250m\", \"1Gi\" or 2")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_units(i64::try_from(value).unwrap_or(i64::MAX)))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                format!("{value}").parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(QuantityVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Quantity {
        text.parse().expect("a valid quantity")
    }

    #[test]
    fn prints_the_canonical_form() {
        // Written, then as the API server prints it.
        for (written, canonical) in [
            ("0", "0"),
            ("0m", "0"),
            ("1", "1"),
            ("1000", "1k"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("100M", "100M"),
            ("1.8G", "1800M"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1000e-3", "1"),
            ("12e6", "12e6"),
            ("1.25e3", "1250"),
            ("5E", "5E"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("1u", "1u"),
            ("+3", "3"),
            ("-1.5Gi", "-1536Mi"),
            (".5", "500m"),
            ("2.", "2"),
            ("0.0001Ki", "102400u"),
            ("9223372036854775807", "9223372036854775807"),
            ("9223372036854775808", "9223372036854775807"),
            ("100E", "9223372036854775807"),
        ] {
            assert_eq!(parsed(written).to_string(), canonical, "{written}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in [
            "", "m", "1.1.1", "1mm", "1 Gi", "Gi", "--1", "1e", "1e+", "0x10", "1i", "１",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn rounds_values_away_from_zero() {
        assert_eq!(parsed("1m").value(), 1);
        assert_eq!(parsed("-1m").value(), -1);
        assert_eq!(parsed("1001m").value(), 2);
        assert_eq!(parsed("1u").milli_value(), 1);
        assert_eq!(parsed("2").milli_value(), 2000);
    }

    proptest! {
        #[test]
        fn canonical_form_parses_to_the_same_amount(nanos in -1_000_000_000_000_000_000_000_i128..1_000_000_000_000_000_000_000, format in 0..3_u8) {
            let format = [Format::DecimalSuffix, Format::BinarySuffix, Format::DecimalExponent][format as usize];
            let quantity = Quantity::from_nanos(nanos).with_format(format);
            let printed = quantity.to_string();
            let again: Quantity = printed.parse().expect("canonical form");
            prop_assert_eq!(again, quantity);
            prop_assert_eq!(again.to_string(), printed);
        }

        #[test]
        fn sums_are_exact(left in -1_000_000_000_000_i64..1_000_000_000_000, right in -1_000_000_000_000_i64..1_000_000_000_000) {
            let total = Quantity::from_millis(left) + Quantity::from_millis(right);
            prop_assert_eq!(total.nanos(), (i128::from(left) + i128::from(right)) * 1_000_000);
            prop_assert_eq!(total - Quantity::from_millis(right), Quantity::from_millis(left));
        }

        #[test]
        fn never_panics(text in "[-+0-9.a-zA-Z]{0,40}") {
            let _ = text.parse::<Quantity>();
        }
    }
}
