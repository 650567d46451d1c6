//! Where tests find the public test data.

use std::path::PathBuf;

/// A file of the public Ethereum RPC test suite; `None` where the data isn't on this machine (a failure in CI).
pub(crate) fn conformance(name: &str) -> Option<Vec<u8>> {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let path = shared.join("conformance/execution-apis").join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
            panic!("{}: {error}", path.display())
        }
        Err(_) => {
            println!(
                "not run: {} is not there; it is `{name}` of the folder `tests` of github.com/ethereum/execution-apis",
                path.display()
            );
            None
        }
    }
}

/// The answer that the suite's one case `method/case` demands.
pub(crate) fn conformance_result(case: &str) -> Option<serde_json::Value> {
    let text = String::from_utf8(conformance(&format!("{case}.io"))?).expect("text");
    let answer = text.lines().find_map(|line| line.strip_prefix("<< ")).expect("an answer");
    let mut answer: serde_json::Value = serde_json::from_str(answer).expect("JSON");
    Some(answer["result"].take())
}
