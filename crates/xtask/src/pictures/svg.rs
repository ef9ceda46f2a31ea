//! A picture of a text in a terminal, as SVG. It takes the colour scheme of the reader's browser.

/// The most characters in a line. GitHub shows a line of this length without making the picture smaller.
const COLUMNS: usize = 100;

/// The size of a character in pixels.
const WIDTH: f32 = 8.5;
const HEIGHT: usize = 20;

/// The picture of a text that may contain trees, as `kubectl coschedule` prints them.
pub(super) fn of(text: &str) -> String {
    let lines: Vec<_> = text.lines().flat_map(wrapped).collect();
    let rows = lines.iter().enumerate().map(|(index, line)| {
        let line = line.trim_end().replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<text x=\"16\" y=\"{}\">{line}</text>\n",
            (index + 1) * HEIGHT + 8
        )
    });
    let rows: String = rows.collect();
    let width = COLUMNS as f32 * WIDTH + 32.0;
    let height = lines.len() * HEIGHT + 28;
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<style>
text {{ font: 14px ui-monospace, monospace; white-space: pre; fill: #1f2328 }}
rect {{ fill: #f6f8fa }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} rect {{ fill: #161b22 }} }}
</style>
<rect width="100%" height="100%" rx="6"/>
{rows}</svg>
"#
    )
}

/// Breaks a line of a tree into lines of at most [`COLUMNS`] characters, but breaks no word.
fn wrapped(line: &str) -> Vec<String> {
    let text = line.trim_start_matches(['│', '├', '└', '─', ' ']);
    let stem = &line[..line.len() - text.len()];
    let below = stem.replace("├─", "│ ").replace("└─", "  ");
    let (mut lines, mut last) = (Vec::new(), stem.to_owned());
    for word in text.split(' ') {
        if last.chars().count() + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut last, below.clone()));
        }
        last += word;
        last += " ";
    }
    lines.push(last);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_of_a_tree_continues_below_its_text() {
        let words = "word ".repeat(30);
        let lines = wrapped(&format!("│  ├─ {}", words.trim_end()));
        let expect = [
            format!("│  ├─ {}", "word ".repeat(19)),
            format!("│  │  {}", "word ".repeat(11)),
        ];
        assert_eq!(lines, expect);
        assert_eq!(wrapped("short"), ["short "]);
        assert!(of("a <b> & c").contains("a &lt;b> &amp; c"));
    }
}
