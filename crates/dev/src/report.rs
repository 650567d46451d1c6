//! Counts cases and prints them in the form that `./dev` sums up.

use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

/// Cases that passed and failed so far.
#[derive(Default)]
pub struct Report {
    passed: u64,
    failed: u64,
}

impl Report {
    /// Runs one case and prints its line at once; a failed one doesn't stop the run. Says whether it passed.
    pub async fn case(&mut self, name: impl Display, case: impl Future<Output = Result<()>>) -> bool {
        let begun = Instant::now();
        match case.await {
            Ok(()) => {
                self.passed += 1;
                println!("ok {name} ({:.1} s)", begun.elapsed().as_secs_f64());
                true
            }
            Err(error) => {
                self.fail(name, format!("{error:#}"));
                false
            }
        }
    }

    /// One failed case.
    pub fn fail(&mut self, name: impl Display, why: impl Display) {
        self.failed += 1;
        println!("FAIL {name}: {why}");
    }

    /// Adds cases that were counted elsewhere, and printed there where they failed.
    pub fn add(&mut self, passed: u64, failed: u64) {
        self.passed += passed;
        self.failed += failed;
    }

    /// Adds the cases of another report.
    pub fn merge(&mut self, other: Report) {
        self.add(other.passed, other.failed);
    }

    /// The last line, and what the process returns. A run without a case has failed.
    pub fn finish(self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A measured number, for scripts to read.
pub fn figure(name: &str, value: impl Display, unit: &str) {
    println!("figure {name} {value} {unit}");
}

/// Reads the counts of the last line of the form `N passed, M failed` in another program's output.
pub fn totals_of(output: &str) -> Option<(u64, u64)> {
    output.lines().rev().find_map(|line| {
        let (passed, failed) = line.trim().split_once(" passed, ")?;
        Some((passed.parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_totals_line_counts() {
        assert_eq!(totals_of("ok a\n1 passed, 2 failed\n3 passed, 0 failed\nbye\n"), Some((3, 0)));
        assert_eq!(totals_of("3 passed\n"), None);
    }
}
