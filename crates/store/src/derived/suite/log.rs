//! The error log: each error once, cut to size, closed by people, forgotten with its block.

use std::sync::Arc;

use cairn_core::Height;

use super::raw::{Raw, id};
use super::subject::{START_MS, Subject};
use super::{Case, CaseResult, DerivedFactory};
use crate::derived::errors::{
    ErrorFilter, ErrorLog, LoggedError, MAX_MESSAGE_BYTES, MAX_RAW_DATA_BYTES, NewError, Recorded, Severity,
};
use crate::suite::check::{holds, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("log":
        an_error_is_recorded_once,
        what_is_too_long_is_cut,
        errors_are_listed_by_number,
        errors_are_closed,
        a_closed_error_that_happens_again_is_open,
        errors_go_with_their_blocks,
        a_service_with_too_many_open_errors_gets_no_more_warnings,
        closed_errors_go_when_they_are_old,
    )
}

async fn log_of(factory: &Arc<dyn DerivedFactory>) -> CaseResult<(Subject, Arc<dyn ErrorLog>)> {
    let subject = Subject::new(factory, Raw::new()).await?;
    let log = subject.place.open_log().await?;
    Ok((subject, log))
}

fn error(height: u64, message: &str) -> NewError {
    NewError {
        service: "mapper".into(),
        height: Height(height),
        block_id: id(height, 1),
        transaction_id: String::new(),
        severity: Severity::Warn,
        message: message.into(),
        raw_data: vec![0, 1, 255],
        raw_ref: None,
    }
}

fn every() -> ErrorFilter {
    ErrorFilter { resolved: true, limit: 1_000, ..ErrorFilter::default() }
}

async fn an_error_is_recorded_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (subject, mut log) = log_of(&factory).await?;
    let one = error(3, "amount is missing");
    same("an empty log", log.list(&every()).await?, Vec::new())?;
    same("nothing", log.record(&[]).await?, 0)?;
    same("recorded", log.record(&[one.clone(), one.clone()]).await?, 1)?;
    subject.clock.advance_ms(9);
    // What differs in its payload only is the same error.
    let same_error = NewError { raw_data: vec![7], raw_ref: Some("x".into()), ..one.clone() };
    same("recorded again", log.record(&[one.clone(), same_error]).await?, 0)?;
    let others = [
        NewError { service: "folder".into(), ..one.clone() },
        NewError { height: Height(4), ..one.clone() },
        NewError { block_id: id(3, 2), ..one.clone() },
        NewError { transaction_id: "0xab".into(), ..one.clone() },
        NewError { severity: Severity::Fatal, ..one.clone() },
        NewError { message: "amount is odd".into(), raw_ref: Some("dir/x".into()), ..one.clone() },
    ];
    same("others", log.record(&others).await?, 6)?;
    drop(log);
    log = subject.place.open_log().await?;
    let listed = log.list(&every()).await?;
    let first = LoggedError {
        id: listed.first().map_or(0, |logged| logged.id),
        error_hash: one.error_hash(),
        error: one,
        resolved: false,
        created_at_ms: START_MS,
    };
    same("the first", listed.first(), Some(&first))?;
    let found: Vec<NewError> = listed[1..].iter().map(|logged| logged.error.clone()).collect();
    same("the others", found, others.to_vec())?;
    same("when they came", listed[6].created_at_ms, START_MS + 9)?;
    same("how many", log.count_unresolved().await?, 7)
}

async fn what_is_too_long_is_cut(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (_subject, log) = log_of(&factory).await?;
    let long = NewError {
        message: format!("a{}", "é".repeat(MAX_MESSAGE_BYTES)),
        raw_data: vec![9; MAX_RAW_DATA_BYTES + 1],
        ..error(1, "")
    };
    // Alike for as long as is kept, and yet another error.
    let other = NewError { message: format!("{}!", long.message), ..long.clone() };
    same("recorded", log.record(&[long.clone(), other]).await?, 2)?;
    same("recorded again", log.record(std::slice::from_ref(&long)).await?, 0)?;
    let nul = NewError { message: "a\0b".into(), ..error(2, "") };
    same("with a NUL", log.record(&[nul.clone(), nul]).await?, 1)?;
    let listed = log.list(&every()).await?;
    let kept = &listed[0].error;
    holds(
        long.message.starts_with(&kept.message)
            && (MAX_MESSAGE_BYTES - 1..=MAX_MESSAGE_BYTES).contains(&kept.message.len()),
        format!("{} bytes of the message are kept", kept.message.len()),
    )?;
    same("the payload", kept.raw_data.len(), MAX_RAW_DATA_BYTES)?;
    same("its hash is that of the whole", &listed[0].error_hash, &long.error_hash())?;
    same("a NUL", listed[2].error.message.as_str(), "a\u{fffd}b")
}

