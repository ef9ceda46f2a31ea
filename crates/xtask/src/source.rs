//! Reads Rust sources as tokens. So code inside a string does not count as code of the file.

use std::path::Path;

use anyhow::Context as _;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The lines of a source file without tests. A file that contains only tests gives no lines. Any other file gives the lines
/// before its test module.
pub(crate) fn without_tests<'a>(file: &str, text: &'a str) -> Vec<&'a str> {
    let mut folders = Path::new(file).iter();
    let only_tests = folders.any(|folder| folder == "tests" || folder == "benches")
        || file.ends_with("/tests.rs")
        || file.ends_with("/fixtures.rs");
    if only_tests {
        return Vec::new();
    }
    let mut lines: Vec<_> = text.lines().collect();
    let end = (0..lines.len()).find(|&at| {
        let mut following = lines[at + 1..].iter();
        let item = following.find(|line| !line.starts_with("#["));
        lines[at] == "#[cfg(test)]"
            && item.is_some_and(|item| item.contains("mod ") && item.ends_with('{'))
    });
    lines.truncate(end.unwrap_or(lines.len()));
    lines
}

/// The names of the test functions in a source file.
pub(crate) fn tests(text: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    collect_tests(tokens(text)?, &mut names);
    Ok(names)
}

fn tokens(text: &str) -> anyhow::Result<TokenStream> {
    let parsed: Result<TokenStream, _> = text.parse();
    // The error of the parser cannot be sent to another thread, so only its text is kept.
    parsed
        .map_err(|error| anyhow::anyhow!("{error}"))
        .context("failed to parse Rust")
}

fn collect_tests(stream: TokenStream, names: &mut Vec<String>) {
    let mut after_hash = false;
    let mut marked = false;
    let mut after_fn = false;
    for token in stream {
        let is_hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
        match token {
            TokenTree::Group(group) => {
                if after_hash && group.delimiter() == Delimiter::Bracket {
                    marked |= is_test(&group.stream().to_string());
                } else {
                    collect_tests(group.stream(), names);
                }
            }
            TokenTree::Ident(ident) if marked => {
                if after_fn {
                    names.push(ident.to_string());
                    marked = false;
                }
                after_fn = ident == "fn";
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => after_fn = false,
        }
        after_hash = is_hash;
    }
}

/// True for the tokens of an attribute that marks a test.
fn is_test(attribute: &str) -> bool {
    let attribute = attribute.replace(' ', "");
    attribute == "test" || attribute == "tokio::test" || attribute.starts_with("tokio::test(")
}

/// The same text, but each byte of a string, with its quotes, becomes a space. Comments and line ends stay as they are.
pub(crate) fn without_strings(text: &str) -> anyhow::Result<String> {
    let mut bytes = text.as_bytes().to_vec();
    blank_strings(tokens(text)?, &mut bytes);
    String::from_utf8(bytes).context("failed to blank a string out")
}

fn blank_strings(stream: TokenStream, text: &mut [u8]) {
    for token in stream {
        match token {
            TokenTree::Group(group) => blank_strings(group.stream(), text),
            TokenTree::Literal(literal) => {
                // A doc comment is a string literal too, but its place in the text is the whole comment, which begins with `/`.
                if let Some(bytes) = text.get_mut(literal.span().byte_range())
                    && bytes.contains(&b'"')
                    && !bytes.starts_with(b"/")
                {
                    let inner = bytes.iter_mut().filter(|byte| **byte != b'\n');
                    inner.for_each(|byte| *byte = b' ');
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_marked_as_a_test_is_one_and_a_string_is_not() {
        let source = r##"
            fn not_marked() {}
            #[test]
            #[ignore = "slow"]
            fn one() -> Outcome { let text = "#[test] fn in_a_string() {}"; }
            #[tokio::test(start_paused = true)]
            async fn two() { fn inner() {} }
            // #[test] fn in_a_comment() {}
            mod inner { proptest! { #[test] fn three(claim in "x") {} } }
            const RAW: &str = r#"
            #[test]
            fn in_a_raw_string() {}
            "#;
        "##;
        assert_eq!(tests(source).unwrap(), ["one", "two", "three"]);
    }

    #[test]
    fn strings_are_blanked_out_and_comments_are_not() {
        let source = "/// a Set\nfn f() { // a Set\n    g(\"é a Set\\\n  Set\", Set); }\n";
        let expected =
            "/// a Set\nfn f() { // a Set\n    g(          \n      , Set); }\n".to_owned();
        assert_eq!(without_strings(source).unwrap(), expected);
    }

    #[test]
    fn tests_do_not_count() {
        let text = "#[cfg(test)]\nmod fixtures;\n#[cfg(test)]\nmod tests {\n}\n";
        let cases = [
            ("crates/watcher/src/lib.rs", 2),
            ("crates/core/tests/plan.rs", 0),
            ("crates/core/src/plan/tests.rs", 0),
            ("crates/core/src/fixtures.rs", 0),
        ];
        for (file, expected) in cases {
            assert_eq!(without_tests(file, text).len(), expected, "{file}");
        }
    }
}
