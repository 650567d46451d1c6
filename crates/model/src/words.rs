//! Heights, block ids and chains of the model.
//!
//! A block id is one byte. Two chains of a script share a block where they show the same id at the same height, so an
//! id together with its height names a block and, with it, all blocks below. A height that a chain leaves out (as NEAR
//! does) shows [`NONE`].

/// A height. Height 0 is the genesis block, which no fork ever touches.
pub type Height = u8;

/// A block id, to be read together with a height.
pub type Id = u8;

/// No block: a skipped height, or a column that is not set.
pub const NONE: Id = 0;
/// The id that most blocks of the first fork have.
pub const A: Id = 1;
/// The id that the second fork's own blocks have.
pub const B: Id = 2;
/// The id that the third fork's own blocks have.
pub const C: Id = 3;
/// The genesis block.
pub const GENESIS: Id = 7;

/// The greatest height that any configuration uses.
pub const MAX_TOP: usize = 4;

/// The ids of one fork by height, genesis first.
pub type Chain = [Id; MAX_TOP + 1];

/// The newest block of `chain` at or below `height`: its height and id.
pub fn block_at_or_below(chain: &Chain, height: Height) -> (Height, Id) {
    let mut at = height;
    while at > 0 && chain[at as usize] == NONE {
        at -= 1;
    }
    (at, chain[at as usize])
}

/// The highest block at or below `height` that both chains have.
pub fn common_block(one: &Chain, other: &Chain, height: Height) -> (Height, Id) {
    let mut common = (0, GENESIS);
    for at in 1..=height {
        let id = one[at as usize];
        if id != other[at as usize] {
            break;
        }
        if id != NONE {
            common = (at, id);
        }
    }
    common
}

/// The id of the block under the block `(height, id)`, taken from whichever chain of the script has that block.
pub fn parent(script: &[Chain], height: Height, id: Id) -> Option<Id> {
    script
        .iter()
        .find(|chain| chain[height as usize] == id)
        .map(|chain| block_at_or_below(chain, height - 1).1)
}
