//! The counters that the code under test counts, for the thread that asks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Set it with [`metrics::set_default_local_recorder`].
#[derive(Debug, Default)]
pub struct Counters(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counters {
    /// What a counter, `name{label=value,…}` with its labels in the order of the call, has come to.
    pub fn counted(&self, counter: &str) -> u64 {
        self.0.lock().expect("not poisoned").get(counter).map_or(0, |count| count.load(Ordering::SeqCst))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(self.0.lock().expect("not poisoned").entry(name).or_default().clone())
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
