//! Shows the progress of long work on stderr: on a terminal as spinners and bars, otherwise as lines at the start and at the end
//! of the work.

use std::io::IsTerminal as _;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// One display for all bars, because two pieces of work can go on at the same time.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn on_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Prints a line above the bars.
fn print(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// The progress of one piece of work.
#[derive(Debug)]
pub(crate) struct Step {
    bar: ProgressBar,
    text: String,
    began: Instant,
}

impl Step {
    /// Begins a piece of work. `text` names it, for example "starting the services".
    pub(crate) fn begin(text: &str) -> Self {
        let bar = if on_terminal() {
            let bar = BARS
                .add(ProgressBar::new_spinner())
                .with_style(style("{spinner} {prefix} ({elapsed}) {wide_msg:.dim}"))
                .with_prefix(text.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            eprintln!("{text} ...");
            ProgressBar::hidden()
        };
        Self {
            bar,
            text: text.to_owned(),
            began: Instant::now(),
        }
    }

    /// Shows the current part of the work, on a terminal only.
    pub(crate) fn detail(&self, detail: &str) {
        self.bar.set_message(detail.trim().to_owned());
    }

    /// Shows that the work has succeeded.
    pub(crate) fn done(self) {
        self.bar.finish_and_clear();
        print(&format!("{}: {}", self.text, seconds(self.began.elapsed())));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Shows the build of the control plane as a bar.
#[derive(Debug)]
pub(crate) struct BedBuild {
    bar: ProgressBar,
}

impl BedBuild {
    /// A bar on a terminal, otherwise plain lines.
    pub(crate) fn progress() -> Box<dyn testbed::Progress + Send> {
        if !on_terminal() {
            return Box::new(testbed::Lines);
        }
        let bar = ProgressBar::hidden().with_style(style(
            "building the test bed {bar:24} {pos}/{len} ({elapsed}) {wide_msg:.dim}",
        ));
        Box::new(Self { bar })
    }
}

impl testbed::Progress for BedBuild {
    fn begin(&self, total: usize) {
        self.bar
            .set_length(u64::try_from(total).unwrap_or(u64::MAX));
        BARS.add(self.bar.clone());
        self.bar.reset_elapsed();
        self.bar.enable_steady_tick(Duration::from_millis(250));
    }

    fn building(&self, done: usize, programs: &str) {
        self.bar
            .set_position(u64::try_from(done).unwrap_or(u64::MAX));
        self.bar.set_message(programs.to_owned());
    }

    fn finish(&self) {
        let took = self.bar.elapsed();
        self.bar.finish_and_clear();
        print(&format!("building the test bed: {}", seconds(took)));
    }
}

/// A duration for people: `0.4 s`, `42 s`, `9 min 5 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        whole @ 10..60 => format!("{whole} s"),
        whole => format!("{} min {} s", whole / 60, whole % 60),
    }
}

fn style(template: &str) -> ProgressStyle {
    // If the template does not parse, the default style shows the progress.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_for_people() {
        let cases = [(400, "0.4 s"), (42_700, "42 s"), (545_000, "9 min 5 s")];
        for (milliseconds, expected) in cases {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), expected);
        }
    }
}
