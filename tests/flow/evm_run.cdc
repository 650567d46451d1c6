import EVM from 0xf8d6e0586b0a20c7

/// Signed transactions of the EVM, each by itself.
transaction(signed: [String], coinbase: String) {
    prepare(signer: &Account) {
        for one in signed {
            EVM.run(tx: one.decodeHex(), coinbase: EVM.addressFromString(coinbase))
        }
    }
}
