//! Computes the median and the 99th percentile of measurements that were taken in pairs, and of the differences within the
//! pairs.

use std::fmt::Write as _;
use std::time::Duration;

/// Pairs of measurements, in milliseconds: one with our webhook and one without it, directly after each other.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Pairs {
    pub(super) fn push(&mut self, with: Duration, without: Duration) {
        self.with.push(with.as_secs_f64() * 1e3);
        self.without.push(without.as_secs_f64() * 1e3);
    }

    /// A table of the figures for people, in milliseconds.
    pub(super) fn report(&self, build: &str) -> String {
        let added: Vec<f64> = self
            .with
            .iter()
            .zip(&self.without)
            .map(|(with, without)| with - without)
            .collect();
        let mut report = format!(
            "creating a PipelineRun (dry run), {} pairs one after the other, {build} build of the services\n\
             {:<28}{:>12}{:>12}",
            added.len(),
            "",
            "median",
            "p99"
        );
        for (name, figures) in [
            ("with the webhook", &self.with),
            ("without it", &self.without),
            ("added within a pair", &added),
        ] {
            let (median, p99) = (percentile(figures, 50), percentile(figures, 99));
            let _ = write!(report, "\n{name:<28}{median:>9.2} ms{p99:>9.2} ms");
        }
        report
    }
}

/// The percentile by nearest rank; 0 if there are no figures.
fn percentile(figures: &[f64], percent: usize) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50), 50.0);
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 50), 2.0);
        assert_eq!(percentile(&[7.0], 99), 7.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn the_difference_is_taken_within_each_pair() {
        let mut pairs = Pairs::default();
        for (with, without) in [(11, 10), (102, 100), (6, 3)] {
            pairs.push(Duration::from_millis(with), Duration::from_millis(without));
        }
        let report = pairs.report("debug");
        let line = |name: &str| {
            let line = report.lines().find(|line| line.starts_with(name));
            line.unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        // The two medians differ by 1 ms, but the median of the differences within the pairs is 2 ms.
        assert_eq!(line("with the"), "with the webhook 11.00 ms 102.00 ms");
        assert_eq!(line("without"), "without it 10.00 ms 100.00 ms");
        assert_eq!(line("added"), "added within a pair 2.00 ms 3.00 ms");
        assert!(report.starts_with("creating a PipelineRun (dry run), 3 pairs"));
    }
}