async fn errors_are_listed_by_number(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (_subject, log) = log_of(&factory).await?;
    let mut errors: Vec<NewError> = (0..10).map(|n| error(n % 3, &format!("error {n}"))).collect();
    errors[4].service = "folder".into();
    same("recorded", log.record(&errors).await?, 10)?;
    let listed = log.list(&every()).await?;
    let ids: Vec<u64> = listed.iter().map(|logged| logged.id).collect();
    holds(ids.windows(2).all(|pair| pair[0] < pair[1]), format!("the numbers don't grow: {ids:?}"))?;
    let list = async |filter: ErrorFilter| -> CaseResult<Vec<u64>> {
        Ok(log.list(&filter).await?.iter().map(|logged| logged.id).collect())
    };
    same("three", list(ErrorFilter { limit: 3, ..every() }).await?, ids[..3].to_vec())?;
    let after = ErrorFilter { after_id: ids[6], ..every() };
    same("after the seventh", list(after).await?, ids[7..].to_vec())?;
    let folder = ErrorFilter { service: Some("folder".into()), ..every() };
    same("the folder's", list(folder).await?, vec![ids[4]])?;
    let at_two = ErrorFilter { height: Some(Height(2)), ..every() };
    same("at height 2", list(at_two).await?, vec![ids[2], ids[5], ids[8]])
}

async fn errors_are_closed(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (_subject, log) = log_of(&factory).await?;
    let errors: Vec<NewError> = (0..4).map(|n| error(n, "odd")).collect();
    log.record(&errors).await?;
    let ids: Vec<u64> = log.list(&every()).await?.iter().map(|logged| logged.id).collect();
    same("closed", log.resolve(&[ids[1], ids[3], ids[1], 10_000]).await?, 2)?;
    same("closed again", log.resolve(&[ids[1]]).await?, 0)?;
    same("how many are open", log.count_unresolved().await?, 2)?;
    let open = log.list(&ErrorFilter { resolved: false, ..every() }).await?;
    same("the open ones", open.iter().map(|logged| logged.id).collect::<Vec<_>>(), vec![ids[0], ids[2]])?;
    let all: Vec<bool> = log.list(&every()).await?.iter().map(|logged| logged.resolved).collect();
    same("all", all, vec![false, true, false, true])
}

async fn a_closed_error_that_happens_again_is_open(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (subject, log) = log_of(&factory).await?;
    let errors: Vec<NewError> = (0..3).map(|n| error(n, "odd")).collect();
    log.record(&errors).await?;
    let before = log.list(&every()).await?;
    log.resolve(&[before[0].id, before[1].id]).await?;
    subject.clock.advance_ms(9);
    // Twice in one batch opens it once.
    let again = [errors[1].clone(), errors[2].clone(), errors[1].clone()];
    same("recorded again", log.record(&again).await?, 1)?;
    same("recorded once more", log.record(&again).await?, 0)?;
    same("how many are open", log.count_unresolved().await?, 2)?;
    let mut expected = before.clone();
    expected[0].resolved = true;
    same("the log", log.list(&every()).await?, expected)?;
    same("closed again", log.resolve(&[before[1].id]).await?, 1)
}

async fn errors_go_with_their_blocks(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (_subject, log) = log_of(&factory).await?;
    let mut errors: Vec<NewError> = (0..6).map(|n| error(n, "odd")).collect();
    errors.push(NewError { block_id: id(5, 2), ..error(5, "odd") });
    errors.push(NewError { service: "folder".into(), ..error(5, "odd") });
    log.record(&errors).await?;
    let ids: Vec<u64> = log.list(&every()).await?.iter().map(|logged| logged.id).collect();
    log.resolve(&[ids[4]]).await?;
    same("no blocks", log.forget_blocks(&[]).await?, 0)?;
    same("unknown blocks", log.forget_blocks(&[id(77, 1)]).await?, 0)?;
    same("forgotten", log.forget_blocks(&[id(4, 1), id(5, 1)]).await?, 3)?;
    let left: Vec<u64> = log.list(&every()).await?.iter().map(|logged| logged.id).collect();
    same("what is left", left, [&ids[..4], &ids[6..7]].concat())?;
    // The block may come back, with its error.
    same("recorded anew", log.record(&errors[4..5]).await?, 1)?;
    let newest = log.list(&every()).await?.pop().map(|logged| logged.id);
    holds(newest > Some(ids[7]), "a number is used again")
}

