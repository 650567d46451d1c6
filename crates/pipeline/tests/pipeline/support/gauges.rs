//! The gauges that the code under test sets, for the thread that asks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Set it with [`metrics::set_default_local_recorder`].
#[derive(Debug, Default)]
pub struct Gauges(Mutex<HashMap<String, Arc<AtomicU64>>>, Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Gauges {
    /// What a counter with these labels, `name{label=value,…}` in the order of the call, has come to.
    pub fn counted(&self, counter: &str) -> u64 {
        self.1.lock().unwrap().get(counter).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// The value, where it was ever set.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.lock().unwrap().get(name).map(|bits| f64::from_bits(bits.load(Ordering::SeqCst)))
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(self.1.lock().unwrap().entry(name).or_default().clone())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.0.lock().unwrap().entry(key.name().to_owned()).or_default().clone())
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
