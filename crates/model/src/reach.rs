//! Whether the good end stays within reach.
//!
//! A liveness property in a checker that knows no fairness would have to leave out every loop: a crash may follow each
//! start for ever. What is asked here instead holds without such assumptions, and is stronger than the absence of
//! deadlocks: **from every reachable state there is a way to the end**. Where a rule is missing that takes stuck work up
//! again, some states have none.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use stateright::Model;

use crate::model::{Action, Protocol, State};
use crate::properties::is_done;

/// What the search found.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Reachable states.
    pub states: usize,
    /// Those among them in which all is done.
    pub done: usize,
    /// A shortest way into a state from which the end can't be reached, if there is one.
    pub trap: Option<Vec<Action>>,
}

/// A hasher for keys that are hashes.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Explores every state, breadth first, then walks back from the good ends.
///
/// Keeps eight bytes of fingerprint a state, and four bytes an edge.
pub fn explore(model: &Protocol) -> Reach {
    let mut seen: HashMap<u64, u32, BuildHasherDefault<Identity>> = HashMap::default();
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut parents: Vec<u32> = Vec::new();
    let mut done: Vec<u32> = Vec::new();
    let mut layer = model.init_states();
    let mut numbers: Vec<u32> = Vec::new();
    for state in &layer {
        numbers.push(parents.len() as u32);
        seen.insert(fingerprint(state), parents.len() as u32);
        parents.push(u32::MAX);
    }
    let mut actions = Vec::new();
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        let mut next_numbers = Vec::new();
        for (state, number) in layer.iter().zip(&numbers) {
            if is_done(model, state) {
                done.push(*number);
            }
            model.actions(state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = model.next_state(state, action) else { continue };
                let fresh = parents.len() as u32;
                let to = *seen.entry(fingerprint(&next)).or_insert(fresh);
                if to == fresh {
                    parents.push(*number);
                    next_layer.push(next);
                    next_numbers.push(fresh);
                }
                edges.push((to, *number));
            }
        }
        layer = next_layer;
        numbers = next_numbers;
    }
    let states = parents.len();
    let ends = done.len();
    let reaches = backward(states, edges, done);
    // Numbers grow with the distance from the start, so the first one is among the nearest.
    let trap = (0..states).find(|number| !reaches[*number]).map(|number| way_to(model, &parents, &seen, number as u32));
    Reach { states, done: ends, trap }
}

/// Which states have a way to one of `done`, given edges as (to, from).
fn backward(states: usize, mut edges: Vec<(u32, u32)>, done: Vec<u32>) -> Vec<bool> {
    edges.sort_unstable();
    let mut starts = vec![0usize; states + 1];
    for (to, _) in &edges {
        starts[*to as usize + 1] += 1;
    }
    for number in 0..states {
        starts[number + 1] += starts[number];
    }
    let mut reaches = vec![false; states];
    let mut stack = done;
    for number in &stack {
        reaches[*number as usize] = true;
    }
    while let Some(number) = stack.pop() {
        for (_, from) in &edges[starts[number as usize]..starts[number as usize + 1]] {
            if !reaches[*from as usize] {
                reaches[*from as usize] = true;
                stack.push(*from);
            }
        }
    }
    reaches
}

/// The actions from the start to a state, found by walking its parents.
fn way_to(
    model: &Protocol,
    parents: &[u32],
    seen: &HashMap<u64, u32, BuildHasherDefault<Identity>>,
    mut number: u32,
) -> Vec<Action> {
    let mut numbers = Vec::new();
    while number != u32::MAX {
        numbers.push(number);
        number = parents[number as usize];
    }
    let mut numbers = numbers.into_iter().rev();
    let start = numbers.next();
    let mut state = model.init_states().into_iter().find(|state| seen.get(&fingerprint(state)).copied() == start);
    let mut way = Vec::new();
    for number in numbers {
        let Some(at) = state else { break };
        let step = model.next_steps(&at).into_iter().find(|(_, next)| seen.get(&fingerprint(next)) == Some(&number));
        state = step.map(|(action, next)| {
            way.push(action);
            next
        });
    }
    way
}
