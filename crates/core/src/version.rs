//! The order of `metadata.resourceVersion`.

/// Whether `left` is a later version than `right`. Resource versions of one resource compare as numbers (Kubernetes 1.35,
/// "Resource versions"); ones that are not numbers are never later.
pub fn is_newer(left: &str, right: &str) -> bool {
    match (left.parse::<u128>(), right.parse::<u128>()) {
        (Ok(left), Ok(right)) => left > right,
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}
