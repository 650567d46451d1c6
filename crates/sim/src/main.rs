//! Runs many seeds and says which failed: `cairn-sim --seeds N [--from S] [--threads T]`, or `--seed S` for one.

// A program for developers.
#![allow(clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cairn_sim::{Outcome, SimError, World, run_seed};

struct Arguments {
    first: u64,
    count: u64,
    threads: u64,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { first: 0, count: 200, threads: 2 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        let number: u64 = value.parse().map_err(|_| format!("{word} {value}: not a number"))?;
        match word.as_str() {
            "--seeds" => parsed.count = number,
            "--from" => parsed.first = number,
            "--threads" => parsed.threads = number.max(1),
            "--seed" => (parsed.first, parsed.count, parsed.threads) = (number, 1, 1),
            _ => {
                return Err(format!(
                    "unknown argument {word}; there are --seeds, --from, --threads and --seed"
                ));
            }
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    if arguments.count == 1 {
        // One seed is run to be looked at.
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .without_time()
            .with_writer(std::io::stderr)
            .init();
    }
    let began = Instant::now();
    let world = World::default();
    let next = AtomicU64::new(arguments.first);
    let end = arguments.first + arguments.count;
    let results: Mutex<Vec<Result<Outcome, SimError>>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= end {
                        return;
                    }
                    let run = std::panic::catch_unwind(|| run_seed(&world, seed));
                    let result =
                        run.unwrap_or_else(|_| Err(SimError { seed, problem: "panicked; see above".into() }));
                    if let Err(error) = &result {
                        eprintln!("FAILED {error}");
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let good: Vec<&Outcome> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    let sum = |of: fn(&Outcome) -> u64| good.iter().map(|outcome| of(outcome)).sum::<u64>();
    println!(
        "{} seeds from {}: {} commits, {} reorgs, {} processes, {} derived verbs by {} workers, {} reads, {} simulated minutes in {:.1} s",
        results.len(),
        arguments.first,
        sum(|o| o.commits),
        sum(|o| o.reorgs),
        sum(|o| o.processes),
        sum(|o| o.derived_verbs),
        sum(|o| o.workers),
        sum(|o| o.looks),
        sum(|o| o.took_ms) / 60_000,
        began.elapsed().as_secs_f64(),
    );
    let failed = results.len() - good.len();
    println!("{} passed, {failed} failed", good.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
