//! Checking what is stored: every block against its own hashes and roots, its link to the block before, and its index entries.
//!
//! Reads in bounded pieces, one snapshot each, so it runs beside an ingester. A reorg between two pieces looks like damage: after
//! one, what is wrong above the finalized height is checked once more, each height in one snapshot. Changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, Height, HeightRange, IndexKey, Parts, StoredBlock};
use cairn_store::runs::RunKind;
use cairn_store::{HeadRow, IndexFingerprint, RawReader, RawSnapshot, StoreError};
use futures::FutureExt;
use futures::future::BoxFuture;

/// How many bytes of blocks are read at a time.
const READ_BYTES: u64 = 32 << 20;
/// How many heights are compared with the index at a time.
const SEGMENT_HEIGHTS: u64 = 1_000_000;

/// What the chain's codec can say of a stored block.
pub trait BlockAuditor: Send + Sync {
    /// Checks a block with all its parts. Every problem is one text that names the check and the values.
    fn problems(&self, block: &StoredBlock) -> Vec<String>;

    /// The log terms of a block with its receipts; an error is a problem of its own.
    fn log_terms(&self, block: &StoredBlock) -> Result<Vec<IndexKey>, String>;
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The block's own rows.
    Block,
    /// Blocks of these heights, which are not there.
    Missing(HeightRange),
    /// Index entries of these heights.
    Index(HeightRange),
}

/// Something wrong at a height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where; the first height where there are several.
    pub height: Height,
    /// The block or its index entries.
    pub subject: Subject,
    /// What.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Missing(heights) if heights.len() > 1 => {
                write!(f, "heights {}..{}: {}", self.height, heights.end() - 1, self.problem)
            }
            _ => write!(f, "height {}: {}", self.height, self.problem),
        }
    }
}

/// What an audit found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// How many blocks were checked.
    pub blocks: u64,
    /// How many transactions they hold.
    pub transactions: u64,
    /// How many blocks carry a relaxed or impossible check.
    pub relaxed_blocks: u64,
    /// All that is wrong, by height; first of all what is wrong with the block before the range.
    pub findings: Vec<Finding>,
}

impl AuditReport {
    /// Adds what is wrong with the block at `at` where it can't be read; missing blocks beside each other are one finding.
    fn unreadable(&mut self, at: Height, error: &StoreError) {
        if *error != StoreError::hole(at) {
            let (height, problem) = (at, error.to_string());
            return self.findings.push(Finding { height, subject: Subject::Block, problem });
        }
        if let Some(Finding { subject: Subject::Missing(heights), .. }) = self.findings.last_mut()
            && heights.end() == at
        {
            *heights = HeightRange::new(heights.start(), at.next());
            return;
        }
        let problem = "no block is stored there, though the head row says so".into();
        self.findings.push(Finding { height: at, subject: Subject::Missing(HeightRange::one(at)), problem });
    }
}

/// Checks `range` as far as it is stored; `progress` is told each height that is done. At most `max_findings` are listed.
pub async fn audit(
    store: &Arc<dyn RawReader>,
    auditor: Arc<dyn BlockAuditor>,
    range: HeightRange,
    max_findings: usize,
    progress: impl FnMut(Height),
) -> Result<AuditReport, StoreError> {
    let begun = store.head().await?;
    audit_since(&begun, store, &auditor, range, max_findings, progress).await
}

