// Compiles the Solidity files named as arguments; prints {NAME: {abi, bytecode}}.
// NODE_DEPS is the folder whose node_modules holds solc.
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'

const solc = createRequire(`${process.env.NODE_DEPS}/`)('solc')
const sources = Object.fromEntries(
  process.argv.slice(2).map((file) => [basename(file), { content: readFileSync(file, 'utf8') }]),
)
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
  ),
)
const errors = (output.errors ?? []).filter((e) => e.severity === 'error')
if (errors.length > 0) {
  for (const e of errors) console.error(e.formattedMessage)
  process.exit(1)
}
const contracts = {}
for (const file of Object.values(output.contracts))
  for (const [name, c] of Object.entries(file))
    contracts[name] = { abi: c.abi, bytecode: `0x${c.evm.bytecode.object}`, methods: c.evm.methodIdentifiers }
console.log(JSON.stringify(contracts))
