//! The cases of one comparison: the node is asked once, and the tables of each backend are held against what it said.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Result, ensure};
use cairn_explorer::tables::flow::accounts::UNPLACED_REVOCATIONS;
use cairn_explorer::tables::flow::evm::{EVM_ABSENCES, EVM_GAPS};
use cairn_explorer::tables::flow::evm_splits::{EVM_BLOCK_PARTS, EVM_SPLITS};
use cairn_explorer::tables::metadata::{NFT_URI_BYTES, TOKEN_ANSWER_BYTES};
use cairn_flow::Network;

use super::emulator::Emulator;
use super::traffic::Traffic;
use super::truth::raw::{self, RawTruth};
use super::truth::{self, Asked, by_id, catalog, state};
use super::{CATCH_UP, FIRST, tip};
use crate::flow_archive::Archive;
use crate::flow_truth::{self, COMPARISONS, Database, Tables};
use crate::peer::Peer;
use crate::report::Report;

/// Compares archives with an emulator.
pub struct Comparer<'e> {
    emulator: &'e Emulator,
    asked: Asked,
}

impl<'e> Comparer<'e> {
    /// With this one.
    pub fn new(emulator: &'e Emulator) -> Self {
        Comparer { emulator, asked: Asked::default() }
    }

    /// Waits for every follower and holds every table of each against the node. Whether all came as far.
    pub async fn compare(
        &mut self,
        report: &mut Report,
        when: &str,
        traffic: &Traffic,
        followers: &mut [(&Archive, Peer)],
        is_forked: bool,
    ) -> Result<bool> {
        let (tip, client) = (tip(self.emulator).await?, &self.emulator.client);
        let height = tip.0;
        let begun = Instant::now();
        self.asked.update(client, FIRST, &[height / 3, height * 2 / 3], height).await?;
        let by_id = by_id::ask(client, &traffic.wallet.sent).await?;
        println!("  the node was asked for {:.1} s", begun.elapsed().as_secs_f64());
        let mut all = true;
        for (archive, process) in followers {
            let backend = archive.backend;
            let settled = async { archive.settle(tip.clone(), process, CATCH_UP).await };
            if !report.case(format!("{backend}: everything is derived {when}"), settled).await {
                all = false;
                continue;
            }
            let Some(found) = self.tables(report, archive, when, is_forked).await? else {
                all = false;
                continue;
            };
            let of_heights = self.of_heights(&found);
            count(report, backend, when, "accounts, keys, contracts, balances, items", of_heights).await;
            let sent = by_id::compare(&by_id, &found);
            count(report, backend, when, "transactions by id", sent).await;
            let evm = truth::compare_evm(client, FIRST, height, &found).await;
            count(report, backend, when, "EVM transactions and blocks by event, nonces", evm).await;
            let asked = flow_truth::compare_answers(client, Network::Emulator, &found).await;
            count(report, backend, when, "names, supplies, pictures", asked).await;
            report.case(format!("{backend}: no error is logged {when}"), archive.no_errors()).await;
        }
        Ok(all)
    }

    /// The archive of a run in which nothing was taken back: every table there is was compared, and a row that is altered is seen in each.
    pub async fn clean(&self, report: &mut Report, archive: &Archive) -> Result<()> {
        let backend = archive.backend;
        let when = "in a clean run";
        let Some(mut found) = self.tables(report, archive, when, false).await? else { return Ok(()) };
        let (database, truth) = (archive.database().await?, self.asked.truth(FIRST, false)?);
        let altered = flow_truth::every_alteration_is_seen(&database, &truth, &mut found).await;
        let count = altered.as_ref().copied().unwrap_or(0);
        let name = format!("{backend}: a row that is altered is seen in each of {count} tables");
        report.case(name, async { altered.map(drop) }).await;
        println!("  compared: {}", listed(&found));
        let (database, truth) = (archive.raw_database().await?, self.raw_truth(false));
        let mut found = raw::read(&database).await?;
        println!("  compared: {}", listed(&found));
        let altered = raw::every_alteration_is_seen(&database, &truth, &mut found).await;
        let count = altered.as_ref().copied().unwrap_or(0);
        let name = format!("{backend}: a row that is altered is seen in each of {count} tables of blocks");
        report.case(name, async { altered.map(drop) }).await;
        Ok(())
    }