/// Drops of the findings those that one snapshot does not show, until `room` are left, where there was a reorg since the head was `begun`. Below its
/// finalized height no reorg can have been.
fn confirmed<'a>(
    begun: &'a HeadRow,
    store: &'a Arc<dyn RawReader>,
    auditor: &'a Arc<dyn BlockAuditor>,
    mut findings: Vec<Finding>,
    room: usize,
) -> BoxFuture<'a, Result<Vec<Finding>, StoreError>> {
    async move {
        if findings.is_empty() || store.head().await?.newest_reorg == begun.newest_reorg {
            return Ok(findings);
        }
        let finalized = begun.finalized.map(|block| block.height);
        let is_doubtful = |finding: &mut Finding| {
            // Of several heights, one read told, in one snapshot.
            let several = matches!(finding.subject, Subject::Index(heights) if heights.len() > 1);
            Some(finding.height) > finalized && !several
        };
        let doubtful: Vec<Finding> = findings.extract_if(.., is_doubtful).collect();
        let heights: BTreeSet<Height> = doubtful.iter().map(|finding| finding.height).collect();
        let is_asked = |found: &Finding| {
            let same = |was: &Finding| {
                (was.height, discriminant(&was.subject)) == (found.height, discriminant(&found.subject))
            };
            doubtful.iter().any(same)
        };
        for height in heights {
            if findings.len() >= room {
                break;
            }
            let snapshot = store.snapshot().await?;
            let head = snapshot.head().clone();
            let pinned: Arc<dyn RawReader> = Arc::new(Pinned(snapshot));
            let range = HeightRange::one(height);
            let found = audit_since(&head, &pinned, auditor, range, usize::MAX, |_| ()).await?;
            findings.extend(found.findings.into_iter().filter(is_asked));
        }
        Ok(findings)
    }
    .boxed()
}

/// Gives the one snapshot to each who asks.
struct Pinned(Arc<dyn RawSnapshot>);

#[async_trait]
impl RawReader for Pinned {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>, StoreError> {
        Ok(self.0.clone())
    }
}

/// Checks `range` piece by piece; the head was `begun` before.
async fn audit_since(
    begun: &HeadRow,
    store: &Arc<dyn RawReader>,
    auditor: &Arc<dyn BlockAuditor>,
    range: HeightRange,
    max_findings: usize,
    mut progress: impl FnMut(Height),
) -> Result<AuditReport, StoreError> {
    let mut report = AuditReport::default();
    let stored = store.snapshot().await?.head().range();
    let range = range.intersect(stored);
    for segment in range.chunks(SEGMENT_HEIGHTS) {
        let mut expected = Vec::with_capacity(segment.len() as usize);
        let mut at = segment.start();
        let mut before = match previous_id(store, at).await {
            Ok(before) => before,
            // The link of the first block can't be checked. Within the range the block before was named already.
            Err(error @ StoreError::Corrupt { .. }) => {
                if let Some(prev) = at.prev().filter(|_| at == range.start()) {
                    report.unreadable(prev, &error);
                }
                None
            }
            Err(error) => return Err(error),
        };
        let mut unreadable = BTreeSet::new();
        let mut reach = segment.len();
        while at < segment.end() && report.findings.len() < max_findings {
            let wanted = HeightRange::new(at, Height(at.get().saturating_add(reach))).intersect(segment);
            let read = store.snapshot().await?.blocks(wanted, Parts::all(), READ_BYTES).await;
            let blocks = match read {
                Ok(read) => read.blocks,
                // One of them can't be read: reach less far, until it stands alone, so that all others are checked.
                Err(StoreError::Corrupt { .. }) if wanted.len() > 1 => {
                    reach = wanted.len() / 2;
                    continue;
                }
                Err(error @ StoreError::Corrupt { .. }) => {
                    report.unreadable(at, &error);
                    unreadable.insert(at);
                    at = at.next();
                    before = None;
                    continue;
                }
                Err(error) => return Err(error),
            };
            reach = reach.saturating_mul(2);
            // A reorg took the rest away.
            let Some(last) = blocks.last() else { break };
            at = last.facts.height.next();
            let checked = check_blocks(auditor.clone(), blocks, before).await?;
            before = checked.last_id;
            report.blocks += checked.blocks;
            report.transactions += checked.transactions;
            report.relaxed_blocks += checked.relaxed_blocks;
            let room = max_findings - report.findings.len();
            let found = confirmed(begun, store, auditor, checked.findings, room).await?;
            report.findings.extend(found);
            expected.extend(checked.fingerprints);
            if let Some(done) = at.prev() {
                progress(done);
            }
        }
        if report.findings.len() < max_findings {
            let found = compare_index(store, segment, &expected, &unreadable).await?;
            let room = max_findings - report.findings.len();
            report.findings.extend(confirmed(begun, store, auditor, found, room).await?);
        }
    }
    report.findings.truncate(max_findings);
    Ok(report)
}

async fn previous_id(store: &Arc<dyn RawReader>, at: Height) -> Result<Option<BlockId>, StoreError> {
    match at.prev() {
        Some(prev) => Ok(store.snapshot().await?.linked_ref(prev).await?.map(|linked| linked.block.id)),
        None => Ok(None),
    }
}

