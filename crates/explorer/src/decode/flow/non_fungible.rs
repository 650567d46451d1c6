//! Non-fungible tokens: each item's withdrawals and deposits, paired by the item.

use std::collections::BTreeMap;

use cairn_flow::FlowAddress;

use super::tokens::{NftMove, Said};

/// An item on its way.
#[derive(Debug)]
struct Away {
    uuid: Option<u64>,
    from: FlowAddress,
    event_index: u32,
}

/// All non-fungible tokens of one transaction.
#[derive(Debug, Default)]
pub(super) struct NonFungible {
    away: BTreeMap<(String, u64), Away>,
    moves: Vec<NftMove>,
}

impl NonFungible {
    /// Hears the next event.
    pub fn hear(&mut self, event_index: u32, contract: &str, said: &Said) {
        match *said {
            // From a collection that is no account's: it is on its way already, or new.
            Said::ItemWithdrawn { from: None, .. } | Said::ItemDeposited { to: None, .. } => {}
            Said::ItemWithdrawn { id, uuid, from: Some(from) } => {
                let key = (contract.to_owned(), id);
                if let Some(before) = self.away.insert(key.clone(), Away { uuid, from, event_index }) {
                    // Taken twice without a deposit that is told of: it had left the first account.
                    self.left(key, before);
                }
            }
            Said::ItemDeposited { id, uuid, to } => {
                let away = self.away.remove(&(contract.to_owned(), id));
                self.moves.push(NftMove {
                    collection: contract.to_owned(),
                    id,
                    uuid: uuid.or(away.as_ref().and_then(|away| away.uuid)),
                    from: away.map(|away| away.from),
                    to,
                    event_index,
                });
            }
            _ => {}
        }
    }

    fn left(&mut self, (collection, id): (String, u64), away: Away) {
        let Away { uuid, from, event_index } = away;
        self.moves.push(NftMove { collection, id, uuid, from: Some(from), to: None, event_index });
    }

    /// All movements, by event; what is still on its way left its account.
    pub fn end(mut self) -> Vec<NftMove> {
        for (key, away) in std::mem::take(&mut self.away) {
            self.left(key, away);
        }
        self.moves.sort_by_key(|one| one.event_index);
        self.moves
    }
}
