//! Writes the files: the page, the plots and the figures of each round.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use testbed::Releases;

use super::Outcome;
use super::plan::Options;
use super::report::{self, Measured};

/// The name of the file with the figures of each round.
const FIGURES: &str = "benchmarks.json";

/// The lines around the part of the page that this program writes.
const BEGIN: &str = "<!-- `cargo xtask bench compare` writes the lines below. -->\n";
const END: &str = "<!-- `cargo xtask bench compare` writes the lines above. -->\n";

pub(crate) fn all(
    options: &Options,
    measured: &[Measured],
    agreement: &str,
    took: Duration,
) -> Outcome {
    let machine = machine()?;
    let page = options.folder.join("benchmarks.md");
    let text = match fs::read_to_string(&page) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{BEGIN}{END}"),
        Err(error) => {
            return Err(error).with_context(|| format!("failed to read {}", page.display()));
        }
    };
    let text = replace(
        &text,
        &report::page(options, &machine, measured, agreement, took),
    )
    .with_context(|| format!("{} lacks the lines {BEGIN}{END}", page.display()))?;
    write(&page, &text)?;
    for (name, svg) in report::plots(options, measured) {
        write(&options.folder.join("pictures").join(name), &svg)?;
    }
    let mut figures = json!({"machine": machine, "options": options, "loads": measured});
    round(&mut figures);
    write(&options.folder.join(FIGURES), &format!("{figures}\n"))
}

/// The commit and the loads of the file with the figures of an earlier measurement. Empty if there is no such file.
pub(crate) fn earlier(options: &Options) -> anyhow::Result<(String, Vec<Measured>)> {
    let file = options.folder.join(FIGURES);
    if !file.exists() {
        return Ok((String::new(), Vec::new()));
    }
    let read = || {
        let mut figures: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        let commit = figures["options"]["commit"].as_str().unwrap_or_default();
        anyhow::Ok((
            commit.to_owned(),
            serde_json::from_value(figures["loads"].take())?,
        ))
    };
    read().with_context(|| format!("failed to read {}", file.display()))
}

/// The text with another part between [`BEGIN`] and [`END`]. `None` if one of them is missing.
fn replace(text: &str, part: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{part}\n{END}{after}"))
}

fn write(file: &Path, text: &str) -> Outcome {
    let folder = file.parent().context("a file without a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("failed to write {}", file.display()))
}

/// The machine and the versions of the programs that are not ours.
fn machine() -> anyhow::Result<String> {
    let line = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default()
            .trim_start_matches([':', ' ', '\t'])
            .to_owned()
    };
    let cores = std::thread::available_parallelism()?;
    let kib = line("/proc/meminfo", "MemTotal");
    let kib: f64 = kib.trim_end_matches(" kB").parse().context("no MemTotal")?;
    let gib = (kib / 1024.0 / 1024.0).round();
    let processor = line("/proc/cpuinfo", "model name");
    let [kubernetes, tekton] = Releases::chosen()?.versions()?;
    Ok(format!(
        "{cores} cores ({processor}) and {gib} GiB of memory; Kubernetes {kubernetes}, Tekton {tekton}"
    ))
}

/// Rounds every number to six decimals.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(figure) = number.as_f64().filter(|_| number.is_f64()) {
                *value = json!((figure * 1e6).round() / 1e6);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(values) => values.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