async fn a_service_with_too_many_open_errors_gets_no_more_warnings(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let (_subject, log) = log_of(&factory).await?;
    let recorded = |new, dropped| Recorded { new, dropped };
    let heights = |from: u64, to: u64| -> Vec<NewError> { (from..to).map(|n| error(n, "odd")).collect() };
    same("nothing", log.record_within(&[], 5).await?, recorded(0, 0))?;
    let other = NewError { service: "folder".into(), ..error(0, "odd") };
    log.record(&[other]).await?;
    same("within the limit", log.record_within(&heights(0, 3), 5).await?, recorded(3, 0))?;
    // What is open already needs no room, and the same error twice needs it once.
    let twice = [heights(1, 4), heights(3, 5)].concat();
    same("up to the limit", log.record_within(&twice, 5).await?, recorded(2, 0))?;
    same("over it", log.record_within(&heights(3, 9), 5).await?, recorded(0, 4))?;
    let fatal = NewError { severity: Severity::Fatal, ..error(9, "no rows") };
    let mixed = [heights(9, 10), vec![fatal.clone()], heights(10, 11)].concat();
    same("a fatal one over it", log.record_within(&mixed, 5).await?, recorded(1, 2))?;
    same("without a limit", log.record(&heights(9, 10)).await?, 1)?;
    let of_mapper = ErrorFilter { service: Some("mapper".into()), ..every() };
    let listed = log.list(&of_mapper).await?;
    let found: Vec<(u64, Severity)> =
        listed.iter().map(|logged| (logged.error.height.get(), logged.error.severity)).collect();
    let warned = |height| (height, Severity::Warn);
    let expected = [warned(0), warned(1), warned(2), warned(3), warned(4), (9, Severity::Fatal), warned(9)];
    same("what is there", found, expected.to_vec())?;
    // A closed one that happens again takes the place of an open one.
    let ids: Vec<u64> = listed.iter().map(|logged| logged.id).collect();
    log.resolve(&ids[..4]).await?;
    same("three are open", log.record_within(&heights(0, 4), 5).await?, recorded(2, 2))?;
    let open = log.list(&ErrorFilter { resolved: false, ..of_mapper }).await?;
    let open: Vec<u64> = open.iter().map(|logged| logged.id).collect();
    same("the open ones", open, [&ids[..2], &ids[4..]].concat())
}

async fn closed_errors_go_when_they_are_old(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (subject, log) = log_of(&factory).await?;
    let mut errors: Vec<NewError> = (0..6).map(|n| error(n, "odd")).collect();
    errors.push(NewError { severity: Severity::Fatal, ..error(6, "no rows") });
    log.record(&errors).await?;
    let ids: Vec<u64> = log.list(&every()).await?.iter().map(|logged| logged.id).collect();
    let left = async || -> CaseResult<Vec<u64>> {
        Ok(log.list(&every()).await?.iter().map(|logged| logged.id).collect())
    };
    subject.clock.advance_ms(1_000_000);
    log.resolve(&ids[..4]).await?;
    // It happens again.
    log.record(&errors[3..4]).await?;
    subject.clock.advance_ms(1_000);
    log.resolve(&ids[4..5]).await?;
    same("none is so old", log.prune_closed(2_000, 100).await?, 0)?;
    same("no age is so great", log.prune_closed(u64::MAX, 100).await?, 0)?;
    same("at most two", log.prune_closed(500, 2).await?, 2)?;
    same("the last old one", log.prune_closed(500, 2).await?, 1)?;
    same("nothing more", log.prune_closed(500, 2).await?, 0)?;
    same("open ones and young ones are left", left().await?, ids[3..].to_vec())?;
    // One that comes back is a new one.
    same("recorded", log.record(&errors[..1]).await?, 1)?;
    holds(left().await?.last() > ids.last(), "a number is used again")
}
