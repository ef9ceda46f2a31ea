//! The templates of `-o jsonpath=TEMPLATE`, similar to kubectl's. Crate `jsonpath_rust` reads the paths and finds their values.

use std::mem;
use std::str::FromStr;

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::{Queried, js_path_process};
use serde_json::Value;

const ALLOWED: &str = r#"allowed: text, {PATH} such as {.runs[*].name} or {.annotations['coscheduler.dev/mode']}, {"TEXT"}, and {range PATH}…{end}"#;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Path(JpQuery),
    /// These parts, for each value of the path.
    Range(JpQuery, Vec<Part>),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        // The ranges that have not ended, each with the parts before it.
        let mut ranges = Vec::new();
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('{') {
            parts.push(Part::Text(text.to_owned()));
            let (expression, next) = split_at_brace(after)
                .ok_or_else(|| format!("{{{after} has no closing brace; {ALLOWED}"))?;
            let unknown = || format!("{{{expression}}} is unknown; {ALLOWED}");
            let trimmed = expression.trim();
            if trimmed == "end" {
                let (path, before) = ranges.pop().ok_or_else(unknown)?;
                let within = mem::replace(&mut parts, before);
                parts.push(Part::Range(path, within));
            } else if let Some(path) = trimmed.strip_prefix("range ") {
                ranges.push((query(path).ok_or_else(unknown)?, mem::take(&mut parts)));
            } else if trimmed.starts_with(['"', '\'']) {
                parts.push(Part::Text(literal(trimmed).ok_or_else(unknown)?));
            } else {
                parts.push(Part::Path(query(trimmed).ok_or_else(unknown)?));
            }
            rest = next;
        }
        parts.push(Part::Text(rest.to_owned()));
        match ranges.is_empty() && !template.is_empty() {
            true => Ok(Self(parts)),
            false if template.is_empty() => Err(format!("there is no template; {ALLOWED}")),
            false => Err(format!("a range has no {{end}}; {ALLOWED}")),
        }
    }
}

/// The text before and after the first closing brace that is not in quotes.
fn split_at_brace(text: &str) -> Option<(&str, &str)> {
    let (mut quote, mut escaped) = (None, false);
    text.split_once(|character: char| {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if quote == Some(character) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(character),
            _ => return character == '}' && quote.is_none(),
        }
        false
    })
}

/// The text in these quotes.
fn literal(quoted: &str) -> Option<String> {
    let Some(single) = quoted.strip_prefix('\'') else {
        return serde_json::from_str(quoted).ok();
    };
    let text = single.strip_suffix('\'')?.replace("\\'", "\\u0027");
    let json = format!("\"{}\"", text.replace('"', "\\\""));
    (!text.contains('\'')).then(|| serde_json::from_str(&json).ok())?
}

/// The path without kubectl's abbreviations: `.` is the whole value, and `$` at the beginning may be absent.
fn query(path: &str) -> Option<JpQuery> {
    let below = match path.trim() {
        "" => return None,
        "." | "$" | "@" => "",
        path => path.strip_prefix(['$', '@']).unwrap_or(path),
    };
    parse_json_path(&format!("${below}")).ok()
}

impl Template {
    /// The template with the values of its paths in `value`.
    pub(crate) fn text(&self, value: &Value) -> anyhow::Result<String> {
        let mut text = String::new();
        write(&self.0, value, &mut text)?;
        Ok(text)
    }
}

fn write(parts: &[Part], value: &Value, text: &mut String) -> Queried<()> {
    for part in parts {
        match part {
            Part::Text(own) => text.push_str(own),
            Part::Path(path) => {
                let found = js_path_process(path, value)?.into_iter();
                let found = found.map(|it| match it.val {
                    Value::String(string) => string.clone(),
                    other => other.to_string(),
                });
                text.push_str(&found.collect::<Vec<_>>().join(" "));
            }
            Part::Range(path, within) => {
                for found in js_path_process(path, value)? {
                    write(within, found.val, text)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_writes_what_kubectl_writes() {
        let value = json!({"runs": [
            {"name": "a", "placeholders": [{"node": "n1"}, {"node": null}], "annotations": {"coscheduler.dev/mode": "m"}},
            {"name": "b", "count": 2},
        ]});
        let whole = value.to_string();
        for (template, expect) in [
            ("text", "text"),
            ("{.runs[*].name}", "a b"),
            ("{$.runs[0].name}, { @.runs[-1].name }", "a, b"),
            ("{.}", &whole),
            ("{['runs'][1].count}", "2"),
            ("{.runs[1]}", r#"{"count":2,"name":"b"}"#),
            ("{..node}", "n1 null"),
            ("{.runs[0].annotations['coscheduler.dev/mode']}", "m"),
            (r#"{.runs[?(@.name=="b")].count}"#, "2"),
            ("<{.nothing}{.runs[7].name}>", "<>"),
            (r#"{"a\tb}"}{'\'"\n'}"#, "a\tb}'\"\n"),
            (
                r#"{range .runs[*]}{.name}:{range .placeholders[*]} {.node}{end}{"\n"}{end}."#,
                "a: n1 null\nb:\n.",
            ),
        ] {
            let text = template.parse::<Template>().unwrap().text(&value);
            assert_eq!(text.unwrap(), expect, "{template}");
        }
    }

    #[test]
    fn a_wrong_template_is_refused() {
        for (template, expect) in [
            ("", "there is no template"),
            ("{.a", "{.a has no closing brace"),
            (r#"{"a}"#, r#"{"a} has no closing brace"#),
            ("a{}", "{} is unknown"),
            ("{name}", "{name} is unknown"),
            ("{.a.}", "{.a.} is unknown"),
            ("{.a[}", "{.a[} is unknown"),
            ("{'a' 'b'}", "{'a' 'b'} is unknown"),
            ("{.a}{end}", "{end} is unknown"),
            ("{range .a}{.b}", "a range has no {end}"),
        ] {
            let refused = template.parse::<Template>();
            assert_eq!(refused, Err(format!("{expect}; {ALLOWED}")), "{template}");
        }
    }
}
