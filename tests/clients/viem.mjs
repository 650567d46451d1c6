// viem, unchanged, against a cairn that follows an anvil. Environment: CAIRN_HTTP, CAIRN_WS, NODE_HTTP (the anvil), COIN (an
// ERC-20's address), NODE_DEPS (the folder whose node_modules holds viem).
import { EventEmitter, once } from 'node:events'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'

const resolve = createRequire(`${process.env.NODE_DEPS}/`).resolve
const load = (name) => import(pathToFileURL(resolve(name)).href)
const { createPublicClient, createWalletClient, createTestClient, http, webSocket, parseAbi, parseEventLogs, keccak256, toHex } =
  await load('viem')
const { foundry } = await load('viem/chains')

const LIMIT_MS = 30_000
const { CAIRN_HTTP, CAIRN_WS, NODE_HTTP, COIN } = process.env
const abi = parseAbi([
  'event Transfer(address indexed from, address indexed to, uint256 value)',
  'function transfer(address to, uint256 value) returns (bool)',
])
const cairn = createPublicClient({ chain: foundry, transport: http(CAIRN_HTTP), cacheTime: 0, pollingInterval: 100 })
const batched = createPublicClient({ chain: foundry, transport: http(CAIRN_HTTP, { batch: true }), cacheTime: 0 })
const live = createPublicClient({ chain: foundry, transport: webSocket(CAIRN_WS), cacheTime: 0 })
const node = createPublicClient({ chain: foundry, transport: http(NODE_HTTP), cacheTime: 0 })
const wallet = createWalletClient({ chain: foundry, transport: http(NODE_HTTP) })
const miner = createTestClient({ chain: foundry, mode: 'anvil', transport: http(NODE_HTTP) })

let passed = 0
let failed = 0
async function test(name, run) {
  try {
    await run()
    passed += 1
    console.log(`ok viem: ${name}`)
  } catch (error) {
    failed += 1
    console.log(`FAIL viem: ${name}: ${error.stack ?? error}`)
  }
}

function within(promise, what) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${LIMIT_MS} ms`)), LIMIT_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// Really signed by anvil; mined in a block of its own.
async function transfer(value) {
  const [account, to] = await wallet.getAddresses()
  const hash = await wallet.writeContract({ account, address: COIN, abi, functionName: 'transfer', args: [to, value], gas: 100_000n })
  await miner.mine({ blocks: 1 })
  return hash
}

await test('chain id, head and blocks are the node’s', async () => {
  assert.equal(await cairn.getChainId(), foundry.id)
  assert.equal(await cairn.getBlockNumber(), await node.getBlockNumber())
  for (const blockTag of ['latest', 'safe', 'finalized', 'earliest'])
    assert.deepEqual(await cairn.getBlock({ blockTag }), await node.getBlock({ blockTag }), blockTag)
  assert.deepEqual(
    await cairn.getBlock({ blockNumber: 5n, includeTransactions: true }),
    await node.getBlock({ blockNumber: 5n, includeTransactions: true }),
  )
})

await test('transactions and receipts are the node’s', async () => {
  const { transactions } = await node.getBlock({ blockNumber: 5n })
  assert.notEqual(transactions.length, 0)
  for (const hash of transactions) {
    assert.deepEqual(await cairn.getTransaction({ hash }), await node.getTransaction({ hash }))
    assert.deepEqual(await cairn.getTransactionReceipt({ hash }), await node.getTransactionReceipt({ hash }))
  }
})

await test('requests in one batch', async () => {
  const numbers = [0n, 1n, 2n, 3n, 4n, 5n]
  const blocks = await Promise.all(numbers.map((blockNumber) => batched.getBlock({ blockNumber })))
  assert.deepEqual(blocks.map((block) => block.number), numbers)
})

await test('waits for a receipt', async () => {
  const hash = await transfer(1n)
  const receipt = await cairn.waitForTransactionReceipt({ hash, timeout: LIMIT_MS })
  assert.equal(receipt.status, 'success')
  assert.deepEqual(receipt, await node.getTransactionReceipt({ hash }))
})

await test('logs by contract event, by indexed argument, by block hash', async () => {
  const range = { fromBlock: 0n, toBlock: await cairn.getBlockNumber() }
  const events = await cairn.getContractEvents({ address: COIN, abi, eventName: 'Transfer', ...range })
  assert.notEqual(events.length, 0)
  assert.deepEqual(events, await node.getContractEvents({ address: COIN, abi, eventName: 'Transfer', ...range }))
  const { to } = events[0].args
  const some = await cairn.getContractEvents({ address: COIN, abi, eventName: 'Transfer', args: { to }, ...range })
  assert.deepEqual(some, events.filter((event) => event.args.to === to))
  const { blockHash } = events[0]
  const ofBlock = await cairn.getLogs({ address: COIN, event: abi[0], blockHash })
  assert.deepEqual(ofBlock.map((l) => l.logIndex), events.filter((e) => e.blockHash === blockHash).map((e) => e.logIndex))
  const none = await cairn.getLogs({ address: COIN, event: parseAbi(['event Nothing()'])[0], ...range })
  assert.deepEqual(none, [])
  const receipt = await cairn.getTransactionReceipt({ hash: events[0].transactionHash })
  assert.equal(parseEventLogs({ abi, logs: receipt.logs })[0].args.to, to)
})

await test('unknown things are not found, and a bad block number is an error', async () => {
  const hash = keccak256(toHex('nothing'))
  await assert.rejects(cairn.getTransaction({ hash }), { name: 'TransactionNotFoundError' })
  await assert.rejects(cairn.getTransactionReceipt({ hash }), { name: 'TransactionReceiptNotFoundError' })
  await assert.rejects(cairn.getBlock({ blockHash: hash }), { name: 'BlockNotFoundError' })
  await assert.rejects(cairn.request({ method: 'eth_getBlockByNumber', params: ['2', false] }), { code: -32602 })
})

await test('newHeads by subscription', async () => {
  const heads = []
  const arrived = new EventEmitter()
  const unwatch = live.watchBlocks({
    onBlock: (block) => {
      heads.push(block)
      arrived.emit('block')
    },
    onError: (error) => arrived.emit('error', error),
  })
  await new Promise((resolve) => setTimeout(resolve, 500))
  // One after another: viem asks for the block of each head, and answers to requests in flight come in any order.
  for (let i = 0; i < 3; i++) {
    const next = once(arrived, 'block')
    await transfer(2n)
    await within(next, 'newHeads')
  }
  unwatch()
  const last = await node.getBlockNumber()
  assert.deepEqual(heads.map((head) => head.number), [last - 2n, last - 1n, last])
  for (const head of heads) assert.equal(head.hash, (await node.getBlock({ blockNumber: head.number })).hash)
})

await test('logs by subscription, decoded', async () => {
  let unwatch
  const seen = new Promise((resolve, reject) => {
    unwatch = live.watchContractEvent({
      address: COIN, abi, eventName: 'Transfer', onLogs: (logs) => resolve(logs), onError: reject, strict: true,
    })
  })
  await new Promise((resolve) => setTimeout(resolve, 500))
  const hash = await transfer(123456789n)
  const [log] = await within(seen, 'logs')
  unwatch()
  assert.equal(log.transactionHash, hash)
  assert.equal(log.args.value, 123456789n)
  assert.equal(log.removed, false)
})

console.log(`${passed} passed, ${failed} failed`)
process.exit(failed === 0 ? 0 : 1)
