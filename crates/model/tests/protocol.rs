//! Every state of every configuration, and what becomes of it with a rule switched off.
//!
//! A program of its own rather than cargo's harness: it prints the figure and the counterexamples, and shares two cores
//! between long and short cases. Arguments that aren't options filter by name, as usual.

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use cairn_model::configurations as c;
use cairn_model::{
    APPLIED_GROWS, Action, CANONICAL, FENCED, LISTS, ONE_FORK, Off, Protocol, RAW_WHOLE, Rule, STATE,
    explore, explore_for,
};
use stateright::{Checker, HasDiscoveries, Model};

/// What the checker must find with some rules off.
#[derive(Clone, Copy)]
enum Expect {
    /// A state in which this property doesn't hold.
    Breaks(&'static str),
    /// A state from which no way leads to the end.
    Stuck,
    /// Nothing: it is a second line, and the first one stands.
    Nothing,
}

use Expect::{Breaks, Nothing, Stuck};

/// The wrong variants. The last rows are the second lines alone.
const VARIANTS: &[(&[Rule], Protocol, Expect)] = &[
    (&[Rule::NoAppendDuringPurge], c::APPLIERS, Breaks(RAW_WHOLE)),
    (&[Rule::CommitInGate], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::CommitterInGate], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::ClaimInGate], c::MAPPERS_DEEPER, Stuck),
    (&[Rule::CommitFence], c::MAPPERS, Breaks(FENCED)),
    (&[Rule::CommitFence, Rule::CommitActive, Rule::CommitDoneTo], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::CommitActive, Rule::CommitDoneTo], c::LATE, Breaks(ONE_FORK)),
    (
        &[Rule::ReapFence, Rule::ReclaimFence, Rule::CommitActive, Rule::CommitDoneTo],
        c::MAPPERS,
        Breaks(ONE_FORK),
    ),
    (&[Rule::SettleByLease, Rule::CommitActive, Rule::CommitDoneTo], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::CommitLastId], c::SWAPPED, Breaks(ONE_FORK)),
    (&[Rule::LowerBoundApplied], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::UpperBoundBegun, Rule::Refence, Rule::CommitActive], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::UpperBoundBegun, Rule::LeaseBeforeSnapshot], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::BoundIsCommonBlock], c::SKIPPED, Breaks(ONE_FORK)),
    (&[Rule::FolderLowerBound], c::FOLDER, Breaks(STATE)),
    (&[Rule::FolderClaimsInOrder, Rule::FolderSnapshotContiguous], c::FOLDERS, Breaks(STATE)),
    (&[Rule::FolderClaimsInOrder, Rule::FolderSnapshotContiguous], c::FOLDER_LATE, Breaks(STATE)),
    (
        &[Rule::FolderClaimsInOrder, Rule::FolderSnapshotContiguous, Rule::FolderContiguous],
        c::FOLDER,
        Breaks(STATE),
    ),
    (&[Rule::UpstreamBound], c::FOLDER, Breaks(STATE)),
    (&[Rule::CheckpointContiguous], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::CheckpointContiguous], c::SKIPPED, Breaks(CANONICAL)),
    (&[Rule::CheckpointIds], c::SWAPPED, Breaks(ONE_FORK)),
    (&[Rule::CrossByFirstParent], c::SWAPPED, Breaks(ONE_FORK)),
    (&[Rule::SkippedRecordsParent], c::SKIPPED, Stuck),
    (&[Rule::DemandAtBegin], c::FOLDER_APPLIERS, Breaks(ONE_FORK)),
    (&[Rule::DemandAtSteps], c::FOLDER_APPLIERS, Breaks(ONE_FORK)),
    (&[Rule::DemandAtSteps], c::FOLDER_APPLIERS, Breaks(STATE)),
    (&[Rule::DemandAtFinish], c::APPLIERS, Breaks(APPLIED_GROWS)),
    (&[Rule::DeleteLeases], c::MAPPERS_DEEPER, Breaks(ONE_FORK)),
    (&[Rule::Reopen], c::MAPPERS, Stuck),
    (&[Rule::ReopenOnlyAbove], c::SKIPPED, Stuck),
    (&[Rule::LowerDoneTo], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::LowerLastId], c::MAPPERS, Stuck),
    (&[Rule::Clamp], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::RestoreWithUndo], c::FOLDER, Breaks(STATE)),
    (&[Rule::ReadThroughUndo], c::FOLDER, Breaks(STATE)),
    (&[Rule::ReadBelowCheckpoint], c::MAPPERS, Breaks(ONE_FORK)),
    (&[Rule::ListsWait], c::FOLDER, Breaks(LISTS)),
    (&[Rule::FolderClaimsInOrder], c::FOLDERS, Nothing),
    (&[Rule::FolderSnapshotContiguous], c::FOLDERS, Nothing),
    (&[Rule::FolderContiguous, Rule::FolderClaimsInOrder], c::FOLDER, Nothing),
    (&[Rule::FolderContiguous, Rule::FolderSnapshotContiguous], c::FOLDER, Nothing),
    (&[Rule::UpperBoundBegun], c::MAPPERS, Nothing),
    (&[Rule::Refence], c::MAPPERS, Nothing),
    (&[Rule::LeaseBeforeSnapshot], c::MAPPERS, Nothing),
    (&[Rule::ReapFence, Rule::ReclaimFence, Rule::CommitDoneTo], c::MAPPERS, Nothing),
    (&[Rule::ReapFence, Rule::CommitActive], c::MAPPERS, Nothing),
    (&[Rule::UpperBoundBegun, Rule::Refence], c::MAPPERS, Nothing),
    (&[Rule::SettleByLease], c::MAPPERS, Nothing),
    (&[Rule::CommitLastId], c::MAPPERS, Nothing),
    (&[Rule::CheckpointIds], c::MAPPERS, Nothing),
    (&[Rule::CrossByFirstParent], c::MAPPERS, Nothing),
];

