//! The order of `metadata.resourceVersion`.

use std::cmp::Ordering;

/// Compares two versions of objects of one resource. Versions are numbers (Kubernetes 1.35, "Resource versions"). Returns
/// `None` if one of the two is not a number.
pub fn compare(left: &str, right: &str) -> Option<Ordering> {
    let (left, right) = (left.parse::<u128>().ok()?, right.parse().ok()?);
    Some(left.cmp(&right))
}

/// True if `left` is a later version than `right`. False if one of the two is not a number.
pub fn is_newer(left: &str, right: &str) -> bool {
    compare(left, right) == Some(Ordering::Greater)
}
