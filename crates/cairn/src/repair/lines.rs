//! Lines of a report, as many as people read; all are counted.

use std::fmt::{self, Write};

use super::MAX_NAMED;

/// The first [`MAX_NAMED`] lines of a kind, and how many there were: what is wrong may be wrong at every height.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    kept: Vec<String>,
    count: u64,
}

impl Lines {
    /// Adds a line.
    pub fn push(&mut self, line: String) {
        self.count += 1;
        if self.kept.len() < MAX_NAMED {
            self.kept.push(line);
        }
    }

    /// Adds a line that isn't there already.
    pub fn push_once(&mut self, line: String) {
        if !self.kept.contains(&line) {
            self.push(line);
        }
    }

    /// Adds those of another report.
    pub fn add(&mut self, other: Lines) {
        let room = MAX_NAMED.saturating_sub(self.kept.len());
        self.kept.extend(other.kept.into_iter().take(room));
        self.count += other.count;
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Those that are kept.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }

    /// Writes them, each after what it is, and how many more there were.
    pub fn write(&self, out: &mut impl Write, what: &str) -> fmt::Result {
        for line in &self.kept {
            writeln!(out, "{what}: {line}")?;
        }
        match self.count - self.kept.len() as u64 {
            0 => Ok(()),
            more => writeln!(out, "{what}: … and {more} more like these"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lines_are_kept_and_all_are_counted() {
        let (mut lines, mut other) = (Lines::default(), Lines::default());
        for height in 0..1_000 {
            other.push(format!("height {height} is wrong"));
            lines.push_once("the same line".into());
        }
        assert_eq!(lines.count(), 1);
        lines.add(other);
        assert_eq!((lines.count(), lines.kept().len()), (1_001, MAX_NAMED));
        let mut text = String::new();
        lines.write(&mut text, "not mended").expect("writes");
        assert!(text.starts_with("not mended: the same line\nnot mended: height 0 is wrong\n"), "{text}");
        assert!(text.ends_with("not mended: … and 801 more like these\n"), "{text}");
        assert_eq!(text.lines().count(), MAX_NAMED + 1);
    }
}
