import EVM from 0xf8d6e0586b0a20c7

transaction(signed: [String], coinbase: String) {
    prepare(signer: &Account) {
        let all: [[UInt8]] = []
        for one in signed {
            all.append(one.decodeHex())
        }
        EVM.batchRun(txs: all, coinbase: EVM.addressFromString(coinbase))
    }
}
