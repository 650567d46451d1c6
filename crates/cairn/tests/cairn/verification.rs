//! The reliability document's verification queries after a run of the real binary on PostgreSQL: they say what the document promises.

use crate::support;

use crate::support::pg;

use std::collections::BTreeSet;

use support::node::MockNode;
use support::*;

/// The document's §8, word for word.
const LEASES: &str = "SELECT worker_type, status, COUNT(*) FROM app.worker_leases GROUP BY 1, 2 ORDER BY 1;";
const ERRORS: &str = "SELECT COUNT(*) FROM raw.indexing_errors;";
const CHECKPOINTS: &str = "SELECT * FROM app.indexing_checkpoints ORDER BY service_name;";
const DEAD: &str = "SELECT * FROM app.worker_leases WHERE status = 'FAILED' AND attempt >= 20;";
const GAPS: &str = "SELECT worker_type, from_height, to_height
FROM app.worker_leases
WHERE status != 'COMPLETED'
ORDER BY worker_type, from_height;";

/// The last height that is archived and derived.
const TO: i64 = 40;

#[test]
fn the_verification_queries_say_that_all_is_done_after_a_run_to_a_height() {
    let schema = include_str!("../../../../docs/reference/schema.md");
    for query in [LEASES, ERRORS, CHECKPOINTS, DEAD, GAPS] {
        assert!(schema.contains(query), "docs/reference/schema.md has another query than {query}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let Some(db) = runtime.block_on(pg::database()) else { return };
    let dir = tempfile::tempdir().expect("dir");
    // It has more than is asked for.
    let node = MockNode::start(1337, 60);
    let mut command = cairn(dir.path());
    command.env_remove("PAYLOAD_INLINE_MAX_BYTES").env("DB_RAW_URL", &db.url).env("DB_APP_URL", &db.url);
    // The small node answers no calls; ranges of ten heights, so that each worker has several.
    command.env("CAIRN_DERIVE__ASK_NODE", "false").env("CAIRN_DERIVE__RANGE_HEIGHTS", "10");
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    command.args(["--to", &TO.to_string(), "--exit-after-head"]);
    end_of(command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])).well();

    runtime.block_on(async {
        let conn = db.pool().get().await.expect("connects");
        let rows = conn.query(LEASES, &[]).await.expect("answers");
        let leases: Vec<(String, String, i64)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let workers: BTreeSet<&str> = leases.iter().map(|(worker, ..)| worker.as_str()).collect();
        for worker in ["evm_worker", "token_worker", "accounts_worker", "ft_holdings_worker", "stats_worker"]
        {
            assert!(workers.contains(worker), "{worker}: {leases:?}");
        }
        for (worker, status, ranges) in &leases {
            assert_eq!((status.as_str(), *ranges), ("COMPLETED", TO / 10 + 1), "{worker}: {leases:?}");
        }

        let errors: i64 = conn.query_one(ERRORS, &[]).await.expect("answers").get(0);
        assert_eq!(errors, 0);

        let head = conn.query_one("SELECT max(height) FROM raw.blocks", &[]).await.expect("answers");
        assert_eq!(head.get::<_, i64>(0), TO);
        let head_id = "SELECT id FROM raw.block_lookup WHERE height = (SELECT max(height) FROM raw.blocks)";
        let head_id: Vec<u8> = conn.query_one(head_id, &[]).await.expect("answers").get(0);
        let checkpoints = conn.query(CHECKPOINTS, &[]).await.expect("answers");
        let services: BTreeSet<&str> = checkpoints.iter().map(|row| row.get("service_name")).collect();
        assert_eq!(services, workers, "whoever has a checkpoint has leases");
        for row in &checkpoints {
            let (service, last_height): (&str, i64) = (row.get("service_name"), row.get("last_height"));
            let last_id: Option<Vec<u8>> = row.get("last_id");
            assert_eq!((last_height, last_id.as_ref()), (TO, Some(&head_id)), "{service}");
        }

        for (what, query) in [("dead", DEAD), ("not completed", GAPS)] {
            assert_eq!(conn.query(query, &[]).await.expect("answers").len(), 0, "{what}");
        }
    });
}
