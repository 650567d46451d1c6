//! Which burns of the old form tell again what the new form says.
//!
//! `FungibleToken.Burned` comes from the standard's `Burner` alone. A contract may emit `TokensBurned` beside it, before or behind, or destroy a vault by
//! itself and emit that alone. So one repeats the other where contract and amount are the same: each at most one, its neighbour first.

use std::collections::{BTreeMap, BTreeSet};

/// The burns of one transaction, in the order of its events.
#[derive(Debug, Default)]
pub(super) struct Burns {
    by_amount: BTreeMap<(String, u64), Vec<Burn>>,
}

#[derive(Debug, Clone, Copy)]
struct Burn {
    event_index: u32,
    is_new_form: bool,
}

impl Burns {
    /// Hears the next one.
    pub fn hear(&mut self, event_index: u32, contract: &str, amount: u64, is_new_form: bool) {
        let burns = self.by_amount.entry((contract.to_owned(), amount)).or_default();
        burns.push(Burn { event_index, is_new_form });
    }

    /// The events of the old form that repeat one of the new.
    pub fn repeated(&self) -> BTreeSet<u32> {
        self.by_amount.values().flat_map(|burns| repeated(burns)).collect()
    }
}

fn repeated(burns: &[Burn]) -> Vec<u32> {
    let mut is_paired = vec![false; burns.len()];
    for (at, new) in burns.iter().enumerate().filter(|(_, burn)| burn.is_new_form) {
        let neighbours = [Some(at + 1), at.checked_sub(1)].into_iter().flatten();
        let old = neighbours
            .filter(|other| burns.get(*other).is_some_and(|burn| !burn.is_new_form) && !is_paired[*other])
            .min_by_key(|other| burns[*other].event_index.abs_diff(new.event_index));
        if let Some(old) = old {
            (is_paired[at], is_paired[old]) = (true, true);
        }
    }
    let left = burns.iter().zip(&is_paired).filter(|(_, is_paired)| !**is_paired).map(|(burn, _)| burn);
    let new_left = left.clone().filter(|burn| burn.is_new_form).count();
    let repeated_left = left.filter(|burn| !burn.is_new_form).take(new_left);
    let paired = burns.iter().zip(&is_paired).filter(|(burn, is_paired)| **is_paired && !burn.is_new_form);
    paired.map(|(burn, _)| burn).chain(repeated_left).map(|burn| burn.event_index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` for one of the new form, `o` for one of the old, all of one amount, at these events.
    fn of(burns: &[(u32, char)]) -> Vec<u32> {
        let mut all = Burns::default();
        burns.iter().for_each(|(at, form)| all.hear(*at, "A.1.Coin", 5, *form == 'n'));
        all.repeated().into_iter().collect()
    }

    #[test]
    fn a_burn_of_the_old_form_repeats_its_neighbour_of_the_new() {
        assert_eq!(of(&[(1, 'n'), (2, 'o')]), [2]);
        assert_eq!(of(&[(1, 'o'), (2, 'n')]), [1]);
        // A burn of its own beside one that is told twice.
        assert_eq!(of(&[(1, 'o'), (10, 'n'), (11, 'o')]), [11]);
        assert_eq!(of(&[(10, 'o'), (11, 'n'), (20, 'o')]), [10]);
        // One in the other, and some that nothing repeats.
        assert_eq!(of(&[(1, 'n'), (2, 'n'), (3, 'o'), (4, 'o')]), [3, 4]);
        assert_eq!(of(&[(1, 'n'), (2, 'n'), (3, 'o')]), [3]);
        assert_eq!(of(&[(1, 'o'), (2, 'o')]), [0u32; 0]);
        let mut others = Burns::default();
        others.hear(1, "A.1.Coin", 5, true);
        others.hear(2, "A.1.Coin", 6, false);
        others.hear(3, "A.2.Coin", 5, false);
        assert!(others.repeated().is_empty(), "of another amount, or another contract");
    }
}
