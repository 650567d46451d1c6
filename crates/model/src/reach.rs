//! Whether the good end stays within reach.
//!
//! A liveness property in a checker that knows no fairness would have to leave out every loop: a crash may follow each
//! start for ever. What is asked here instead holds without such assumptions, and is stronger than the absence of
//! deadlocks: **from every reachable state there is a way to the end**. Where a rule is missing that takes stuck work up
//! again, some states have none.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use ahash::RandomState;
use nohash_hasher::NoHashHasher;
use stateright::{Model, Property};

use crate::model::Protocol;
use crate::properties::is_done;
use crate::state::{Action, State};

/// What the search found.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Reachable states.
    pub states: usize,
    /// Those among them in which all is done.
    pub done: usize,
    /// A shortest way into a state in which a property doesn't hold, and the property. The search ends there.
    pub broken: Option<(&'static str, Vec<Action>)>,
    /// A shortest way into a state from which the end can't be reached, if there is one.
    pub trap: Option<Vec<Action>>,
}

/// A map by fingerprint, which is a hash already.
type Seen = HashMap<u64, u32, BuildHasherDefault<NoHashHasher<u64>>>;

fn fingerprint(hasher: &RandomState, state: &State) -> u64 {
    hasher.hash_one(state)
}

/// The raw store has come to its end and every entry is applied: whatever is not right now never will be by itself.
fn is_settled(model: &Protocol, state: &State) -> bool {
    let (raw, app) = (&state.raw, &state.app);
    raw.phase as usize + 1 == model.script.len()
        && raw.tip == model.top
        && app.applied == raw.reorg
        && app.begun == raw.reorg
}

/// Explores every state, breadth first, then walks back from the good ends. Ends early where one of the model's properties breaks.
///
/// Keeps some twenty bytes a state and eight an edge; the states themselves only for the layer in hand and the next. Two
/// states with one 64-bit fingerprint would be taken for one: at ten million states, once in some 300,000 runs.
pub fn explore(model: &Protocol) -> Reach {
    explore_with(model, &model.properties())
}

/// [`explore`], but with one property alone in view.
pub fn explore_for(model: &Protocol, property: &'static str) -> Reach {
    explore_with(model, &[model.property(property)])
}

fn explore_with(model: &Protocol, properties: &[Property<Protocol>]) -> Reach {
    let mut graph = Graph::new();
    let mut layer = model.init_states();
    let mut numbers: Vec<u32> = layer.iter().map(|state| graph.number(state, u32::MAX).0).collect();
    let mut actions = Vec::new();
    while !layer.is_empty() {
        let mut next_layer = Vec::new();
        let mut next_numbers = Vec::new();
        for (state, number) in layer.iter().zip(&numbers) {
            if let Some(property) = properties.iter().find(|property| !(property.condition)(model, state)) {
                let broken = Some((property.name, graph.way_to(model, *number)));
                return Reach { states: graph.parents.len(), done: graph.done.len(), broken, trap: None };
            }
            if is_done(model, state) {
                graph.done.push(*number);
            }
            model.actions(state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = model.next_state(state, action) else { continue };
                let (to, fresh) = graph.number(&next, *number);
                if fresh {
                    graph.settled.push(is_settled(model, &next));
                    next_layer.push(next);
                    next_numbers.push(to);
                }
                graph.edges.push((to, *number));
            }
        }
        layer = next_layer;
        numbers = next_numbers;
    }
    let (states, done) = (graph.parents.len(), graph.done.len());
    let trap = if model.silent_swap { None } else { graph.trap(model) };
    Reach { states, done, broken: None, trap }
}

/// The states met so far, by number in the order of meeting, and how they follow each other.
struct Graph {
    hasher: RandomState,
    seen: Seen,
    /// From where each state was first met.
    parents: Vec<u32>,
    /// Where each is settled.
    settled: Vec<bool>,
    /// (to, from).
    edges: Vec<(u32, u32)>,
    /// States in which all is done.
    done: Vec<u32>,
}

impl Graph {
    fn new() -> Graph {
        Graph {
            hasher: RandomState::with_seeds(1, 2, 3, 4),
            seen: Seen::default(),
            parents: Vec::new(),
            settled: vec![false],
            edges: Vec::new(),
            done: Vec::new(),
        }
    }

    /// The state's number, and whether it is new.
    fn number(&mut self, state: &State, parent: u32) -> (u32, bool) {
        let fresh = self.parents.len() as u32;
        let number = *self.seen.entry(fingerprint(&self.hasher, state)).or_insert(fresh);
        if number == fresh {
            self.parents.push(parent);
        }
        (number, number == fresh)
    }

    /// A way to a state that can't reach the end: the nearest settled one, which shows best what is stuck, else the nearest.
    fn trap(&mut self, model: &Protocol) -> Option<Vec<Action>> {
        let states = self.parents.len();
        let reaches = backward(states, std::mem::take(&mut self.edges), self.done.clone());
        // Numbers grow with the distance from the start.
        let settled = (0..states).find(|number| !reaches[*number] && self.settled[*number]);
        let trap = settled.or_else(|| (0..states).find(|number| !reaches[*number]))?;
        Some(self.way_to(model, trap as u32))
    }

    /// The actions from the start to a state, found by walking its parents.
    fn way_to(&self, model: &Protocol, mut number: u32) -> Vec<Action> {
        let mut numbers = Vec::new();
        while number != u32::MAX {
            numbers.push(number);
            number = self.parents[number as usize];
        }
        let mut way = Vec::new();
        let mut state = model.init_states().into_iter().next();
        for number in numbers.into_iter().rev().skip(1) {
            let Some(at) = state else { break };
            let mut steps = model.next_steps(&at).into_iter();
            let step =
                steps.find(|(_, next)| self.seen.get(&fingerprint(&self.hasher, next)) == Some(&number));
            state = step.map(|(action, next)| {
                way.push(action);
                next
            });
        }
        way
    }
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
