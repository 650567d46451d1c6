import EVM from 0xf8d6e0586b0a20c7

/// One call for each, in one transaction; those that fail are kept as failed ones of the EVM.
transaction(to: [String], data: [String], attoflow: UInt) {
    prepare(signer: auth(BorrowValue) &Account) {
        let coa = signer.storage.borrow<auth(EVM.Call) &EVM.CadenceOwnedAccount>(from: /storage/evm)!
        for at, address in to {
            coa.call(
                to: EVM.addressFromString(address),
                data: data[at].decodeHex(),
                gasLimit: 500_000,
                value: EVM.Balance(attoflow: attoflow)
            )
        }
    }
}
