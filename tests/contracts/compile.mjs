// Compiles the Solidity files named as arguments; prints {NAME: {abi, bytecode, methods}} of the contracts in them.
// NODE_DEPS is the folder whose node_modules holds solc, and what the files import.
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'

const solc = createRequire(`${process.env.NODE_DEPS}/`)('solc')
const sources = Object.fromEntries(
  process.argv.slice(2).map((file) => [basename(file), { content: readFileSync(file, 'utf8') }]),
)
const imported = (path) => {
  try {
    return { contents: readFileSync(`${process.env.NODE_DEPS}/node_modules/${path}`, 'utf8') }
  } catch (e) {
    return { error: e.message }
  }
}
const output = JSON.parse(
  solc.compile(
    JSON.stringify({
      language: 'Solidity',
      sources,
      settings: {
        optimizer: { enabled: true },
        outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object', 'evm.methodIdentifiers'] } },
      },
    }),
    { import: imported },
  ),
)
const errors = (output.errors ?? []).filter((e) => e.severity === 'error')
if (errors.length > 0) {
  for (const e of errors) console.error(e.formattedMessage)
  process.exit(1)
}
const contracts = {}
for (const file of Object.keys(sources))
  for (const [name, c] of Object.entries(output.contracts[file]))
    contracts[name] = { abi: c.abi, bytecode: `0x${c.evm.bytecode.object}`, methods: c.evm.methodIdentifiers }
console.log(JSON.stringify(contracts))
