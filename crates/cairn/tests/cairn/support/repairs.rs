//! What a running cairn says of the repairs that it makes at intervals.

use crate::support::Service;

/// The value of a metric.
pub fn metric(service: &Service, name: &str) -> Option<u64> {
    let text = service.get("/metrics").1;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The most rows of state that one of them compared, as the log says.
pub fn compared_states(service: &Service) -> u64 {
    let log = service.log();
    let told = log.lines().filter_map(|line| line.split("states=").nth(1));
    let numbers = told.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    numbers.max().unwrap_or(0)
}
