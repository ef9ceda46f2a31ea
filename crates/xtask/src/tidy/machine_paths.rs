//! Checks that no file contains a path that exists only on one machine, such as a home folder.

use super::Finding;
use crate::workspace::Files;

/// Folders at the root of a file system that differ from machine to machine.
const OWN: [&str; 4] = ["root", "work", "home", "Users"];

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let findings = files.iter().flat_map(|(file, text)| check_text(file, text));
    findings.collect()
}

fn check_text(file: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(index, line)| {
            let folder = OWN.into_iter().find(|folder| names(line, folder))?;
            Some(Finding::new(
                format!("{file}:{} names a path under /{folder}", index + 1),
                "write it relative to the repository, or with a variable such as $HOME",
            ))
        })
        .collect()
}

/// True if `line` contains an absolute path into `folder`. Paths such as `a/root/b` and `$X/home/` do not count.
fn names(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        before.is_none_or(|character| {
            !(character.is_alphanumeric() || "./_-})*~>".contains(character))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_are_found_and_relative_ones_are_not() {
        let cases = [
            ("cd {}src", true),
            ("path = \"{}x\"", true),
            ("{}x", true),
            ("crates{}x", false),
            ("https://example.com{}", false),
            ("$HOME{}", false),
        ];
        for folder in OWN {
            for (line, expected) in cases {
                let line = line.replace("{}", &format!("/{folder}/"));
                assert_eq!(!check_text("file", &line).is_empty(), expected, "{line}");
            }
        }
    }
}
