//! Scripts and accounts: what is an answer, and who else is asked where there is none.

use cairn_core::BlockRef;
use cairn_flow::FlowAddress;
use cairn_source::flow::state::Script;
use tonic::Code;

use super::*;

const SCRIPT: &str = "ExecuteScriptAtBlockID";
const ACCOUNT: &str = "GetAccountAtBlockHeight";
const NOBODY: FlowAddress = FlowAddress([9; 8]);

async fn failing(call: &'static str, code: Code) -> FlowNode {
    let failing = Some((call, code));
    behaving(linked_blocks(20..=22, &[1], 1), Behaviour { failing, ..Behaviour::default() }).await
}

async fn source_of(nodes: [&FlowNode; 2]) -> FlowSource {
    FlowSource::connect(config(&nodes.map(|node| (node, None, None)))).await.expect("connects")
}

async fn block(source: &FlowSource) -> BlockRef {
    source.linked_ref(Height(20)).await.expect("answers").expect("is there").block
}

#[tokio::test]
async fn only_a_script_that_failed_counts_as_failed() {
    let ask = async |code| {
        let node = failing(SCRIPT, code).await;
        let source = one(&node).await;
        source.execute_script(block(&source).await, "", Vec::new()).await
    };
    // A node passes on with INVALID_ARGUMENT whatever went wrong.
    let error = ask(Code::InvalidArgument).await.expect_err("no word of the script");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    for code in [Code::PermissionDenied, Code::Unauthenticated, Code::DataLoss, Code::Unavailable] {
        assert!(ask(code).await.is_err(), "{code:?}");
    }
    let node = serving(linked_blocks(20..=22, &[1], 1)).await;
    let source = one(&node).await;
    let answer = source.execute_script(block(&source).await, "", Vec::new()).await;
    assert!(
        matches!(&answer, Ok(Script::Failed(message)) if message.contains("[Error Code: 1101]")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_node_without_the_state_of_a_block_says_nothing_of_a_script() {
    let lacks = behaving(
        linked_blocks(20..=22, &[1], 1),
        Behaviour { keeps_state_heights: Some(1), ..Behaviour::default() },
    )
    .await;
    let source = one(&lacks).await;
    let at = block(&source).await;
    let error = source.execute_script(at, "", Vec::new()).await.expect_err("it can't run it");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("execution state is pruned"), "{error}");
    assert_eq!(source.account(at, NOBODY).await.expect_err("it can't tell").kind(), ErrorKind::Retry);
    // Another one may have it.
    let whole = serving(linked_blocks(20..=22, &[1], 1)).await;
    let source = source_of([&lacks, &whole]).await;
    for _ in 0..2 {
        let answer = source.execute_script(at, "", Vec::new()).await;
        assert!(matches!(answer, Ok(Script::Failed(_))), "{answer:?}");
        assert_eq!(source.account(at, NOBODY).await.expect("answers"), None);
    }
}

#[tokio::test]
async fn an_account_is_not_there_only_where_the_node_says_so_of_the_account() {
    let node = serving(linked_blocks(20..=22, &[1], 1)).await;
    let source = one(&node).await;
    let at = block(&source).await;
    assert_eq!(source.account(at, NOBODY).await.expect("answers"), None);
    // Of a block of another fork nothing is known.
    let other = BlockRef { id: cairn_core::BlockId([1; 32]), ..at };
    assert_eq!(source.account(other, NOBODY).await.expect_err("is not known").kind(), ErrorKind::Retry);
    // The node has the block, and its state not yet, or no more.
    for code in [Code::OutOfRange, Code::NotFound, Code::FailedPrecondition] {
        node.state().behaviour.failing = Some((ACCOUNT, code));
        let error = source.account(at, NOBODY).await.expect_err("is not known");
        assert_eq!(error.kind(), ErrorKind::Retry, "{code:?}: {error}");
    }
}

#[tokio::test]
async fn state_that_one_node_does_not_give_is_asked_of_another() {
    let whole = serving(linked_blocks(20..=22, &[1], 1)).await;
    // The script itself is none that the made-up node knows, which is its answer.
    for code in
        [Code::PermissionDenied, Code::Unimplemented, Code::DataLoss, Code::OutOfRange, Code::Unavailable]
    {
        for call in [SCRIPT, ACCOUNT] {
            let lacks = failing(call, code).await;
            let source = source_of([&lacks, &whole]).await;
            let at = block(&source).await;
            for _ in 0..2 {
                match call {
                    SCRIPT => {
                        let answer = source.execute_script(at, "", Vec::new()).await;
                        assert!(matches!(answer, Ok(Script::Failed(_))), "{code:?}: {answer:?}");
                    }
                    _ => assert_eq!(source.account(at, NOBODY).await.expect("answers"), None, "{code:?}"),
                }
            }
            assert!(lacks.asked(call) > 0, "{call} {code:?}");
        }
    }
    // A node that doesn't let us may do so later; one that is too old for the call never answers it.
    for (codes, kind) in [
        ([Code::Unimplemented, Code::Unimplemented], ErrorKind::GiveUp),
        ([Code::PermissionDenied, Code::DataLoss], ErrorKind::Retry),
        ([Code::PermissionDenied, Code::OutOfRange], ErrorKind::Retry),
        ([Code::OutOfRange, Code::PermissionDenied], ErrorKind::Retry),
    ] {
        let (first, second) = (failing(ACCOUNT, codes[0]).await, failing(ACCOUNT, codes[1]).await);
        let source = source_of([&first, &second]).await;
        let error = source.account(block(&source).await, NOBODY).await.expect_err("nobody answers");
        assert_eq!(error.kind(), kind, "{codes:?}: {error}");
        assert_eq!((first.asked(ACCOUNT), second.asked(ACCOUNT)), (1, 1));
    }
}

#[tokio::test]
async fn a_script_that_failed_and_a_limit_of_the_rate_end_the_question() {
    for failing in [None, Some((SCRIPT, Code::ResourceExhausted))] {
        let blocks = || linked_blocks(20..=22, &[1], 1);
        let behaviour = || Behaviour { failing, ..Behaviour::default() };
        let nodes = [behaving(blocks(), behaviour()).await, behaving(blocks(), behaviour()).await];
        let source = source_of([&nodes[0], &nodes[1]]).await;
        let answer = source.execute_script(block(&source).await, "", Vec::new()).await;
        match failing {
            None => assert!(matches!(answer, Ok(Script::Failed(_))), "{answer:?}"),
            Some(_) => assert!(matches!(answer, Err(SourceError::RateLimited { .. })), "{answer:?}"),
        }
        assert_eq!(nodes.iter().map(|node| node.asked(SCRIPT)).sum::<u64>(), 1, "{failing:?}");
    }
}