    fn raw_truth(&self, is_forked: bool) -> RawTruth<'_> {
        RawTruth { blocks: self.asked.blocks(), is_forked }
    }

    /// Every table of both databases. What the derived ones have; `None` where they can't be read.
    async fn tables(
        &self,
        report: &mut Report,
        archive: &Archive,
        when: &str,
        is_forked: bool,
    ) -> Result<Option<Tables>> {
        let backend = archive.backend;
        let read = async {
            let (app, raw) = (archive.database().await?, archive.raw_database().await?);
            let (found, blocks) = (flow_truth::read(&app).await?, raw::read(&raw).await?);
            Ok::<_, anyhow::Error>((app, raw, found, blocks))
        };
        let (app, raw, found, blocks) = match read.await {
            Ok(read) => read,
            Err(error) => {
                report.fail(format!("{backend}: tables {when}"), format!("{error:#}"));
                return Ok(None);
            }
        };
        let (truth, raw_truth) = (self.asked.truth(FIRST, is_forked)?, self.raw_truth(is_forked));
        let mut compared = Compared::default();
        let has_reason = |name: &str| catalog::APP.iter().any(|(table, _)| *table == name);
        for one in COMPARISONS.iter().filter(|one| !has_reason(one.table.name)) {
            compared.add(one.table.name, one.compare(&truth, &found), &found);
        }
        let names = "tables of the catalog";
        compared.report(report, backend, when, names, &app, catalog::APP).await?;
        let mut compared = Compared::default();
        for one in raw::comparisons(&raw) {
            compared.add(one.table.name, one.compare(&raw_truth, &blocks), &blocks);
        }
        compared.report(report, backend, when, "tables of blocks", &raw, catalog::RAW).await?;
        // It makes an EVM block in each of its own.
        let may_be_empty: BTreeSet<&str> = [
            &EVM_ABSENCES,
            &EVM_GAPS,
            &UNPLACED_REVOCATIONS,
            &EVM_SPLITS,
            &EVM_BLOCK_PARTS,
            // Every name is shown as it is said.
            &TOKEN_ANSWER_BYTES,
            &NFT_URI_BYTES,
        ]
        .map(|table| table.name)
        .into();
        let empty: Vec<&str> = found.empty().filter(|name| !may_be_empty.contains(name)).collect();
        let name = format!("{backend}: every table has rows, but for those of gaps and doubts, {when}");
        report
            .case(name, async {
                ensure!(empty.is_empty(), "these have none: {}", empty.join(", "));
                Ok(())
            })
            .await;
        Ok(Some(found))
    }

    fn of_heights(&self, found: &Tables) -> Result<usize> {
        let mut compared = 0;
        let head = self.asked.answers.len().saturating_sub(1);
        for (at, answers) in self.asked.answers.iter().enumerate() {
            compared += state::compare(answers, found, at == head)?;
            if at == head {
                compared += state::compare_holdings(answers, found)?;
            }
        }
        Ok(compared)
    }
}

/// Tables with their numbers of rows.
fn listed(tables: &Tables) -> String {
    let each: Vec<String> =
        tables.0.iter().map(|(name, rows)| format!("{name} {}", rows.rows.len())).collect();
    each.join(", ")
}

/// Tables that were compared, each with its rows.
#[derive(Default)]
struct Compared {
    rows: BTreeMap<&'static str, usize>,
    refused: Vec<String>,
}

impl Compared {
    fn add(&mut self, name: &'static str, compared: Result<usize>, found: &Tables) {
        match compared {
            Ok(_) => {
                self.rows.insert(name, found.0.get(name).map_or(0, |rows| rows.rows.len()));
            }
            Err(error) => self.refused.push(format!("{error:#}")),
        }
    }

    /// Two cases: that each is the node's, and that no table that there is was left out.
    async fn report(
        self,
        report: &mut Report,
        backend: &str,
        when: &str,
        names: &str,
        database: &Database,
        not_asked: &[catalog::NotAsked],
    ) -> Result<()> {
        let rows: usize = self.rows.values().sum();
        let name =
            format!("{backend}: {} {names} are the node's, row by row, {when}: {rows} rows", self.rows.len());
        let is_right = report
            .case(name, async {
                ensure!(self.refused.is_empty(), "{}", self.refused.join("\n  "));
                ensure!(rows > 0, "nothing was compared");
                Ok(())
            })
            .await;
        if is_right {
            let there = database.all_tables().await?;
            let known = catalog::every_table_is_known(&there, &self.rows, not_asked);
            let count = known.as_ref().copied().unwrap_or(0);
            let name =
                format!("{backend}: none of the {count} tables beside the {names} was left out {when}");
            report.case(name, async { known.map(drop) }).await;
        }
        Ok(())
    }
}

async fn count(report: &mut Report, backend: &str, when: &str, what: &str, compared: Result<usize>) {
    let compared = compared.and_then(|count| {
        ensure!(count > 0, "nothing was compared");
        Ok(count)
    });
    let count = compared.as_ref().copied().unwrap_or(0);
    let name = format!("{backend}: {what} are the node's {when}: {count} answers");
    report.case(name, async { compared.map(drop) }).await;
}
