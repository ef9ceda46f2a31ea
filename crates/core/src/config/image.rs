//! Checks image references. The check finds typing errors in the ConfigMap. It does not find every invalid reference.

/// Returns the error in an image reference, or `None` if there is no error. The grammar is that of `distribution/reference`, but
/// the checks of the registry's host, of separators in the path, and of the digest's algorithm are less strict.
pub(super) fn fault(text: &str) -> Option<String> {
    (!is_image_reference(text)).then(|| {
        format!(
            "{text:?} is not an image reference; allowed: [registry/]path[:tag][@digest] without spaces, such as \
             registry.k8s.io/pause:3.10.1"
        )
    })
}

fn is_image_reference(text: &str) -> bool {
    let (rest, digest) = text
        .split_once('@')
        .map_or((text, None), |(rest, digest)| (rest, Some(digest)));
    // A colon after the last slash starts the tag. A colon before it belongs to the registry's port.
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        Some(_) | None => (rest, None),
    };
    let (registry, path) = path
        .split_once('/')
        .map_or((None, path), |(registry, path)| (Some(registry), path));
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_word = |c: char| c.is_ascii_alphanumeric();
    path.len() <= 255
        && path.split('/').all(|part| is_part(part, is_lower, ".-_"))
        && registry
            .is_none_or(|host| is_part(host, |c| is_word(c) || matches!(c, '[' | ']'), ".-_:"))
        && tag.is_none_or(|tag| {
            (1..=128).contains(&tag.len())
                && !tag.starts_with(['.', '-'])
                && tag.chars().all(|c| is_word(c) || ".-_".contains(c))
        })
        && digest.is_none_or(|digest| {
            digest.split_once(':').is_some_and(|(algorithm, hex)| {
                is_part(algorithm, is_word, "+.-_")
                    && hex.len() >= 32
                    && hex.chars().all(|c| c.is_ascii_hexdigit())
            })
        })
}

/// True if the text begins and ends with a word character, and has only word characters and characters of `between`.
fn is_part(text: &str, is_word: impl Fn(char) -> bool, between: &str) -> bool {
    text.starts_with(&is_word)
        && text.ends_with(&is_word)
        && text.chars().all(|c| is_word(c) || between.contains(c))
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
