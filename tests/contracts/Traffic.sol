// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.20;

// Contracts that give a test chain the kinds of logs that real chains have. Rules of the standards are kept only as far
// as their events need: nothing here checks balances or approvals.

/// ERC-20: Transfer with three topics and 32 bytes of data. It says its name, and nothing of its supply.
contract Coin {
    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);

    string public name = "Coin";
    string public symbol = "CRN";
    uint8 public constant decimals = 6;
    mapping(address => uint256) public balanceOf;

    function mint(address to, uint256 value) external {
        balanceOf[to] += value;
        emit Transfer(address(0), to, value);
    }

    function transfer(address to, uint256 value) external returns (bool) {
        unchecked { balanceOf[msg.sender] -= value; }
        unchecked { balanceOf[to] += value; }
        emit Transfer(msg.sender, to, value);
        return true;
    }

    function approve(address spender, uint256 value) external returns (bool) {
        emit Approval(msg.sender, spender, value);
        return true;
    }
}

/// ERC-721: Transfer with four topics and no data.
contract Deed {
    event Transfer(address indexed from, address indexed to, uint256 indexed tokenId);

    string public name = "Deed of Land";
    mapping(uint256 => address) public ownerOf;

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == 0x80ac58cd;
    }

    function tokenURI(uint256 tokenId) external pure returns (string memory) {
        return string(abi.encodePacked("ipfs://deed/", bytes1(uint8(65 + (tokenId % 26)))));
    }

    function transfer(address to, uint256 tokenId) external {
        emit Transfer(ownerOf[tokenId], to, tokenId);
        ownerOf[tokenId] = to;
    }
}

/// ERC-1155: single and batch transfers. It has a URI for its first items alone.
contract Pouch {
    event TransferSingle(address indexed operator, address indexed from, address indexed to, uint256 id, uint256 value);
    event TransferBatch(address indexed operator, address indexed from, address indexed to, uint256[] ids, uint256[] values);

    function uri(uint256 id) external pure returns (string memory) {
        require(id < 40);
        return "ipfs://pouch/{id}";
    }

    function transferSingle(address to, uint256 id, uint256 value) external {
        emit TransferSingle(msg.sender, msg.sender, to, id, value);
    }

    function transferBatch(address to, uint256 count) external {
        uint256[] memory ids = new uint256[](count);
        uint256[] memory values = new uint256[](count);
        for (uint256 i = 0; i < count; i++) {
            ids[i] = i;
            values[i] = i * i;
        }
        emit TransferBatch(msg.sender, msg.sender, to, ids, values);
    }
}

/// Every number of topics, anonymous events, large data, many logs, failure, creation and destruction.
contract Beacon {
    event Zero(uint256 value) anonymous;
    event One(uint256 value);
    event Two(uint256 indexed a, bytes data);
    event Three(uint256 indexed a, uint256 indexed b, bytes data);
    event Four(uint256 indexed a, uint256 indexed b, uint256 indexed c);
    event Spark(uint256 indexed i, address indexed sender);

    function shine(uint256 a, uint256 b, uint256 c, bytes calldata data) external {
        emit Zero(a);
        emit One(b);
        emit Two(a, data);
        emit Three(a, b, data);
        emit Four(a, b, c);
    }

    function sparks(uint256 count) external {
        for (uint256 i = 0; i < count; i++) emit Spark(i, msg.sender);
    }

    function big(uint256 bytesOfData) external {
        emit Two(bytesOfData, new bytes(bytesOfData));
    }

    /// Logs of a call that fails are not part of the receipt.
    function fail(uint256 a) external {
        emit One(a);
        revert("on purpose");
    }

    function create(uint256 value) external returns (address) {
        return address(new Ember(value));
    }
}

/// Made by Beacon; emits while it is created.
contract Ember {
    event Lit(address indexed by, uint256 value);

    constructor(uint256 value) {
        emit Lit(msg.sender, value);
    }

    function quench(address payable to) external {
        selfdestruct(to);
    }
}
