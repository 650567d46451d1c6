//! The memory that answers take while they come, bounded over all nodes (law 9).
//!
//! A request reserves what its answer is expected to take, as it was learned call by call, and its answer may be no larger: a larger one is refused by the
//! length in front of it, before it is read, and asked for again with room for that length. Room is given back when the answer is there: what a call of the
//! source then holds is bounded by how many blocks it fetches side by side, and what waits to be stored by the ingester's own budget.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{Code, Status};

use super::node::Call;

/// How many of the largest answers have room at a time.
const LARGEST_AT_ONCE: usize = 4;
/// What an answer is expected to take before one of its kind was seen, in bytes.
const FIRST_EXPECTED_BYTES: usize = 1 << 20;
/// No answer is expected to take less, in bytes.
const LEAST_EXPECTED_BYTES: usize = 64 << 10;
/// What one permit stands for, in bytes.
const PERMIT_BYTES: usize = 1 << 10;

/// The room for answers.
#[derive(Debug)]
pub(super) struct Memory {
    room: Semaphore,
    max_response_bytes: usize,
    expected_bytes: Mutex<HashMap<Call, usize>>,
}

impl Memory {
    /// For answers of at most so many bytes each.
    pub fn new(max_response_bytes: usize) -> Memory {
        let room = max_response_bytes.div_ceil(PERMIT_BYTES).saturating_mul(LARGEST_AT_ONCE);
        Memory {
            room: Semaphore::new(room.clamp(1, u32::MAX as usize)),
            max_response_bytes,
            expected_bytes: Mutex::new(HashMap::new()),
        }
    }

    /// What the answer to a call may take, to begin with.
    pub fn expected_bytes(&self, call: Call) -> usize {
        let expected = self.expected_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        expected.get(&call).copied().unwrap_or(FIRST_EXPECTED_BYTES).min(self.max_response_bytes)
    }

    /// An answer took so much: follows growth at once, with as much again to spare, and forgets slowly.
    pub fn learn(&self, call: Call, bytes: usize) {
        let mut expected = self.expected_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = expected.entry(call).or_insert(FIRST_EXPECTED_BYTES);
        let forgotten = *expected - *expected / 16;
        *expected = bytes.saturating_mul(2).max(forgotten).max(LEAST_EXPECTED_BYTES);
    }

    /// Waits for room. One answer always has some, when the others are done.
    pub async fn room(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let permits = bytes.min(self.max_response_bytes).div_ceil(PERMIT_BYTES).max(1);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // The semaphore is never closed; if it were, going on without room only costs memory.
        self.room.acquire_many(permits).await.ok()
    }

    /// How much room an answer needs that we refused for its size, in bytes; an error, naming the limit, where it is larger than is taken at all. `None`: it was
    /// refused otherwise.
    pub fn needed_bytes(&self, status: &Status, given_bytes: usize) -> Option<Result<usize, String>> {
        // Ours is OUT_OF_RANGE; a node that refuses to send something so large says RESOURCE_EXHAUSTED.
        let is_ours =
            status.code() == Code::OutOfRange && status.message().contains("message length too large");
        let after = status.message().split_once("found ").map_or("", |(_, after)| after);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let found = after[..digits].parse().unwrap_or(self.max_response_bytes);
        // Else it is somebody else's limit, between us and the node.
        let is_over = is_ours && given_bytes < found;
        is_over.then(|| match found <= self.max_response_bytes {
            true => Ok(found),
            false => Err(format!(
                "the answer has {found} bytes, the limit is {} bytes (chain.flow.max_response_mib)",
                self.max_response_bytes
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MAX: usize = 8 << 20;

    #[tokio::test(start_paused = true)]
    async fn room_is_for_four_of_the_largest_answers_and_waited_for() {
        let memory = Memory::new(MAX);
        let mut held = Vec::new();
        for _ in 0..LARGEST_AT_ONCE {
            held.push(memory.room(MAX).await);
        }
        let waited = tokio::time::timeout(Duration::from_secs(1), memory.room(1)).await;
        assert!(waited.is_err(), "there is none left");
        held.pop();
        // An answer that says it is larger than any gets the largest one's.
        let largest = tokio::time::timeout(Duration::from_secs(1), memory.room(usize::MAX)).await;
        assert!(largest.is_ok());
    }

    #[test]
    fn what_is_expected_follows_what_came() {
        let memory = Memory::new(MAX);
        let call = Call::TransactionResultsByBlockId;
        assert_eq!(memory.expected_bytes(call), FIRST_EXPECTED_BYTES);
        memory.learn(call, 3 << 20);
        assert_eq!(memory.expected_bytes(call), 6 << 20);
        memory.learn(call, 100 << 20);
        assert_eq!(memory.expected_bytes(call), MAX, "never more than is taken");
        for _ in 0..200 {
            memory.learn(call, 100);
        }
        assert_eq!(memory.expected_bytes(call), LEAST_EXPECTED_BYTES);
        assert_eq!(memory.expected_bytes(Call::BlockByHeight), FIRST_EXPECTED_BYTES, "each call by itself");
    }

    #[test]
    fn only_an_answer_that_has_room_at_all_is_asked_for_again() {
        let memory = Memory::new(MAX);
        let ours = |found: usize| {
            Status::out_of_range(format!(
                "Error, decoded message length too large: found {found} bytes, the limit is: 65536 bytes"
            ))
        };
        assert_eq!(memory.needed_bytes(&ours(70_000), 65_536), Some(Ok(70_000)));
        assert_eq!(memory.needed_bytes(&ours(MAX), 65_536), Some(Ok(MAX)));
        for given_bytes in [65_536, MAX] {
            let Some(Err(message)) = memory.needed_bytes(&ours(MAX + 1), given_bytes) else {
                panic!("it is too large")
            };
            assert!(message.contains(&format!("{} bytes, the limit is {MAX} bytes", MAX + 1)), "{message}");
        }
        assert_eq!(
            memory.needed_bytes(&ours(60_000), 65_536),
            None,
            "somebody else's limit, between us and the node"
        );
        let theirs = Status::resource_exhausted("grpc: received message larger than max (70000 vs. 65536)");
        assert_eq!(memory.needed_bytes(&theirs, 65_536), None);
        assert_eq!(memory.needed_bytes(&Status::out_of_range("start height above sealed"), 65_536), None);
    }
}