struct Checked {
    blocks: u64,
    transactions: u64,
    relaxed_blocks: u64,
    last_id: Option<BlockId>,
    findings: Vec<Finding>,
    fingerprints: Vec<IndexFingerprint>,
}

async fn check_blocks(
    auditor: Arc<dyn BlockAuditor>,
    blocks: Vec<StoredBlock>,
    before: Option<BlockId>,
) -> Result<Checked, StoreError> {
    tokio::task::spawn_blocking(move || {
        let mut checked = Checked {
            blocks: 0,
            transactions: 0,
            relaxed_blocks: 0,
            last_id: before,
            findings: Vec::new(),
            fingerprints: Vec::with_capacity(blocks.len()),
        };
        for block in &blocks {
            checked.check(&*auditor, block);
        }
        checked
    })
    .await
    .map_err(|error| StoreError::Database(format!("the audit of a block panicked: {error}")))
}

impl Checked {
    fn check(&mut self, auditor: &dyn BlockAuditor, block: &StoredBlock) {
        let facts = &block.facts;
        let mut problem = |text: String| {
            self.findings.push(Finding { height: facts.height, subject: Subject::Block, problem: text })
        };
        self.blocks += 1;
        self.transactions += u64::from(facts.tx_count);
        self.relaxed_blocks += u64::from(facts.unverified != 0);
        if let Some(before) = self.last_id
            && facts.parent_id != before
        {
            problem(format!("parent link: names {}, the block before is {before}", facts.parent_id));
        }
        if facts.tx_count as usize != block.transactions.len() {
            problem(format!(
                "transaction facts: {} rows, {} counted",
                block.transactions.len(),
                facts.tx_count
            ));
        }
        for text in auditor.problems(block) {
            problem(text);
        }
        match auditor.log_terms(block) {
            Ok(terms) => {
                let mut print = IndexFingerprint::empty(facts.height);
                print.add(RunKind::BlockId, facts.id.index_key(), 0);
                for (index, tx) in block.transactions.iter().enumerate() {
                    print.add(RunKind::TxId, tx.id.index_key(), index as u32);
                }
                for term in terms {
                    print.add(RunKind::LogTerm, term, 0);
                }
                self.fingerprints.push(print);
            }
            Err(text) => problem(format!("log terms: {text}")),
        }
        self.last_id = Some(facts.id);
    }
}

async fn compare_index(
    store: &Arc<dyn RawReader>,
    segment: HeightRange,
    expected: &[IndexFingerprint],
    unreadable: &BTreeSet<Height>,
) -> Result<Vec<Finding>, StoreError> {
    let actual = match store.snapshot().await?.index_fingerprints(segment).await {
        Ok(actual) => actual,
        Err(StoreError::Corrupt { place, what }) => {
            let problem = format!("{place}: {what}");
            let subject = Subject::Index(segment);
            return Ok(vec![Finding { height: segment.start(), subject, problem }]);
        }
        Err(error) => return Err(error),
    };
    let mut findings = Vec::new();
    let mut wrong = |height: Height, problem: String| {
        findings.push(Finding { height, subject: Subject::Index(HeightRange::one(height)), problem });
    };
    // What belongs to a block that can't be read isn't known.
    let mut actual = actual.into_iter().filter(|found| !unreadable.contains(&found.height)).peekable();
    for want in expected {
        while let Some(extra) = actual.next_if(|found| found.height < want.height) {
            let problem = format!("index: {} entries of a block that is not stored", extra.entries);
            wrong(extra.height, problem);
        }
        let found = actual
            .next_if(|found| found.height == want.height)
            .unwrap_or_else(|| IndexFingerprint::empty(want.height));
        if found != *want {
            let problem = format!(
                "index: {} entries stored, {} belong to the block{}",
                found.entries,
                want.entries,
                if found.entries == want.entries { "; some differ" } else { "" }
            );
            wrong(want.height, problem);
        }
    }
    for extra in actual {
        let problem = format!("index: {} entries of a block that is not stored", extra.entries);
        wrong(extra.height, problem);
    }
    Ok(findings)
}
