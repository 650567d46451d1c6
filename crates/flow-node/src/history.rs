//! Values as they were at each height, so that any height can be asked about and the newest ones can be taken back.

use std::collections::BTreeMap;

/// One value over the heights.
#[derive(Debug, Clone)]
pub struct History<T>(Vec<(u64, T)>);

impl<T> Default for History<T> {
    fn default() -> Self {
        History(Vec::new())
    }
}

impl<T> History<T> {
    /// What it was behind the block at `height`; `None` where it didn't exist yet.
    pub fn at(&self, height: u64) -> Option<&T> {
        let behind = self.0.partition_point(|(from, _)| *from <= height);
        behind.checked_sub(1).and_then(|at| self.0.get(at)).map(|(_, value)| value)
    }

    /// The newest.
    pub fn last(&self) -> Option<&T> {
        self.0.last().map(|(_, value)| value)
    }

    /// From `height` on it is this. Heights never fall.
    pub fn set(&mut self, height: u64, value: T) {
        match self.0.last_mut() {
            Some((from, last)) if *from == height => *last = value,
            _ => self.0.push((height, value)),
        }
    }

    /// Forgets what came after `height`.
    pub fn truncate(&mut self, height: u64) {
        while self.0.last().is_some_and(|(from, _)| *from > height) {
            self.0.pop();
        }
    }
}

/// Values by a key, each with its history.
#[derive(Debug, Clone)]
pub struct Histories<K, T>(BTreeMap<K, History<T>>);

impl<K, T> Default for Histories<K, T> {
    fn default() -> Self {
        Histories(BTreeMap::new())
    }
}

impl<K: Ord, T> Histories<K, T> {
    /// See [`History::at`].
    pub fn at(&self, key: &K, height: u64) -> Option<&T> {
        self.0.get(key)?.at(height)
    }

    /// The newest.
    pub fn last(&self, key: &K) -> Option<&T> {
        self.0.get(key)?.last()
    }

    /// See [`History::set`].
    pub fn set(&mut self, key: K, height: u64, value: T) {
        self.0.entry(key).or_default().set(height, value);
    }

    /// All that existed behind the block at `height`.
    pub fn all_at(&self, height: u64) -> impl Iterator<Item = (&K, &T)> {
        self.0.iter().filter_map(move |(key, history)| Some((key, history.at(height)?)))
    }

    /// All there is now.
    pub fn all(&self) -> impl Iterator<Item = (&K, &T)> {
        self.all_at(u64::MAX)
    }

    /// Forgets what came after `height`.
    pub fn truncate(&mut self, height: u64) {
        self.0.values_mut().for_each(|history| history.truncate(height));
        self.0.retain(|_, history| history.last().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_height_can_be_asked_about_and_the_newest_taken_back() {
        let mut values = Histories::default();
        values.set("a", 3, 1);
        values.set("a", 5, 2);
        values.set("a", 5, 3);
        values.set("b", 6, 9);
        assert_eq!(
            [2, 3, 4, 5, 9].map(|height| values.at(&"a", height).copied()),
            [None, Some(1), Some(1), Some(3), Some(3)]
        );
        assert_eq!(values.all_at(5).count(), 1);
        values.truncate(4);
        assert_eq!((values.last(&"a"), values.last(&"b")), (Some(&1), None));
    }
}
