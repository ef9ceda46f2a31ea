//! Image references, as far as a ConfigMap's value can be told from a typing error.

/// The grammar of `distribution/reference`, except that the registry is not told from the path,
/// which nobody here needs.
pub(super) fn is_image_reference(text: &str) -> bool {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    // A colon after the last slash starts the tag; one before it belongs to the registry's port.
    let tag_start = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match rest[tag_start..].find(':') {
        Some(colon) => (
            &rest[..tag_start + colon],
            Some(&rest[tag_start + colon + 1..]),
        ),
        None => (rest, None),
    };
    digest.is_none_or(is_digest) && tag.is_none_or(is_tag) && is_path(path)
}

fn is_path(path: &str) -> bool {
    let mut parts = path.split('/').peekable();
    let mut first = true;
    let mut good = path.len() <= 255;
    while let Some(part) = parts.next() {
        let registry = first && parts.peek().is_some();
        first = false;
        good &= part.starts_with(|c: char| c.is_ascii_alphanumeric() || (registry && c == '['))
            && part.ends_with(|c: char| c.is_ascii_alphanumeric() || (registry && c == ']'))
            && part.chars().all(|c| {
                c.is_ascii_lowercase()
                    || c.is_ascii_digit()
                    || matches!(c, '.' | '-' | '_')
                    || (registry && (c.is_ascii_uppercase() || matches!(c, ':' | '[' | ']')))
            });
    }
    good
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-' | '_'))
            && hex.len() >= 32
            && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_image_references_are_read() {
        for image in [
            "pause",
            "pause:3.10",
            "library/pause:V1_0",
            "registry.k8s.io/pause:3.10.1",
            "localhost:5000/a/b-c_d.e",
            "[2001:db8::1]:5000/pause",
            "Registry.Example/pause",
        ] {
            assert!(is_image_reference(image), "{image}");
        }
    }
}
