"""web3.py, unchanged, against a cairn that follows an anvil.

Environment: CAIRN_HTTP, CAIRN_WS, NODE_HTTP (the anvil), COIN (an ERC-20's address).
"""

import asyncio
import os
import sys
import time
import traceback

from web3 import AsyncWeb3, HTTPProvider, Web3, WebSocketProvider
from web3.exceptions import BlockNotFound, TransactionNotFound, Web3RPCError
from web3.utils.subscriptions import LogsSubscription, NewHeadsSubscription

LIMIT_S = 30
ABI = [
    {
        "type": "event",
        "name": "Transfer",
        "anonymous": False,
        "inputs": [
            {"name": "from", "type": "address", "indexed": True},
            {"name": "to", "type": "address", "indexed": True},
            {"name": "value", "type": "uint256", "indexed": False},
        ],
    },
    {
        "type": "function",
        "name": "transfer",
        "stateMutability": "nonpayable",
        "inputs": [{"name": "to", "type": "address"}, {"name": "value", "type": "uint256"}],
        "outputs": [{"name": "", "type": "bool"}],
    },
]

cairn = Web3(HTTPProvider(os.environ["CAIRN_HTTP"]))
node = Web3(HTTPProvider(os.environ["NODE_HTTP"]))
coin_address = Web3.to_checksum_address(os.environ["COIN"])
coin = cairn.eth.contract(address=coin_address, abi=ABI)
node_coin = node.eth.contract(address=coin_address, abi=ABI)

passed = failed = 0


def test(name, run):
    global passed, failed
    try:
        run()
    except Exception:
        failed += 1
        print(f"FAIL web3.py: {name}: {traceback.format_exc()}")
    else:
        passed += 1
        print(f"ok web3.py: {name}")


def transfer(value):
    """Really signed by anvil; mined in a block of its own."""
    sender, receiver = node.eth.accounts[:2]
    sent = node_coin.functions.transfer(receiver, value).transact({"from": sender, "gas": 100_000})
    node.provider.make_request("evm_mine", [])
    return sent


def wait_for_head():
    want = node.eth.get_block("latest")["hash"]
    until = time.monotonic() + LIMIT_S
    while cairn.eth.get_block("latest")["hash"] != want:
        assert time.monotonic() < until, "cairn does not reach the node's head"
        time.sleep(0.05)


def blocks():
    wait_for_head()
    assert cairn.is_connected()
    assert cairn.eth.chain_id == node.eth.chain_id == 31337
    assert cairn.eth.block_number == node.eth.block_number
    for block in ("latest", "safe", "finalized", "earliest", 5):
        assert cairn.eth.get_block(block) == node.eth.get_block(block), block
        assert cairn.eth.get_block(block, True) == node.eth.get_block(block, True), block
    assert cairn.eth.get_block_transaction_count(5) == len(node.eth.get_block(5)["transactions"]) > 0


def receipts():
    block = node.eth.get_block(5)
    for index, hash in enumerate(block["transactions"]):
        assert cairn.eth.get_transaction(hash) == node.eth.get_transaction(hash)
        assert cairn.eth.get_transaction_by_block(5, index) == node.eth.get_transaction(hash)
        assert cairn.eth.get_transaction_receipt(hash) == node.eth.get_transaction_receipt(hash)
    assert cairn.eth.get_block_receipts(5) == node.eth.get_block_receipts(5)


def waits_for_a_receipt():
    sent = transfer(1)
    receipt = cairn.eth.wait_for_transaction_receipt(sent, timeout=LIMIT_S)
    assert receipt == node.eth.get_transaction_receipt(sent)
    assert receipt["status"] == 1
    assert coin.events.Transfer().process_receipt(receipt)[0]["args"]["value"] == 1


def logs():
    wait_for_head()
    everything = {"fromBlock": 0, "toBlock": "latest"}
    assert cairn.eth.get_logs(everything) == node.eth.get_logs(everything) != []
    events = coin.events.Transfer.get_logs(from_block=0)
    assert events == node_coin.events.Transfer.get_logs(from_block=0) != []
    to = events[0]["args"]["to"]
    some = coin.events.Transfer.get_logs(from_block=0, argument_filters={"to": to})
    assert list(some) == [event for event in events if event["args"]["to"] == to]
    of_block = coin.events.Transfer.get_logs(block_hash=events[0]["blockHash"])
    assert list(of_block) == [event for event in events if event["blockHash"] == events[0]["blockHash"]]


def raises(error, run):
    try:
        run()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def not_there():
    unknown = "0x" + "00" * 28 + "deadbeef"
    raises(TransactionNotFound, lambda: cairn.eth.get_transaction(unknown))
    raises(TransactionNotFound, lambda: cairn.eth.get_transaction_receipt(unknown))
    raises(BlockNotFound, lambda: cairn.eth.get_block(unknown))
    raises(Web3RPCError, lambda: cairn.eth.get_logs({"blockHash": unknown}))


def subscriptions():
    """newHeads and logs over one WebSocket, through web3.py's subscription manager."""

    async def run():
        heads, seen = [], []
        async with AsyncWeb3(WebSocketProvider(os.environ["CAIRN_WS"])) as live:
            live_coin = live.eth.contract(address=coin_address, abi=ABI)
            enough = asyncio.Event()

            def check():
                if len(heads) >= 3 and len(seen) >= 3:
                    enough.set()

            async def on_head(context):
                heads.append(context.result)
                check()

            async def on_log(context):
                seen.append(live_coin.events.Transfer().process_log(context.result))
                check()

            await live.subscription_manager.subscribe(
                [
                    NewHeadsSubscription(handler=on_head),
                    LogsSubscription(address=coin_address, topics=[Web3.keccak(text="Transfer(address,address,uint256)")], handler=on_log),
                ]
            )
            handling = asyncio.create_task(live.subscription_manager.handle_subscriptions())
            sent = []
            for value in (11, 22, 33):
                sent.append(await asyncio.to_thread(transfer, value))
                await asyncio.to_thread(wait_for_head)
            await asyncio.wait_for(enough.wait(), LIMIT_S)
            handling.cancel()
        assert [event["args"]["value"] for event in seen] == [11, 22, 33], seen
        assert [event["transactionHash"] for event in seen] == sent
        last = node.eth.block_number
        assert [head["number"] for head in heads] == [last - 2, last - 1, last], heads
        for head in heads:
            assert head["hash"] == node.eth.get_block(head["number"])["hash"]

    asyncio.run(run())


test("blocks by number and tag are the node's", blocks)
test("transactions and receipts are the node's", receipts)
test("waits for a receipt", waits_for_a_receipt)
test("logs by event, by indexed argument, by block hash", logs)
test("unknown things are not found", not_there)
test("newHeads and logs by subscription", subscriptions)
print(f"{passed} passed, {failed} failed")
sys.exit(0 if failed == 0 else 1)
