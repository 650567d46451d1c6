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
/// Keeps some thirty bytes a state and four an edge; the states themselves only for the layer in hand and the next. Two
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
                return Reach { states: graph.parents.len(), done: graph.done_count(), broken, trap: None };
            }
            graph.done.push(is_done(model, state));
            model.actions(state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = model.next_state(state, action) else { continue };
                let (to, fresh) = graph.number(&next, *number);
                if fresh {
                    graph.settled.push(is_settled(model, &next));
                    next_layer.push(next);
                    next_numbers.push(to);
                }
                graph.edges.push(to);
            }
            graph.ends.push(graph.edges.len());
        }
        layer = next_layer;
        numbers = next_numbers;
    }
    let (states, done) = (graph.parents.len(), graph.done_count());
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
    /// Where each leads, one state after another in the order of their numbers.
    edges: Vec<u32>,
    /// Where each one's edges end.
    ends: Vec<usize>,
    /// Whether all is done in it.
    done: Vec<bool>,
}

impl Graph {
    fn new() -> Graph {
        Graph {
            hasher: RandomState::with_seeds(1, 2, 3, 4),
            seen: Seen::default(),
            parents: Vec::new(),
            settled: vec![false],
            edges: Vec::new(),
            ends: Vec::new(),
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

    fn done_count(&self) -> usize {
        self.done.iter().filter(|done| **done).count()
    }

    /// A way to a state that can't reach the end: the nearest settled one, which shows best what is stuck, else the nearest.
    fn trap(&self, model: &Protocol) -> Option<Vec<Action>> {
        let states = self.parents.len();
        let reaches = with_a_way(&self.edges, &self.ends, self.done.clone());
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

/// Which states have a way to one that is done, over the edges of each. Most ways lead from smaller numbers to greater ones, so a few passes
/// from the greatest number down find them all.
fn with_a_way(edges: &[u32], ends: &[usize], done: Vec<bool>) -> Vec<bool> {
    let mut reaches = done;
    loop {
        let mut found = false;
        for number in (0..reaches.len()).rev() {
            let begin = number.checked_sub(1).map_or(0, |before| ends[before]);
            if !reaches[number] && edges[begin..ends[number]].iter().any(|to| reaches[*to as usize]) {
                reaches[number] = true;
                found = true;
            }
        }
        if !found {
            return reaches;
        }
    }
}