/// What one case does.
#[derive(Clone, Copy)]
enum Case {
    /// Stateright visits every state of the configuration.
    Check(Protocol),
    /// Every state of the configuration too, by our own search, and the end stays within reach from each.
    Reach(Protocol),
    /// A wrong variant.
    Wrong(&'static [Rule], Protocol, Expect),
    /// Each rule is in some wrong variant that is caught.
    EachRule,
}

impl Case {
    fn name(&self) -> String {
        match self {
            Case::Check(model) => format!("every state: {}", model.name),
            Case::Reach(model) if is_large(model) => {
                format!("every state, and the end within reach: {}", model.name)
            }
            Case::Reach(model) => format!("the end within reach: {}", model.name),
            Case::Wrong(rules, model, expect) => {
                let what = match expect {
                    Breaks(_) => "caught",
                    Stuck => "caught, stuck",
                    Nothing => "a second line",
                };
                format!("{what}: without {rules:?} ({})", model.name)
            }
            Case::EachRule => "each rule has a wrong variant".to_owned(),
        }
    }

    /// Runs it: what to print, or what was wrong. States are counted by configuration.
    fn run(&self, counts: &Counts) -> Result<String, String> {
        match *self {
            Case::Check(model) => {
                let checker = model.checker().spawn_bfs().join();
                if let Some((property, path)) = checker.discoveries().into_iter().next() {
                    return Err(format!("not so: {property}\n    {}", short(&path.into_actions())));
                }
                count(counts, model.name, checker.unique_state_count())
            }
            Case::Reach(model) => {
                let reach = explore(&model);
                if let Some((property, way)) = reach.broken {
                    return Err(format!("not so: {property}\n    {}", short(&way)));
                }
                if let Some(way) = reach.trap {
                    return Err(format!("no way to the end after\n    {}", short(&way)));
                }
                if reach.done == 0 && !model.silent_swap {
                    return Err("no state is the end".to_owned());
                }
                count(counts, model.name, reach.states)
            }
            Case::Wrong(rules, model, expect) => wrong(Protocol { off: Off::these(rules), ..model }, expect),
            Case::EachRule => {
                let caught = |rule: &Rule| {
                    VARIANTS
                        .iter()
                        .any(|(rules, _, expect)| rules.contains(rule) && !matches!(expect, Nothing))
                };
                match Rule::ALL.iter().find(|rule| !caught(rule)) {
                    None => Ok(format!("{} rules", Rule::ALL.len())),
                    Some(rule) => Err(format!("{rule:?} is in no variant that is caught")),
                }
            }
        }
    }
}

/// Whether everybody is in it.
fn is_large(model: &Protocol) -> bool {
    [c::WHOLE.name, c::WHOLE_TWICE.name].contains(&model.name)
}

/// States by configuration, by each of the two explorers.
type Counts = Mutex<BTreeMap<&'static str, Vec<usize>>>;

fn count(counts: &Counts, name: &'static str, states: usize) -> Result<String, String> {
    let mut counts = counts.lock().map_err(|_| "another case panicked")?;
    let both = counts.entry(name).or_default();
    both.push(states);
    if both.iter().any(|other| *other != states) {
        return Err(format!("two explorers that should visit the same states counted {both:?}"));
    }
    Ok(format!("{states} states"))
}

fn wrong(model: Protocol, expect: Expect) -> Result<String, String> {
    match expect {
        Breaks(property) => {
            let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
            let found = explore_for(&model, property).broken;
            match found {
                Some((_, way)) if !checker.discoveries().is_empty() => Ok(format!(
                    "{} steps to a state where it doesn't hold that {property}\n    {}",
                    way.len(),
                    short(&way)
                )),
                Some((_, way)) => Err(format!("stateright didn't find\n    {}", short(&way))),
                None => Err(format!("nothing breaks: {property}")),
            }
        }
        Stuck => match explore(&model).trap {
            Some(way) => {
                Ok(format!("{} steps to a state that can't reach the end\n    {}", way.len(), short(&way)))
            }
            None => Err("the end stays within reach".to_owned()),
        },
        Nothing => {
            let reach = explore(&model);
            match (reach.broken, reach.trap) {
                (None, None) => Ok(format!("nothing breaks in {} states", reach.states)),
                (Some((property, way)), _) => {
                    Err(format!("it is a first line: {property}\n    {}", short(&way)))
                }
                (_, Some(way)) => Err(format!("it is a first line: stuck after\n    {}", short(&way))),
            }
        }
    }
}

/// A way on one line: `Append ×3, Fork, Claim(0)`.
fn short(way: &[Action]) -> String {
    let groups = way.chunk_by(|one, next| one == next);
    let words = groups.map(|group| match group {
        [one] => format!("{one:?}"),
        _ => format!("{:?} ×{}", group[0], group.len()),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn cases() -> Vec<Case> {
    // Minutes each: `./dev nightly`, and whoever changes the protocol.
    let with_whole = std::env::var_os("CAIRN_MODEL_WHOLE").is_some();
    let mut cases = vec![Case::EachRule];
    for model in c::ALL {
        // Both explorers visit every state and ask it for every property. That they visit the same ones is shown on the others: the two largest
        // take longer than all of them together.
        if !is_large(&model) {
            cases.push(Case::Check(model));
        } else if !with_whole {
            continue;
        }
        cases.push(Case::Reach(model));
    }
    cases.extend(VARIANTS.iter().map(|(rules, model, expect)| Case::Wrong(rules, *model, *expect)));
    cases
}

fn main() -> ExitCode {
    let (options, filters): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let wanted =
        |case: &Case| filters.is_empty() || filters.iter().any(|filter| case.name().contains(filter));
    let cases: Vec<Case> = cases().into_iter().filter(wanted).collect();
    if options.iter().any(|option| option == "--list") {
        cases.iter().for_each(|case| println!("{}: test", case.name()));
        return ExitCode::SUCCESS;
    }
    let started = Instant::now();
    let counts = Counts::default();
    let failed = Mutex::new(Vec::new());
    let queue = Mutex::new(cases.iter().collect::<VecDeque<_>>());
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2)) {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let began = Instant::now();
                    let outcome = case.run(&counts);
                    let (word, text) = match &outcome {
                        Ok(text) => ("ok", text),
                        Err(text) => ("FAILED", text),
                    };
                    println!("{word} {} ({:.1} s): {text}", case.name(), began.elapsed().as_secs_f32());
                    if outcome.is_err()
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.push(case.name());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let counts = counts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let states: usize = counts.values().filter_map(|both| both.first()).sum();
    if filters.is_empty() {
        println!("figure model_states {states} states");
    }
    failed.iter().for_each(|name| println!("FAILED {name}"));
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {word}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        cases.len() - failed.len(),
        failed.len(),
        started.elapsed().as_secs_f32()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
