// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.24;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC721} from "@openzeppelin/contracts/token/ERC721/ERC721.sol";
import {ERC1155} from "@openzeppelin/contracts/token/ERC1155/ERC1155.sol";
import {ERC1155Supply} from "@openzeppelin/contracts/token/ERC1155/extensions/ERC1155Supply.sol";

// Tokens that keep balances as the standards say: OpenZeppelin's code, which chains of the world run. `many` does several
// movements between any parties in one transaction, without approvals. Address 0 as the giver mints, as the taker burns.

/// ERC-20, with a first supply from the constructor.
contract Grain is ERC20 {
    constructor(uint256 first) ERC20("Grain", "GRAIN") {
        _mint(msg.sender, first);
    }

    /// Triples of giver, taker, value; who has less gives what there is.
    function many(uint256[] calldata steps) external {
        for (uint256 i = 0; i + 2 < steps.length; i += 3) {
            address from = address(uint160(steps[i]));
            uint256 most = from == address(0) ? type(uint256).max - totalSupply() : balanceOf(from);
            _update(from, address(uint160(steps[i + 1])), steps[i + 2] > most ? most : steps[i + 2]);
        }
    }
}

/// ERC-721.
contract Plot is ERC721 {
    constructor() ERC721("Plot", "PLOT") {}

    /// Pairs of taker and item, which is minted where nobody has it.
    function many(uint256[] calldata steps) external {
        for (uint256 i = 0; i + 1 < steps.length; i += 2) {
            _update(address(uint160(steps[i])), steps[i + 1], address(0));
        }
    }
}

/// ERC-1155 with supplies.
contract Basket is ERC1155Supply {
    constructor() ERC1155("ipfs://basket/{id}") {}

    /// Quadruples of giver, taker, item, value, each a movement of its own; who has less gives what there is.
    function many(uint256[] calldata steps) external {
        for (uint256 i = 0; i + 3 < steps.length; i += 4) {
            move(address(uint160(steps[i])), address(uint160(steps[i + 1])), steps[i + 2:i + 4]);
        }
    }

    /// One movement of pairs of item and value; an item may be there twice, and the list may be empty.
    function move(address from, address to, uint256[] calldata pairs) public {
        uint256 count = pairs.length / 2;
        uint256[] memory ids = new uint256[](count);
        uint256[] memory values = new uint256[](count);
        for (uint256 i = 0; i < count; i++) {
            (ids[i], values[i]) = (pairs[2 * i], pairs[2 * i + 1]);
            if (from != address(0)) {
                uint256 most = balanceOf(from, ids[i]) / count;
                if (values[i] > most) values[i] = most;
            }
        }
        _update(from, to, ids, values);
    }
}
